"""The latest calls to a dependency, counted: the last so many, or those of the last so long."""

from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

BUCKETS = 30
"""Parts a window of time is counted in; a call is forgotten at most one part too early."""


@dataclass(slots=True)
class Tally:
    """Calls, and how many of them failed and how many were slow. One call can be both."""

    calls: int = 0
    failed: int = 0
    slow: int = 0

    @property
    def failure_rate(self) -> float:
        """Share of failed calls, 0 to 1; 0 without calls."""
        return self.failed / self.calls if self.calls else 0.0

    @property
    def slow_rate(self) -> float:
        """Share of slow calls, 0 to 1; 0 without calls."""
        return self.slow / self.calls if self.calls else 0.0


class Window(Protocol):
    """Counts calls and forgets old ones. Needs the same memory whatever the rate of calls."""

    tally: Tally
    """Of what the window held when the last call was recorded."""

    def record(self, now: float, *, failed: bool, slow: bool) -> Tally:
        """Count a call that ended at `now`, monotonic seconds; returns the tally as of now."""


class CountWindow:
    """The last `size` calls, whenever they were."""

    __slots__ = ("_ring", "tally")

    def __init__(self, size: int) -> None:
        self._ring: deque[tuple[bool, bool]] = deque(maxlen=size)
        self.tally = Tally()

    def record(self, now: float, *, failed: bool, slow: bool) -> Tally:
        """As in Window; `now` does not matter."""
        tally = self.tally
        if len(self._ring) == self._ring.maxlen:
            failed_before, slow_before = self._ring[0]  # the append below drops it
            tally.calls -= 1
            tally.failed -= failed_before
            tally.slow -= slow_before
        self._ring.append((failed, slow))
        tally.calls += 1
        tally.failed += failed
        tally.slow += slow
        return tally


class TimeWindow:
    """The calls of the last `span`; none that is older counts."""

    __slots__ = ("_buckets", "_width_s", "tally")

    def __init__(self, span: timedelta) -> None:
        self._width_s = span.total_seconds() / BUCKETS
        self._buckets: deque[tuple[int, Tally]] = deque()  # only those that hold calls, in order
        self.tally = Tally()

    def record(self, now: float, *, failed: bool, slow: bool) -> Tally:
        """As in Window. A `now` before the latest one counts as the latest."""
        number = int(now // self._width_s)
        if self._buckets:
            number = max(number, self._buckets[-1][0])
        self._forget(number - BUCKETS)
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append((number, Tally()))
        for tally in (self._buckets[-1][1], self.tally):
            tally.calls += 1
            tally.failed += failed
            tally.slow += slow
        return self.tally

    def _forget(self, last: int) -> None:
        """Buckets up to number `last` are out."""
        while self._buckets and self._buckets[0][0] <= last:
            _, old = self._buckets.popleft()
            self.tally.calls -= old.calls
            self.tally.failed -= old.failed
            self.tally.slow -= old.slow


def window_of(size: int | timedelta) -> Window:
    """An empty window of so many calls, or of so much time."""
    return CountWindow(size) if isinstance(size, int) else TimeWindow(size)
