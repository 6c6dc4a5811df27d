"""The gate: which delivery may begin, which retry is paid for and by whom, and what comes back."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from simulation.bench import arrived
from simulation.guarded import Site, counted
from simulation.loop import in_virtual_time

from consumer import Breaker, Budget, Dependency, Options, Reject, Retry
from consumer import message as names
from consumer.core.admit import TAKEOVER_GRACE, Barrier, Run
from consumer.core.breaker import CallOutcome
from consumer.errors import SerializationConflict
from consumer.message import Delivery, Lane
from consumer.outcome import Ack, AckReason, Delay, ParkReason
from consumer.telemetry.labels import RetryDecision
from consumer.worker.requests import Request

SECOND = timedelta(seconds=1)
NO_FLOOR = Budget(ratio=0.1, capacity=10, floor_per_minute=0)
BREAKER = Breaker(minimum_calls=1, open_for=10 * SECOND)


def psp(**options: Any) -> Dependency:
    return Dependency("psp", **{"budget": NO_FLOOR, "breaker": None, **options})


def mail(**options: Any) -> Dependency:
    return Dependency("mail", **{"budget": NO_FLOOR, "breaker": None, **options})


def forged(site: Site, key: str = "a") -> Delivery:
    return site.delivery(key, **{names.TICKET: str(uuid4())})


async def failed_once(*dependencies: Dependency, options: Options | None = None
                      ) -> tuple[Site, Delivery]:
    """A command has failed for now, and paid in; returns the copy that may run next."""
    site = Site(*dependencies, options=options)
    site.handler.on("a", Retry("x"))
    await site.process_one(site.delivery())
    await site.guards.budgets.exchange()
    return site, await site.next_copy()


def paid(site: Site, dependency: str = "psp") -> int:
    """Retries granted to this process and not returned, as the fleet's account has it."""
    return site.budget_store.accounts[dependency].outstanding


async def returned(site: Site) -> None:
    """A second goes by, and what lay about is given back to the fleet."""
    await asyncio.sleep(1.125)
    await site.guards.budgets.exchange()


# --- the toll --------------------------------------------------------------------------------


@pytest.mark.parametrize(("ticket", "limited", "has_toll"), [
    (True, True, True), (False, True, False), (True, False, False), (False, False, False)])
@in_virtual_time
async def test_a_toll_is_asked_of_ticket_holders_where_there_is_a_budget(
    ticket: bool, limited: bool, has_toll: bool
) -> None:
    site = Site(psp(budget=NO_FLOOR if limited else None))
    request = site.request(forged(site) if ticket else site.delivery())
    assert site.gate.has_toll(request) is has_toll


@in_virtual_time
async def test_a_toll_is_asked_of_parked_copies_for_one_may_take_the_place_of_a_retry() -> None:
    """Once due time and grace are over; and if it is no retry, it gets back what it was granted."""
    site, _ = await failed_once(psp())
    await asyncio.sleep(TAKEOVER_GRACE.total_seconds() + 1)
    outcome = await site.process_one(site.delivery())
    assert isinstance(outcome, Delay)
    assert outcome.why is ParkReason.BUDGET
    site.credit("psp", 1)
    request = site.request(arrived(outcome.copy))
    assert site.gate.has_toll(request)
    [outcome] = await site.processor.process([await site.paid(request)])
    assert isinstance(outcome, Ack)
    assert (outcome.why, outcome.attempt) == (AckReason.DONE, 2)


@in_virtual_time
async def test_a_handler_that_names_nothing_pays_the_budget_of_its_queue() -> None:
    site = Site(retry_budget=NO_FLOOR)
    assert site.gate.has_toll(site.request(forged(site)))


@in_virtual_time
async def test_a_toll_is_asked_once() -> None:
    site = Site(psp())
    request = await site.paid(site.request(forged(site)))
    assert not site.gate.has_toll(request)


@in_virtual_time
async def test_what_cannot_begin_pays_no_toll() -> None:
    site = Site(psp(breaker=BREAKER))
    site.open_breaker("psp")
    assert not site.gate.has_toll(site.request(forged(site)))


@in_virtual_time
async def test_a_retry_spends_what_its_ticket_was_granted() -> None:
    site, copy = await failed_once(psp())
    site.credit("psp", 1)
    request = await site.paid(site.request(copy))
    [outcome] = await site.processor.process([request])
    assert isinstance(outcome, Ack)
    assert (outcome.why, outcome.attempt) == (AckReason.DONE, 2)
    site.gate.leave(request)
    await returned(site)
    assert (paid(site), site.gate.leased("psp")) == (2, 0)


@in_virtual_time
async def test_a_retry_that_was_denied_does_not_run_and_is_counted_so() -> None:
    site, copy = await failed_once(psp())
    request = await site.paid(site.request(copy))
    [outcome] = await site.processor.process([request])
    assert isinstance(outcome, Delay)
    assert outcome.why is ParkReason.BUDGET
    assert site.handler.runs["a"] == 1
    assert counted(site.metrics, "consumer_retries_total", dependency="psp",
                   decision=RetryDecision.DENIED_BUDGET) == 1


@in_virtual_time
async def test_of_two_budgets_one_that_denies_sends_back_what_the_other_granted() -> None:
    site, copy = await failed_once(mail(), psp())
    site.credit("mail", 5)
    request = site.request(copy)
    paying = asyncio.create_task(site.gate.pay_toll(request))
    for _ in range(2):
        await asyncio.sleep(0)
        await site.guards.budgets.exchange()
    await paying
    assert request.passage.denied
    assert [site.gate.leased(name) for name in ("mail", "psp")] == [1, 0]
    await returned(site)
    assert site.credits("mail") == 50


@in_virtual_time
async def test_a_cancelled_toll_spends_nothing() -> None:
    site, copy = await failed_once(mail(), psp())
    site.credit("mail", 5)
    paying = asyncio.create_task(site.gate.pay_toll(site.request(copy)))
    await asyncio.sleep(0)
    await site.guards.budgets.exchange()
    await asyncio.sleep(0)
    paying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await paying
    await returned(site)
    assert (site.credits("mail"), paid(site, "mail")) == (50, 5)


@pytest.mark.parametrize("state", ["new", "retrying", "done", "dead"])
@in_virtual_time
async def test_a_forged_ticket_costs_nothing(state: str) -> None:
    """Also on a message that is new, and runs as the original it is."""
    site = Site(psp())
    site.handler.on("a", *{"retrying": [Retry("x")], "dead": [Reject("x")]}.get(state, []))
    if state != "new":
        await site.process_one(site.delivery())
    await site.guards.budgets.exchange()
    site.credit("psp", 5)
    request = await site.paid(site.request(forged(site)))
    [outcome] = await site.processor.process([request])
    assert isinstance(outcome, Ack)
    assert site.handler.runs["a"] == 1
    site.gate.leave(request)
    assert site.gate.leased("psp") == 1
    await returned(site)
    assert (paid(site), site.credits("psp")) == (5, 50 + (state == "new"))


@in_virtual_time
async def test_what_a_new_message_was_granted_is_free_while_it_runs() -> None:
    site = Site(psp())
    site.credit("psp", 1)
    leased: list[int] = []
    site.handler.on("a", lambda *_: leased.append(site.gate.leased("psp")))
    await site.processor.process([await site.paid(site.request(forged(site)))])
    assert leased == [1]


@in_virtual_time
async def test_a_retry_that_is_given_back_unbegun_returns_its_grant_once() -> None:
    site, copy = await failed_once(psp())
    site.credit("psp", 1)
    request = await site.paid(site.request(copy))
    site.gate.leave(request)
    site.gate.leave(request)
    assert site.gate.leased("psp") == 1


# --- originals -------------------------------------------------------------------------------


async def earned(site: Site, dependency: str = "psp") -> int:
    await site.guards.budgets.exchange()
    assert site.gate.windows[dependency].totals(site.clock.monotonic())["originals"] \
        == site.credits(dependency)
    return site.credits(dependency)


@in_virtual_time
async def test_an_original_earns_once_though_its_group_is_rolled_back_and_run_again() -> None:
    site = Site(retry_budget=NO_FLOOR)
    site.handler.on("b", Reject("x"), Reject("x"))
    await site.process(*(site.delivery(key) for key in "abc"))
    assert site.handler.runs["a"] == 2
    assert await earned(site, "orders") == 3


@pytest.mark.parametrize("conflicts", [1, 2, 3])
@in_virtual_time
async def test_an_original_earns_once_though_it_is_run_again_after_a_serialization_failure(
    conflicts: int
) -> None:
    site = Site(retry_budget=NO_FLOOR)
    site.fail_at("commit", *[SerializationConflict("40001")] * conflicts)
    await site.process_one(site.delivery())
    assert site.handler.runs["a"] == conflicts + 1
    assert await earned(site, "orders") == 1


@in_virtual_time
async def test_an_original_that_fails_has_earned_and_its_retry_earns_nothing() -> None:
    site, copy = await failed_once(psp())
    assert await earned(site) == 1
    site.credit("psp", 1)
    request = await site.paid(site.request(copy))
    await site.processor.process([request])
    await site.guards.budgets.exchange()
    assert site.credits("psp") == 0


@pytest.mark.parametrize(("run", "lane", "redelivered", "originals"), [
    (Run(1, retry=False), Lane.LIVE, False, 1),
    (Run(1, retry=False), Lane.LIVE, True, 0),
    (Run(1, retry=True), Lane.REPLAY, False, 0),
    (Run(1, retry=False), Lane.REPLAY, False, 0),
    (Run(2, retry=True, costs=True), Lane.LIVE, False, 0),
])
@in_virtual_time
async def test_redeliveries_and_replays_earn_nothing(
    run: Run, lane: Lane, redelivered: bool, originals: int
) -> None:
    site = Site(psp())
    request = site.request(replace(site.delivery(lane=lane), redelivered=redelivered))
    site.gate.count(request, run)
    site.gate.count(request, run)
    assert await earned(site) == originals
    totals = site.gate.windows["psp"].totals(site.clock.monotonic())
    assert totals["attempts"] == 2
    assert counted(site.metrics, "consumer_originals_total",
                   handler=site.handler.name) == originals


@in_virtual_time
async def test_the_first_run_of_a_replay_costs_nothing() -> None:
    site = Site(psp())
    assert site.gate.begin(site.request(site.delivery(lane=Lane.REPLAY)), Run(1, retry=True))


# --- runs within an attempt, and runs without a toll -----------------------------------------


@pytest.mark.parametrize(("at_hand", "runs", "why"), [
    (0, 1, AckReason.RETRYING), (1, 2, AckReason.RETRYING), (2, 3, AckReason.DONE)])
@in_virtual_time
async def test_each_further_run_of_a_handler_with_dependencies_is_paid(
    at_hand: int, runs: int, why: AckReason
) -> None:
    """What the budget does not pay for is a failed attempt."""
    site = Site(psp())
    for _ in range(at_hand):
        site.guards.budgets.give_back("psp")
    site.fail_at("commit", SerializationConflict("40001"), SerializationConflict("40001"))
    outcome = await site.process_one(site.delivery())
    assert isinstance(outcome, Ack)
    assert (outcome.why, outcome.attempt) == (why, 1)
    assert site.handler.runs["a"] == runs
    assert site.gate.leased("psp") == 0


@in_virtual_time
async def test_a_rerun_that_only_one_of_two_budgets_would_pay_costs_nothing() -> None:
    site = Site(mail(), psp())
    site.guards.budgets.give_back("mail")
    assert not site.gate.may_rerun(site.request(site.delivery()))
    assert site.gate.leased("mail") == 1


@pytest.mark.parametrize("at_hand", [0, 1])
@in_virtual_time
async def test_a_copy_that_takes_over_pays_with_what_is_at_hand(at_hand: int) -> None:
    site = Site(psp())
    request = site.request(site.delivery())
    for _ in range(at_hand):
        site.guards.budgets.give_back("psp")
    run = Run(2, retry=True, costs=True, takeover=True)
    assert site.gate.begin(request, run) is bool(at_hand)
    if at_hand:
        assert site.gate.begin(request, run)  # once begun, it is not paid again
    site.gate.leave(request)
    assert site.gate.leased("psp") == 0


@pytest.mark.parametrize("tolled", [True, False])
@in_virtual_time
async def test_what_ended_before_it_called_anything_gets_back_what_it_paid(tolled: bool) -> None:
    site = Site(psp())
    request = site.request(forged(site))
    if tolled:
        site.credit("psp", 1)
        await site.paid(request)
    else:
        site.guards.budgets.give_back("psp")
    assert site.gate.begin(request, Run(2, retry=True, costs=True))
    assert site.gate.leased("psp") == 0
    site.gate.undo(request)
    site.gate.leave(request)
    assert site.gate.leased("psp") == 1


# --- what stands before a run ----------------------------------------------------------------


def closed_site(options: Options | None = None, *, mixed: bool = True) -> Site:
    """Its breaker is open, and it has no share of the fleet's slots."""
    site = Site(psp(breaker=BREAKER, max_in_flight_fleet=5), options=options, mixed=mixed)
    site.open_breaker("psp")
    return site


def in_time(site: Site, left: timedelta) -> Request:
    """A request with so much time left."""
    return replace(site.request(site.delivery()),
                   expires_s=site.clock.monotonic() + left.total_seconds())


@in_virtual_time
async def test_the_deadline_comes_first_then_the_breaker_then_slots() -> None:
    site = closed_site()
    assert site.gate.barrier(in_time(site, timedelta(0))) is Barrier.DEADLINE
    assert site.gate.barrier(in_time(site, SECOND)) is Barrier.BREAKER
    await asyncio.sleep(10)
    assert site.gate.barrier(in_time(site, SECOND)) is Barrier.NO_SLOT
    await site.guards.shares.renew()
    assert site.gate.barrier(in_time(site, SECOND)) is None


@pytest.mark.parametrize(("left", "barrier"), [
    (2 * SECOND, None), (2 * SECOND - timedelta(milliseconds=1), Barrier.DEADLINE),
    (timedelta(0), Barrier.DEADLINE), (-SECOND, Barrier.DEADLINE)])
@in_virtual_time
async def test_no_attempt_begins_with_less_time_than_its_handler_needs(
    left: timedelta, barrier: Barrier | None
) -> None:
    site = Site(psp(), options=Options(min_attempt=2 * SECOND))
    assert site.gate.barrier(in_time(site, left)) is barrier


@in_virtual_time
async def test_a_clock_that_is_set_moves_no_deadline() -> None:
    site = Site(psp(), options=Options(max_age=60 * SECOND))
    request = site.request(site.delivery())
    site.clock.advance(timedelta(hours=-5))
    await asyncio.sleep(59)
    assert site.gate.barrier(request) is None
    await asyncio.sleep(1)
    assert site.gate.barrier(request) is Barrier.DEADLINE


# --- the way to an executor ------------------------------------------------------------------


@in_virtual_time
async def test_a_delivery_enters_with_its_slots_and_leaves_without_them() -> None:
    site = Site(psp(max_in_flight=1), mail(max_in_flight=9))
    first, second = site.request(site.delivery("a")), site.request(site.delivery("b"))
    woken: list[str] = []
    site.gate.on_free(lambda: woken.append("free"))
    assert site.gate.enter(first)
    assert not site.gate.enter(second)
    assert [site.gate.slots.in_flight(name) for name in ("psp", "mail")] == [1, 1]
    assert woken == []
    site.gate.leave(first)
    site.gate.leave(first)
    assert [site.gate.slots.in_flight(name) for name in ("psp", "mail")] == [0, 0]
    assert woken == ["free"]
    assert site.gate.enter(second)


@in_virtual_time
async def test_who_takes_slots_for_each_call_enters_without() -> None:
    site = Site(psp(max_in_flight=1), options=Options(hold_slots="call"))
    for key in "abc":
        assert site.gate.enter(site.request(site.delivery(key)))
    assert site.gate.slots.in_flight("psp") == 0


@in_virtual_time
async def test_what_will_not_run_needs_no_slot() -> None:
    site = Site(psp(max_in_flight=1))
    assert site.gate.enter(site.request(site.delivery("a")))
    assert site.gate.enter(in_time(site, timedelta(0)))
    assert site.gate.slots.in_flight("psp") == 1


@pytest.mark.parametrize("options", [Options(), Options(hold_slots="call")])
@in_virtual_time
async def test_what_its_whole_queue_is_held_back_for_waits_unless_it_is_too_late(
    options: Options
) -> None:
    site = Site(psp(breaker=BREAKER), options=options)
    site.open_breaker("psp")
    request = site.request(site.delivery())
    assert not site.gate.enter(request)
    assert site.gate.enter(in_time(site, timedelta(0)))
    await asyncio.sleep(10)
    assert site.gate.enter(request)
    assert site.gate.barrier(request) is None


@in_virtual_time
async def test_what_entered_without_slots_does_not_run_although_its_way_is_free_by_then() -> None:
    """Its breaker lets calls through again between the hand-over and the claim."""
    site = Site(psp(breaker=BREAKER, max_in_flight=1), mixed=True)
    site.open_breaker("psp")
    request = site.request(site.delivery())
    assert site.gate.enter(request)
    await asyncio.sleep(10)
    [outcome] = await site.processor.process([request])
    assert isinstance(outcome, Delay)
    assert outcome.why is ParkReason.BREAKER
    assert site.handler.runs["a"] == 0
    [outcome] = await site.processor.process([site.request(site.delivery())])
    assert isinstance(outcome, Ack)


# --- a queue as a whole ----------------------------------------------------------------------


@in_virtual_time
async def test_a_queue_is_held_back_while_all_its_handlers_meet_a_closed_door() -> None:
    site = closed_site(mixed=False)
    why = site.gate.held_back("orders")
    assert why is not None
    assert "breaker of psp" in why
    assert "1 of 1 calls failed" in why
    await asyncio.sleep(10)
    why = site.gate.held_back("orders")
    assert why is not None
    assert "no slot of psp" in why
    await site.guards.shares.renew()
    assert site.gate.held_back("orders") is None


@in_virtual_time
async def test_a_queue_with_a_handler_that_calls_nothing_is_never_held_back() -> None:
    site = closed_site(mixed=True)
    assert (site.gate.held_back("orders"), site.gate.probing("orders")) == (None, False)


@in_virtual_time
async def test_a_queue_probes_while_its_breaker_is_half_open() -> None:
    site = Site(psp(breaker=BREAKER))
    assert not site.gate.probing("orders")
    site.open_breaker("psp")
    assert not site.gate.probing("orders")
    await asyncio.sleep(10)
    assert site.gate.probing("orders")
    circuit = site.gate.circuits["psp"]
    permit = circuit.try_enter(site.clock.monotonic())
    assert permit is not None
    circuit.leave(permit, site.clock.monotonic(), CallOutcome.SUCCESS, 0.1)
    assert not site.gate.probing("orders")


@in_virtual_time
async def test_who_waits_hears_when_a_breaker_changes() -> None:
    site, heard = Site(psp(breaker=BREAKER)), list[str]()
    site.gate.on_free(lambda: heard.append("changed"))
    site.open_breaker("psp")
    assert heard == ["changed"]


@in_virtual_time
async def test_the_wait_for_the_slot_of_a_whole_attempt_is_measured() -> None:
    site = Site(psp(max_in_flight=1))
    first, second = (site.request(site.delivery(key)) for key in "ab")
    assert site.gate.enter(first)
    assert not site.gate.enter(second)
    await asyncio.sleep(2)
    assert not site.gate.enter(second)
    await asyncio.sleep(1)
    site.gate.leave(first)
    assert site.gate.enter(second)
    labels = {"dependency": "psp"}
    assert counted(site.metrics, "consumer_slot_wait_seconds_count", **labels) == 2
    assert counted(site.metrics, "consumer_slot_wait_seconds_sum", **labels) == 3


@in_virtual_time
async def test_a_parked_copy_asks_for_a_grant_though_it_has_no_ticket() -> None:
    """It may take the place of a retry that stayed away, which nothing else would ever pay for."""
    site = Site(psp())
    assert not site.gate.has_toll(site.request(site.delivery()))
    assert site.gate.has_toll(site.request(site.delivery(**{names.PARKS: 1})))
