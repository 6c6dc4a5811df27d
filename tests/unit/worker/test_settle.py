"""Settling: a delivery is acked only when its next place is durable."""

import asyncio
import itertools
from collections.abc import Sequence
from datetime import timedelta

import pytest
from simulation.bench import Acks
from simulation.loop import in_virtual_time
from structlog.testing import capture_logs

from consumer.message import Outgoing, SentRow
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
from consumer.ports import Published, Receipt
from consumer.worker.settle import Settler

COPY = Outgoing("x", "k", b"body", b"\0\0", "m")
DELAY = Delay(ParkReason.CLAIMED_ELSEWHERE, timedelta(seconds=1), COPY)
LETTER = DeadLetter(DeadReason.MALFORMED, "not JSON", COPY)
CONFIRMED = Published(Receipt.CONFIRMED)


class ScriptedPublisher:
    """Answers as it is told, then confirms."""

    def __init__(self, *answers: Published | Exception) -> None:
        self._answers = list(answers)
        self.published: list[tuple[float, Outgoing]] = []
        self.acked_before: list[bool] = []
        self.settlement: Acks | None = None

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        now = asyncio.get_running_loop().time()
        self.published += [(now, message) for message in messages]
        if self.settlement is not None:
            self.acked_before.append(bool(self.settlement.done))
        answer = self._answers.pop(0) if self._answers else CONFIRMED
        if isinstance(answer, Exception):
            raise answer
        return [answer] * len(messages)


async def settle(
    outcome: Outcome, settlement: Acks, publisher: ScriptedPublisher,
    dispatched: list[SentRow] | None = None,
) -> bool:
    publisher.settlement = settlement
    rows: list[SentRow] = [] if dispatched is None else dispatched
    return await Settler(publisher, rows.extend).settle(outcome, settlement)


@in_virtual_time
async def test_an_ack_dispatches_its_rows_and_publishes_nothing() -> None:
    row, rows, settlement = SentRow(1, COPY), list[SentRow](), Acks()
    publisher = ScriptedPublisher()
    assert await settle(Ack(AckReason.DONE, (row,)), settlement, publisher, rows)
    assert (rows, settlement.done, publisher.published) == ([row], ["ack"], [])


@pytest.mark.parametrize("outcome", [DELAY, LETTER])
@in_virtual_time
async def test_a_copy_is_published_once_then_the_delivery_acked(outcome: Outcome) -> None:
    settlement, publisher = Acks(), ScriptedPublisher()
    assert await settle(outcome, settlement, publisher)
    assert settlement.done == ["ack"]
    assert [message for _, message in publisher.published] == [COPY]
    assert publisher.acked_before == [False]


@pytest.mark.parametrize("outcome", [DELAY, LETTER])
@pytest.mark.parametrize("receipt", [
    Receipt.REFUSED, Receipt.UNROUTABLE, Receipt.UNKNOWN, Receipt.UNSENDABLE])
@in_virtual_time
async def test_a_publish_that_is_not_confirmed_is_repeated_before_the_ack(
    outcome: Outcome, receipt: Receipt
) -> None:
    publisher = ScriptedPublisher(*[Published(receipt)] * 7)
    settlement = Acks()
    assert await settle(outcome, settlement, publisher)
    assert publisher.acked_before == [False] * 8
    assert settlement.done == ["ack"]


@in_virtual_time
async def test_a_refused_publish_backs_off() -> None:
    """No tight loop (B28), and no wait beyond ten seconds."""
    publisher = ScriptedPublisher(*[Published(Receipt.REFUSED)] * 200)
    await settle(LETTER, Acks(), publisher)
    times = [when for when, _ in publisher.published]
    waits = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert max(waits) <= 10
    assert sum(waits[-100:]) / 100 > 2


@in_virtual_time
async def test_requeue_gives_the_delivery_back() -> None:
    settlement = Acks()
    assert await settle(Requeue(RequeueReason.DRAIN), settlement, ScriptedPublisher())
    assert settlement.done == ["requeue"]


@pytest.mark.parametrize("outcome", [Ack(AckReason.DONE), DELAY, LETTER,
                                     Requeue(RequeueReason.PAUSE)])
@in_virtual_time
async def test_a_stale_delivery_is_told(outcome: Outcome) -> None:
    """Its channel is gone: it comes again."""
    assert not await settle(outcome, Acks(live=False), ScriptedPublisher())


@in_virtual_time
async def test_rows_of_a_stale_delivery_are_dispatched_all_the_same() -> None:
    rows: list[SentRow] = []
    await settle(Ack(AckReason.DONE, (SentRow(1, COPY),)), Acks(live=False), ScriptedPublisher(),
                 rows)
    assert len(rows) == 1


@pytest.mark.parametrize("answers", [[], [Published(Receipt.REFUSED)] * 1000])
@in_virtual_time
async def test_cancelling_leaves_the_delivery_unacked(answers: list[Published]) -> None:
    settlement = Acks()

    class Hanging(ScriptedPublisher):
        async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
            if not answers:
                await asyncio.sleep(3600)
            return await super().publish(messages)

    task = asyncio.create_task(settle(LETTER, settlement, Hanging(*answers)))
    await asyncio.sleep(30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert settlement.done == []


@in_virtual_time
async def test_a_defect_of_the_publisher_leaves_the_delivery_unacked() -> None:
    settlement = Acks()
    with pytest.raises(RuntimeError):
        await settle(LETTER, settlement, ScriptedPublisher(RuntimeError("defect")))
    assert settlement.done == []


@pytest.mark.parametrize("receipt", [Receipt.UNROUTABLE, Receipt.REFUSED, Receipt.UNKNOWN])
@in_virtual_time
async def test_a_reply_that_does_not_arrive_is_tried_once_and_holds_up_nothing(
    receipt: Receipt
) -> None:
    settlement, publisher = Acks(), ScriptedPublisher(Published(receipt))
    reply = Outgoing("", "amq.rabbitmq.reply-to.x", b"{}", b"\0\0", "r")
    assert await settle(Ack(AckReason.DIED, reply=reply), settlement, publisher)
    assert [message for _, message in publisher.published] == [reply]
    assert publisher.acked_before == [False]
    assert settlement.done == ["ack"]


@pytest.mark.parametrize(("queue", "told"), [("amq.rabbitmq.reply-to.x", 0), ("replies", 1)])
@in_virtual_time
async def test_that_nobody_takes_a_reply_is_told_unless_the_broker_says_so_of_all(
    queue: str, told: int
) -> None:
    """RabbitMQ 3 returns direct replies as unroutable, those that it delivers too."""
    publisher = ScriptedPublisher(Published(Receipt.UNROUTABLE))
    reply = Outgoing("", queue, b"{}", b"\0\0", "r")
    with capture_logs() as logs:
        await settle(Ack(AckReason.DIED, reply=reply), Acks(), publisher)
    assert [line["event"] for line in logs].count("reply_not_delivered") == told
