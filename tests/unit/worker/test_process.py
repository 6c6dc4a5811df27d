"""What becomes of one delivery: idempotency, retries, conflicts and faults (B18, B19, B20, B22)."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from simulation.bench import (
    QUEUE,
    SCOPE,
    Bench,
    Charge,
    Happening,
    arrived,
    guards_of,
    headers_of,
    sent,
)
from simulation.loop import in_virtual_time

from consumer import App, Command, Context, Handler, Options, Reject, Retry
from consumer import message as names
from consumer.claim import ClaimState, Fingerprint
from consumer.core.admit import TAKEOVER_GRACE
from consumer.core.topology import LONGEST_ROUNDED_DELAY
from consumer.errors import (
    BrokerUnavailable,
    CommitFailed,
    SerializationConflict,
    StoreUnavailable,
)
from consumer.message import Delivery, Lane
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
from consumer.testing.memory import MemoryStore
from consumer.worker.process import Processor
from consumer.worker.requests import RequestReader


def ack(why: AckReason) -> Any:
    class Matches:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Ack) and other.why is why

        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            return f"Ack({why})"

    return Matches()


# --- duplicates and conflicts, in every state (B18) ------------------------------------------


async def in_state(bench: Bench, state: ClaimState | None) -> None:
    """Key a, amount 1, is in that state."""
    happening: dict[ClaimState | None, list[Happening]] = {
        None: [], ClaimState.DONE: [None], ClaimState.RETRYING: [Retry("x")],
        ClaimState.DEAD: [Reject("x")]}
    happens = happening[state]
    if happens:
        bench.handler.on("a", *happens)
        await bench.process(bench.delivery("a", 1))
    assert (getattr(bench.claim(), "state", None)) == state


@pytest.mark.parametrize("state", [ClaimState.DONE, ClaimState.RETRYING, ClaimState.DEAD])
@pytest.mark.parametrize("times", [1, 2])
@in_virtual_time
async def test_another_payload_is_a_conflict_in_every_state(state: ClaimState, times: int) -> None:
    """P2, also twice, dies with both fingerprints; the life of P1 is unchanged."""
    bench = Bench()
    await in_state(bench, state)
    claim, rows, attempts = bench.claim(), bench.rows(), len(bench.database.tables.attempts)
    for _ in range(times):
        outcome = await bench.process_one(bench.delivery("a", 2))
        assert isinstance(outcome, DeadLetter)
        assert outcome.why is DeadReason.KEY_CONFLICT
        headers = headers_of(outcome.letter)
        prints = [headers["consumer-fingerprint"], headers["consumer-claimed-fingerprint"]]
        assert claim is not None
        assert prints[1] == claim.fingerprint.digest.hex() != prints[0]
        assert outcome.letter.body == bench.delivery("a", 2).message.body
        assert "2" not in outcome.error
    assert (bench.claim(), bench.rows()) == (claim, rows)
    assert len(bench.database.tables.attempts) == attempts
    assert bench.handler.runs["a"] == 1


@in_virtual_time
async def test_another_payload_waits_while_the_first_is_running() -> None:
    bench = Bench()

    async def meanwhile(_: Charge, __: Context) -> None:
        other = bench.new_processor()
        [outcome] = await other.process(bench.requests([bench.delivery("a", 2)]))
        assert isinstance(outcome, Delay)
        assert outcome.why is ParkReason.CLAIMED_ELSEWHERE

    bench.handler.on("a", meanwhile)
    assert await bench.process_one(bench.delivery("a", 1)) == ack(AckReason.DONE)
    assert bench.handler.runs["a"] == 1


@pytest.mark.parametrize(("state", "why"), [
    (ClaimState.DONE, AckReason.DUPLICATE), (ClaimState.RETRYING, AckReason.SUPERSEDED),
    (ClaimState.DEAD, AckReason.DEAD)])
@in_virtual_time
async def test_the_same_payload_is_a_duplicate_in_every_state(
    state: ClaimState, why: AckReason
) -> None:
    bench = Bench()
    await in_state(bench, state)
    claim = bench.claim()
    assert await bench.process_one(bench.delivery("a", 1)) == ack(why)
    assert bench.claim() == claim
    assert bench.handler.runs["a"] == 1


@in_virtual_time
async def test_a_payload_that_was_invalid_does_not_own_its_key() -> None:
    bench = Bench(deploy_grace=timedelta(0))
    invalid = sent(b'{"key":"a","amount":"many"}', {"idempotency-key": "a"}, type="orders.charge")
    outcome = bench.reader.read(invalid)
    assert isinstance(outcome, DeadLetter)
    assert await bench.process_one(bench.delivery("a", 2)) == ack(AckReason.DONE)


@in_virtual_time
async def test_one_key_in_two_scopes_runs_twice() -> None:
    """Two handlers bound to one command both run (B22)."""

    class Mail(Handler[Charge]):
        name, queue = "mail.receipt", "mail"

        async def handle(self, command: Charge, context: Context) -> None:
            session: Any = context.session
            session.add(("mail", command.key))

    bench = Bench()
    bench.register(Mail)
    delivery = bench.delivery("42")
    elsewhere = Delivery(delivery.message, "mail", routing_key=delivery.routing_key)
    assert await bench.process_one(delivery) == ack(AckReason.DONE)
    assert await bench.process_one(elsewhere) == ack(AckReason.DONE)
    assert set(bench.database.tables.claims) == {(SCOPE, "42"), ("mail.receipt", "42")}


@pytest.mark.parametrize("pair", [
    ("order-1", "ORDER-1"), ("order-1", "order-1 "), ("order-1", "\torder-1"),
    ("\u00e9", "e\u0301"), ("order-1", "order\u200b-1"), ("1", "01"), ("1", "1.0")])
@in_virtual_time
async def test_keys_are_compared_exactly(pair: tuple[str, str]) -> None:
    """No trimming, folding or normalising: each is a key of its own (B15)."""
    bench = Bench()
    for key in pair:
        assert await bench.process_one(bench.delivery(key, amount=1)) == ack(AckReason.DONE)
    assert len(bench.effects) == 2


# --- a handler that changes its command (B19) ------------------------------------------------


def mutate(command: Charge, _: Context) -> None:
    command.amount = 99
    command.lines.clear()
    command.key = "other"


def mutate_and_fail(command: Charge, context: Context) -> Exception:
    mutate(command, context)
    return Retry("after mutating")


@in_virtual_time
async def test_a_duplicate_is_known_although_the_handler_changed_its_command() -> None:
    bench = Bench()
    bench.handler.on("a", mutate)
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.DONE)
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.DUPLICATE)


@in_virtual_time
async def test_a_retry_carries_the_original_bytes() -> None:
    body = b' { "key" : "a", "lines" : ["\\u00e9", "x"],\n "amount":1.0 } '
    bench = Bench()
    bench.handler.on("a", mutate_and_fail)
    delivery = sent(body, {"idempotency-key": "a"}, type="orders.charge")
    assert await bench.process_one(delivery) == ack(AckReason.RETRYING)
    [copy] = bench.next_copies()
    assert copy.message.body == body
    assert await bench.process_one(copy) == ack(AckReason.DONE)
    assert [command for _, _, command in bench.handler.seen] == [
        Charge(key="a", amount=1, lines=["é", "x"])] * 2


@in_virtual_time
async def test_a_run_behind_a_savepoint_gets_a_fresh_command() -> None:
    bench = Bench()
    bench.handler.on("a", mutate_and_fail)
    await bench.process(bench.delivery("a"), bench.delivery("b"))
    assert [(key, command.amount) for key, _, command in bench.handler.seen] == [
        ("a", 1), ("a", 1), ("b", 1)]


@in_virtual_time
async def test_a_serialization_rerun_gets_a_fresh_command() -> None:
    bench = Bench()
    bench.handler.on("a", mutate)
    bench.fail_at("commit", SerializationConflict("40001"))
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.DONE)
    assert bench.effects == [("a", 1)]
    assert [command.amount for _, _, command in bench.handler.seen] == [1, 1]


@in_virtual_time
async def test_the_dead_letter_of_a_changed_command_has_the_original_bytes() -> None:
    bench = Bench()

    def mutate_and_reject(command: Charge, context: Context) -> Exception:
        mutate(command, context)
        return Reject("x")

    bench.handler.on("a", mutate_and_reject)
    await bench.process_one(bench.delivery("a"))
    [letter] = bench.rows()
    assert letter.body == bench.delivery("a").message.body


# --- retries (B20, B23) -----------------------------------------------------------------------


async def follow(bench: Bench, outcome: Outcome, *, redelivered: bool = False) -> list[Outcome]:
    """Deliver next copies until there is none."""
    outcomes = [outcome]
    while copies := bench.next_copies():
        [copy] = copies
        copy = Delivery(copy.message, QUEUE, routing_key=copy.routing_key, redelivered=redelivered)
        outcomes.append(await bench.process_one(copy))
    return outcomes


@pytest.mark.parametrize("redelivered", [False, True])
@pytest.mark.parametrize("base", [timedelta(0), timedelta(seconds=1)])
@in_virtual_time
async def test_two_failures_then_success_are_three_executions_and_one_effect(
    redelivered: bool, base: timedelta
) -> None:
    bench = Bench(options=Options(backoff_base=base))
    bench.handler.on("a", Retry("x"), ConnectionError("x"))
    outcomes = await follow(bench, await bench.process_one(bench.delivery("a")),
                            redelivered=redelivered)
    assert outcomes == [ack(AckReason.RETRYING)] * 2 + [ack(AckReason.DONE)]
    assert [attempt for _, attempt, _ in bench.handler.seen] == [1, 2, 3]
    assert bench.effects == [("a", 1)]
    claim = bench.claim()
    assert claim is not None
    assert (claim.state, claim.attempts) == (ClaimState.DONE, 3)


@pytest.mark.parametrize("most", [1, 2, 5])
@in_virtual_time
async def test_a_handler_that_always_fails_runs_max_attempts_times_and_dies(most: int) -> None:
    bench = Bench(options=Options(max_attempts=most))
    bench.handler.on("a", *[Retry("x")] * 20)
    outcomes = await follow(bench, await bench.process_one(bench.delivery("a")))
    assert outcomes == [ack(AckReason.RETRYING)] * (most - 1) + [ack(AckReason.DIED)]
    assert bench.handler.runs["a"] == most
    [letter] = bench.rows()
    headers = headers_of(letter)
    assert (headers[names.DEAD_REASON], headers[names.DEAD_ATTEMPTS]) == ("attempts", most)
    assert bench.effects == []


@pytest.mark.parametrize("spoof", [
    {"consumer-attempt": 99}, {"consumer-attempt": -1_000_000}, {"x-delivery-count": 50},
    {"x-death": [{"count": 50}]}, {"consumer-parks": 99}, {"consumer-replay": True},
    {"consumer-replay-item": 7}, {"consumer-ticket": "5d1d9f5c-0000-4000-8000-000000000000"},
    {"consumer-routing-key": "other.type"}, {"consumer-dead-queue": "other.queue"},
    {"x-death": "[{count=1}]"}, {"x-death": []}, {"x-death": [{"count": "7"}] * 300},
    {"consumer-parks": "abc"}, {"consumer-parks": -5}, {"consumer-parks": b"\xff"},
    {"consumer-ticket": [1]}, {"consumer-ticket": {"n": 1}}, {"consumer-parks": 2**63 - 1},
])
@in_virtual_time
async def test_spoofed_and_garbled_control_headers_count_for_nothing(spoof: dict[str, Any]) -> None:
    """The first run happens, and the limit of attempts holds (B12, B13)."""
    bench = Bench(options=Options(max_attempts=2))
    bench.handler.on("a", Retry("x"), Retry("x"))
    delivery = sent(b'{"key":"a"}', {"idempotency-key": "a", **spoof}, type="orders.charge")
    outcomes = await follow(bench, await bench.process_one(delivery))
    assert outcomes == [ack(AckReason.RETRYING), ack(AckReason.DIED)]
    assert bench.handler.runs["a"] == 2
    [letter] = bench.rows()
    assert letter.routing_key.endswith(f".{QUEUE}.dead")
    assert not {"x-death", "x-delivery-count"} & set(headers_of(letter))


@in_virtual_time
async def test_a_spoofed_replay_mark_passes_no_duplicate() -> None:
    bench = Bench()
    await bench.process_one(bench.delivery("a"))
    spoofed = bench.delivery("a", consumer_replay_item=1, consumer_replay=True)
    assert await bench.process_one(spoofed) == ack(AckReason.DUPLICATE)
    replayed = bench.delivery("a", lane=Lane.REPLAY)
    assert await bench.process_one(replayed) == ack(AckReason.DUPLICATE)


@in_virtual_time
async def test_a_replay_nobody_asked_for_dies() -> None:
    bench = Bench()
    outcome = await bench.process_one(bench.delivery("a", lane=Lane.REPLAY))
    assert isinstance(outcome, DeadLetter)
    assert outcome.why is DeadReason.NO_REPLAY_ITEM
    assert bench.claim() is None


@in_virtual_time
async def test_a_forged_ticket_runs_nothing() -> None:
    bench = Bench()
    bench.handler.on("a", Retry("x"))
    await bench.process_one(bench.delivery("a"))
    forged = bench.delivery("a", consumer_ticket=str(bench.clock.token()))
    assert await bench.process_one(forged) == ack(AckReason.SUPERSEDED)
    assert bench.handler.runs["a"] == 1


@in_virtual_time
async def test_a_ticket_is_good_for_one_attempt() -> None:
    bench = Bench()
    bench.handler.on("a", Retry("x"), Retry("x"))
    await bench.process_one(bench.delivery("a"))
    [first] = bench.next_copies()
    await bench.process_one(first)
    assert await bench.process_one(first) == ack(AckReason.SUPERSEDED)
    assert len(bench.next_copies()) == 1  # the row of the first is gone
    assert bench.handler.runs["a"] == 2


@pytest.mark.parametrize(("late", "why"), [
    (timedelta(0), AckReason.SUPERSEDED), (TAKEOVER_GRACE, AckReason.SUPERSEDED),
    (TAKEOVER_GRACE + timedelta(milliseconds=1), AckReason.DONE)])
@in_virtual_time
async def test_any_copy_takes_over_after_due_time_and_grace(
    late: timedelta, why: AckReason
) -> None:
    bench = Bench()
    bench.handler.on("a", Retry("x", after=timedelta(seconds=5)))
    await bench.process_one(bench.delivery("a"))
    claim = bench.claim()
    assert claim is not None
    assert claim.due_at is not None
    bench.clock.advance(claim.due_at - bench.clock.now() + late)
    assert await bench.process_one(bench.delivery("a")) == ack(why)


@pytest.mark.parametrize(("after", "least", "most"), [
    (timedelta(seconds=60), timedelta(seconds=60), timedelta(seconds=61)),
    (timedelta(seconds=-60), timedelta(0), timedelta(seconds=1)),
    (timedelta.max, LONGEST_ROUNDED_DELAY, LONGEST_ROUNDED_DELAY + timedelta(seconds=1)),
    (5, timedelta(0), timedelta(seconds=1)),
    ("soon", timedelta(0), timedelta(seconds=1)),
])
@in_virtual_time
async def test_retry_after_is_a_minimum_and_never_breaks_the_record(
    after: Any, least: timedelta, most: timedelta
) -> None:
    bench = Bench()
    bench.handler.on("a", Retry("x", after=after))
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.RETRYING)
    [failure] = bench.database.tables.attempts
    assert failure.delay is not None
    assert least <= failure.delay <= most


@in_virtual_time
async def test_the_next_copy_returns_to_the_lane_it_came_from() -> None:
    bench = Bench()
    await in_state(bench, ClaimState.RETRYING)
    claim = bench.claim()
    assert claim is not None
    bench.handler.on("a", Retry("x"))
    again = bench.delivery("a", lane=Lane.REPLAY, consumer_ticket=str(claim.ticket))
    assert await bench.process_one(again) == ack(AckReason.RETRYING)
    [copy] = bench.rows()
    assert copy.routing_key == f"{QUEUE}.replay"


# --- what is nobody's fault -------------------------------------------------------------------


@pytest.mark.parametrize("point", ["begin", "claim", "finish", "commit"])
@pytest.mark.parametrize("error", [StoreUnavailable("x"), BrokerUnavailable("x")])
@in_virtual_time
async def test_an_infrastructure_fault_requeues_without_counting(
    point: str, error: Exception
) -> None:
    bench = Bench()
    bench.fail_at(point, error)
    assert await bench.process_one(bench.delivery("a")) == Requeue(RequeueReason.INFRASTRUCTURE)
    assert (bench.claim(), bench.effects, bench.database.locks) == (None, [], {})
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.DONE)
    assert [attempt for _, attempt, _ in bench.handler.seen][-1] == 1


@pytest.mark.parametrize("point", ["lock", "record"])
@in_virtual_time
async def test_an_infrastructure_fault_at_the_record_requeues(point: str) -> None:
    bench = Bench()
    bench.handler.on("a", Retry("x"))
    bench.fail_at(point, StoreUnavailable("x"))
    assert await bench.process_one(bench.delivery("a")) == Requeue(RequeueReason.INFRASTRUCTURE)
    assert bench.claim() is None


@pytest.mark.parametrize("times", [1, 3])
@in_virtual_time
async def test_a_serialization_conflict_is_run_again_at_once(times: int) -> None:
    bench = Bench()
    bench.fail_at("commit", *[SerializationConflict("40001")] * times)
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.DONE)
    assert bench.handler.runs["a"] == times + 1
    assert bench.effects == [("a", 1)]


@in_virtual_time
async def test_a_serialization_conflict_that_stays_is_a_failed_attempt() -> None:
    bench = Bench()
    bench.fail_at("finish", *[SerializationConflict("40001")] * 4)
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.RETRYING)
    assert bench.handler.runs["a"] == 4
    claim = bench.claim()
    assert claim is not None
    assert claim.attempts == 1


@in_virtual_time
async def test_a_record_runs_again_after_a_serialization_conflict() -> None:
    bench = Bench()
    bench.handler.on("a", Retry("x"))
    bench.fail_at("record", SerializationConflict("40P01"))
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.RETRYING)
    assert (bench.handler.runs["a"], len(bench.database.tables.attempts)) == (1, 1)


@in_virtual_time
async def test_a_record_that_is_never_let_through_requeues() -> None:
    bench = Bench()
    bench.handler.on("a", Retry("x"))
    bench.fail_at("record", *[SerializationConflict("40P01")] * 3)
    assert await bench.process_one(bench.delivery("a")) == Requeue(RequeueReason.INFRASTRUCTURE)
    assert bench.claim() is None


@in_virtual_time
async def test_a_refused_commit_is_a_failed_attempt() -> None:
    bench = Bench()
    bench.fail_at("commit", CommitFailed("deferred constraint"))
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.RETRYING)
    assert bench.effects == []


# --- what handlers may raise ------------------------------------------------------------------


class Outrage(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize("error", [
    asyncio.CancelledError(), SystemExit(3), Outrage(), GeneratorExit(),
    BaseExceptionGroup("several", [Outrage()]), Exception("\x00\ud800"), TimeoutError()])
@pytest.mark.parametrize("neighbours", [0, 2])
@in_virtual_time
async def test_whatever_a_handler_raises_is_a_failed_attempt(
    error: BaseException, neighbours: int
) -> None:
    bench = Bench()
    bench.handler.on("a", error, error)
    keys = ["a", "b", "c"][:1 + neighbours]
    outcomes = await bench.process(*map(bench.delivery, keys))
    assert outcomes == [ack(AckReason.RETRYING)] + [ack(AckReason.DONE)] * neighbours
    assert bench.handler.runs["a"] <= 2


@in_virtual_time
async def test_a_handler_that_ends_its_own_task_does_not_end_ours() -> None:
    """A cancelled call inside a handler is the handler's failure."""
    bench = Bench()

    async def cancelled_inside(_: Charge, __: Context) -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    bench.handler.on("a", cancelled_inside)
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.RETRYING)


@in_virtual_time
async def test_our_own_cancellation_rolls_back_and_records_nothing() -> None:
    bench = Bench()
    begun = asyncio.Event()

    async def wait(_: Charge, __: Context) -> None:
        begun.set()
        await asyncio.sleep(10)

    bench.handler.on("a", wait)
    task = asyncio.create_task(bench.process_one(bench.delivery("a")))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (bench.claim(), bench.effects, bench.database.locks) == (None, [], {})
    assert bench.database.tables.attempts == []


@pytest.mark.parametrize("point", ["lock", "record", "commit"])
@in_virtual_time
async def test_our_own_cancellation_during_a_record_is_not_swallowed(point: str) -> None:
    """The reruns after conflicts catch exceptions, but not that one."""
    bench = Bench()
    bench.handler.on("a", Retry("x"))
    reached = asyncio.Event()

    async def wait(at: str) -> None:
        if at == point:
            reached.set()
            await asyncio.sleep(10)

    bench.database.at = wait
    task = asyncio.create_task(bench.process_one(bench.delivery("a")))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (bench.claim(), bench.database.locks) == (None, {})


@in_virtual_time
async def test_an_attempt_that_takes_too_long_is_cancelled_and_has_failed() -> None:
    bench = Bench(options=Options(attempt_timeout=timedelta(seconds=5)))
    cleaned_up = []

    async def hang(_: Charge, __: Context) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned_up.append(True)

    bench.handler.on("a", hang)
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.RETRYING)
    assert cleaned_up == [True]
    [failure] = bench.database.tables.attempts
    assert failure.error.startswith("TimeoutError")


@in_virtual_time
async def test_a_member_that_hangs_fails_alone() -> None:
    bench = Bench(options=Options(attempt_timeout=timedelta(seconds=5)))

    async def hang(_: Charge, __: Context) -> None:
        await asyncio.sleep(3600)

    bench.handler.on("b", hang, hang)
    outcomes = await bench.process(*map(bench.delivery, "abc"))
    assert outcomes == [ack(AckReason.DONE), ack(AckReason.RETRYING), ack(AckReason.DONE)]


@in_virtual_time
async def test_an_error_of_any_size_and_kind_is_recorded() -> None:
    """200,000 characters, NUL, surrogates, 500 causes, a text that cannot be made (B06, B44)."""

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    chain: BaseException = ValueError("root")
    for number in range(500):
        link = ValueError(f"link {number}")
        link.__cause__ = chain
        chain = link
    errors = [ValueError("x" * 200_000), ValueError("a\x00b\ud800" + "\U0001f600" * 9_000), chain,
              Unspeakable(), Retry("amqp://app:s3cr%23t@broker/ is down")]
    bench = Bench()
    for number, error in enumerate(errors):
        bench.handler.on(f"k{number}", error)
        outcome = await bench.process_one(bench.delivery(f"k{number}"))
        assert outcome == ack(AckReason.RETRYING)
    for failure in bench.database.tables.attempts:
        assert len(failure.error.encode()) <= 4096
        assert "s3cr" not in failure.error


@in_virtual_time
async def test_what_a_handler_sent_stands_with_its_commit_and_carries_its_own_key() -> None:
    bench = Bench()

    async def send(_: Charge, context: Context) -> None:
        await context.outbox.send(Charge(key="next"), key="next")

    bench.handler.on("a", send)
    outcome = await bench.process_one(bench.delivery("a"))
    assert isinstance(outcome, Ack)
    [row] = outcome.rows
    assert headers_of(row.message)[names.IDEMPOTENCY_KEY] == "next"
    assert json.loads(row.message.body)["key"] == "next"


@in_virtual_time
async def test_a_nan_sent_by_a_handler_fails_the_attempt_and_names_the_field() -> None:
    """Nothing of it stands, and nothing is published (B02)."""
    class Price(Command, type="price.set"):
        amount: float

    bench = Bench()

    async def send(_: Charge, context: Context) -> None:
        await context.outbox.send(Price(amount=float("nan")))

    bench.handler.on("a", send)
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.DIED)
    [failure] = bench.database.tables.attempts
    assert "$.amount" in failure.error
    assert bench.effects == []
    assert [outgoing.routing_key.endswith(".dead") for outgoing in bench.rows()] == [True]


@in_virtual_time
async def test_an_ordered_row_is_left_to_the_relay() -> None:
    bench = Bench()

    async def send(_: Charge, context: Context) -> None:
        await context.outbox.send(Charge(key="x"), ordering_key="o")
        await context.outbox.send(Charge(key="y"))

    bench.handler.on("a", send)
    outcome = await bench.process_one(bench.delivery("a"))
    assert isinstance(outcome, Ack)
    assert [row.message.body for row in outcome.rows] == [bench.rows()[1].body]


# --- retention and algorithms -----------------------------------------------------------------


@in_virtual_time
async def test_a_message_older_than_the_retention_of_keys_dies_unless_its_claim_stands() -> None:
    bench = Bench(options=Options(retention=timedelta(days=1), backoff_cap=timedelta(minutes=1)))
    old, young = bench.delivery("old"), bench.delivery("known")
    await bench.process_one(young)
    bench.clock.advance(timedelta(days=1, seconds=2))
    outcome = await bench.process_one(old)
    assert isinstance(outcome, DeadLetter)
    assert outcome.why is DeadReason.KEY_EXPIRED
    assert bench.claim("old") is None
    assert await bench.process_one(young) == ack(AckReason.DUPLICATE)


@in_virtual_time
async def test_a_stored_fingerprint_of_another_algorithm_is_compared_by_that_one() -> None:
    """What is left out of fingerprints changes between two releases."""
    bench = Bench()
    await bench.process_one(bench.delivery("a", 1))
    later = App("shop", prefix="shop")

    class Lenient(Handler[Charge]):
        name, queue = SCOPE, QUEUE
        options = Options(fingerprint_exclude=frozenset({"amount"}))

        async def handle(self, command: Charge, context: Context) -> None:
            raise AssertionError("it is done already")

    later.register(Lenient)
    reader = RequestReader(later, bench.clock, "worker")
    processor = Processor(later, MemoryStore(bench.database), bench.clock, reader,
                          guards_of(later, bench.database, bench.clock, bench.metrics).gate,
                          bench.metrics)
    for amount, wanted in ((1, AckReason.DUPLICATE), (2, DeadReason.KEY_CONFLICT)):
        read: Any = reader.read(bench.delivery("a", amount))
        [outcome] = await processor.process([read])
        assert getattr(outcome, "why", None) is wanted


@in_virtual_time
async def test_a_claim_of_a_newer_version_parks_and_its_neighbours_run() -> None:
    """Its fingerprint cannot be compared here: that is neither a duplicate nor a conflict."""
    bench = Bench()
    await bench.process(bench.delivery("a"))
    claim = bench.claim()
    assert claim is not None
    newer = replace(claim, fingerprint=Fingerprint("jcs-sha3-2", b"x"))
    bench.database.tables.claims[(SCOPE, "a")] = newer
    parked, done = await bench.process(bench.delivery("a"), bench.delivery("b"))
    assert isinstance(parked, Delay)
    assert done == ack(AckReason.DONE)
    assert bench.claim() == newer
    assert bench.handler.runs == {"a": 1, "b": 1}


@in_virtual_time
async def test_the_first_copy_in_the_outbox_runs_as_delivered() -> None:
    """A copy that came out of the outbox is read like any other delivery."""
    bench = Bench()
    bench.handler.on("a", Retry("x"))
    await bench.process_one(bench.delivery("a", message_id="m"))
    [copy] = bench.next_copies()
    assert copy.message.properties.message_id == "m"
    assert await bench.process_one(arrived(bench.rows()[0])) == ack(AckReason.DONE)


@pytest.mark.parametrize("error", [
    StoreUnavailable("another store"), BrokerUnavailable("another broker"),
    SerializationConflict("of another database"), CommitFailed("of another database"),
])
@in_virtual_time
async def test_a_fault_of_what_the_handler_uses_is_the_handlers_failure(error: Exception) -> None:
    """Only our own connection's faults are infrastructure; others count as attempts."""
    bench = Bench()
    bench.handler.on("a", error)
    assert await bench.process_one(bench.delivery("a")) == ack(AckReason.RETRYING)
    assert bench.handler.runs["a"] == 1
