"""Dispatcher and relay: rows are sent, backed off, parked, and never in each other's way."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from simulation.bench import PREFIX, SCOPE, Bench, Charge
from simulation.loop import in_virtual_time

from consumer.command import to_row
from consumer.core.topology import delay_level, deliver_exchange
from consumer.errors import StoreUnavailable
from consumer.message import OutboxRow, Outgoing, SentRow
from consumer.ports import Published, Receipt
from consumer.relay.outbox import BATCH, Dispatcher, Relay
from consumer.relay.send import RowSender
from consumer.testing.memory import MemoryStore
from consumer.testing.memory.database import DISPATCH_LEAD, OVERDUE_GRACE, StoredRow


class Office:
    """An outbox and what sends it."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.published: list[Outgoing] = []
        self.receipts: defaultdict[str, Receipt] = defaultdict(lambda: Receipt.CONFIRMED)
        self.sender = RowSender(PREFIX, self, self.bench.outbox, self.bench.clock)
        self.relay = Relay(self.bench.outbox, self.sender, interval_seconds=1)

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        self.published += messages
        return [Published(self.receipts[message.message_id]) for message in messages]

    async def write(self, *rows: OutboxRow) -> list[SentRow]:
        async with MemoryStore(self.bench.database).transaction() as transaction:
            return await transaction.finish([], rows)

    async def sweep_after(self, **by: float) -> list[str]:
        """Message ids that a sweep publishes so much later."""
        self.bench.clock.advance(timedelta(**by))
        del self.published[:]
        while await self.relay.sweep():
            pass
        return [message.message_id for message in self.published]

    @property
    def stored(self) -> dict[str, StoredRow]:
        return {s.row.message.message_id: s for s in self.bench.database.tables.outbox.values()}


def row(message_id: str, **options: Any) -> OutboxRow:
    return to_row(Charge(key="k"), prefix=PREFIX, message_id=message_id, **options)


def next_copy(message_id: str, delay: timedelta) -> OutboxRow:
    message = Outgoing(deliver_exchange(PREFIX), "orders", b"{}", b"\0\0", message_id)
    return OutboxRow(message, "orders.charge", delay=delay, owner=(SCOPE, "k"))


@in_virtual_time
async def test_rows_are_left_to_their_writer_first() -> None:
    office = Office()
    await office.write(row("m"))
    assert await office.sweep_after(seconds=0) == []
    assert await office.sweep_after(seconds=DISPATCH_LEAD.total_seconds()) == ["m"]
    assert office.stored == {}


@in_virtual_time
async def test_a_row_that_is_taken_is_not_taken_again_for_a_minute() -> None:
    """Two relays send it once; if the one that took it dies, it is sent again."""
    office = Office()
    await office.write(row("m"))
    office.bench.clock.advance(DISPATCH_LEAD)
    assert [sent.message.message_id for sent in await office.bench.outbox.due(10)] == ["m"]
    assert await office.sweep_after(seconds=59) == []
    assert await office.sweep_after(seconds=1) == ["m"]


@in_virtual_time
async def test_a_scheduled_row_waits_for_its_time() -> None:
    office = Office()
    await office.write(row("m", at=office.bench.clock.now() + timedelta(hours=1)))
    assert await office.sweep_after(minutes=59) == []
    assert await office.sweep_after(minutes=1) == ["m"]


@in_virtual_time
async def test_an_unroutable_row_backs_off_then_parks_and_holds_up_nobody() -> None:
    office = Office()
    office.receipts["bad"] = Receipt.UNROUTABLE
    await office.write(row("bad"), row("good-1"), row("good-2"))
    assert await office.sweep_after(seconds=5) == ["bad", "good-1", "good-2"]
    assert set(office.stored) == {"bad"}
    waits = []
    while not (stored := office.stored["bad"]).parked:
        wait = stored.available_at - office.bench.clock.now()
        waits.append(wait)
        assert await office.sweep_after(seconds=wait.total_seconds() / 2) == []
        assert await office.sweep_after(seconds=wait.total_seconds() / 2 + 1) == ["bad"]
    assert (stored.tries, stored.error) == (10, "unroutable: ")
    assert all(timedelta(seconds=2) <= wait <= timedelta(minutes=5, seconds=2) for wait in waits)
    assert await office.sweep_after(days=30) == []
    assert set(office.stored) == {"bad"}


@in_virtual_time
async def test_once_bound_a_row_is_delivered_once() -> None:
    office = Office()
    office.receipts["m"] = Receipt.UNROUTABLE
    await office.write(row("m"))
    await office.sweep_after(seconds=5)
    office.receipts["m"] = Receipt.CONFIRMED
    assert await office.sweep_after(minutes=6) == ["m"]
    assert await office.sweep_after(minutes=60) == []


@in_virtual_time
async def test_an_unsendable_row_parks_at_once() -> None:
    office = Office()
    office.receipts["m"] = Receipt.UNSENDABLE
    await office.write(row("m"))
    assert await office.sweep_after(seconds=5) == ["m"]
    assert office.stored["m"].parked


@in_virtual_time
async def test_an_unknown_outcome_never_parks() -> None:
    office = Office()
    office.receipts["m"] = Receipt.UNKNOWN
    await office.write(row("m"))
    for _ in range(50):
        assert await office.sweep_after(minutes=6) == ["m"]
    assert not office.stored["m"].parked
    office.receipts["m"] = Receipt.CONFIRMED
    assert await office.sweep_after(minutes=6) == ["m"]
    assert office.stored == {}


@pytest.mark.parametrize(("delay", "exchange"), [
    (timedelta(0), deliver_exchange(PREFIX)),
    (timedelta(milliseconds=99), deliver_exchange(PREFIX)),
    (timedelta(milliseconds=100), delay_level(PREFIX, 0)),
    (timedelta(seconds=60), delay_level(PREFIX, 9))])
@in_virtual_time
async def test_a_next_copy_goes_through_the_ladder_for_what_is_left_of_its_delay(
    delay: timedelta, exchange: str
) -> None:
    office = Office()
    sent = await office.write(next_copy("m", delay))
    await office.sender.send(sent)
    [published] = office.published
    assert published.exchange == exchange
    assert published.routing_key.endswith("orders")


@in_virtual_time
async def test_a_next_copy_that_is_late_goes_straight_to_its_queue() -> None:
    office = Office()
    await office.write(next_copy("m", timedelta(seconds=2)))
    assert await office.sweep_after(seconds=6) == ["m"]
    assert office.published[0].exchange == deliver_exchange(PREFIX)


@in_virtual_time
async def test_a_kept_row_is_published_again_when_overdue_and_ever_more_seldom() -> None:
    office = Office()
    await office.sender.send(await office.write(next_copy("m", timedelta(seconds=30))))
    assert set(office.stored) == {"m"}
    office.bench.clock.advance(timedelta(seconds=30))
    grace, day = OVERDUE_GRACE.total_seconds(), timedelta(days=1).total_seconds()
    for wait in [min(grace * 2**times, day) for times in range(12)]:
        assert await office.sweep_after(seconds=wait - 1) == []
        assert await office.sweep_after(seconds=1) == ["m"]
    assert set(office.stored) == {"m"}


@in_virtual_time
async def test_rows_of_one_ordering_key_go_one_by_one_in_order() -> None:
    office = Office()
    await office.write(row("1", ordering_key="k"), row("x", ordering_key="other"), row("plain"))
    await office.write(row("2", ordering_key="k"), row("3", ordering_key="k"))
    first = [sent.message.message_id for sent in await office.bench.outbox.due(10)]
    assert first == ["1", "x"]
    office.bench.clock.advance(timedelta(minutes=1))
    assert [id_ for id_ in await office.sweep_after(seconds=0) if id_ != "plain"] == [
        "1", "x", "2", "3"]


@pytest.mark.parametrize("receipt", [Receipt.UNROUTABLE, Receipt.UNSENDABLE, Receipt.UNKNOWN])
@in_virtual_time
async def test_an_ordered_row_that_fails_holds_its_own_key_and_no_other(receipt: Receipt) -> None:
    office = Office()
    office.receipts["1"] = receipt
    await office.write(row("1", ordering_key="k"), row("2", ordering_key="k"))
    await office.write(row("y", ordering_key="other"))
    assert await office.sweep_after(seconds=0) == ["1", "y"]
    assert "2" not in await office.sweep_after(minutes=6)
    assert "2" in office.stored


@in_virtual_time
async def test_a_lost_database_leaves_confirmed_rows_to_be_sent_once_more() -> None:
    office = Office()
    await office.write(row("m"))
    office.bench.clock.advance(DISPATCH_LEAD)
    office.bench.fail_at("confirmed", StoreUnavailable("x"))
    with pytest.raises(StoreUnavailable):
        await office.relay.sweep()
    assert await office.sweep_after(minutes=1) == ["m"]
    assert office.stored == {}


async def running(work: Callable[[], Any], seconds: float) -> None:
    """Let a loop run for so long."""
    task = asyncio.create_task(work())
    await asyncio.sleep(seconds)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("error", [StoreUnavailable("x"), RuntimeError("a defect of ours")])
@in_virtual_time
async def test_the_relay_outlives_what_goes_wrong(error: Exception) -> None:
    office = Office()
    await office.write(row("m"))
    office.bench.clock.advance(DISPATCH_LEAD)
    office.bench.fail_at("due", *[error] * 5)
    await running(office.relay.run, 10)
    assert [message.message_id for message in office.published] == ["m"]


@in_virtual_time
async def test_the_dispatcher_publishes_many_at_a_time_and_drains() -> None:
    office = Office()
    sent = await office.write(*[row(f"m{number}") for number in range(BATCH + 50)])
    dispatcher = Dispatcher(office.sender)
    dispatcher.dispatch(sent)
    task = asyncio.create_task(dispatcher.run())
    await dispatcher.drained()
    assert len(office.published) == BATCH + 50
    assert office.stored == {}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_virtual_time
async def test_the_dispatcher_leaves_ordered_rows_and_what_does_not_fit_to_the_relay() -> None:
    office = Office()
    sent = await office.write(row("o", ordering_key="k"), *[row(f"m{n}") for n in range(5)])
    dispatcher = Dispatcher(office.sender, capacity=3)
    dispatcher.dispatch(sent)
    await running(dispatcher.run, 1)
    assert [message.message_id for message in office.published] == ["m0", "m1", "m2"]
    assert set(await office.sweep_after(seconds=5)) == {"o", "m3", "m4"}


@pytest.mark.parametrize("error", [StoreUnavailable("x"), RuntimeError("a defect of ours")])
@in_virtual_time
async def test_the_dispatcher_outlives_what_goes_wrong(error: Exception) -> None:
    office = Office()
    first, second = await office.write(row("1"), row("2"))
    dispatcher = Dispatcher(office.sender)
    office.bench.fail_at("confirmed", error)
    task = asyncio.create_task(dispatcher.run())
    dispatcher.dispatch([first])
    await dispatcher.drained()
    dispatcher.dispatch([second])
    await dispatcher.drained()
    assert set(office.stored) == {"1"}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
