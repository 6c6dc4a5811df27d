"""Calls of handlers to dependencies: slots held, breakers watched, time limited."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta

from consumer.app import App
from consumer.call import Call
from consumer.core.admit import Run
from consumer.core.breaker import CallOutcome, Permit
from consumer.core.classify import Failure, FailureKind
from consumer.core.known_failures import sqlstate_of
from consumer.errors import DependencyUnavailable, RegistrationError
from consumer.ports import Clock
from consumer.telemetry.metrics import Metrics
from consumer.worker.gate import Gate
from consumer.worker.requests import Request

Classify = Callable[[Request, BaseException], Failure]


class Calls:
    """Makes the calls of attempts, one `AttemptCalls` each.

    Args:
        classify: What an exception of a handler means.
    """

    def __init__(self, app: App, gate: Gate, metrics: Metrics, clock: Clock, classify: Classify
                 ) -> None:
        self.app, self.gate, self.metrics, self.clock = app, gate, metrics, clock
        self.classify = classify

    def of(self, request: Request, run: Run, ends_s: float) -> "AttemptCalls":
        """Those of one attempt, which has to end at the monotonic second `ends_s`."""
        return AttemptCalls(self, request, run, ends_s)


class AttemptCalls:
    """The calls of one attempt, one at a time."""

    def __init__(self, calls: Calls, request: Request, run: Run, ends_s: float) -> None:
        self._calls, self._gate, self._clock = calls, calls.gate, calls.clock
        self._request, self._run, self._ends_s = request, run, ends_s
        self._names = request.registration.dependencies
        self._whole = request.registration.options.hold_slots == "attempt"
        self._permits: dict[str, Permit] = {}
        self._inside = self._counted = self._called = False
        self._lacking: tuple[str, ...] = ()  # what it waits for a slot of

    def remaining_s(self) -> float:
        """Until the attempt has to end, 0 at least."""
        return max(0.0, self._ends_s - self._clock.monotonic())

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """The handler runs inside of the block.

        Where it makes no call of its own and names one dependency, the attempt counts as the call.

        Raises:
            DependencyUnavailable: A breaker does not let it begin.
        """
        if self._whole:
            self._permits = self._enter(self._names)
            self._count()
        started_s, outcome = self._clock.monotonic(), CallOutcome.SUCCESS
        try:
            yield
        except BaseException as error:
            if isinstance(error, TimeoutError) and self._lacking and not self._called:
                raise self._no_slot() from error  # all its time went by in the wait for a slot
            outcome = self._judged(error)
            if not isinstance(error, DependencyUnavailable):
                self._count()
            raise
        else:
            self._count()
        finally:
            told = not self._called and len(self._names) == 1
            self._leave(self._permits, outcome if told else CallOutcome.IGNORED, started_s)

    @asynccontextmanager
    async def call(self, names: tuple[str, ...]) -> AsyncIterator[Call]:
        """What `Context.call` promises."""
        names = self._checked(names)
        slots: tuple[str, ...] = ()
        self._inside = True  # also while it waits for slots: nobody waits while holding one
        try:
            if not self._whole:
                slots = await self._slots(names)
            entered = self._enter([name for name in names if name not in self._permits])
            permits = entered | {name: self._permits.pop(name)
                                 for name in names if name in self._permits}
            self._count()
            self._called = True
            async with self._measured(names, permits) as call:
                yield call
        finally:
            self._inside = False
            if slots:
                self._gate.slots.release(slots)

    @asynccontextmanager
    async def _measured(self, names: Sequence[str], permits: dict[str, Permit]
                        ) -> AsyncIterator[Call]:
        started_s, outcome = self._clock.monotonic(), CallOutcome.SUCCESS
        shortest = min(self._calls.app.dependencies[name].timeout for name in names)
        ends_s = min(self._ends_s, started_s + shortest.total_seconds())

        def left() -> timedelta:
            return timedelta(seconds=max(0.0, ends_s - self._clock.monotonic()))

        try:
            async with asyncio.timeout(left().total_seconds()):
                yield Call(remaining=left, now=self._clock.now)
        except BaseException as error:
            # The attempt's own timeout may come first where both end at once.
            late = isinstance(error, asyncio.CancelledError) and self._clock.monotonic() >= ends_s
            outcome = CallOutcome.FAILURE if late else self._judged(error)
            raise
        finally:
            self._leave(permits, outcome, started_s)

    def _checked(self, names: tuple[str, ...]) -> tuple[str, ...]:
        wanted = tuple(sorted(set(names or self._names)))
        unknown = [name for name in wanted if name not in self._names]
        scope = self._request.registration.scope
        if unknown or not wanted:
            raise RegistrationError(
                f"handler {scope!r} calls {', '.join(map(repr, unknown)) or 'nothing it names'}",
                remedy="name it in the handler's dependencies")
        if self._inside:
            raise RegistrationError(
                f"handler {scope!r} begins a call inside a call: two such handlers could wait for "
                "each other", remedy="take both at once: context.call(one, other)")
        return wanted

    async def _slots(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """A slot of each is taken, while enough time for a call is left."""
        limited = tuple(n for n in names if self._calls.app.dependencies[n].limited)
        if not limited:
            return ()
        started_s = self._clock.monotonic()
        spare_s = self._request.registration.options.min_attempt.total_seconds()
        self._lacking = limited
        taken = await self._gate.slots.take(limited, self.remaining_s() - spare_s)
        waited_s = self._clock.monotonic() - started_s
        for name in limited:
            self._calls.metrics.slot_waited(name, waited_s)
        if not taken:
            raise self._no_slot()
        self._lacking = ()
        return limited

    def _no_slot(self) -> DependencyUnavailable:
        return DependencyUnavailable(", ".join(self._lacking), "no slot came free in time",
                                     no_slot=True)

    def _enter(self, names: Sequence[str]) -> dict[str, Permit]:
        """A permit of each breaker, or of none."""
        permits: dict[str, Permit] = {}
        now_s = self._clock.monotonic()
        for name in names:
            circuit = self._gate.circuits.get(name)
            if circuit is None:
                continue
            permit = circuit.try_enter(now_s)
            if permit is None:
                self._leave(permits, CallOutcome.IGNORED, now_s)
                raise DependencyUnavailable(name, f"its breaker is open: {circuit.why(now_s)}")
            permits[name] = permit
        return permits

    def _leave(self, permits: dict[str, Permit], outcome: CallOutcome, started_s: float) -> None:
        now_s = self._clock.monotonic()
        for name, permit in permits.items():
            self._gate.circuits[name].leave(permit, now_s, outcome, now_s - started_s)
        permits.clear()

    def _judged(self, error: BaseException) -> CallOutcome:
        """Whether an exception speaks against the dependency."""
        if not isinstance(error, Exception) or isinstance(error, DependencyUnavailable):
            return CallOutcome.IGNORED
        with suppress(Exception):
            if sqlstate_of(error) is not None:  # our own database's word
                return CallOutcome.IGNORED
            if self._calls.classify(self._request, error).kind is FailureKind.TRANSIENT:
                return CallOutcome.FAILURE
        return CallOutcome.IGNORED

    def _count(self) -> None:
        if not self._counted:
            self._counted = True
            self._gate.count(self._request, self._run)
