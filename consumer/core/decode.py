"""From bytes to a JSON object: what a producer sent, or why it cannot be a command.

JSON is read as RFC 8259 writes it and I-JSON (RFC 7493) narrows it: UTF-8, no duplicate names,
no lone surrogates, no NaN or Infinity. Nothing else is accepted, however the producer labels it.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from consumer.message import Message

MAX_DEPTH = 200
MAX_BODY_BYTES = 16 * 1024 * 1024
_UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Malformed:
    """The message can never be a command, whatever is deployed."""

    detail: str


class _Refused(ValueError):
    """A hook of the parser refused a value."""


def decode(message: Message) -> dict[str, Any] | Malformed:
    """The JSON object in the body of `message`, or why there is none."""
    problem = message.defect or _mislabelled(message)
    if problem:
        return Malformed(problem)
    return parse(message.body)


def _mislabelled(message: Message) -> str | None:
    """Why content type or encoding rule the message out. Absent means JSON in UTF-8."""
    properties = message.properties
    encoding = (properties.content_encoding or "").strip().lower()
    if encoding not in ("", "identity", "utf-8", "utf8"):
        return f"content encoding {encoding!r} is not supported, send plain UTF-8"
    media, _, parameters = (properties.content_type or "application/json").partition(";")
    media = media.strip().lower()
    if media != "application/json" and not (
        media.startswith("application/") and media.endswith("+json")
    ):
        return f"content type {media!r} is not JSON"
    for parameter in parameters.lower().split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8"):
            return f"charset {value.strip()!r} is not UTF-8"
    return None


def parse(body: bytes) -> dict[str, Any] | Malformed:
    """The JSON object that `body` is, or why it is none. Never raises."""
    if len(body) > MAX_BODY_BYTES:
        return Malformed(f"the body is larger than {MAX_BODY_BYTES} bytes")
    try:
        text = body.removeprefix(_UTF8_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        return Malformed(f"the body is not UTF-8 at byte {error.start}")
    if _nested_too_deep(body):
        return Malformed(f"JSON nested deeper than {MAX_DEPTH} levels")
    try:
        value = _DECODER.decode(text)
    except _Refused as refused:
        return Malformed(_duplicate(text) or str(refused))
    except (ValueError, RecursionError) as error:  # a JSONDecodeError, or an integer too long
        return Malformed(f"not JSON: {error}")
    if not isinstance(value, dict):
        return Malformed("not a JSON object")
    if "\\ud" in text.lower() and _has_surrogate(value):
        return Malformed("a string holds half of a surrogate pair")
    return value


def _nested_too_deep(body: bytes) -> bool:
    """Whether brackets nest beyond the limit; counts only where that is possible at all."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    depth, quoted, escaped = 0, False, False
    for byte in body:
        if quoted:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                quoted = False
        elif byte == 0x22:
            quoted = True
        elif byte in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif byte in b"]}":
            depth -= 1
    return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Refused("an object has a name twice (RFC 7493, 2.3)")
    return members


@dataclass(frozen=True, slots=True)
class _Doubled:
    """Stands for an object that has `name` twice."""

    name: str


def _marked(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Doubled:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return _Doubled(name)
        seen.add(name)
    return dict(pairs)


def _duplicate(text: str) -> str | None:
    """Which name occurs twice, and where, if that is what is wrong with `text`."""
    try:
        value = json.JSONDecoder(object_pairs_hook=_marked).decode(text)
    except (ValueError, RecursionError):
        return None
    for path, doubled in _find_doubled(value, "$"):
        return f"duplicate name {doubled.name[:80]!r} in {path[:200]!r} (RFC 7493, 2.3)"
    return None


def _find_doubled(value: Any, path: str) -> Iterator[tuple[str, _Doubled]]:
    if isinstance(value, _Doubled):
        yield path, value
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _find_doubled(member, f"{path}.{name[:80]}")
    elif isinstance(value, list):
        for index, element in enumerate(value):
            yield from _find_doubled(element, f"{path}[{index}]")


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _Refused(f"number {text[:40]} is too large")
    return number


def _constant(name: str) -> Any:
    raise _Refused(f"{name} is not JSON (RFC 8259, 6)")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_float, parse_constant=_constant
)


def _has_surrogate(value: Any) -> bool:
    return any(not _encodable(text) for text in _strings(value))


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from _strings(member)
    elif isinstance(value, list):
        for element in value:
            yield from _strings(element)


def _encodable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)
