"""Slots of dependencies in this process: calls in flight, at most so many.

Several slots are taken together or not at all, and nobody waits while holding one, so handlers
that need two dependencies cannot wait for each other.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from consumer.dependency import Dependency


@dataclass(slots=True)
class _Slots:
    """One dependency's. `share` of the fleet's is held until `share_until_s`.

    No more than `at_most` are used while a renewal is under way: those were reported as in use,
    and what is beyond may be given to others.
    """

    dependency: Dependency
    held_for: timedelta
    in_flight: int = 0
    share: int = 0
    share_until_s: float = float("-inf")
    at_most: int | None = None


class SlotRoom:
    """The slots of one process.

    Args:
        dependencies: All of the app; those without a limit always have a free slot.
        now: Monotonic seconds.
        holds: How long a slot is held at most, where that is not the dependency's timeout.
    """

    def __init__(self, dependencies: Iterable[Dependency], now: Callable[[], float],
                 holds: Mapping[str, timedelta] = MappingProxyType({})) -> None:
        self._slots = {d.name: _Slots(d, holds.get(d.name, d.timeout)) for d in dependencies}
        self._now = now
        self._queue: deque[tuple[tuple[str, ...], asyncio.Future[None]]] = deque()
        self._listeners: list[Callable[[], None]] = []

    def on_free(self, listener: Callable[[], None]) -> None:
        """`listener` is called whenever a slot may have come free."""
        self._listeners.append(listener)

    def in_flight(self, name: str) -> int:
        """Slots in use."""
        return self._slots[name].in_flight

    def held_for(self, name: str) -> timedelta:
        """How long a slot is held at most."""
        return self._slots[name].held_for

    def limit(self, name: str) -> int | None:
        """Slots this process may use now; None is any number."""
        slots, limits = self._slots[name], list[int]()
        if slots.dependency.max_in_flight is not None:
            limits.append(slots.dependency.max_in_flight)
        if slots.dependency.max_in_flight_fleet is not None:
            # A call that would outlast the lease could run beside one of the share's next owner.
            ends_s = self._now() + slots.held_for.total_seconds()
            limits.append(slots.share if ends_s <= slots.share_until_s else 0)
        return min(limits) if limits else None

    def report(self, name: str) -> int:
        """Slots in use, to be told to the store; no more are used before its answer, `grant`."""
        slots = self._slots[name]
        slots.at_most = slots.in_flight
        return slots.in_flight

    def grant(self, name: str, share: int, until_s: float) -> None:
        """This process has `share` of the fleet's slots until then."""
        slots = self._slots[name]
        slots.share, slots.share_until_s, slots.at_most = share, until_s, None
        self._serve()

    def try_take(self, names: Sequence[str]) -> bool:
        """Take a slot of each, if all are free and nobody waits for one of them."""
        wanted = {name for waiting, future in self._queue if not future.done() for name in waiting}
        if not wanted.isdisjoint(names) or not self._free(names):
            return False
        self._take(names)
        return True

    async def take(self, names: Sequence[str], within_s: float) -> bool:
        """Take a slot of each, in the order of asking. False: not within so many seconds."""
        if self.try_take(names):
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (tuple(names), future)
        self._queue.append(entry)
        try:
            async with asyncio.timeout(max(0.0, within_s)):
                await asyncio.shield(future)
        except BaseException as error:
            if future.done() and not future.cancelled():
                self.release(names)  # it came free at the same moment
            else:
                future.cancel()
                self._queue.remove(entry)
                self._serve()
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def release(self, names: Sequence[str]) -> None:
        """Give back what was taken."""
        for name in names:
            self._slots[name].in_flight -= 1
        self._serve()

    def _free(self, names: Sequence[str]) -> bool:
        for name in names:
            slots, limit = self._slots[name], self.limit(name)
            if limit is not None and slots.in_flight >= limit:
                return False
            if slots.at_most is not None and slots.in_flight >= slots.at_most:
                return False
        return True

    def _take(self, names: Sequence[str]) -> None:
        for name in names:
            self._slots[name].in_flight += 1

    def _serve(self) -> None:
        """Those who wait get what is free; nobody passes another who waits for the same."""
        bespoken: set[str] = set()
        for entry in list(self._queue):
            names, future = entry
            if bespoken.isdisjoint(names) and self._free(names):
                self._queue.remove(entry)
                self._take(names)
                future.set_result(None)
            else:
                bespoken.update(names)
        for listener in self._listeners:
            listener()
