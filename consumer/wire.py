"""AMQP 0-9-1 basic properties and field tables, kept byte for byte.

A message that is published again must carry the headers it came with, types included, and
client libraries lose them (an int8 comes back as a long, a double is cut to 32 bits) or refuse
to decode what brokers accept. So a table is split into names and encoded values, and a value is
decoded only when somebody asks for it.

Grammar: AMQP 0-9-1 specification, section 4.2.5.5, with the type letters RabbitMQ uses
(https://www.rabbitmq.com/amqp-0-9-1-errata, section 3).
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Self, TypeAlias

MAX_SHORT_STRING_BYTES = 255
MAX_HEADER_DEPTH = 64
_LATEST_SECONDS = 253_402_300_799  # 9999-12-31T23:59:59Z, the last second `datetime` knows

HeaderValue: TypeAlias = (
    "bool | int | float | str | bytes | Decimal | datetime"
    " | list[HeaderValue] | dict[str, HeaderValue] | None"
)


class WireError(ValueError):
    """The bytes are not AMQP properties, or a value cannot be put into them."""


_FIXED: Mapping[bytes, tuple[int, str]] = {
    b"t": (1, ">?"), b"b": (1, ">b"), b"B": (1, ">B"), b"s": (2, ">h"), b"U": (2, ">h"),
    b"u": (2, ">H"), b"I": (4, ">i"), b"i": (4, ">I"), b"l": (8, ">q"), b"L": (8, ">q"),
    b"f": (4, ">f"), b"d": (8, ">d"), b"T": (8, ">Q"), b"D": (5, ">Bi"), b"V": (0, ""),
}
_LONG = (b"S", b"x", b"A", b"F")  # four bytes of length, then that many bytes


def _value_end(data: bytes, start: int) -> int:
    """Index after the tagged value that begins at `start`."""
    tag = data[start:start + 1]
    if tag in _FIXED:
        end = start + 1 + _FIXED[tag][0]
    elif tag in _LONG:
        if start + 5 > len(data):
            raise WireError("a length is cut off")
        end = start + 5 + int.from_bytes(data[start + 1:start + 5])
    else:
        raise WireError(f"unknown field type {tag!r}")
    if end > len(data):
        raise WireError("a value is cut off")
    return end


def _split(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The (name, tagged value) pairs of a table without its length prefix."""
    at = 0
    while at < len(table):
        name_end = at + 1 + table[at]
        if name_end >= len(table):
            raise WireError("a field is cut off")
        end = _value_end(table, name_end)
        yield table[at + 1:name_end], table[name_end:end]
        at = end


def _elements(array: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(array):
        end = _value_end(array, at)
        yield array[at:end]
        at = end


def _timestamp(seconds: int) -> datetime:
    """A timestamp in seconds; one too large for that is read as milliseconds."""
    if seconds > _LATEST_SECONDS:
        seconds //= 1000
    if seconds > _LATEST_SECONDS:
        raise WireError("a timestamp is out of range")
    return datetime.fromtimestamp(seconds, UTC)


def decode_value(tagged: bytes, depth: int = 0) -> HeaderValue:
    """The Python value of a tagged field value.

    Raises:
        WireError: It is cut off, nested deeper than `MAX_HEADER_DEPTH`, not UTF-8 where it should
            be, or out of range.
    """
    if depth > MAX_HEADER_DEPTH:
        raise WireError(f"headers are nested deeper than {MAX_HEADER_DEPTH} levels")
    tag = tagged[:1]
    if tag == b"V":
        return None
    if tag == b"D":
        places, unscaled = struct.unpack(">Bi", tagged[1:6])
        return Decimal(unscaled).scaleb(-places)
    if tag in _FIXED:
        number: int | float | bool = struct.unpack(_FIXED[tag][1], tagged[1:])[0]
        return _timestamp(int(number)) if tag == b"T" else number
    content = tagged[5:]
    try:
        if tag == b"S":
            return content.decode()
        if tag == b"A":
            return [decode_value(element, depth + 1) for element in _elements(content)]
        if tag == b"F":
            return {k.decode(): decode_value(v, depth + 1) for k, v in _split(content)}
    except UnicodeDecodeError:
        raise WireError("header text is not UTF-8") from None
    return content


def _encode_number(value: int | float) -> bytes:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise WireError("a number header is not finite")  # brokers close the connection
        return b"d" + struct.pack(">d", value)
    if -(2**31) <= value < 2**31:
        return b"I" + struct.pack(">i", value)
    if -(2**63) <= value < 2**63:
        return b"l" + struct.pack(">q", value)
    raise WireError("an integer header does not fit 64 bits")


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise WireError("a decimal header is not finite")
    unscaled = int("".join(map(str, digits))) * 10 ** max(0, exponent)
    if unscaled >= 2**31 or -exponent > 255:
        raise WireError("a decimal header does not fit 32 bits")
    return b"D" + struct.pack(">Bi", max(0, -exponent), -unscaled if sign else unscaled)


def _long(tag: bytes, content: bytes) -> bytes:
    return tag + struct.pack(">I", len(content)) + content


def encode_value(value: HeaderValue) -> bytes:
    """The tagged field value of a Python value; floats become 64-bit doubles.

    Raises:
        WireError: A number is out of range.
    """
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int | float):
        return _encode_number(value)
    if isinstance(value, str):
        return _long(b"S", value.encode("utf-8", "replace"))
    if isinstance(value, bytes):
        return _long(b"x", value)
    if isinstance(value, Decimal):
        return _encode_decimal(value)
    if isinstance(value, datetime):
        return b"T" + struct.pack(">Q", int(value.timestamp()))
    if isinstance(value, list):
        return _long(b"A", b"".join(map(encode_value, value)))
    return _long(b"F", Headers.of(value).table)


@dataclass(frozen=True, slots=True)
class Headers:
    """An ordered header table. `table` is its encoding without the length prefix."""

    table: bytes = b""

    @classmethod
    def of(cls, values: Mapping[str, HeaderValue]) -> Self:
        """Headers that encode `values`, in their order.

        Raises:
            WireError: A name is longer than 255 bytes, or a number is out of range.
        """
        parts = []
        for name, value in values.items():
            encoded = name.encode("utf-8", "surrogateescape")
            if len(encoded) > MAX_SHORT_STRING_BYTES:
                raise WireError("a header name is longer than 255 bytes")
            parts.append(bytes((len(encoded),)) + encoded + encode_value(value))
        return cls(b"".join(parts))

    def get(self, name: str) -> HeaderValue:
        """The decoded value of the last field of that name, or None.

        Raises:
            WireError: The table or that value is malformed.
        """
        wanted, found = name.encode(), None
        if wanted not in self.table:
            return None
        for key, tagged in _split(self.table):
            if key == wanted:
                found = tagged
        return None if found is None else decode_value(found)

    def decoded(self) -> dict[str, HeaderValue]:
        """All fields, decoded.

        Raises:
            WireError: One of them is malformed.
        """
        value = decode_value(_long(b"F", self.table))
        assert isinstance(value, dict)
        return value

    def keep(self, wanted: Callable[[str], bool]) -> "Headers":
        """Only the fields whose name is `wanted`, byte for byte.

        Raises:
            WireError: The table is malformed.
        """
        return Headers(b"".join(
            bytes((len(name),)) + name + tagged for name, tagged in _split(self.table)
            if wanted(name.decode("utf-8", "surrogateescape"))
        ))

    def plus(self, values: Mapping[str, HeaderValue]) -> "Headers":
        """These fields, then `values`."""
        return Headers(self.table + Headers.of(values).table)

    def __len__(self) -> int:
        return len(self.table)


# (field, flag bit, kind) in the order of the specification
_LAYOUT = (
    ("content_type", 15, "text"), ("content_encoding", 14, "text"), ("headers", 13, "table"),
    ("delivery_mode", 12, "octet"), ("priority", 11, "octet"), ("correlation_id", 10, "text"),
    ("reply_to", 9, "text"), ("expiration", 8, "text"), ("message_id", 7, "text"),
    ("timestamp", 6, "seconds"), ("type", 5, "text"), ("user_id", 4, "text"),
    ("app_id", 3, "text"), ("cluster_id", 2, "text"),
)
_TEXTS = tuple(name for name, _, kind in _LAYOUT if kind == "text")


@dataclass(frozen=True, slots=True)
class Properties:
    """Basic properties. Text that is not UTF-8 is kept by surrogate escapes, so it round-trips."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Headers = field(default_factory=Headers)
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    """Unsigned 64 bits, seconds since the epoch by the specification."""
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None

    @classmethod
    def from_wire(cls, data: bytes) -> Self:
        """The properties that `data` encodes: flags, then the values present.

        Raises:
            WireError: It is cut off, or the header table is malformed.
        """
        try:
            return cls(**_read_properties(data))
        except (struct.error, IndexError):
            raise WireError("the properties are cut off") from None

    def to_wire(self) -> bytes:
        """The encoding that `from_wire` reads.

        Raises:
            WireError: A text is longer than 255 bytes, or a number does not fit.
        """
        flags, parts = 0, []
        for name, bit, kind in _LAYOUT:
            value = getattr(self, name)
            if value is None or (kind == "table" and not value.table):
                continue
            flags |= 1 << bit
            parts.append(_encode_property(name, kind, value))
        return struct.pack(">H", flags) + b"".join(parts)

    def defect(self) -> str | None:
        """Why strict clients could not decode these properties, or None if all could."""
        for name in _TEXTS:
            text = getattr(self, name)
            if text is not None and not _is_utf8(text):
                return f"{name} is not UTF-8"
        try:
            if self.timestamp is not None:
                _timestamp(self.timestamp)
            if self.headers.table:
                self.headers.decoded()
        except WireError as error:
            return str(error)
        return None

    def with_headers(self, headers: Headers) -> "Properties":
        return replace(self, headers=headers)


def _is_utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _read_properties(data: bytes) -> dict[str, Any]:
    (flags,) = struct.unpack_from(">H", data)
    at, found = 2, dict[str, Any]()
    for name, bit, kind in _LAYOUT:
        if not flags >> bit & 1:
            continue
        if kind == "text":
            end = at + 1 + data[at]
            value: object = data[at + 1:end].decode("utf-8", "surrogateescape")
        elif kind == "table":
            end = at + 4 + int.from_bytes(data[at:at + 4])
            value = Headers(data[at + 4:end])
            for _ in _split(data[at + 4:end]):
                pass
        elif kind == "octet":
            end, value = at + 1, data[at]
        else:
            end, value = at + 8, int.from_bytes(data[at:at + 8])
        if end > len(data):
            raise WireError("the properties are cut off")
        found[name], at = value, end
    return found


def _encode_property(name: str, kind: str, value: object) -> bytes:
    if kind == "table":
        assert isinstance(value, Headers)
        return struct.pack(">I", len(value.table)) + value.table
    if kind == "text":
        text = str(value).encode("utf-8", "surrogateescape")
        if len(text) > MAX_SHORT_STRING_BYTES:
            raise WireError(f"{name} is longer than 255 bytes")
        return bytes((len(text),)) + text
    assert isinstance(value, int)
    if not 0 <= value < (256 if kind == "octet" else 2**64):
        raise WireError(f"{name} is out of range")
    return struct.pack(">B" if kind == "octet" else ">Q", value)
