"""The path of a message whose handler calls dependencies: barriers, budgets, slots, replies."""

import asyncio
import json
from collections import Counter, deque
from datetime import timedelta
from typing import Any

import pytest
from simulation.bench import QUEUE, arrived, headers_of
from simulation.guarded import Site
from simulation.loop import in_virtual_time

from consumer import Breaker, Budget, Context, Dependency, Options, Reject, Retry
from consumer import message as names
from consumer.claim import ClaimState
from consumer.core.topology import dead_queue
from consumer.message import Delivery
from consumer.outcome import (
    Ack,
    AckReason,
    DeadLetter,
    DeadReason,
    Delay,
    Outcome,
    ParkReason,
    Requeue,
    RequeueReason,
)

SECOND = timedelta(seconds=1)
BREAKER = Breaker(minimum_calls=1, open_for=10 * SECOND)
NOTHING = Budget(ratio=0, capacity=0, floor_per_minute=0)
TEN = Budget(ratio=0.1, capacity=10, floor_per_minute=0)


def psp(**options: Any) -> Dependency:
    return Dependency("psp", **{"budget": None, "breaker": None, **options})


def why(outcome: Outcome) -> tuple[type[Outcome], Any]:
    return type(outcome), outcome.why


async def fail_once(site: Site) -> Delivery:
    """Key a has failed for now; returns the copy that may run next, once its delay is over."""
    site.handler.on("a", Retry("x"))
    assert why(await site.process_one(site.delivery())) == (Ack, AckReason.RETRYING)
    return await site.next_copy()


# --- deadlines -------------------------------------------------------------------------------


def aging(**options: Any) -> Site:
    """Commands are too late after a minute."""
    return Site(psp(), options=Options(max_age=60 * SECOND, **options))


@in_virtual_time
async def test_a_new_message_beyond_its_deadline_dies_and_claims_nothing() -> None:
    site = aging()
    late = site.delivery()
    await asyncio.sleep(60)
    assert why(await site.process_one(late)) == (DeadLetter, DeadReason.DEADLINE)
    assert (site.claim(), site.handler.runs["a"]) == (None, 0)
    assert why(await site.process_one(site.delivery())) == (Ack, AckReason.DONE)


@in_virtual_time
async def test_a_message_in_time_runs_though_little_is_left() -> None:
    site = aging()
    delivery = site.delivery()
    await asyncio.sleep(59.5)
    assert why(await site.process_one(delivery)) == (Ack, AckReason.DONE)


@in_virtual_time
async def test_with_less_time_left_than_an_attempt_needs_it_is_too_late() -> None:
    site = aging(min_attempt=5 * SECOND)
    delivery = site.delivery()
    await asyncio.sleep(56)
    assert why(await site.process_one(delivery)) == (DeadLetter, DeadReason.DEADLINE)


@pytest.mark.parametrize(("first", "expected"), [
    (None, AckReason.DUPLICATE), (Retry("x"), AckReason.SUPERSEDED), (Reject("x"), AckReason.DEAD)])
@in_virtual_time
async def test_a_duplicate_beyond_its_deadline_is_a_duplicate(
    first: Exception | None, expected: AckReason
) -> None:
    site = aging()
    delivery = site.delivery()
    site.handler.on("a", first)
    await site.process_one(delivery)
    claim = site.claim()
    await asyncio.sleep(100)
    assert why(await site.process_one(delivery)) == (Ack, expected)
    assert (site.claim(), site.handler.runs["a"]) == (claim, 1)


@pytest.mark.parametrize("first", [None, Retry("x"), Reject("x")])
@in_virtual_time
async def test_a_conflict_beyond_its_deadline_is_a_conflict(first: Exception | None) -> None:
    site = aging()
    other = site.delivery(amount=2)
    site.handler.on("a", first)
    await site.process_one(site.delivery())
    claim = site.claim()
    await asyncio.sleep(100)
    assert why(await site.process_one(other)) == (DeadLetter, DeadReason.KEY_CONFLICT)
    assert site.claim() == claim


@in_virtual_time
async def test_a_retry_beyond_its_deadline_dies_with_a_letter_and_without_another_attempt() -> None:
    site = aging()
    copy = await fail_once(site)
    await asyncio.sleep(60)
    outcome = await site.process_one(copy)
    assert isinstance(outcome, Ack)
    assert (outcome.why, outcome.attempt, outcome.dead) == (
        AckReason.DIED, 0, DeadReason.DEADLINE)
    claim = site.claim()
    assert claim is not None
    assert (claim.state, claim.attempts, claim.ticket) == (ClaimState.DEAD, 1, None)
    records = site.database.tables.attempts
    assert [(record.outcome, record.attempts) for record in records] == [
        ("failed", 1), ("not_run", 1)]
    [letter] = site.rows()
    headers = headers_of(letter)
    assert letter.routing_key.endswith(f".{dead_queue(QUEUE)}")
    assert (headers[names.DEAD_REASON], headers[names.DEAD_ATTEMPTS]) == ("deadline", 1)
    assert letter.body == copy.message.body
    assert (site.handler.runs["a"], site.effects) == (1, [])
    assert [row.message for row in outcome.rows] == [letter]


@in_virtual_time
async def test_a_command_that_expired_is_dead_for_all_that_comes_later() -> None:
    site = aging()
    copy = await fail_once(site)
    await asyncio.sleep(60)
    await site.process_one(copy)
    for delivery in (copy, site.delivery()):
        assert why(await site.process_one(delivery)) == (Ack, AckReason.DEAD)
    assert len(site.database.tables.attempts) == 2


@in_virtual_time
async def test_the_deadline_of_a_producer_stands_in_the_way_like_the_handlers() -> None:
    site = Site(psp())
    async with site.working():
        await site.send("late", deadline=site.clock.now() + SECOND)
        held = site.broker.queues[QUEUE].popleft()
        await asyncio.sleep(2)
        site.broker.queues[QUEUE].append(held)
        await site.send("good", deadline=site.clock.now() + 60 * SECOND)
        await asyncio.sleep(5)
    assert sorted(map(why, site.outcomes), key=str) == sorted(
        [(DeadLetter, DeadReason.DEADLINE), (Ack, AckReason.DONE)], key=str)
    assert site.handler.runs == {"good": 1}


# --- a retry without budget ------------------------------------------------------------------


@in_virtual_time
async def test_a_retry_without_budget_is_parked_longer_each_time_with_its_ticket() -> None:
    site = Site(psp(budget=TEN))
    copy = await fail_once(site)
    claim, ticket = site.claim(), headers_of_delivery(copy)[names.TICKET]
    delays: list[float] = []
    for _ in range(12):
        outcome = await site.process_one(copy)
        assert isinstance(outcome, Delay)
        assert outcome.why is ParkReason.BUDGET
        delays.append(outcome.delay.total_seconds())
        copy = arrived(outcome.copy)
        assert headers_of_delivery(copy)[names.TICKET] == ticket
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert (site.claim(), len(site.database.tables.attempts)) == (claim, 1)
    await site.guards.budgets.exchange()
    site.credit("psp", 1)
    [outcome] = await site.processor.process([await site.paid(site.request(copy))])
    assert isinstance(outcome, Ack)
    assert (outcome.why, outcome.attempt) == (AckReason.DONE, 2)


@in_virtual_time
async def test_a_retry_that_fails_again_begins_with_short_parks_anew() -> None:
    site = Site(psp(budget=TEN))
    copy = await fail_once(site)
    for _ in range(5):
        outcome = await site.process_one(copy)
        assert isinstance(outcome, Delay)
        copy = arrived(outcome.copy)
    site.credit("psp", 1)
    site.handler.on("a", Retry("x"))
    await site.processor.process([await site.paid(site.request(copy))])
    outcome = await site.process_one(await site.next_copy())
    assert isinstance(outcome, Delay)
    assert outcome.delay == SECOND


def headers_of_delivery(delivery: Delivery) -> dict[str, Any]:
    return delivery.message.properties.headers.decoded()


# --- a breaker that is open, and slots that are none -----------------------------------------


async def close_door(site: Site, reason: ParkReason) -> None:
    """Nothing can be called: an open breaker, or no share of the fleet's slots."""
    if reason is ParkReason.BREAKER:
        await site.guards.shares.renew()
        site.open_breaker("psp")
    else:
        site.gate.slots.grant("psp", 0, site.clock.monotonic() + 1000)


def door(*, mixed: bool = True) -> Site:
    return Site(psp(breaker=Breaker(), max_in_flight_fleet=5), mixed=mixed)


DOORS = [ParkReason.BREAKER, ParkReason.NO_SLOT]


@pytest.mark.parametrize("reason", DOORS)
@in_virtual_time
async def test_a_new_message_that_can_call_nothing_is_parked_and_claims_nothing(
    reason: ParkReason
) -> None:
    site = door()
    await close_door(site, reason)
    outcome = await site.process_one(site.delivery())
    assert why(outcome) == (Delay, reason)
    assert (site.claim(), site.handler.runs["a"]) == (None, 0)


@pytest.mark.parametrize("reason", DOORS)
@in_virtual_time
async def test_a_retry_that_can_call_nothing_is_parked_with_its_ticket(reason: ParkReason) -> None:
    site = door()
    await site.guards.shares.renew()
    copy = await fail_once(site)
    await close_door(site, reason)
    claim = site.claim()
    outcome = await site.process_one(copy)
    assert isinstance(outcome, Delay)
    assert outcome.why is reason
    assert headers_of(outcome.copy)[names.TICKET] == headers_of_delivery(copy)[names.TICKET]
    assert (site.claim(), len(site.database.tables.attempts)) == (claim, 1)


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("reason", DOORS)
@in_virtual_time
async def test_what_need_not_run_meets_no_closed_door(reason: ParkReason, mixed: bool) -> None:
    site = door(mixed=mixed)
    await site.guards.shares.renew()
    await site.process_one(site.delivery())
    await close_door(site, reason)
    assert why(await site.process_one(site.delivery())) == (Ack, AckReason.DUPLICATE)
    assert why(await site.process_one(site.delivery(amount=2))) == (
        DeadLetter, DeadReason.KEY_CONFLICT)


@pytest.mark.parametrize("reason", DOORS)
@in_virtual_time
async def test_where_the_whole_queue_meets_it_messages_go_back_untouched(
    reason: ParkReason
) -> None:
    site = door(mixed=False)
    await close_door(site, reason)
    assert why(await site.process_one(site.delivery())) == (Requeue, RequeueReason.PAUSE)
    assert site.claim() is None


@in_virtual_time
async def test_a_message_that_is_too_late_dies_though_its_breaker_is_open() -> None:
    site = Site(psp(breaker=BREAKER), options=Options(max_age=60 * SECOND), mixed=True)
    late = site.delivery()
    await asyncio.sleep(60)
    site.open_breaker("psp")
    assert why(await site.process_one(late)) == (DeadLetter, DeadReason.DEADLINE)


@in_virtual_time
async def test_a_handler_beside_it_that_calls_nothing_goes_on() -> None:
    site = door()
    await close_door(site, ParkReason.BREAKER)
    async with site.working():
        await site.send("a")
        await site.send("r", body=b'{"key": "r"}', type="orders.refund")
        await asyncio.sleep(1)
    assert sorted(map(str, (outcome.why for outcome in site.outcomes))) == ["breaker", "done"]


@in_virtual_time
async def test_parked_work_is_done_once_the_breaker_lets_it_through() -> None:
    site = Site(psp(breaker=BREAKER), mixed=True)
    site.open_breaker("psp")
    async with site.working():
        for number in range(10):
            await site.send(f"k{number}")
        await asyncio.sleep(120)
    assert sorted(site.effects) == [(f"k{number}", 1) for number in range(10)]
    assert site.database.tables.attempts == []


# --- slots on the whole path -----------------------------------------------------------------


@pytest.mark.parametrize("options", [Options(), Options(hold_slots="call")])
@in_virtual_time
async def test_no_more_calls_are_in_flight_than_allowed_and_none_is_parked(
    options: Options
) -> None:
    site, now, most = Site(psp(max_in_flight=3), options=options), 0, 0

    async def call(_: Any, context: Context) -> None:
        nonlocal now, most
        async with context.call("psp"):
            now += 1
            most = max(most, now)
            await asyncio.sleep(1)
            now -= 1

    async with site.working(executors=8):
        for number in range(30):
            site.handler.on(f"k{number}", call)
            await site.send(f"k{number}")
        await asyncio.sleep(15)
    assert Counter(map(why, site.outcomes)) == {(Ack, AckReason.DONE): 30}
    assert (most, site.gate.slots.in_flight("psp")) == (3, 0)


# --- budgets on the whole path (B23, B26) ----------------------------------------------------


def spending(budget: Budget, *, named: bool, **options: Any) -> Site:
    """Retries of its handler are paid from `budget`, as it names a dependency or by its queue."""
    made = Options(**options)
    return Site(psp(budget=budget), options=made) if named \
        else Site(retry_budget=budget, options=made)


def account(site: Site, named: bool) -> str:
    return "psp" if named else QUEUE


def attempts(site: Site) -> set[tuple[str, int]]:
    """Which attempts were made. A group that is rolled back makes them again."""
    return {(key, attempt) for key, attempt, _ in site.handler.seen}


def fail(*_: Any) -> Exception:
    return Retry("x")


ALWAYS = [fail] * 50


async def work(site: Site, keys: list[str], *happens: Any, for_s: float = 3000) -> None:
    """Commands come, of which each does that, run by run."""
    async with site.working():
        for key in keys:
            site.handler.on(key, *happens)
            await site.send(key)
        await asyncio.sleep(for_s)


HUNDRED = [f"k{number}" for number in range(100)]


@pytest.mark.parametrize("named", [True, False])
@in_virtual_time
async def test_a_hundred_commands_that_always_fail_get_exactly_the_retries_the_budget_has(
    named: bool
) -> None:
    """A hundred originals earn ten retries, and ten can be saved up. Nothing is lost."""
    site = spending(TEN, named=named, max_attempts=20)
    await work(site, HUNDRED, *ALWAYS)
    assert {key for key, attempt in attempts(site) if attempt == 1} == set(HUNDRED)
    assert len(attempts(site)) == len(site.database.tables.attempts) == 110
    assert site.handler.runs.total() == 110 or not named
    assert {outcome.why for outcome in site.outcomes} == {AckReason.RETRYING, ParkReason.BUDGET}
    books = site.budget_store.accounts[account(site, named)]
    assert (books.credits, books.outstanding) == (0, 10)
    assert {claim.state for claim in site.database.tables.claims.values()} == {ClaimState.RETRYING}


@pytest.mark.parametrize("named", [True, False])
@in_virtual_time
async def test_without_any_budget_all_originals_are_handled_and_nothing_is_retried(
    named: bool
) -> None:
    site = spending(NOTHING, named=named)
    for key in HUNDRED[::2]:
        site.handler.on(key, *ALWAYS)
    await work(site, HUNDRED)
    assert len(site.effects) == 50
    assert len(site.database.tables.attempts) == 50
    assert attempts(site) == {(key, 1) for key in HUNDRED}


@pytest.mark.parametrize("named", [True, False])
@in_virtual_time
async def test_with_enough_budget_every_command_fails_as_often_as_it_may_and_dies(
    named: bool
) -> None:
    site = spending(Budget(ratio=1, capacity=1000), named=named, max_attempts=3)
    async with site.working():
        site.credit(account(site, named), 1000)
        for key in HUNDRED:
            site.handler.on(key, *ALWAYS)
            await site.send(key)
        await asyncio.sleep(600)
    assert Counter(outcome.why for outcome in site.outcomes) == {
        AckReason.RETRYING: 200, AckReason.DIED: 100}
    assert attempts(site) == {(key, attempt) for key in HUNDRED for attempt in (1, 2, 3)}
    assert len(site.broker.queues[dead_queue(QUEUE)]) == 100


@pytest.mark.parametrize("named", [True, False])
@in_virtual_time
async def test_permanent_failures_duplicates_and_conflicts_take_nothing(named: bool) -> None:
    site = spending(Budget(ratio=0.1, capacity=100, floor_per_minute=0), named=named)
    site.credit(account(site, named), 50)
    async with site.working():
        for number in range(20):
            site.handler.on(f"rejected{number}", Reject("x"), Reject("x"))
            site.handler.on(f"broken{number}", KeyError("x"), KeyError("x"))
            for key, amount in (("rejected", 1), ("broken", 1), ("good", 1), ("good", 1),
                                ("good", 2)):
                await site.send(f"{key}{number}", amount)
        await asyncio.sleep(60)
    assert Counter(outcome.why for outcome in site.outcomes) == {
        AckReason.DIED: 40, AckReason.DONE: 20, AckReason.DUPLICATE: 20,
        DeadReason.KEY_CONFLICT: 20}
    books = site.budget_store.accounts[account(site, named)]
    assert (books.credits, books.outstanding) == (500 + 60, 50)


@in_virtual_time
async def test_parked_work_is_probed_by_the_floor() -> None:
    """Six retries a minute, whatever happens: parked commands never wait in vain."""
    site = spending(Budget(ratio=0, capacity=0, floor_per_minute=6), named=True, max_attempts=20)
    await work(site, HUNDRED, *ALWAYS, for_s=600)
    assert 100 + 20 <= site.handler.runs.total() <= 100 + 61


@in_virtual_time
async def test_a_redelivery_of_an_original_is_no_retry_and_costs_nothing() -> None:
    site, begun = spending(NOTHING, named=True), asyncio.Event()

    async def hang(*_: Any) -> None:
        begun.set()
        await asyncio.sleep(10)

    site.handler.on("a", hang)
    async with site.working():
        await site.send("a")
        await begun.wait()
    site.broker.lose_channel()
    async with site.working():
        await asyncio.sleep(60)
    assert (site.handler.runs["a"], site.effects) == (2, [("a", 1)])
    assert site.gate.windows["psp"].totals(site.clock.monotonic())["originals"] == 1


# --- replies ---------------------------------------------------------------------------------

ANSWERS = "answers.web"
TO_ANSWERS = {"reply_to": ANSWERS, "correlation_id": "c-1"}


def replying(**options: Any) -> Site:
    site = Site(psp(), reply_patterns=["answers.*"],
                options=Options(max_age=60 * SECOND, max_attempts=2, **options))
    site.broker.queues[ANSWERS] = deque()
    site.handler.fallback_reply = lambda command: {  # type: ignore[method-assign]
        "amount": command.amount}
    return site


def answers(site: Site) -> list[dict[str, Any]]:
    """What requesters were told, in order."""
    waiting = site.broker.queues[ANSWERS]
    assert {reply.message.properties.correlation_id for reply in waiting} <= {"c-1"}
    return [json.loads(reply.message.body) for reply in waiting]


def told(reply: dict[str, Any]) -> tuple[Any, ...]:
    return (reply["error"]["reason"], reply["error"].get("dead_reason"), reply.get("fallback"))


@pytest.mark.parametrize(("happens", "expected"), [
    ([None], []), ([Retry("x"), None], []),
    ([Reject("the secret")], [("dead", "rejected", None)]),
    ([KeyError("the secret")], [("dead", "permanent", None)]),
    ([Retry("the secret")] * 2, [("dead", "attempts", {"amount": 1})]),
    ([Retry("the secret", after=90 * SECOND)], [("deadline", "deadline", {"amount": 1})]),
])
@in_virtual_time
async def test_a_requester_is_told_once_that_its_command_is_given_up(
    happens: list[Any], expected: list[tuple[Any, ...]]
) -> None:
    """Errors of handlers are not for it to see."""
    site = replying()
    site.handler.on("a", *happens)
    async with site.working():
        await site.send("a", **TO_ANSWERS)
        await asyncio.sleep(50)
    assert [told(reply) for reply in answers(site)] == expected
    assert "secret" not in json.dumps(answers(site))
    assert site.broker.unacked == {}


@in_virtual_time
async def test_whoever_sends_a_refused_message_is_told_why() -> None:
    site = replying()
    site.handler.on("dead", Reject("x"))
    async with site.working():
        await site.send("done")
        await site.send("dead")
        await asyncio.sleep(1)
        await site.send("done", amount=2, **TO_ANSWERS)
        await asyncio.sleep(1)
        await site.send("dead", **TO_ANSWERS)
        await asyncio.sleep(1)
        await site.send("x", body=b"garbage", **TO_ANSWERS)
        await asyncio.sleep(1)
        await site.send("late", deadline=site.clock.now() - SECOND, **TO_ANSWERS)
        await asyncio.sleep(1)
        await site.send("done", **TO_ANSWERS)
        await asyncio.sleep(1)
    assert [told(reply) for reply in answers(site)] == [
        ("conflict", "key_conflict", None), ("dead", None, None), ("malformed", "malformed", None),
        ("deadline", "deadline", {"amount": 1})]
    assert site.broker.unacked == {}


@in_virtual_time
async def test_a_retry_that_expires_tells_its_requester_with_the_fallback() -> None:
    site = replying()
    site.handler.on("a", Retry("x"))
    [outcome] = await site.processor.process([await requested(site)])
    assert why(outcome) == (Ack, AckReason.RETRYING)
    copy = await site.next_copy()
    await asyncio.sleep(60)
    outcome = await site.process_one(copy)
    assert isinstance(outcome, Ack)
    assert outcome.reply is not None
    assert told(json.loads(outcome.reply.body)) == ("deadline", "deadline", {"amount": 1})


async def requested(site: Site) -> Any:
    await site.send("a", **TO_ANSWERS)
    taken = site.broker.take(QUEUE)
    assert taken is not None
    return site.request(taken[0])


@pytest.mark.parametrize("fallback", [
    lambda command: 1 / 0, lambda command: {"rate": float("nan")}, lambda command: {"x": object()}])
@in_virtual_time
async def test_a_fallback_that_cannot_be_told_is_left_out(fallback: Any) -> None:
    site = replying()
    site.handler.fallback_reply = fallback  # type: ignore[method-assign]
    site.handler.on("a", Retry("x"), Retry("x"))
    async with site.working():
        await site.send("a", **TO_ANSWERS)
        await asyncio.sleep(50)
    assert [told(reply) for reply in answers(site)] == [("dead", "attempts", None)]


@pytest.mark.parametrize("hostile", [
    QUEUE, dead_queue(QUEUE), "shop.unroutable", "shop.commands", "#", "answers", "é" * 120])
@in_virtual_time
async def test_a_reply_to_that_no_pattern_allows_gets_no_reply(hostile: str) -> None:
    site = replying()
    site.handler.on("a", Reject("x"))
    async with site.working():
        await site.send("a", reply_to=hostile)
        await asyncio.sleep(10)
    assert Counter(map(why, site.outcomes)) == {(Ack, AckReason.DIED): 1}
    assert [len(waiting) for name, waiting in site.broker.queues.items() if waiting] == [1]
    assert site.broker.unacked == {}


@in_virtual_time
async def test_a_reply_that_reaches_nobody_holds_up_no_ack() -> None:
    site = replying()
    site.handler.on("a", Reject("x"))
    async with site.working():
        await site.send("a", reply_to="answers.gone")
        await site.send("a", amount=2, reply_to="answers.gone")
        await asyncio.sleep(10)
    assert {outcome.why for outcome in site.outcomes} == {AckReason.DIED, DeadReason.KEY_CONFLICT}
    assert site.broker.unacked == {}


# --- parks before a deadline -----------------------------------------------------------------


async def retry_with(left: timedelta, **options: Any) -> tuple[Site, Delivery]:
    """A retry that nothing pays for, with so much time left."""
    site = Site(psp(budget=NOTHING), options=Options(
        max_age=60 * SECOND, backoff_base=timedelta(0), **options))
    copy = await fail_once(site)
    await asyncio.sleep(60 - left.total_seconds())
    return site, copy


@in_virtual_time
async def test_a_park_ends_in_time_for_a_last_attempt() -> None:
    site, copy = await retry_with(0.9 * SECOND, min_attempt=0.2 * SECOND)
    outcome = await site.process_one(copy)
    assert isinstance(outcome, Delay)
    assert outcome.why is ParkReason.BUDGET
    assert timedelta(0) < outcome.delay <= 0.7 * SECOND


@in_virtual_time
async def test_a_retry_that_could_not_come_back_in_time_dies_at_once() -> None:
    site, copy = await retry_with(0.25 * SECOND, min_attempt=0.2 * SECOND)
    outcome = await site.process_one(copy)
    assert isinstance(outcome, Ack)
    assert (outcome.why, outcome.dead) == (AckReason.DIED, DeadReason.DEADLINE)
    claim = site.claim()
    assert claim is not None
    assert (claim.state, claim.attempts) == (ClaimState.DEAD, 1)
    assert [failure.outcome for failure in site.database.tables.attempts] == ["failed", "not_run"]


@pytest.mark.parametrize("reason", [ParkReason.BREAKER, ParkReason.NO_SLOT])
@in_virtual_time
async def test_a_new_message_that_could_not_come_back_in_time_dies_at_once(
    reason: ParkReason
) -> None:
    site = door()
    await close_door(site, reason)
    soon = site.clock.now() + timedelta(milliseconds=50)
    outcome = await site.process_one(
        site.delivery(**{names.DEADLINE_MS: int(soon.timestamp() * 1000)}))
    assert why(outcome) == (DeadLetter, DeadReason.DEADLINE)
    assert (site.claim(), site.handler.runs["a"]) == (None, 0)


@in_virtual_time
async def test_who_has_waited_for_a_slot_as_long_as_it_could_dies_at_once() -> None:
    site = Site(psp(max_in_flight=1), options=Options(
        max_age=60 * SECOND, attempt_timeout=90 * SECOND, hold_slots="call", min_attempt=SECOND))
    assert site.gate.slots.try_take(("psp",))

    async def call(_: Any, context: Context) -> None:
        async with context.call("psp"):
            raise AssertionError("there was no slot")

    site.handler.on("a", call)
    assert why(await site.process_one(site.delivery())) == (DeadLetter, DeadReason.DEADLINE)
    assert (site.claim(), site.handler.runs["a"]) == (None, 1)
