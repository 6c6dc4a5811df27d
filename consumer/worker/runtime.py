"""A worker process: which queues it consumes now, and how it ends.

A queue is consumed while all of these hold: the database answers, nobody paused the queue, the
dependencies of its handlers can take calls, and the process is not draining. One task, `_control`,
brings what is into line with what should be, on every change and once a second.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import structlog

from consumer.errors import BrokerUnavailable, StoreUnavailable, TopologyError
from consumer.outcome import RequeueReason
from consumer.worker.brakes import Brakes
from consumer.worker.describe import describe
from consumer.worker.health import Health
from consumer.worker.queues import QueueConsumer

log = structlog.get_logger("consumer.worker")


class Membership(Protocol):
    """This process among the workers of the fleet. Its methods raise StoreUnavailable, so that
    they also probe the database.
    """

    async def beat(self, queues: Sequence[QueueConsumer]) -> frozenset[str]:
        """The process is alive and does what `queues` say; returns the names of paused queues."""

    async def pause(self, queue: str, why: str) -> None:
        """The queue is paused in the whole fleet. Idempotent."""


_FAULT_PAUSE_SECONDS = 1.0
_FAULT_PAUSE_LONGEST_SECONDS = 15.0
_CONTROL_SECONDS = 1.0


class Worker:
    """Runs the queues of one process.

    Args:
        every: Between heartbeats.
        health: Told whether the process is ready, and that the event loop turns.
        beat: Tells a supervisor that the event loop turns.
        brakes: Which queues are to be paused.
        changed: Set by whoever changes something that decides which queues are consumed.
    """

    def __init__(
        self, membership: Membership, every: timedelta, health: Health, beat: Callable[[], None],
        brakes: Brakes, changed: asyncio.Event,
    ) -> None:
        self._membership, self._every = membership, every.total_seconds()
        self._brakes = brakes
        self._queues: list[QueueConsumer] = []
        self._health, self._beat = health, beat
        self._paused: frozenset[str] = frozenset()
        self._database_ok, self._draining = True, False
        self._changed, self._suspect = changed, asyncio.Event()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, queue: QueueConsumer) -> None:
        """`run` will consume it."""
        self._queues.append(queue)

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set; then nothing is subscribed and nothing has begun to wait.

        Raises:
            Exception: An executor ended by itself, which is a defect.
        """
        for queue in self._queues:
            queue.start(self._on_executor_end)
        loops = [asyncio.create_task(loop) for loop in (self._beats(), self._control())]
        waiting: list[asyncio.Future[Any]] = [asyncio.create_task(stop.wait()), *loops]
        try:
            await asyncio.wait([self._failed, *waiting], return_when=asyncio.FIRST_COMPLETED)
            for ended in (self._failed, *loops):
                if ended.done():
                    ended.result()
        finally:
            self._draining = True
            self._health.set_ready("drain", "draining")
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def drain(self) -> None:
        """What has begun is finished and settled; the rest is back at the broker."""
        await asyncio.gather(*(queue.stop() for queue in self._queues))

    async def abort(self) -> None:
        """What has begun is rolled back; the broker will deliver it again."""
        await asyncio.gather(*(queue.abort() for queue in self._queues))

    async def on_fault(self) -> None:
        """An executor met an infrastructure fault: consuming has stopped when this returns."""
        if self._database_ok:
            log.warning("database_suspected")
        self._database_ok = False
        self._suspect.set()
        self._health.set_ready("database", "it does not answer")
        await asyncio.gather(*(queue.rest(RequeueReason.INFRASTRUCTURE) for queue in self._queues))

    def _on_executor_end(self, task: asyncio.Task[None]) -> None:
        if self._draining or task.cancelled() or self._failed.done():
            return
        error = task.exception() or RuntimeError(f"executor {task.get_name()} ended")
        self._failed.set_exception(error)

    async def _beats(self) -> None:
        """Heartbeats, which also find out when the database is back."""
        pause = _FAULT_PAUSE_SECONDS
        while True:
            try:
                await self._heartbeat()
            except StoreUnavailable as error:
                log.warning("database_unavailable", error=describe(error))
                self._database_ok = False
                self._health.set_ready("database", "it does not answer")
                self._changed.set()
                await asyncio.sleep(pause)
                pause = min(pause * 2, _FAULT_PAUSE_LONGEST_SECONDS)
                continue
            if not self._database_ok:
                log.info("database_back")
            self._database_ok, pause = True, _FAULT_PAUSE_SECONDS
            self._health.set_ready("database", None)
            self._changed.set()
            await self._next_beat()

    async def _next_beat(self) -> None:
        """Wait for the next heartbeat; a suspected database is probed after a short pause."""
        try:
            async with asyncio.timeout(self._every):
                await self._suspect.wait()
        except TimeoutError:
            return
        self._suspect.clear()
        await asyncio.sleep(_FAULT_PAUSE_SECONDS)

    async def _heartbeat(self) -> None:
        for queue, why in list(self._brakes.pulled.items()):
            await self._membership.pause(queue, why)
        paused = await self._membership.beat(self._queues)
        for queue in self._paused - paused:
            self._brakes.resumed(queue)
        for queue in paused:
            self._brakes.paused(queue)
        self._paused = paused

    async def _control(self) -> None:
        while True:
            self._beat()
            self._health.beat()
            for queue in self._queues:
                await self._align(queue)
            self._report()
            self._changed.clear()
            try:
                async with asyncio.timeout(_CONTROL_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _align(self, queue: QueueConsumer) -> None:
        name = queue.queue.name
        if not self._database_ok:
            await queue.rest(RequeueReason.INFRASTRUCTURE, "the database does not answer")
        elif name in self._paused or name in self._brakes.pulled:
            await queue.rest(RequeueReason.PAUSE, self._brakes.pulled.get(name, "paused"))
        elif (why := queue.held_back()) is not None:
            await queue.rest(RequeueReason.PAUSE, why)
        else:
            try:
                await queue.consume()
            except (BrokerUnavailable, TopologyError) as error:
                log.warning("cannot_consume", queue=queue.queue.name, error=describe(error))

    def _report(self) -> None:
        """The watchdog: not consuming while we should is not ready."""
        idle = [queue.queue.name for queue in self._queues
                if not queue.active and queue.queue.name not in self._paused
                and queue.queue.name not in self._brakes.pulled and queue.held_back() is None]
        self._health.set_ready(
            "consumers", f"not consuming {', '.join(idle)}" if idle else None)
