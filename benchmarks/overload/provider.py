"""A payment provider with a few execution slots and a queue before them, first come first served.

It decides nothing by chance, so that what a run shows comes from its callers.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


class Timer(Protocol):
    """What a scheduled call can be called off with."""

    def cancel(self) -> None: ...


Schedule = Callable[[float, Callable[[], None]], Timer]
"""Calls the function once so many seconds have passed."""


@dataclass(slots=True)
class Call:
    """One request and what became of it. Times are seconds of the provider's clock.

    Args:
        command: Which command it belongs to.
        end: When its work was done or stopped, or it was taken out of the queue; None if it still
            waits or runs.
        gone: When the client hung up before it had its answer.
        done: The work was finished, whether or not anybody waited for it.
    """

    command: str
    arrival: float
    start: float | None = None
    end: float | None = None
    gone: float | None = None
    done: bool = False


@dataclass(slots=True)
class _Entry:
    call: Call
    answer: Callable[[], None]
    timer: Timer | None = None


@dataclass
class Provider:
    """Executes calls, `slots` at once, each for as long as `service_seconds` says when it begins.

    Args:
        honours: A call whose client hangs up is taken out of the queue, or stopped. Otherwise it
            is executed to its end, as most servers do.
    """

    slots: int
    service_seconds: float
    honours: bool
    now: Callable[[], float]
    schedule: Schedule
    calls: list[Call] = field(default_factory=list)
    _waiting: deque[_Entry] = field(default_factory=deque)
    _executing: set[int] = field(default_factory=set)

    def accept(self, command: str, answer: Callable[[], None]) -> Callable[[], None]:
        """The call waits for a slot or has one. `answer` is called once it is done.

        Returns:
            What to call when the client hangs up. It may come late or twice.
        """
        entry = _Entry(Call(command, self.now()), answer)
        self.calls.append(entry.call)
        self._waiting.append(entry)
        self._fill()
        return lambda: self._hung_up(entry)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def executing(self) -> int:
        return len(self._executing)

    def _fill(self) -> None:
        while self._waiting and len(self._executing) < self.slots:
            entry = self._waiting.popleft()
            entry.call.start = self.now()
            self._executing.add(id(entry))
            entry.timer = self.schedule(self.service_seconds, lambda e=entry: self._finish(e))  # type: ignore[misc]

    def _finish(self, entry: _Entry) -> None:
        entry.call.done = True
        self._leave(entry)
        if entry.call.gone is None:
            entry.answer()

    def _leave(self, entry: _Entry) -> None:
        entry.call.end = self.now()
        self._executing.discard(id(entry))
        self._fill()

    def _hung_up(self, entry: _Entry) -> None:
        call = entry.call
        if call.done or call.gone is not None:
            return
        call.gone = self.now()
        if not self.honours:
            return
        if call.start is None:
            self._waiting.remove(entry)
            call.end = self.now()
            return
        assert entry.timer is not None
        entry.timer.cancel()
        self._leave(entry)


def record(call: Call) -> dict[str, Any]:
    """The call as it is written to the log of the provider."""
    return asdict(call)
