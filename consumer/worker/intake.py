"""The hand-over between broker and executors: what has arrived and has not begun."""

import asyncio
from collections import deque
from dataclasses import dataclass

from consumer.message import Delivery, Lane
from consumer.outcome import Outcome
from consumer.ports import Settlement
from consumer.worker.requests import Request, RequestReader

_LOOK_AHEAD = 4  # times the size of a group: how far to look for members of one


@dataclass(slots=True)
class Item:
    """A delivery in hand; read when an executor first looks at it."""

    delivery: Delivery
    settlement: Settlement
    read: Request | Outcome | None = None


class Intake:
    """Deliveries of one queue, both lanes, in the order they came.

    It holds at most what prefetch lets the broker send: deliveries of channels that are gone are
    forgotten, for they come again.
    """

    def __init__(self, reader: RequestReader, bound: int) -> None:
        self._reader, self._bound = reader, bound
        self._waiting: deque[Item] = deque()
        self._arrived = asyncio.Event()
        self._running: set[tuple[str, str]] = set()
        self._closed = False
        self.in_flight = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, delivery: Delivery, settlement: Settlement) -> None:
        """A delivery has arrived. Never blocks."""
        if len(self._waiting) >= self._bound:
            self._waiting = deque(item for item in self._waiting if item.settlement.live)
        self._waiting.append(Item(delivery, settlement))
        self._arrived.set()

    def clear(self) -> list[Item]:
        """Nothing waits any more; returns what did."""
        items = list(self._waiting)
        self._waiting.clear()
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
        if self._waiting:
            self._arrived.set()

    def _select(self, limit: int) -> list[Item]:
        batch: list[Item] = []
        kind: tuple[str, Lane] | None = None
        passed: list[Item] = []
        for _ in range(min(len(self._waiting), limit * _LOOK_AHEAD)):
            item = self._waiting.popleft()
            if not item.settlement.live:
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
            if (kind is not None and kind != here) or _identity(request) in self._running:
                passed.append(item)
                continue
            kind = here
            self._running.add(_identity(request))
            batch.append(item)
            if len(batch) >= min(limit, request.registration.options.group_size):
                break
        self._waiting.extendleft(reversed(passed))
        return batch


def _identity(request: Request) -> tuple[str, str]:
    return (request.registration.scope, request.key)
