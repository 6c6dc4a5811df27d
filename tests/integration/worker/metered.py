"""An app whose handler calls a meter: a server of the test that counts the calls it serves at once.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from harness import effect

from consumer import App, Command, Context, Dependency, Handler, Options, Queue

PORT, LIMIT = int(os.environ.get("METER_PORT", "0")), int(os.environ.get("METER_LIMIT", "1"))
LONG = timedelta(minutes=5)


class Measure(Command, type="meter.measure"):
    pass


class Measuring(Handler[Measure]):
    name, queue, dependencies = "meter.measure", "meter", ("meter",)
    options = Options(attempt_timeout=LONG)

    async def handle(self, command: Measure, context: Context) -> None:
        async with context.call():
            await measure(context.key)
        await effect(context)


async def measure(key: str) -> None:
    """A call, from its connection to its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    try:
        writer.write(f"{key}\n".encode())
        if await reader.readline() != b"done\n":
            raise ConnectionError("the meter is gone")
    finally:
        writer.close()


app = App(
    "meter", handlers=[Measuring], queues=[Queue("meter", concurrency=4)],
    dependencies=[Dependency("meter", timeout=LONG, max_in_flight_fleet=LIMIT, budget=None)])


@dataclass
class Meter:
    """Answers as many calls as it is told to. A call is in flight until its answer, or until its
    connection ends.
    """

    port: int = 0
    in_flight: int = 0
    most: int = 0
    calls: int = 0
    answered: int = 0
    _answers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def answer(self, number: int) -> None:
        """So many calls more get their answer."""
        for _ in range(number):
            self._answers.release()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.in_flight += 1
        self.calls += 1
        self.most = max(self.most, self.in_flight)
        try:
            await reader.readline()
            asked = asyncio.create_task(self._answers.acquire())
            gone = asyncio.create_task(reader.read())
            await asyncio.wait([asked, gone], return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            gone.cancel()
            await asyncio.gather(asked, gone, return_exceptions=True)
        finally:
            self.in_flight -= 1  # before the caller hears of it and gives its slot to another
        if not asked.cancelled():
            self.answered += 1
            writer.write(b"done\n")
        writer.close()


@asynccontextmanager
async def meter() -> AsyncIterator[Meter]:
    """A meter that answers nobody yet."""
    serving = Meter()
    server = await asyncio.start_server(serving._serve, "127.0.0.1", 0)
    serving.port = server.sockets[0].getsockname()[1]
    async with server:
        yield serving
