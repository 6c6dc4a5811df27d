"""How a worker process ends: signals, drain within the grace, and what happens after it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from consumer.exit_codes import ExitCode
from consumer.worker.link import ChildLink
from consumer.worker.runtime import Worker

log = structlog.get_logger("consumer.worker")


class Stop:
    """When to drain, and when to do it faster."""

    def __init__(self, link: ChildLink | None) -> None:
        self.drain, self.now = asyncio.Event(), asyncio.Event()
        self._link = link

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        if self._link is not None:
            self._link.on_parent_gone(self.drain.set)

    def _signalled(self) -> None:
        if self.drain.is_set():
            self.now.set()
        self.drain.set()


async def drain(worker: Worker, sent: Callable[[], Awaitable[None]], grace: timedelta, stop: Stop
                ) -> ExitCode:
    """What has begun is finished within `grace`, or was rolled back and will be delivered again.

    Args:
        sent: Returns when committed outbox rows were published or left to the relay.
    """
    log.info("draining", grace_seconds=grace.total_seconds())

    async def finish() -> None:
        await worker.drain()
        await sent()

    finishing = asyncio.create_task(finish())
    hurry = asyncio.create_task(stop.now.wait())
    await asyncio.wait([finishing, hurry], timeout=grace.total_seconds(),
                       return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if finishing.done():
        finishing.result()
        return ExitCode.OK
    log.warning("drain_cut_short")
    finishing.cancel()
    await worker.abort()
    await asyncio.gather(finishing, hurry, return_exceptions=True)
    return ExitCode.GRACE_EXCEEDED
