"""What is counted of each delivery once it is settled, and what moves a brake."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from simulation.bench import QUEUE, SCOPE, Acks, sent
from simulation.guarded import Site, counted
from simulation.loop import in_virtual_time

from consumer import Budget, Dependency, Options
from consumer.handler import Registration
from consumer.message import Outgoing
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
from consumer.worker.brakes import Brakes
from consumer.worker.intake import Item
from consumer.worker.observer import Observer

SECOND = timedelta(seconds=1)
COPY = Outgoing("x", "k", b"body", b"\0\0", "m")
DONE = Ack(AckReason.DONE, attempt=1)
HANDLER = {"handler": SCOPE}


class NotingBrakes(Brakes):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(asyncio.Event())
        self.told: list[bool] = []

    def ended(self, registration: Registration, *, permanent: bool) -> None:
        self.told.append(permanent)


class Desk:
    """An observer, and deliveries that arrived two seconds ago."""

    def __init__(self, max_age: timedelta | None = None) -> None:
        self.site = Site(Dependency("psp", budget=Budget()), options=Options(max_age=max_age))
        self.brakes = NotingBrakes()
        self.observer = Observer(self.site.gate, self.site.metrics, self.site.clock, self.brakes)

    def item(self, *, readable: bool = True) -> Item:
        delivery = self.site.delivery() if readable else sent(b"garbage")
        return Item(delivery, Acks(), self.site.clock.monotonic(), self.site.reader.read(delivery))

    async def settled(self, outcome: Outcome, *, readable: bool = True, after_s: float = 2) -> None:
        item = self.item(readable=readable)
        await asyncio.sleep(after_s)
        self.observer.settled(item, outcome)

    def count(self, name: str, **labels: str) -> float:
        return counted(self.site.metrics, f"consumer_{name}", **labels)

    def met(self) -> dict[str, float]:
        """What deliveries met under their key, as far as any did."""
        names = ("new", "duplicate", "retry", "in_progress", "conflict", "takeover")
        found = {name: self.count("idempotency_total", result=name, **HANDLER) for name in names}
        return {name: n for name, n in found.items() if n}

    def window(self) -> dict[str, int]:
        totals = self.site.gate.windows["psp"].totals(self.site.clock.monotonic())
        return {name: n for name, n in totals.items() if n}


def died(why: DeadReason, attempt: int = 1) -> Ack:
    return Ack(AckReason.DIED, (), attempt, why)


@pytest.mark.parametrize(("outcome", "met", "window"), [
    (DONE, "new", {"succeeded": 1}),
    (Ack(AckReason.DONE, attempt=3), "retry", {"succeeded": 1}),
    (Ack(AckReason.RETRYING, attempt=1), "new", {"failed": 1}),
    (Ack(AckReason.RETRYING, attempt=2), "retry", {"failed": 1}),
    (died(DeadReason.ATTEMPTS, 5), "retry", {"failed": 1}),
    (died(DeadReason.DEADLINE, 0), None, {}),
    (Ack(AckReason.DUPLICATE), "duplicate", {}), (Ack(AckReason.SUPERSEDED), "duplicate", {}),
    (Ack(AckReason.DEAD), "duplicate", {}), (Ack(AckReason.REPLAY_CLOSED), None, {}),
    (Delay(ParkReason.CLAIMED_ELSEWHERE, SECOND, COPY), "in_progress", {}),
    (Delay(ParkReason.BUDGET, SECOND, COPY), None, {}),
    (DeadLetter(DeadReason.KEY_CONFLICT, "x", COPY), "conflict", {}),
    (DeadLetter(DeadReason.DEADLINE, "x", COPY), None, {}),
    (Requeue(RequeueReason.DRAIN), None, {}),
])
@in_virtual_time
async def test_each_outcome_tells_what_was_met_and_whether_an_attempt_ended(
    outcome: Outcome, met: str | None, window: dict[str, int]
) -> None:
    desk = Desk()
    await desk.settled(outcome)
    assert desk.met() == ({met: 1} if met else {})
    assert desk.window() == window


@pytest.mark.parametrize(("outcome", "name", "reason"), [
    (Delay(ParkReason.BREAKER, SECOND, COPY), "parks_total", "breaker"),
    (DeadLetter(DeadReason.NO_KEY, "x", COPY), "dead_letters_total", "no_key"),
    (died(DeadReason.REJECTED), "dead_letters_total", "rejected"),
    (died(DeadReason.DEADLINE, 0), "dead_letters_total", "deadline"),
    (Requeue(RequeueReason.PAUSE), "requeues_total", "pause"),
])
@in_virtual_time
async def test_parks_deaths_and_requeues_are_counted_by_queue_and_reason(
    outcome: Outcome, name: str, reason: str
) -> None:
    desk = Desk()
    await desk.settled(outcome)
    assert desk.count(name, queue=QUEUE, reason=reason) == 1


@pytest.mark.parametrize("outcome", [
    Delay(ParkReason.UNKNOWN_TYPE, SECOND, COPY), DeadLetter(DeadReason.MALFORMED, "x", COPY)])
@in_virtual_time
async def test_what_was_never_a_request_counts_for_its_queue_alone(outcome: Outcome) -> None:
    desk = Desk()
    await desk.settled(outcome, readable=False)
    assert desk.count("parks_total", queue=QUEUE, reason="unknown_type") \
        + desk.count("dead_letters_total", queue=QUEUE, reason="malformed") == 1
    assert (desk.met(), desk.window(), desk.brakes.told) == ({}, {}, [])


@pytest.mark.parametrize(("attempt", "recovered"), [(1, 0), (2, 1), (7, 1)])
@in_virtual_time
async def test_a_success_is_timed_and_one_of_a_retry_has_recovered(
    attempt: int, recovered: int
) -> None:
    desk = Desk()
    await desk.settled(Ack(AckReason.DONE, attempt=attempt))
    assert desk.count("attempts_total", outcome="succeeded", **HANDLER) == 1
    assert desk.count("success_seconds_sum", **HANDLER) == 2
    assert desk.count("recovered_total", **HANDLER) == recovered


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(("outcome", "refusals"), [
    (Delay(ParkReason.BUDGET, SECOND, COPY), {"budget": 2}),
    (DeadLetter(DeadReason.KEY_CONFLICT, "x", COPY), {"key_conflict": 2}),
    (died(DeadReason.DEADLINE, 0), {"deadline": 2}),
    (died(DeadReason.DEADLINE, 3), {}), (died(DeadReason.PERMANENT), {}), (DONE, {}),
    (Ack(AckReason.DUPLICATE), {}),
])
@in_virtual_time
async def test_only_what_was_refused_without_an_attempt_is_timed_as_a_refusal(
    outcome: Outcome, refusals: dict[str, float]
) -> None:
    desk = Desk()
    await desk.settled(outcome)
    reasons: list[Any] = [*ParkReason, *DeadReason]
    found = {str(reason): desk.count("refusal_seconds_sum", reason=reason, **HANDLER)
             for reason in reasons}
    assert {reason: seconds for reason, seconds in found.items() if seconds} == refusals


# --- deadlines -------------------------------------------------------------------------------


@pytest.mark.parametrize(("outcome", "after_s", "result"), [
    (DONE, 10, "met"), (DONE, 10.5, "missed"),
    (died(DeadReason.PERMANENT), 10, "met"), (died(DeadReason.ATTEMPTS), 10.5, "missed"),
    (died(DeadReason.DEADLINE, 3), 1, "missed"), (died(DeadReason.DEADLINE, 0), 11, "missed"),
    (DeadLetter(DeadReason.DEADLINE, "x", COPY), 11, "missed"),
    (Ack(AckReason.RETRYING, attempt=1), 1, None), (Ack(AckReason.DUPLICATE), 11, None),
    (Delay(ParkReason.BREAKER, SECOND, COPY), 11, None),
    (DeadLetter(DeadReason.KEY_CONFLICT, "x", COPY), 11, None),
])
@in_virtual_time
async def test_a_command_that_ended_has_met_its_deadline_or_missed_it(
    outcome: Outcome, after_s: float, result: str | None
) -> None:
    """Commands with a deadline that are done or dead; it is ten seconds here."""
    desk = Desk(max_age=10 * SECOND)
    await desk.settled(outcome, after_s=after_s)
    found = {name: desk.count("deadlines_total", result=name, **HANDLER)
             for name in ("met", "missed")}
    assert found == {"met": result == "met", "missed": result == "missed"}


@in_virtual_time
async def test_a_command_without_a_deadline_counts_for_none() -> None:
    desk = Desk()
    await desk.settled(DONE, after_s=1000)
    assert desk.count("deadlines_total", result="met", **HANDLER) == 0


# --- brakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("outcome", "told"), [
    (DONE, [False]), (died(DeadReason.PERMANENT), [True]), (died(DeadReason.REJECTED), [False]),
    (died(DeadReason.ATTEMPTS), [False]), (died(DeadReason.DEADLINE, 2), [False]),
    (Ack(AckReason.RETRYING, attempt=1), []), (Ack(AckReason.DUPLICATE), []),
    (Ack(AckReason.DEAD), []), (died(DeadReason.DEADLINE, 0), []),
    (DeadLetter(DeadReason.KEY_CONFLICT, "x", COPY), []),
    (Delay(ParkReason.BREAKER, SECOND, COPY), []), (Requeue(RequeueReason.INFRASTRUCTURE), []),
])
@in_virtual_time
async def test_a_brake_hears_of_commands_that_ended_and_whether_of_a_permanent_error(
    outcome: Outcome, told: list[bool]
) -> None:
    """What a handler rejects on purpose is no sign of a bad deploy."""
    desk = Desk()
    await desk.settled(outcome)
    assert desk.brakes.told == told


# --- ages and groups -------------------------------------------------------------------------


@pytest.mark.parametrize(("sent_ago_s", "age_s"), [(100, 102), (-60, 0)])
@in_virtual_time
async def test_the_age_of_a_first_attempt_counts_by_the_producers_clock(
    sent_ago_s: int, age_s: int
) -> None:
    """One that is ahead counts as 0."""
    desk = Desk()
    item = desk.item()
    now = int(desk.site.clock.now().timestamp())
    message = item.delivery.message
    item.delivery = replace(item.delivery, message=replace(
        message, properties=replace(message.properties, timestamp=now - sent_ago_s)))
    await asyncio.sleep(2)
    for attempt in (1, 2, 3):
        desk.observer.settled(item, Ack(AckReason.DONE, attempt=attempt))
    assert desk.count("message_age_seconds_count", queue=QUEUE) == 1
    assert desk.count("message_age_seconds_sum", queue=QUEUE) == age_s


@in_virtual_time
async def test_a_message_without_a_timestamp_has_no_age() -> None:
    desk = Desk()
    item = desk.item()
    message = item.delivery.message
    item.delivery = replace(item.delivery, message=replace(
        message, properties=replace(message.properties, timestamp=None)))
    desk.observer.settled(item, DONE)
    assert desk.count("message_age_seconds_count", queue=QUEUE) == 0


@in_virtual_time
async def test_what_an_executor_takes_together_is_counted_as_one_group() -> None:
    desk = Desk()
    batch = [desk.item() for _ in range(3)]
    await asyncio.sleep(2)
    desk.observer.taken(batch)
    desk.observer.taken([desk.item(readable=False)])
    assert desk.count("group_size_count", **HANDLER) == 1
    assert desk.count("group_size_sum", **HANDLER) == 3
    assert desk.count("pool_wait_seconds_count") == 2
    assert desk.count("pool_wait_seconds_sum") == 2
