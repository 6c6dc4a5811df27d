"""One work queue in one process: its two subscriptions, its intake, its executors."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from consumer.app import Queue
from consumer.errors import BrokerUnavailable, TopologyError
from consumer.message import Lane
from consumer.outcome import RequeueReason
from consumer.ports import Broker, Subscription
from consumer.worker.executor import Executor
from consumer.worker.intake import Intake

log = structlog.get_logger("consumer.worker")


PROBING = (1, 1)
"""Deliveries held at once, live and replay, while a half-open breaker lets one call through."""


class QueueConsumer:
    """Consumes a queue while it should, and gives back what has not begun when it should not.

    Args:
        prefetch: Deliveries held at once, live and replay.
        executors: They run until `stop`, whether the queue is being consumed or not.
        held_back: Why no message should be taken now, for people; or None.
        probing: Whether only single messages should be taken now.
        requeued: Told of each delivery that is given back, and why.
    """

    def __init__(  # noqa: PLR0913 - what a queue needs
        self, queue: Queue, broker: Broker, intake: Intake, executors: Sequence[Executor], *,
        prefetch: tuple[int, int], held_back: Callable[[], str | None],
        probing: Callable[[], bool], requeued: Callable[[str, RequeueReason], None],
    ) -> None:
        self.queue, self.intake = queue, intake
        self.held_back = held_back
        self.resting = ""
        """Why this process does not consume it now; empty while it does."""
        self._broker, self._executors = broker, executors
        self._full, self._probing, self._requeued = prefetch, probing, requeued
        self._prefetch = prefetch
        self._subscriptions: list[Subscription] = []
        self._switching = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, on_end: Callable[[asyncio.Task[None]], None]) -> None:
        """The executors run. `on_end` hears of each that ends."""
        for number, executor in enumerate(self._executors):
            task = asyncio.create_task(executor.run(), name=f"{self.queue.name}/{number}")
            task.add_done_callback(on_end)
            self._tasks.append(task)

    @property
    def consuming(self) -> bool:
        """Whether both lanes are subscribed."""
        return bool(self._subscriptions)

    @property
    def active(self) -> bool:
        """Whether the broker delivers both lanes now."""
        return self.consuming and all(sub.active for sub in self._subscriptions)

    async def consume(self) -> None:
        """Both lanes are subscribed, with as many deliveries as suits now. Idempotent.

        Raises:
            BrokerUnavailable, TopologyError: Neither is.
        """
        async with self._switching:
            prefetch = PROBING if self._probing() else self._full
            self.resting = ""
            if self._subscriptions and prefetch == self._prefetch:
                return
            await self._cancel()
            await self._give_back(RequeueReason.PAUSE)
            self._prefetch = prefetch
            lanes = zip((Lane.LIVE, Lane.REPLAY), prefetch, strict=True)
            try:
                for lane, most in lanes:
                    self._subscriptions.append(await self._broker.subscribe(
                        self.queue.name, lane, most, self.intake.put))
            except (BrokerUnavailable, TopologyError):
                await self._cancel()
                raise
            log.info("consuming", queue=self.queue.name, probing=prefetch == PROBING)

    async def rest(self, why: RequeueReason, reason: str = "") -> None:
        """No lane is subscribed; what has not begun is back at the broker. Idempotent.

        Args:
            reason: Why, for people.
        """
        async with self._switching:
            self.resting = reason or why
            if self._subscriptions:
                await self._cancel()
                log.info("consuming_stopped", queue=self.queue.name, why=why, reason=reason)
            await self._give_back(why)

    async def _give_back(self, why: RequeueReason) -> None:
        """What has not begun is back at the broker."""
        for item in self.intake.clear():
            if await item.settlement.requeue():
                self._requeued(self.queue.name, why)

    async def _cancel(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.cancel()

    async def stop(self, why: RequeueReason = RequeueReason.DRAIN) -> None:
        """Nothing new begins; returns when what has begun is settled. Idempotent."""
        self.intake.close()
        await self.rest(why)
        busy = [task for task in self._tasks if not task.done()]
        if busy:
            await asyncio.wait(busy)

    async def abort(self) -> None:
        """What has begun is cancelled and rolled back; the broker will deliver it again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
