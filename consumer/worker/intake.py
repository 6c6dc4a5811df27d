"""The hand-over between broker and executors: what has arrived and has not begun."""

import asyncio
from collections import deque
from dataclasses import dataclass

from consumer.message import Delivery, Lane
from consumer.outcome import Outcome
from consumer.ports import Clock, Settlement
from consumer.worker.gate import Gate
from consumer.worker.requests import Request, RequestReader

_LOOK_AHEAD = 4  # times the size of a group: how far to look for members of one


@dataclass(slots=True, eq=False)
class Item:
    """A delivery in hand; read when an executor first looks at it.

    Args:
        arrived_s: When it came, in monotonic seconds.
    """

    delivery: Delivery
    settlement: Settlement
    arrived_s: float
    read: Request | Outcome | None = None


class Intake:
    """Deliveries of one queue, both lanes, in the order they came.

    It holds at most what prefetch lets the broker send: deliveries of channels that are gone are
    forgotten, for they come again. What the gate does not let through waits here: a retry until
    its budget has answered, a call until a slot is free.
    """

    def __init__(self, reader: RequestReader, gate: Gate, clock: Clock, bound: int) -> None:
        self._reader, self._gate, self._clock, self._bound = reader, gate, clock, bound
        self._waiting: deque[Item] = deque()
        self._paying: dict[Item, asyncio.Task[None]] = {}
        self._arrived = asyncio.Event()
        gate.on_free(self._arrived.set)
        self._running: set[tuple[str, str]] = set()
        self._closed = False
        self.in_flight = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._paying)

    def put(self, delivery: Delivery, settlement: Settlement) -> None:
        """A delivery has arrived. Never blocks."""
        if len(self) >= self._bound:
            self._forget_stale()
        self._waiting.append(Item(delivery, settlement, self._clock.monotonic()))
        self._arrived.set()

    def clear(self) -> list[Item]:
        """Nothing waits any more; returns what did."""
        for task in self._paying.values():
            task.cancel()
        items = [*self._paying, *self._waiting]
        self._paying.clear()
        self._waiting.clear()
        for item in items:
            self._leave(item)
        return items

    def close(self) -> None:
        """Whoever waits in `take` gets nothing, now and later."""
        self._closed = True
        self._arrived.set()

    async def take(self, limit: int) -> list[Item]:
        """Wait for a delivery, then take it and others that fit in one transaction with it.

        Returns:
            One item that is no request, or up to `limit` requests of one handler, one lane and
            distinct keys, none of which is running in this process. Give them to `done` after.
            Nothing once closed.
        """
        while not self._closed:
            batch = self._select(limit)
            if batch:
                self.in_flight += len(batch)
                return batch
            self._arrived.clear()
            await self._arrived.wait()
        return []

    def done(self, batch: list[Item]) -> None:
        """They were settled; other copies of their keys may run."""
        self.in_flight -= len(batch)
        for item in batch:
            if isinstance(item.read, Request):
                self._running.discard(_identity(item.read))
            self._leave(item)
        if self._waiting:
            self._arrived.set()

    def _leave(self, item: Item) -> None:
        if isinstance(item.read, Request):
            self._gate.leave(item.read)

    def _forget_stale(self) -> None:
        for item in [item for item in self._waiting if not item.settlement.live]:
            self._waiting.remove(item)
            self._leave(item)

    def _pay(self, item: Item, request: Request) -> None:
        """It waits aside until its retry is granted or denied, then it is the next to be taken."""
        async def pay() -> None:
            await self._gate.pay_toll(request)
            del self._paying[item]
            self._waiting.appendleft(item)
            self._arrived.set()

        self._paying[item] = asyncio.create_task(pay())

    def _select(self, limit: int) -> list[Item]:
        batch: list[Item] = []
        kind: tuple[str, Lane] | None = None
        passed: list[Item] = []
        for _ in range(min(len(self._waiting), limit * _LOOK_AHEAD)):
            item = self._waiting.popleft()
            if not item.settlement.live:
                self._leave(item)
                continue
            if item.read is None:
                item.read = self._reader.read(item.delivery)
            if not isinstance(item.read, Request):
                if batch:
                    passed.append(item)
                    continue
                batch.append(item)
                break
            request, here = item.read, (item.read.registration.scope, item.delivery.lane)
            if self._gate.has_toll(request):
                self._pay(item, request)
                continue
            if (kind is not None and kind != here) or _identity(request) in self._running \
                    or not self._gate.enter(request):
                passed.append(item)
                continue
            kind = here
            self._running.add(_identity(request))
            batch.append(item)
            if len(batch) >= min(limit, request.registration.group_size):
                break
        self._waiting.extendleft(reversed(passed))
        return batch


def _identity(request: Request) -> tuple[str, str]:
    return (request.registration.scope, request.key)
