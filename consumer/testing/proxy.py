"""A TCP proxy on loopback that can stop passing anything on, or cut its connections."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from yarl import URL


class Proxy:
    """Between a client and a broker.

    Attributes:
        url: The broker's URL, through the proxy.
    """

    def __init__(self, target: URL) -> None:
        self._target = target
        self.url = ""
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def freeze(self) -> None:
        """From now on nothing is passed on; connections stay open, as with a blocked publisher."""
        self._flows.clear()

    def thaw(self) -> None:
        """What was held back is passed on."""
        self._flows.set()

    def cut(self) -> None:
        """The connections that are open end at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes over one connection."""
        there = await asyncio.open_connection(self._target.host, self._target.port or 5672)
        self._writers |= {writer, there[1]}
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(self._pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Everything is closed."""
        self.cut()
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._flows.wait()
                sink.write(data)
                await sink.drain()
        sink.close()


@asynccontextmanager
async def proxy(target_url: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    """A proxy to the broker of that URL, as long as the block lasts; with `tls` for `amqps`."""
    target = URL(target_url)
    passing = Proxy(target)
    server = await asyncio.start_server(passing.accept, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    url = target.with_host("127.0.0.1").with_port(port)
    passing.url = str(url.with_scheme("amqps") if tls else url)
    try:
        yield passing
    finally:
        server.close()
        await passing.end()
