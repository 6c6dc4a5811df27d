"""Sockets to the broker, plain and TLS, as the client library is given them."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from yarl import URL

from consumer.broker.frames import ContentReader


class GatheringWriter:
    """What the client library writes frames to; the part of `asyncio.StreamWriter` it uses.

    Frames written in one turn of the event loop go out together: an ack or a publish does not
    cost a system call of its own.
    """

    def __init__(self, stream: asyncio.StreamWriter) -> None:
        self._stream = stream
        self._frames: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    @property
    def transport(self) -> asyncio.WriteTransport:
        return self._stream.transport

    def write(self, data: bytes) -> None:
        if not self._frames:
            self._loop.call_soon(self.flush)
        self._frames.append(data)

    def flush(self) -> None:
        """What was written is handed to the operating system, or waits for it. Idempotent."""
        if self._frames:
            data = b"".join(self._frames)
            self._frames.clear()
            self._stream.write(data)

    async def drain(self) -> None:
        self.flush()
        await self._stream.drain()

    def is_closing(self) -> bool:
        return self._stream.is_closing()

    def can_write_eof(self) -> bool:
        return self._stream.can_write_eof()

    def write_eof(self) -> None:
        self.flush()
        self._stream.write_eof()

    def close(self) -> None:
        self.flush()
        self._stream.close()

    async def wait_closed(self) -> None:
        await self._stream.wait_closed()


class ContentTransportFactory(TransportFactory):
    """Opens a connection whose content frames always decode.

    Args:
        on_flow: See `ContentReader`.
    """

    def __init__(self, on_flow: Callable[[bool], None]) -> None:
        self._on_flow = on_flow
        self._stream: asyncio.StreamWriter | None = None

    async def create(
        self, url: URL, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opener = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, self._stream = await opener.create(url, **kwargs)
        # The library types the classes it is given by default, and uses these parts of them.
        content: Any = ContentReader(reader, self._on_flow), GatheringWriter(self._stream)
        reader_and_writer: tuple[asyncio.StreamReader, asyncio.StreamWriter] = content
        return reader_and_writer

    def abort(self) -> None:
        """The socket is closed at once; what was not sent yet is dropped. Idempotent."""
        if self._stream is not None:
            self._stream.transport.abort()
