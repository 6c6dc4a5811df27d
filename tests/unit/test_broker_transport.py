"""Frames written in one turn of the event loop leave together, and none is left behind."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from consumer.broker.transport import GatheringWriter


class Socket:
    """Writers to a socket on loopback, and what arrives at its other end."""

    def __init__(self, stream: asyncio.StreamWriter, other_end: asyncio.StreamReader) -> None:
        self.writes: list[bytes] = []
        self.writer = GatheringWriter(stream)
        self.other_end = other_end
        plain = stream.transport.write

        def counted(data: bytes) -> None:
            self.writes.append(bytes(data))
            plain(data)

        stream.transport.write = counted  # type: ignore[assignment, method-assign]


@pytest.fixture
async def socket() -> AsyncIterator[Socket]:
    arrived = asyncio.get_running_loop().create_future()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set_result((reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    _, stream = await asyncio.open_connection(*server.sockets[0].getsockname())
    reader, writer = await arrived
    yield Socket(stream, reader)
    stream.close()
    writer.close()
    server.close()


async def test_writes_of_one_turn_are_one_write(socket: Socket) -> None:
    for frame in (b"a", b"b", b"c"):
        socket.writer.write(frame)
    assert socket.writes == []
    assert await socket.other_end.readexactly(3) == b"abc"
    socket.writer.write(b"d")
    assert await socket.other_end.readexactly(1) == b"d"
    assert socket.writes == [b"abc", b"d"]


async def test_draining_does_not_wait_for_the_turn_to_end(socket: Socket) -> None:
    socket.writer.write(b"a")
    await socket.writer.drain()
    assert socket.writes == [b"a"]


async def test_closing_sends_what_was_written(socket: Socket) -> None:
    socket.writer.write(b"goodbye")
    socket.writer.close()
    assert await socket.other_end.read() == b"goodbye"
    await socket.writer.wait_closed()
    assert socket.writer.is_closing()
