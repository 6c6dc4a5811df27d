"""Several worker processes under one: started, watched, restarted, drained together.

The supervisor is synchronous and does no work of its own, so there is nothing in it to hang. It
sees a child's death by its exit status, its hanging by missing beats on its line (`link.py`), and a
child sees the supervisor's death by the end of that line.
"""

import random
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog

from consumer.core.backoff import full_jitter
from consumer.exit_codes import ExitCode
from consumer.worker.child import Child
from consumer.worker.forwarding import PendingSignals, kept_signals
from consumer.worker.link import ChildLink, child_link

__all__ = ["ChildLink", "Watch", "child_link", "supervise"]

_HOPELESS = (ExitCode.USAGE, ExitCode.SCHEMA, ExitCode.TOPOLOGY)
"""Another start cannot end in another way."""
_STOPPED_S = 5.0
"""If a round of ours took longer than this, we were stopped, and so probably were the children."""

log = structlog.get_logger("consumer.supervisor")


@dataclass(frozen=True, slots=True)
class Watch:
    """What a supervisor takes for hung, and how soon it starts a child again.

    Args:
        hang_after: Without a beat for longer than this, a child counts as hung.
        start_within: The same until its first beat: importing an application takes its time.
        settled_after: A child that lived this long was well; the next restart comes soon.
        backoff_base: Longest wait before the first restart; it doubles with each that follows.
        backoff_cap: Longest wait.
        kill_margin: Added to a child's grace before it is killed in a drain.
        round: Longest time between two looks at the children.
    """

    hang_after: timedelta = timedelta(seconds=30)
    start_within: timedelta = timedelta(minutes=2)
    settled_after: timedelta = timedelta(minutes=1)
    backoff_base: timedelta = timedelta(seconds=1)
    backoff_cap: timedelta = timedelta(seconds=30)
    kill_margin: timedelta = timedelta(seconds=5)
    round: timedelta = timedelta(milliseconds=250)


def supervise(
    processes: int, start: Callable[[int], Sequence[str]], grace: timedelta,
    watch: Watch | None = None,
) -> ExitCode:
    """Keep `processes` children running until SIGTERM or SIGINT; blocks until all have ended.

    Both signals are forwarded: the first asks the children to drain, any further one to be quick
    about it. A child that refuses its configuration, schema or topology when it is started ends
    the others as well.

    Args:
        processes: How many.
        start: The command line of a child, by its index from 0.
        grace: How long the drain of a child may take before it is killed.

    Returns:
        The worst exit code of the children's last runs.
    """
    with kept_signals(signal.SIGTERM, signal.SIGINT) as signals:
        return _Supervisor(processes, start, grace, watch or Watch(), signals).run()


@dataclass(slots=True)
class _Seat:
    """A place for one child. `code` is how its last one ended."""

    index: int
    child: Child | None = None
    short_lives: int = 0
    start_at: float = 0.0
    code: ExitCode = ExitCode.OK


class _Supervisor:
    def __init__(self, processes: int, start: Callable[[int], Sequence[str]], grace: timedelta,
                 watch: Watch, signals: PendingSignals) -> None:
        self._start, self._watch, self._signals = start, watch, signals
        self._grace_s = grace.total_seconds()
        self._seats = [_Seat(index) for index in range(processes)]
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.wake, selectors.EVENT_READ)
        self._stopping = False
        self._verdict = ExitCode.OK

    def run(self) -> ExitCode:
        try:
            while not self._stopping or any(seat.child for seat in self._seats):
                self._round()
        finally:
            for child in self._children():
                self._forget(child)
            self._selector.close()
        return max(self._verdict, *(seat.code for seat in self._seats))

    def _round(self) -> None:
        for seat in self._seats:
            if not self._stopping and seat.child is None and time.monotonic() >= seat.start_at:
                self._fill(seat)
        self._wait()
        for number in self._signals.take():
            self._stop(number)
        for seat in self._seats:
            if seat.child is not None:
                self._look_at(seat, seat.child)

    def _fill(self, seat: _Seat) -> None:
        try:
            seat.child = Child(seat.index, self._start(seat.index))
        except OSError as error:  # no memory, too many processes: for now
            seat.code = ExitCode.CRASHED
            log.error("child_not_started", child=seat.index, error=str(error),
                      retry_in_s=self._back_off(seat))
            return
        self._selector.register(seat.child.line, selectors.EVENT_READ)

    def _wait(self) -> None:
        """Until a signal, a beat or a death, at most a round; then all beats are read."""
        longest_s, before = self._watch.round.total_seconds(), time.monotonic()
        self._selector.select(longest_s)
        stopped = time.monotonic() - before > longest_s + _STOPPED_S
        for child in self._children():
            if not child.read_beats():
                self._unregister(child)
            if stopped:
                child.forgive()

    def _look_at(self, seat: _Seat, child: Child) -> None:
        code = child.exit_code()
        if code is not None:
            self._bury(seat, child, code)
            return
        limit = self._watch.hang_after if child.beaten else self._watch.start_within
        if not child.ending and child.silent_s() > limit.total_seconds():
            log.error("child_hung", child=seat.index, child_pid=child.pid,
                      silent_s=round(child.silent_s(), 1))
            child.end(signal.SIGTERM, self._grace_s)
        child.kill_if_due()

    def _bury(self, seat: _Seat, child: Child, code: ExitCode) -> None:
        lived_s = child.lived_s()
        self._forget(child)
        seat.child, seat.code = None, code
        settled = lived_s >= self._watch.settled_after.total_seconds()
        if settled:
            seat.short_lives = 0
        hopeless = code in _HOPELESS and not settled
        restart_in_s = None if self._stopping or hopeless else self._back_off(seat)
        write = log.info if self._stopping and code is ExitCode.OK else log.error
        write("child_died", child=seat.index, child_pid=child.pid, code=child.raw_code,
              meaning=code.name, lived_s=round(lived_s, 1), restart_in_s=restart_in_s)
        if hopeless and not self._stopping:
            self._verdict = code
            self._stop(signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> None:
        """All children drain; if they were draining, they hurry."""
        self._stopping = True
        for child in self._children():
            child.end(number, self._grace_s + self._watch.kill_margin.total_seconds())

    def _children(self) -> list[Child]:
        return [seat.child for seat in self._seats if seat.child is not None]

    def _back_off(self, seat: _Seat) -> float:
        """Seconds until its child is started again."""
        seat.short_lives += 1
        wait = full_jitter(seat.short_lives, self._watch.backoff_base, self._watch.backoff_cap,
                           random.random())  # noqa: S311 - spreads restarts
        seat.start_at = time.monotonic() + wait.total_seconds()
        return round(wait.total_seconds(), 2)

    def _unregister(self, child: Child) -> None:
        with suppress(KeyError):  # its line had ended before
            self._selector.unregister(child.line)

    def _forget(self, child: Child) -> None:
        self._unregister(child)
        child.close()
