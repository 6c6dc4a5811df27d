"""A circuit breaker: calls to a dependency that mostly fails, or is mostly slow, are held back.

States and rules are those of Resilience4j
(https://resilience4j.readme.io/docs/circuitbreaker, "CircuitBreaker").
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import assert_never

from consumer.core.call_window import CountWindow, Tally, window_of
from consumer.errors import RegistrationError


@dataclass(frozen=True, slots=True)
class Breaker:
    """When a dependency counts as broken, and how it is probed.

    Args:
        failure_rate: Share of failed calls in the window that opens it, above 0 to 1.
        slow_rate: Share of slow calls that opens it; None never does.
        slow_after: A call that takes at least so long is slow; None is the dependency's timeout.
        window: Calls that count: so many, or those of so much time.
        minimum_calls: With fewer calls in the window it stays closed.
        open_for: How long nothing is tried once it is open.
        probes: Calls that decide, when that is over, whether it closes again.

    Raises:
        RegistrationError: A value makes no sense; the message names it.
    """

    failure_rate: float = 0.5
    slow_rate: float | None = None
    slow_after: timedelta | None = None
    window: int | timedelta = timedelta(seconds=30)
    minimum_calls: int = 20
    open_for: timedelta = timedelta(seconds=15)
    probes: int = 1

    def __post_init__(self) -> None:
        for name in ("failure_rate", "slow_rate"):
            rate: object = getattr(self, name)
            if name == "slow_rate" and rate is None:
                continue
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
                raise RegistrationError(
                    f"Breaker: {name} is {rate!r}, but must be above 0 and at most 1")
        for name in ("minimum_calls", "probes"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise RegistrationError(
                    f"Breaker: {name} is {value!r}, but must be a whole number, at least 1")
        window: object = self.window
        if isinstance(window, bool) or not (
                (isinstance(window, int) and window > 0)
                or (isinstance(window, timedelta) and window > timedelta(0))):
            raise RegistrationError(f"Breaker: window is {window!r}, but must be a number of "
                                    "calls or a timedelta, above 0")
        for name in ("slow_after", "open_for"):
            span: object = getattr(self, name)
            if name == "slow_after" and span is None:
                continue
            if not isinstance(span, timedelta) or span <= timedelta(0):
                raise RegistrationError(
                    f"Breaker: {name} is {span!r}, but must be a timedelta above 0")
        if isinstance(self.window, int) and not isinstance(self.window, bool) \
                and self.window < self.minimum_calls:
            raise RegistrationError(
                f"Breaker: a window of {self.window} calls never holds minimum_calls "
                f"({self.minimum_calls})", remedy="raise window or lower minimum_calls")


class State(StrEnum):
    """Whether calls pass: all of them, none, or a few that probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CallOutcome(StrEnum):
    """What a call says about its dependency; an ignored one says nothing."""

    SUCCESS = "success"
    FAILURE = "failure"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True, eq=False)
class Permit:
    """Leave to make one call. `round` tells the state it was given in from all others."""

    round: int


class Circuit:
    """Watches the calls to one dependency in one process, and says which may be made.

    Closed, it opens once the window holds `minimum_calls` and a rate is at or above its threshold.
    Open, it turns half-open when `open_for` is over. Half-open, `probes` calls may be made, and
    when so many have ended the same thresholds decide whether it closes, with an empty window, or
    opens again. A call that ends in another state than it began in counts for nothing.

    Never blocks; not for use by several threads. Each `now` is in monotonic seconds.

    Args:
        slow_after: A call that takes at least so long is slow, where the breaker does not say; the
            dependency's timeout.
        on_change: Told each new state, once the circuit is in it. It must not raise.
    """

    def __init__(
        self, breaker: Breaker, slow_after: timedelta,
        on_change: Callable[[State], None] | None = None,
    ) -> None:
        self._breaker = breaker
        self._slow_after_s = (breaker.slow_after or slow_after).total_seconds()
        self._open_for_s = breaker.open_for.total_seconds()
        self._on_change = on_change
        self._state = State.CLOSED
        self._fault = ""
        self._window = window_of(breaker.window)
        self._permit = Permit(0)
        self._probe_at = 0.0
        self._lost_at: dict[Permit, float] = {}  # of the probes under way
        self.opened_at: float | None = None
        """When it last ceased to be closed, failed probes since then aside; None while closed."""

    def state(self, now: float) -> State:
        """The state as of now."""
        if self._state is State.OPEN and now >= self._probe_at:
            self._window = CountWindow(self._breaker.probes)
            self._turn(State.HALF_OPEN)
        return self._state

    def try_enter(self, now: float) -> Permit | None:
        """Leave to make a call now, to be given back once with `leave`; None where it must not.

        A probe's permit that is not given back within `open_for` counts as lost, and another call
        may be made. Should the first one end after all, and find the circuit still half-open, it
        counts.
        """
        state = self.state(now)
        match state:
            case State.CLOSED:
                return self._permit
            case State.OPEN:
                return None
            case State.HALF_OPEN:
                if self._probes_left(now) <= 0:
                    return None
                permit = Permit(self._permit.round)
                self._lost_at[permit] = now + self._open_for_s
                return permit
        assert_never(state)

    def leave(self, permit: Permit, now: float, outcome: CallOutcome, duration_s: float) -> None:
        """The call has ended, after `duration_s` seconds. An ignored one frees its permit only."""
        if permit.round != self._permit.round:
            return
        self._lost_at.pop(permit, None)
        if outcome is CallOutcome.IGNORED:
            return
        tally = self._window.record(now, failed=outcome is CallOutcome.FAILURE,
                                    slow=duration_s >= self._slow_after_s)
        probing = self._state is State.HALF_OPEN
        if tally.calls < (self._breaker.probes if probing else self._breaker.minimum_calls):
            return
        fault = self._fault_in(tally)
        if fault:
            self._open(now, fault)
        elif probing:
            self._close()

    def until_probe_s(self, now: float) -> float:
        """Seconds until a call may be made, should none under way end before; 0 if it may now."""
        match self.state(now):
            case State.OPEN:
                return self._probe_at - now
            case State.HALF_OPEN if (left := self._probes_left(now)) <= 0:
                # Below 0 where a probe given up for lost has ended after all.
                return sorted(self._lost_at.values())[-left] - now
        return 0.0

    def why(self, now: float) -> str:
        """What opened it, for people, like "12 of 20 calls failed (60 %)"; empty while closed."""
        return "" if self.state(now) is State.CLOSED else self._fault

    def _probes_left(self, now: float) -> int:
        """Probes that may still begin in this round, those that got lost among them."""
        for permit in [permit for permit, at in self._lost_at.items() if now >= at]:
            del self._lost_at[permit]
        return self._breaker.probes - self._window.tally.calls - len(self._lost_at)

    def _fault_in(self, tally: Tally) -> str:
        """Which rate is at or above its threshold, for people; empty where none is."""
        # Rates are compared as quotients: 3 / 5 is the very float 0.6, 0.6 * 5 need not be 3.
        if tally.failure_rate >= self._breaker.failure_rate:
            number, rate, what = tally.failed, tally.failure_rate, "failed"
        elif self._breaker.slow_rate is not None and tally.slow_rate >= self._breaker.slow_rate:
            number, rate = tally.slow, tally.slow_rate
            what = f"took {self._slow_after_s:g} s or longer"
        else:
            return ""
        calls = "probes" if self._state is State.HALF_OPEN else "calls"
        return f"{number} of {tally.calls} {calls} {what} ({rate * 100:.0f} %)"

    def _open(self, now: float, fault: str) -> None:
        if self._state is State.CLOSED:
            self.opened_at = now
        self._fault = fault
        self._probe_at = now + self._open_for_s
        self._turn(State.OPEN)

    def _close(self) -> None:
        self.opened_at = None
        self._window = window_of(self._breaker.window)
        self._turn(State.CLOSED)

    def _turn(self, state: State) -> None:
        """A new state, and a new round: permits given before have no effect any more."""
        self._state = state
        self._permit = Permit(self._permit.round + 1)
        self._lost_at.clear()
        if self._on_change is not None:
            self._on_change(state)
