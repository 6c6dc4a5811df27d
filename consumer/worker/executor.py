"""Runs what an intake holds: takes a group, processes it, settles it, takes the next."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from consumer.outcome import (
    Ack,
    AckReason,
    DeadLetter,
    Outcome,
    ParkReason,
    Requeue,
    RequeueReason,
)
from consumer.worker.describe import describe
from consumer.worker.intake import Intake, Item
from consumer.worker.observer import Observer
from consumer.worker.process import Processor
from consumer.worker.requests import Request, RequestReader
from consumer.worker.settle import Settler

log = structlog.get_logger("consumer.worker")

_QUIET = (AckReason.DONE, AckReason.DUPLICATE, AckReason.SUPERSEDED, AckReason.DEAD)


class Executor:
    """One loop of a queue.

    Args:
        on_fault: Awaited before deliveries go back for an infrastructure fault, so that they are
            not delivered again at once.
    """

    def __init__(
        self, intake: Intake, reader: RequestReader, processor: Processor, settler: Settler,
        observer: Observer, on_fault: Callable[[], Awaitable[None]],
    ) -> None:
        self._intake, self._reader = intake, reader
        self._processor, self._settler, self._on_fault = processor, settler, on_fault
        self._observer = observer
        self._log = log.bind()  # binding is dear, and a success must not pay for it

    async def run(self) -> None:
        """Work until the intake is closed, or cancelled. Cancelling rolls back what is open."""
        while batch := await self._intake.take(self._processor.group_size.limit):
            self._observer.taken(batch)
            try:
                await self._settle(batch, await self._outcomes(batch))
            finally:
                self._intake.done(batch)

    async def _outcomes(self, batch: list[Item]) -> list[Outcome]:
        requests = [item.read for item in batch if isinstance(item.read, Request)]
        if not requests:
            return [item.read for item in batch if item.read is not None
                    and not isinstance(item.read, Request)]
        try:
            return await self._processor.process(requests)
        except Exception as error:
            log.error("defect", error=describe(error), exc_info=True)
            return [self._reader.park(request, ParkReason.DEFECT) for request in requests]

    async def _settle(self, batch: list[Item], outcomes: list[Outcome]) -> None:
        if any(isinstance(o, Requeue) and o.why is RequeueReason.INFRASTRUCTURE for o in outcomes):
            await self._on_fault()
        slow = []
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Ack):
                await self._settle_one(item, outcome)
            else:
                slow.append((item, outcome))
        if slow:  # these wait for confirms of the broker, so they wait together
            await asyncio.gather(*(self._settle_one(item, outcome) for item, outcome in slow))

    async def _settle_one(self, item: Item, outcome: Outcome) -> None:
        acked = await self._settler.settle(outcome, item.settlement)
        self._observer.settled(item, outcome)
        quiet = isinstance(outcome, Ack) and outcome.why in _QUIET
        write = self._log.debug if quiet else self._log.info
        more = {"error": outcome.error} if isinstance(outcome, DeadLetter) else {}
        write("settled", queue=item.delivery.queue, lane=item.delivery.lane,
              outcome=type(outcome).__name__.lower(), why=outcome.why, stale=not acked,
              key=item.read.key if isinstance(item.read, Request) else None,
              message_id=item.delivery.message.properties.message_id, **more)
