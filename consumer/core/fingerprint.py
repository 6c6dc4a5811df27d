"""Whether two payloads mean the same: a hash over canonical JSON (RFC 8785).

One extension: RFC 8785 refuses integers beyond 2**53 because other parsers round them. Python
reads them exactly, so they are written with all their digits and stay different from each other.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import rfc8785

from consumer.claim import Fingerprint

_ALGORITHM = "jcs-sha256-1"
_dump = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode


def canonical(value: Any) -> bytes:
    """Canonical JSON of a decoded JSON value.

    Raises:
        ValueError: It holds NaN, Infinity or a lone surrogate.
    """
    if _is_plain(value):
        return _dump(value).encode()
    return b"".join(_emit(value))


def _is_plain(value: Any) -> bool:
    """Whether the standard encoder already writes `value` canonically.

    It does but for floats, and for names beyond the Basic Multilingual Plane, which it sorts by
    code point and the RFC by UTF-16 unit.
    """
    kind = type(value)
    if kind is dict:
        return all((n.isascii() or max(n) < "\ud800") and _is_plain(v) for n, v in value.items())
    if kind is list:
        return all(map(_is_plain, value))
    return kind is not float


def _emit(value: Any) -> Iterable[bytes]:
    if isinstance(value, dict):
        yield b"{"
        separator = b""
        for name in sorted(value, key=lambda text: text.encode("utf-16-be")):
            yield separator + _dump(name).encode() + b":"
            yield from _emit(value[name])
            separator = b","
        yield b"}"
    elif isinstance(value, list):
        yield b"["
        for index, element in enumerate(value):
            yield b"," if index else b""
            yield from _emit(element)
        yield b"]"
    elif isinstance(value, float):
        yield rfc8785.dumps(value)
    else:
        yield _dump(value).encode()


def algorithm(exclude: Iterable[str] = ()) -> str:
    """Name of the algorithm that leaves out the top-level members `exclude`.

    It is stored with each hash, so changing what is excluded does not turn old duplicates into
    conflicts.
    """
    names = sorted(exclude)
    return f"{_ALGORITHM};{json.dumps(names, separators=(',', ':'))}" if names else _ALGORITHM


def fingerprint(payload: Mapping[str, Any], using: str = _ALGORITHM) -> Fingerprint:
    """The fingerprint of a payload by the algorithm of that name.

    Raises:
        ValueError: The algorithm is not known here.
    """
    base, _, excluded = using.partition(";")
    if base != _ALGORITHM:
        raise ValueError(f"unknown fingerprint algorithm {base!r}")
    members: Any = payload
    if excluded:
        leave_out = set(json.loads(excluded))
        members = {name: value for name, value in payload.items() if name not in leave_out}
    return Fingerprint(using, sha256(canonical(members)).digest())


def matches(stored: Fingerprint, payload: Mapping[str, Any], fresh: Fingerprint) -> bool:
    """Whether `stored` is of a payload that means the same.

    Args:
        fresh: The payload's fingerprint by the algorithm in force now.

    Raises:
        ValueError: `stored` was made by an algorithm this version does not know.
    """
    if stored.algorithm != fresh.algorithm:
        fresh = fingerprint(payload, stored.algorithm)
    return stored.digest == fresh.digest
