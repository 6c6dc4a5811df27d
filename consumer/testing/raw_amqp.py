"""A publisher on a bare socket: it sends what client libraries refuse to.

    with RawPublisher(url) as raw:
        raw.publish(b"", b"payments", properties, b"{}")

Property blocks are made by `consumer.wire`, or by hand.
"""

import socket
import struct
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_END = b"\xce"
_START, _TUNE, _OPEN_OK = b"\x00\x0a\x00\x0a", b"\x00\x0a\x00\x1e", b"\x00\x0a\x00\x29"
_CHANNEL_OPEN_OK, _SELECT_OK = b"\x00\x14\x00\x0b", b"\x00\x55\x00\x0b"
_ACK = b"\x00\x3c\x00\x50"


class RefusedByBroker(Exception):
    """The broker answered with something else than what a publish should get."""


class RawPublisher:
    """One connection with one confirm channel."""

    def __init__(self, url: str, *, timeout_s: float = 10.0) -> None:
        parts = urlsplit(url)
        address = parts.hostname or "localhost", parts.port or 5672
        self._socket = socket.create_connection(address, timeout=timeout_s)
        self._stream = self._socket.makefile("rb")
        self._frame_max = 131_072
        self._open(unquote(parts.username or ""), unquote(parts.password or ""),
                   unquote(parts.path[1:]) or "/")

    def publish(self, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes) -> None:
        """The broker has confirmed the message. Nothing is checked before it is sent.

        Raises:
            RefusedByBroker: It closed the channel or the connection, or sent a nack.
        """
        method = b"\x00\x3c\x00\x28\x00\x00" + _short(exchange) + _short(routing_key) + b"\x00"
        self._send(_METHOD, 1, method)
        self._send(_HEADER, 1, struct.pack(">HHQ", 60, 0, len(body)) + properties)
        step = self._frame_max - 8
        for start in range(0, len(body), step):
            self._send(_BODY, 1, body[start:start + step])
        self._expect(_ACK)

    def close(self) -> None:
        """The socket is closed, without a word to the broker."""
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self, user: str, password: str, vhost: str) -> None:
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(_START)
        response = b"\0" + user.encode() + b"\0" + password.encode()
        self._send(_METHOD, 0, b"\x00\x0a\x00\x0b" + _long(b"") + _short(b"PLAIN")
                   + _long(response) + _short(b"en_US"))
        tune = self._expect(_TUNE)
        channel_max, self._frame_max, _ = struct.unpack(">HIH", tune[4:12])
        self._send(_METHOD, 0, b"\x00\x0a\x00\x1f"
                   + struct.pack(">HIH", channel_max, self._frame_max, 0))
        self._send(_METHOD, 0, b"\x00\x0a\x00\x28" + _short(vhost.encode()) + b"\x00\x00")
        self._expect(_OPEN_OK)
        self._send(_METHOD, 1, b"\x00\x14\x00\x0a\x00")
        self._expect(_CHANNEL_OPEN_OK)
        self._send(_METHOD, 1, b"\x00\x55\x00\x0a\x00")
        self._expect(_SELECT_OK)

    def _send(self, kind: int, channel: int, payload: bytes) -> None:
        self._socket.sendall(struct.pack(">BHI", kind, channel, len(payload)) + payload + _END)

    def _expect(self, method: bytes) -> bytes:
        """The payload of the next frame, which must be `method`."""
        while True:
            start = self._stream.read(7)
            if len(start) < 7:
                raise RefusedByBroker("the broker closed the connection")
            kind, _, size = struct.unpack(">BHI", start)
            payload = self._stream.read(size + 1)[:-1]
            if kind == _HEARTBEAT:
                continue
            if payload[:4] != method:
                raise RefusedByBroker(repr(payload))
            return payload


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text
