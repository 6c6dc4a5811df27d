# ruff: noqa: F811 - fixtures are imported
"""The outbox on a real Postgres: order under contention, operators' views, sends from outside."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from store_fixtures import Stores, store, stores  # noqa: F401

from consumer.command import Command
from consumer.errors import UnsendableMessage
from consumer.message import OutboxRow, SentRow
from consumer.store.backlog import Lag, RowStatus, cancel, lag, parked, waiting
from consumer.store.connection import transaction
from consumer.store.outbox import due as due_rows
from consumer.store.outbox_sender import Outbox
from consumer.store.outbox_store import PostgresOutbox
from consumer.store.sql import Schema
from consumer.store.transactions import PostgresStore
from consumer.testing.contract.samples import completion, request, retry, row
from consumer.wire import Properties

pytestmark = pytest.mark.integration

TOMORROW = datetime.now(UTC) + timedelta(days=1)


class CapturePayment(Command, type="payments.capture"):
    order_id: str


async def write(store: PostgresStore, *rows: OutboxRow) -> list[SentRow]:
    async with store.transaction() as opened:
        return await opened.finish([], rows)


@pytest.fixture
async def relays(stores: Stores) -> AsyncIterator[list[PostgresOutbox]]:
    made = [PostgresOutbox(stores.engine) for _ in range(3)]
    yield made
    for relay in made:
        await relay.close()


async def test_an_ordering_key_is_held_from_write_to_commit(
    stores: Stores, store: PostgresStore
) -> None:
    """Otherwise a lower id could be committed after a higher one was sent."""
    async with store.transaction() as first:
        await first.finish([], [row("first", ordering_key="k"), row("x", ordering_key="other")])
        second = asyncio.create_task(
            write(stores.store(), row("second", ordering_key="k"), row("free")))
        await stores.until("EXISTS (SELECT FROM pg_locks"
                           " WHERE locktype = 'advisory' AND NOT granted)")
        assert not second.done()
    await second
    names = await stores.read("SELECT message_id FROM consumer.outbox ORDER BY id")
    assert [name for (name,) in names] == ["first", "x", "second", "free"]


async def test_ordering_keys_in_any_order_do_not_deadlock(stores: Stores) -> None:
    async def send(own: PostgresStore, keys: str) -> None:
        for n in range(10):
            await write(own, *(row(f"{keys}{n}{k}", ordering_key=k) for k in keys))

    await asyncio.gather(send(stores.store(), "abc"), send(stores.store(), "cba"))


async def test_three_relays_keep_the_order_of_each_key(
    store: PostgresStore, relays: list[PostgresOutbox]
) -> None:
    rows = [row(f"{k}-{n:02}", ordering_key=k) for n in range(12) for k in "abcd"]
    await write(store, *rows)
    published: dict[str, list[str]] = defaultdict(list)

    async def relay_until_empty(relay: PostgresOutbox) -> None:
        while sum(map(len, published.values())) < len(rows):
            for taken in await relay.due(3):
                published[taken.message.message_id[0]].append(taken.message.message_id)
                await relay.confirmed([taken])

    async with asyncio.timeout(60):
        await asyncio.gather(*map(relay_until_empty, relays))
    assert all(names == sorted(names) and len(names) == 12 for names in published.values())
    assert len(published) == 4


async def test_a_row_locked_by_its_writer_does_not_stop_the_relay(
    stores: Stores, relays: list[PostgresOutbox]
) -> None:
    async with stores.store().transaction() as opened:
        await opened.lock("payments.capture", "a")
        await opened.record(retry("a"))
    await write(stores.store(), row("m"))
    await stores.run("UPDATE consumer.outbox SET available_at = now()")
    async with stores.store().transaction() as opened:
        await opened.claim([request("a")])
        await opened.finish([completion("a")], [])  # deletes the copy, uncommitted
        async with asyncio.timeout(30):
            assert [r.message.message_id for r in await relays[0].due(10)] == ["m"]


async def test_confirms_and_claims_over_the_same_copies_do_not_deadlock(
    stores: Stores, store: PostgresStore, relays: list[PostgresOutbox]
) -> None:
    keys = [f"k{n}" for n in range(8)]
    for attempt in range(1, 6):
        sent = []
        async with store.transaction() as opened:
            for key in keys:
                await opened.lock("payments.capture", key)
                sent.append(await opened.record(retry(key, attempts=attempt)))

        async def complete() -> None:
            async with store.transaction() as opened:
                await opened.claim([request(key) for key in keys])
                await opened.finish([completion(key) for key in reversed(keys)], [])

        await asyncio.gather(complete(), relays[0].confirmed(sent[::-1]),
                             relays[1].confirmed(sent))
        await stores.run("DELETE FROM consumer.claim")
    assert await stores.read("SELECT id FROM consumer.outbox") == []


async def test_operators_see_what_waits_and_why(
    stores: Stores, store: PostgresStore, relays: list[PostgresOutbox]
) -> None:
    pending, bad, _ = await write(
        store, row("pending"), row("bad"), row("later", available_at=TOMORROW))
    async with store.transaction() as opened:
        await opened.lock("payments.capture", "a")
        copy = await opened.record(retry("a"))
    await relays[0].confirmed([copy])
    await relays[0].failed(bad, "too large", retry_in=None)
    async with transaction(stores.engine) as driver:
        found = {w.status: w for w in await waiting(driver, Schema())}
        [stuck] = await parked(driver, Schema())
        assert await parked(driver, Schema(), after_id=stuck.id) == []
    assert {status: w.count for status, w in found.items()} == dict.fromkeys(RowStatus, 1)
    assert found[RowStatus.SCHEDULED].late_seconds < -80_000
    assert {w.destination for w in found.values()} == {"payments.captured"}
    assert (stuck.message_id, stuck.error, stuck.tries) == ("bad", "too large", 1)
    assert pending.id < bad.id == stuck.id


async def test_a_scheduled_message_can_be_cancelled_until_it_is_taken(
    stores: Stores, store: PostgresStore, relays: list[PostgresOutbox]
) -> None:
    await write(store, row("a", available_at=TOMORROW), row("b", available_at=TOMORROW),
                row("now"))
    async with transaction(stores.engine) as driver:
        assert await cancel(driver, Schema(), "a")
        assert not await cancel(driver, Schema(), "a")
        assert not await cancel(driver, Schema(), "now")
    await stores.run("UPDATE consumer.outbox SET available_at = now()")
    assert len(await relays[0].due(10)) == 2
    async with transaction(stores.engine) as driver:
        assert not await cancel(driver, Schema(), "b")


async def test_a_send_from_outside_stands_with_its_transaction(
    stores: Stores, relays: list[PostgresOutbox]
) -> None:
    async with AsyncSession(stores.engine) as session:
        await Outbox(session).send(CapturePayment(order_id="undone"))
        await session.rollback()
        sent = await Outbox(session).send(CapturePayment(order_id="1"), key="order-1",
                                          ordering_key="k", headers={"tenant": "acme"})
        assert await relays[0].due(10) == []
        await session.commit()
    [due] = await relays[0].due(10)
    assert due.message.message_id == sent
    assert due.message.exchange == "consumer.commands"
    assert due.message.body == b'{"order_id":"1"}'
    headers = Properties.from_wire(due.message.properties).headers.decoded()
    assert headers == {"tenant": "acme", "idempotency-key": "order-1"}


async def test_a_send_from_outside_can_be_scheduled_and_cancelled(
    stores: Stores, relays: list[PostgresOutbox]
) -> None:
    async with AsyncSession(stores.engine) as session:
        outbox = Outbox(session)
        one = await outbox.send(CapturePayment(order_id="1"), at=TOMORROW)
        other = await outbox.send(CapturePayment(order_id="2"), at=TOMORROW)
        past = await outbox.send(CapturePayment(order_id="3"), at=datetime(2020, 1, 1, tzinfo=UTC))
        await session.commit()
        assert await outbox.cancel(one)
        assert not await outbox.cancel(one)
        assert not await outbox.cancel(past)
        await session.commit()
    assert [r.message.message_id for r in await relays[0].due(10)] == [past]
    await stores.run("UPDATE consumer.outbox SET available_at = now()")
    assert other in [r.message.message_id for r in await relays[0].due(10)]


async def test_an_unsendable_command_writes_nothing(stores: Stores) -> None:
    async with AsyncSession(stores.engine) as session:
        with pytest.raises(UnsendableMessage):
            await Outbox(session).send(CapturePayment(order_id="\ud800"))
        await session.execute(text("SELECT 1"))
        await session.commit()
    assert await stores.read("SELECT id FROM consumer.outbox") == []


async def test_one_key_with_a_long_queue_is_not_read_through(
    stores: Stores, relays: list[PostgresOutbox]
) -> None:
    await stores.run(
        "INSERT INTO consumer.outbox (exchange, routing_key, body, properties, message_id, type,"
        " ordering_key, available_at, created_at) SELECT '', 'q', '', '\\x0000', n::text, 't', 'k',"
        " now(), now() FROM generate_series(1, 3000) n")
    await stores.run("ANALYZE consumer.outbox")
    [due] = await relays[0].due(10)
    await relays[0].confirmed([due])
    async with transaction(stores.engine) as driver:
        [due] = await due_rows(driver, Schema(), 10)
        read = await driver.fetchval(
            "SELECT pg_stat_get_xact_tuples_fetched('consumer.outbox'::regclass)"
            " + pg_stat_get_xact_tuples_returned('consumer.outbox'::regclass)")
    assert due.message.message_id == "2"
    assert read < 100


async def test_the_lag_counts_what_is_due_and_what_is_parked(stores: Stores) -> None:
    async def measured() -> Lag:
        async with transaction(stores.engine) as driver:
            return await lag(driver, Schema())

    async def add(available: str, parked_at: str = "NULL", ordering_key: str = "NULL") -> None:
        async with transaction(stores.engine) as driver:
            await driver.execute(
                "INSERT INTO consumer.outbox (exchange, routing_key, body, properties, message_id,"
                " type, created_at, available_at, parked_at, ordering_key) VALUES ('', '', '', '',"
                f" 'm', '', now(), {available}, {parked_at}, {ordering_key})")

    assert await measured() == Lag(0, 0.0, 0)
    await add("now() + interval '1 hour'")
    assert await measured() == Lag(0, 0.0, 0)
    await add("now() - interval '90 s'")
    await add("now() - interval '30 s'")
    await add("now()", ordering_key="'k'")
    await add("now() - interval '1 hour'", parked_at="now()")
    found = await measured()
    assert (found.pending, found.parked) == (3, 1)
    assert found.late_seconds >= 90
