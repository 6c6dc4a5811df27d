"""Content frames as they come over the wire, beyond what the client library can decode.

RabbitMQ passes on properties that Python clients refuse: a timestamp in microseconds, a message
id that is not UTF-8, headers nested 3,000 deep. The library takes such a frame for a broken
connection, drops it, gets the message again, and so for ever. So the frame never reaches its
decoder: `ContentReader` sits between socket and library and turns each content header into one
that always decodes, which carries the original bytes as they came. Routing keys that are not
UTF-8 would do the same harm and are carried the same way.
"""

import asyncio
import hashlib
import struct
from collections.abc import Callable
from typing import Any

from pamqp import commands
from pamqp.header import ContentHeader

_FRAME_HEADER = struct.Struct(">BHI")  # type, channel, size of the payload
_METHOD, _HEADER, _END = 1, 2, b"\xce"
_BLOCKED, _UNBLOCKED = b"\x00\x0a\x00\x3c", b"\x00\x0a\x00\x3d"
_DELIVER, _GET_OK, _RETURN = b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x47", b"\x00\x3c\x00\x32"

# The one-entry header tables that carry the original, and the flags that announce them.
_RAW, _ROUTING_KEY = "consumer.raw", "consumer.routing-key"
_FLAG_HEADERS, _FLAG_MESSAGE_ID = 1 << 13, 1 << 7


class EncodedProperties(commands.Basic.Properties):
    """Basic properties that are encoded already.

    Args:
        encoded: What goes over the wire.
        return_id: What the client library recognises a returned message by; see `return_id`.
    """

    def __init__(self, encoded: bytes, return_id: str) -> None:
        super().__init__(message_id=return_id)
        self.encoded = encoded

    def marshal(self) -> bytes:
        return self.encoded


def raw_properties(header: ContentHeader) -> bytes:
    """The property block of a message, as the broker sent it."""
    return bytes(_carried(header).get(_RAW, b""))


def raw_routing_key(header: ContentHeader) -> bytes | None:
    """The routing key of a message where it is not UTF-8; None where it is."""
    key = _carried(header).get(_ROUTING_KEY)
    return None if key is None else bytes(key)


def return_id(properties: bytes) -> str | None:
    """What tells a message apart when the broker returns it, from its encoded properties.

    Its message id; a digest of it where it is not UTF-8. None: it has none.

    Raises:
        ValueError: The properties are cut off.
    """
    message_id = _message_id(properties)
    if not message_id:
        return None
    try:
        return message_id.decode()
    except UnicodeDecodeError:
        return hashlib.blake2b(message_id, digest_size=32).hexdigest()


class ContentReader:
    """What the client library reads frames from; the part of `asyncio.StreamReader` it uses.

    The library asks for 1 byte, 6 bytes, then payload and end mark. The first request reads the
    whole 7 bytes before a payload; where the payload has to be seen, it is read as well.

    Args:
        stream: What comes from the broker.
        on_flow: Told False when the broker blocks the connection, True when it unblocks it; the
            library keeps that to itself.
    """

    def __init__(
        self, stream: asyncio.StreamReader, on_flow: Callable[[bool], None] = lambda _: None
    ) -> None:
        self._stream, self._on_flow = stream, on_flow
        self._ahead = b""
        self._returns: set[int] = set()
        self._odd_keys: dict[int, bytes] = {}

    def at_eof(self) -> bool:
        return not self._ahead and self._stream.at_eof()

    async def read(self, size: int = -1) -> bytes:
        ahead, self._ahead = self._ahead, b""
        return ahead or await self._stream.read(size)

    async def readexactly(self, size: int) -> bytes:
        ahead = self._ahead
        if not ahead:
            if size != 1:
                return await self._stream.readexactly(size)
            ahead = await self._frame_start()
        elif len(ahead) < size:
            ahead += await self._stream.readexactly(size - len(ahead))
        self._ahead = ahead[size:]
        return ahead[:size]

    async def _frame_start(self) -> bytes:
        """The next 7 bytes, or a whole frame where it had to be looked at."""
        start = await self._stream.readexactly(_FRAME_HEADER.size)
        kind, channel, size = _FRAME_HEADER.unpack(start)
        if start[:4] == b"AMQP" or (size and kind not in (_METHOD, _HEADER)):
            return start
        # An empty payload too: its end mark alone would be asked for like the start of a frame.
        payload = await self._stream.readexactly(size + 1)
        if not payload.endswith(_END):
            return start + payload
        if kind == _HEADER:
            payload = self._carrier(channel, payload[:-1])
        elif payload[:4] in (_DELIVER, _GET_OK, _RETURN):
            payload = self._method(channel, payload[:-1])
        else:
            if payload[:4] in (_BLOCKED, _UNBLOCKED) and channel == 0:
                self._on_flow(payload[:4] == _UNBLOCKED)
            return start + payload
        return _FRAME_HEADER.pack(kind, channel, len(payload)) + payload + _END

    def _method(self, channel: int, payload: bytes) -> bytes:
        """A method that announces content, with an exchange and a routing key that decode."""
        if payload[:4] == _RETURN:
            self._returns.add(channel)
        try:
            at = _exchange_at(payload)
            if payload[at:].isascii():
                return payload
            exchange_end = at + 1 + payload[at]
            key_end = exchange_end + 1 + payload[exchange_end]
        except IndexError:
            return payload  # cut off: the library says so
        exchange, key = payload[at + 1:exchange_end], payload[exchange_end + 1:key_end]
        if not _is_utf8(key):
            self._odd_keys[channel] = key
        return b"".join((payload[:at + 1], _readable(exchange),
                         payload[exchange_end:exchange_end + 1], _readable(key),
                         payload[key_end:]))

    def _carrier(self, channel: int, payload: bytes) -> bytes:
        """A content header that decodes, from one that may not."""
        fixed, properties = payload[:12], payload[12:]
        table = _entry(_RAW, properties)
        if self._odd_keys:
            key = self._odd_keys.pop(channel, None)
            table += b"" if key is None else _entry(_ROUTING_KEY, key)
        flags, tail = _FLAG_HEADERS, b""
        if self._returns:
            message_id = self._returned(channel, properties)
            if message_id:
                flags, tail = flags | _FLAG_MESSAGE_ID, bytes((len(message_id),)) + message_id
        return fixed + struct.pack(">HI", flags, len(table)) + table + tail

    def _returned(self, channel: int, properties: bytes) -> bytes | None:
        if channel not in self._returns:
            return None
        self._returns.discard(channel)
        try:
            return (return_id(properties) or "").encode()
        except ValueError:
            return None


def _carried(header: ContentHeader) -> dict[str, Any]:
    return header.properties.headers or {}


def _entry(name: str, value: bytes) -> bytes:
    encoded = name.encode()
    return bytes((len(encoded),)) + encoded + b"x" + struct.pack(">I", len(value)) + value


def _exchange_at(payload: bytes) -> int:
    """Index of the length byte of the exchange, which the routing key follows.

    deliver: consumer tag, delivery tag, redelivered, exchange, routing key
    get-ok: delivery tag, redelivered, exchange, routing key, message count
    return: reply code, reply text, exchange, routing key
    """
    if payload[:4] == _DELIVER:
        return 4 + 1 + payload[4] + 9
    if payload[:4] == _GET_OK:
        return 4 + 9
    return 4 + 2 + 1 + payload[6]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _readable(text: bytes) -> bytes:
    """`text` if it is UTF-8, else as many bytes with a question mark for each odd one."""
    return text if _is_utf8(text) else bytes(b if b < 0x80 else 0x3F for b in text)


# Bits of the properties before the message id, in order: long table, octet or short string.
_BEFORE_MESSAGE_ID = ((15, "s"), (14, "s"), (13, "t"), (12, "o"), (11, "o"), (10, "s"), (9, "s"),
                      (8, "s"))


def _message_id(properties: bytes) -> bytes | None:
    if len(properties) < 2:
        raise ValueError("the properties are cut off")
    try:
        flags, at = int.from_bytes(properties[:2]), 2
        if not flags & _FLAG_MESSAGE_ID:
            return None
        for bit, kind in _BEFORE_MESSAGE_ID:
            if flags >> bit & 1:
                if kind == "t":
                    at += 4 + int.from_bytes(properties[at:at + 4])
                else:
                    at += 1 if kind == "o" else 1 + properties[at]
        end = at + 1 + properties[at]
    except IndexError:
        raise ValueError("the properties are cut off") from None
    if end > len(properties):
        raise ValueError("the properties are cut off")
    return properties[at + 1:end]
