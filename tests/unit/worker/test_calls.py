"""Calls of handlers: what a breaker is told of them, how long they may take, what they hold."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from simulation.guarded import Site
from simulation.loop import in_virtual_time

from consumer import (
    Breaker,
    Budget,
    Context,
    Dependency,
    DependencyUnavailable,
    Options,
    Permanent,
    Reject,
    Retry,
)
from consumer.core.breaker import CallOutcome, State
from consumer.outcome import Ack, AckReason, DeadLetter, DeadReason, Delay, Outcome, ParkReason
from consumer.worker.requests import Request

SECOND = timedelta(seconds=1)
BREAKER = Breaker(minimum_calls=1, open_for=10 * SECOND)
PER_CALL = Options(hold_slots="call")
SUCCESS, FAILURE, IGNORED = CallOutcome.SUCCESS, CallOutcome.FAILURE, CallOutcome.IGNORED
Happening = Callable[[Any, Context], Awaitable[Any]]


def psp(**options: Any) -> Dependency:
    return Dependency("psp", **{"budget": None, "breaker": BREAKER, **options})


def mail(**options: Any) -> Dependency:
    return Dependency("mail", **{"budget": None, "breaker": BREAKER, **options})


def calling(*names: str, error: BaseException | None = None, for_s: float = 0) -> Happening:
    """One call that takes so long, and ends so."""
    async def happens(_: Any, context: Context) -> None:
        async with context.call(*names):
            await asyncio.sleep(for_s)
            if error is not None:
                raise error
    return happens


async def run(site: Site, *happens: Any, key: str = "a") -> Outcome:
    """Process one command, whose handler does that."""
    site.handler.on(key, *happens)
    return await site.process_one(site.delivery(key))


def died(outcome: Outcome) -> DeadReason | None:
    assert isinstance(outcome, Ack), outcome
    return outcome.dead


class DriverError(Exception):
    """As a database driver raises them."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


def caused_by(cause: Exception) -> Exception:
    error = ConnectionError("wrapped")
    error.__cause__ = cause
    return error


# --- what the breaker is told ----------------------------------------------------------------

JUDGED: list[tuple[BaseException | None, CallOutcome]] = [
    (None, SUCCESS),
    (TimeoutError(), FAILURE), (ConnectionError("refused"), FAILURE), (OSError("x"), FAILURE),
    (Retry("busy", after=SECOND), FAILURE), (RuntimeError("nobody knows it"), FAILURE),
    (Reject("card stolen"), IGNORED), (KeyError("a bug"), IGNORED), (TypeError("a bug"), IGNORED),
    (DriverError("40001"), IGNORED), (DriverError("08006"), IGNORED),
    (DriverError("23505"), IGNORED), (caused_by(DriverError("08006")), IGNORED),
    (DependencyUnavailable("other", "raised by hand"), IGNORED),
    (asyncio.CancelledError(), IGNORED), (SystemExit(1), IGNORED),
]


@pytest.mark.parametrize(("error", "outcome"), JUDGED, ids=lambda value: repr(value))
@in_virtual_time
async def test_a_call_is_judged_by_how_it_ends(
    error: BaseException | None, outcome: CallOutcome
) -> None:
    site = Site(psp())
    told = site.judgements("psp")
    await run(site, calling("psp", error=error))
    assert told == [outcome]


@pytest.mark.parametrize(("error", "outcome"), JUDGED, ids=lambda value: repr(value))
@in_virtual_time
async def test_an_attempt_without_calls_is_the_call_to_its_one_dependency(
    error: BaseException | None, outcome: CallOutcome
) -> None:
    site = Site(psp())
    told = site.judgements("psp")
    await run(site, error)
    assert told == [outcome]


@pytest.mark.parametrize("error", [None, ConnectionError("of which?")])
@in_virtual_time
async def test_an_attempt_without_calls_says_nothing_of_several_dependencies(
    error: Exception | None
) -> None:
    site = Site(psp(), mail())
    told = [site.judgements(name) for name in ("psp", "mail")]
    await run(site, error)
    assert told == [[IGNORED], [IGNORED]]


@in_virtual_time
async def test_a_failure_outside_of_its_calls_is_not_the_dependencys() -> None:
    site = Site(psp())
    told = site.judgements("psp")

    async def fail_after(_: Any, context: Context) -> None:
        async with context.call():
            pass
        raise ConnectionError("of something else")

    await run(site, fail_after)
    assert told == [SUCCESS]


@in_virtual_time
async def test_a_failure_the_handler_deals_with_counts_all_the_same() -> None:
    site = Site(psp())
    told = site.judgements("psp")

    async def deal_with_it(_: Any, context: Context) -> None:
        try:
            async with context.call():
                raise ConnectionError("x")
        except ConnectionError:
            pass

    assert died(await run(site, deal_with_it)) is None
    assert told == [FAILURE]


@pytest.mark.parametrize("where", ["handler", "app"])
@in_virtual_time
async def test_whoever_classifies_errors_decides_what_speaks_against_a_dependency(
    where: str
) -> None:
    def permanent(error: Exception) -> Permanent:
        return Permanent("a refusal, by whatever name")

    site = Site(psp(), **({"classify": permanent} if where == "app" else {}))
    if where == "handler":
        site.handler.classify = permanent  # type: ignore[method-assign]
    told = site.judgements("psp")
    await run(site, calling("psp", error=ConnectionError("x")))
    assert told == [IGNORED]


@in_virtual_time
async def test_each_dependency_of_a_call_is_told() -> None:
    site = Site(psp(), mail(breaker=None), Dependency("tax", budget=None, breaker=BREAKER))
    told = [site.judgements(name) for name in ("psp", "tax")]
    await run(site, calling("psp", "mail", "tax", error=TimeoutError()))
    assert told == [[FAILURE], [FAILURE]]


@in_virtual_time
async def test_our_own_end_says_nothing_of_a_call_it_cuts_short() -> None:
    site = Site(psp())
    told = site.judgements("psp")
    task = asyncio.create_task(run(site, calling("psp", for_s=5)))
    await asyncio.sleep(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == [IGNORED]


# --- how long a call may take ----------------------------------------------------------------


@pytest.mark.parametrize(("dependencies_s", "attempt_s", "age_s", "spent_s", "left_s"), [
    ((2, 7), 30, None, 0, 2), ((9, 7), 30, None, 1, 7), ((9, 7), 6, None, 1, 5),
    ((9, 7), 30, 4, 1, 3), ((9, 7), 3, 20, 0, 3)])
@in_virtual_time
async def test_a_call_has_the_shortest_of_its_dependencies_the_attempt_and_the_deadline(
    dependencies_s: tuple[int, int], attempt_s: int, age_s: int | None, spent_s: int, left_s: int
) -> None:
    first, second = (timedelta(seconds=n) for n in dependencies_s)
    site = Site(psp(timeout=first), mail(timeout=second), options=Options(
        attempt_timeout=attempt_s * SECOND, max_age=None if age_s is None else age_s * SECOND))
    seen: list[float] = []

    async def look(_: Any, context: Context) -> None:
        await asyncio.sleep(spent_s)
        async with context.call("psp", "mail") as call:
            seen.append(call.timeout_s)
            await asyncio.sleep(1)
            seen.append(call.timeout_s)

    assert died(await run(site, look)) is None
    assert seen == [left_s, left_s - 1]


@in_virtual_time
async def test_a_call_that_takes_longer_ends_then_and_failed() -> None:
    site = Site(psp(timeout=2 * SECOND))
    told, ended = site.judgements("psp"), list[float]()

    async def hang(_: Any, context: Context) -> None:
        try:
            async with context.call():
                await asyncio.sleep(3600)
        except TimeoutError:
            ended.append(asyncio.get_running_loop().time())
            raise

    outcome = await run(site, hang)
    assert isinstance(outcome, Ack)
    assert (outcome.why, told, ended) == (AckReason.RETRYING, [FAILURE], [2.0])


@pytest.mark.parametrize("timeout_s", [5, 10, 60])
@in_virtual_time
async def test_a_call_that_hangs_until_its_attempt_ends_has_failed(timeout_s: int) -> None:
    """Else a dependency that hangs would never be found broken where attempts are shorter."""
    site = Site(psp(timeout=timeout_s * SECOND), options=Options(attempt_timeout=5 * SECOND))
    told = site.judgements("psp")
    outcome = await run(site, calling("psp", for_s=3600))
    assert isinstance(outcome, Ack)
    assert (outcome.why, told) == (AckReason.RETRYING, [FAILURE])
    assert "TimeoutError" in site.database.tables.attempts[0].error


# --- calls that are mistakes -----------------------------------------------------------------


async def nested(_: Any, context: Context) -> None:
    async with context.call("psp"), context.call("mail"):
        pass


async def at_once(_: Any, context: Context) -> None:
    await asyncio.gather(calling("psp", for_s=1)(_, context), calling("mail", for_s=1)(_, context))


@pytest.mark.parametrize("options", [Options(), PER_CALL])
@pytest.mark.parametrize(("mistake", "says"), [
    (nested, "call inside a call"), (at_once, "call inside a call"),
    (calling("tax"), "'tax'"), (calling("psp", "tax"), "'tax'")])
@in_virtual_time
async def test_a_call_that_could_never_work_is_a_permanent_failure(
    mistake: Happening, says: str, options: Options
) -> None:
    site = Site(psp(max_in_flight=5), mail(max_in_flight=5), options=options)
    assert died(await run(site, mistake)) is DeadReason.PERMANENT
    [attempt] = site.database.tables.attempts
    assert says in attempt.error
    await asyncio.sleep(10)
    assert [site.gate.slots.in_flight(name) for name in ("psp", "mail")] == [0, 0]


@in_virtual_time
async def test_nobody_waits_for_a_slot_while_holding_another() -> None:
    """Not even one who begins two calls side by side."""
    site = Site(psp(max_in_flight=1), mail(max_in_flight=1), options=PER_CALL)
    site.gate.slots.try_take(["psp"])
    assert died(await run(site, at_once)) is DeadReason.PERMANENT
    await asyncio.sleep(0)
    assert [site.gate.slots.in_flight(name) for name in ("psp", "mail")] == [1, 0]


@in_virtual_time
async def test_a_handler_that_names_nothing_can_call_nothing() -> None:
    site = Site()
    assert died(await run(site, calling())) is DeadReason.PERMANENT


@in_virtual_time
async def test_calls_one_after_the_other_are_no_mistake() -> None:
    site = Site(psp(), mail())
    told = site.judgements("psp")

    async def several(_: Any, context: Context) -> None:
        for names in (["psp"], ["mail"], ["psp"], []):
            async with context.call(*names):
                pass

    assert died(await run(site, several)) is None
    assert told == [SUCCESS] * 3


# --- slots -----------------------------------------------------------------------------------


def seeing_slots(site: Site, seen: list[tuple[int, int]]) -> Happening:
    """Notes the slots in use outside of a call, and inside."""
    def now() -> tuple[int, int]:
        return site.gate.slots.in_flight("psp"), site.gate.slots.in_flight("mail")

    async def look(_: Any, context: Context) -> None:
        seen.append(now())
        async with context.call("psp"):
            seen.append(now())
        seen.append(now())
        async with context.call():
            seen.append(now())

    return look


@pytest.mark.parametrize(("options", "slots"), [
    (PER_CALL, [(0, 0), (1, 0), (0, 0), (1, 1)]), (Options(), [(1, 1)] * 4)])
@in_virtual_time
async def test_slots_are_held_for_each_call_or_for_the_whole_attempt(
    options: Options, slots: list[tuple[int, int]]
) -> None:
    site, seen = Site(psp(max_in_flight=1), mail(max_in_flight=1), options=options), \
        list[tuple[int, int]]()
    site.handler.on("a", seeing_slots(site, seen))
    request = site.request(site.delivery())
    assert site.gate.enter(request)
    await site.processor.process([request])
    site.gate.leave(request)
    assert seen == slots
    assert [site.gate.slots.in_flight(name) for name in ("psp", "mail")] == [0, 0]


@in_virtual_time
async def test_calls_wait_for_each_others_slots() -> None:
    site = Site(psp(max_in_flight=1), options=PER_CALL)
    ends: list[float] = []

    async def work(_: Any, context: Context) -> None:
        async with context.call():
            await asyncio.sleep(1)
        ends.append(asyncio.get_running_loop().time())

    for key in "abc":
        site.handler.on(key, work)
    await asyncio.gather(*(site.new_processor().process([site.request(site.delivery(key))])
                           for key in "abc"))
    assert ends == [1, 2, 3]


@pytest.mark.parametrize("error", [None, Retry("x"), Reject("x"), asyncio.CancelledError()])
@in_virtual_time
async def test_however_a_call_ends_its_slot_comes_back(error: BaseException | None) -> None:
    site = Site(psp(max_in_flight=1), options=PER_CALL)
    await run(site, calling("psp", error=error))
    assert site.gate.slots.in_flight("psp") == 0


@in_virtual_time
async def test_a_call_its_breaker_does_not_let_begin_leaves_no_slot_taken() -> None:
    site = Site(psp(max_in_flight=1), options=PER_CALL)

    async def too_late(_: Any, context: Context) -> None:
        site.open_breaker("psp")
        async with context.call():
            pass

    await run(site, too_late)
    assert site.gate.slots.in_flight("psp") == 0


# --- a door that closed after the handler had begun -------------------------------------------

BUDGET = Budget(ratio=0.1, capacity=10, floor_per_minute=0)


async def retry_of(site: Site) -> Request:
    """A command that failed before, and whose retry is paid for."""
    await run(site, Retry("x"))
    await site.guards.budgets.exchange()
    site.credit("psp", 1)
    return await site.paid(site.request(await site.next_copy()))


@pytest.mark.parametrize("reason", [ParkReason.NO_SLOT, ParkReason.BREAKER])
@in_virtual_time
async def test_an_original_that_met_a_closed_door_first_was_no_attempt(reason: ParkReason) -> None:
    """It is parked, it has earned nothing, and nothing is written."""
    site = Site(psp(max_in_flight=1, budget=BUDGET), options=PER_CALL, mixed=True)
    outcome = await run(site, closing(site, reason))
    assert isinstance(outcome, Delay)
    assert outcome.why is reason
    await site.guards.budgets.exchange()
    assert (site.claim(), site.effects, site.credits("psp")) == (None, [], 0)
    assert site.database.tables.attempts == []
    assert sum(site.gate.windows["psp"].totals(site.clock.monotonic()).values()) == 0


def closing(site: Site, reason: ParkReason, *first: str) -> Happening:
    """After a call to each of `first`, psp cannot be called any more."""
    async def closes(_: Any, context: Context) -> None:
        for name in first:
            async with context.call(name):
                pass
        if reason is ParkReason.BREAKER:
            site.open_breaker("psp")
        else:
            assert site.gate.slots.try_take(["psp"])
        async with context.call("psp"):
            raise AssertionError("it was let through")
    return closes


@pytest.mark.parametrize("reason", [ParkReason.NO_SLOT, ParkReason.BREAKER])
@in_virtual_time
async def test_a_retry_that_met_a_closed_door_first_gets_its_grant_back(reason: ParkReason) -> None:
    """Its claim, its ticket and its attempts are what they were."""
    site = Site(psp(max_in_flight=1, budget=BUDGET), options=PER_CALL, mixed=True)
    request = await retry_of(site)
    claim = site.claim()
    site.handler.on("a", closing(site, reason))
    [outcome] = await site.processor.process([request])
    assert isinstance(outcome, Delay)
    assert outcome.why is reason
    site.gate.leave(request)
    assert (site.claim(), len(site.database.tables.attempts)) == (claim, 1)
    assert site.gate.leased("psp") == 1


@pytest.mark.parametrize("reason", [ParkReason.NO_SLOT, ParkReason.BREAKER])
@in_virtual_time
async def test_after_a_first_call_a_closed_door_is_a_failed_attempt(reason: ParkReason) -> None:
    site = Site(psp(max_in_flight=1, budget=BUDGET), mail(budget=BUDGET), options=PER_CALL)
    outcome = await run(site, closing(site, reason, "mail"))
    assert isinstance(outcome, Ack)
    assert (outcome.why, outcome.attempt) == (AckReason.RETRYING, 1)
    await site.guards.budgets.exchange()
    assert site.credits("mail") == 1


@pytest.mark.parametrize(("options", "until_s"), [
    ({"attempt_timeout": 10 * SECOND}, 10),
    ({"attempt_timeout": 10 * SECOND, "min_attempt": 4 * SECOND}, 6)])
@in_virtual_time
async def test_a_slot_is_waited_for_only_while_enough_time_for_a_call_is_left(
    options: dict[str, Any], until_s: float
) -> None:
    """To have waited all the time is no attempt either, whichever timeout comes first."""
    site = Site(psp(max_in_flight=1), mixed=True, options=Options(hold_slots="call", **options))
    outcome = await run(site, closing(site, ParkReason.NO_SLOT))
    assert isinstance(outcome, Delay)
    assert outcome.why is ParkReason.NO_SLOT
    assert asyncio.get_running_loop().time() == until_s


@pytest.mark.parametrize(("min_attempt", "lingers_s", "until_s"), [
    (timedelta(0), 0, 10), (4 * SECOND, 1, 7)])
@in_virtual_time
async def test_who_met_a_closed_door_and_has_no_time_left_dies_of_the_deadline(
    min_attempt: timedelta, lingers_s: float, until_s: float
) -> None:
    site = Site(psp(max_in_flight=1), mixed=True, options=Options(
        hold_slots="call", max_age=10 * SECOND, min_attempt=min_attempt))
    closes = closing(site, ParkReason.NO_SLOT)

    async def linger(command: Any, context: Context) -> None:
        try:
            await closes(command, context)
        finally:
            await asyncio.sleep(lingers_s)

    outcome = await run(site, linger)
    assert isinstance(outcome, DeadLetter)
    assert outcome.why is DeadReason.DEADLINE
    assert (site.handler.runs["a"], site.claim()) == (1, None)
    assert asyncio.get_running_loop().time() == until_s


# --- probing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [Options(), PER_CALL])
@pytest.mark.parametrize(("error", "state"), [
    (None, State.CLOSED), (ConnectionError("x"), State.OPEN), (Reject("x"), State.HALF_OPEN)])
@in_virtual_time
async def test_half_open_lets_one_attempt_through_and_what_it_says_decides(
    options: Options, error: Exception | None, state: State
) -> None:
    site = Site(psp(), options=options, mixed=True)
    site.open_breaker("psp")
    await asyncio.sleep(10)
    for key in "abc":
        site.handler.on(key, calling("psp", error=error, for_s=1))
    outcomes = [outcome for [outcome] in await asyncio.gather(*(
        site.new_processor().process([site.request(site.delivery(key))]) for key in "abc"))]
    assert [isinstance(outcome, Ack) for outcome in outcomes] == [True, False, False]
    assert [getattr(outcome, "why", None) for outcome in outcomes[1:]] == [ParkReason.BREAKER] * 2
    assert site.gate.circuits["psp"].state(site.clock.monotonic()) is state


@in_virtual_time
async def test_a_call_that_one_breaker_stops_takes_no_probe_of_another() -> None:
    site = Site(mail(), psp(), options=PER_CALL, mixed=True)
    site.open_breaker("mail")
    await asyncio.sleep(10)

    async def stopped(_: Any, context: Context) -> None:
        site.open_breaker("psp")
        async with context.call("mail", "psp"):
            raise AssertionError("it was let through")

    assert isinstance(await run(site, stopped), Delay)
    assert site.gate.circuits["mail"].try_enter(site.clock.monotonic()) is not None


@in_virtual_time
async def test_an_attempt_that_makes_no_call_in_the_end_frees_the_probe_it_held() -> None:
    site = Site(psp(), mail(), mixed=True)
    site.open_breaker("psp")
    await asyncio.sleep(10)
    assert died(await run(site, calling("mail"))) is None
    assert died(await run(site, calling("psp"), key="b")) is None
    assert site.gate.circuits["psp"].state(site.clock.monotonic()) is State.CLOSED
