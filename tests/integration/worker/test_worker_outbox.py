"""The outbox sends what was committed, in order where that was asked for, whatever it holds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from harness import FAST, SCHEMA, Site, effect
from postbox import post
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from consumer import App, Command, Context, Handler, Outbox
from consumer.broker.address import parse_address
from consumer.broker.connection import ConnectionOptions, connect
from consumer.core.topology import commands_exchange
from consumer.message import OutboxRow, Outgoing
from consumer.store import backlog, outbox
from consumer.store.engine import create_engine
from consumer.wire import Headers, Properties

pytestmark = pytest.mark.integration


class Order(Command, type="shop.order"):
    parcels: int
    fails: bool = False


class Parcel(Command, type="shop.parcel"):
    number: int


class Ordering(Handler[Order]):
    """Sends a parcel each, and fails after that the first time if the order says so."""

    name, queue, options = "shop.order", "orders", FAST

    async def handle(self, command: Order, context: Context) -> None:
        for number in range(command.parcels):
            await context.outbox.send(Parcel(number=number), key=f"{context.key}/{number}")
        if command.fails and context.attempt == 1:
            raise ConnectionError("no stock list")


class Shipping(Handler[Parcel]):
    """Notes when it ran, by the database's clock."""

    name, queue, options = "shop.parcel", "parcels", FAST

    async def handle(self, command: Parcel, context: Context) -> None:
        now = await context.session.scalar(text("SELECT clock_timestamp()"))
        await effect(context, str(now))


APP = App("shop", handlers=[Ordering, Shipping], retry_budget=None)


@asynccontextmanager
async def web(site: Site) -> AsyncIterator[AsyncEngine]:
    """The engine of an application that is no worker."""
    engine = create_engine(site.database_url, application_name="web")
    try:
        yield engine
    finally:
        await engine.dispose()


async def test_messages_leave_if_and_only_if_the_handler_commits(site: Site) -> None:
    """A failed attempt sends nothing; the one that succeeds sends all of it, once."""
    await site.prepare(APP)
    orders = {f"o{number}": bool(number % 2) for number in range(10)}
    await site.publish(*(
        post("shop.order", {"parcels": 3, "fails": fails}, key) for key, fails in orders.items()))
    await site.publish(post("shop.order", {"parcels": -1, "fails": True}, "empty"))
    expected = sorted(f"{key}/{number}" for key in orders for number in range(3))
    async with site.worker(APP):
        await site.until(lambda: site.settled(queue="parcels") == len(expected), "all arrive")
        await site.until(site.outbox_empty, "the outbox is empty")
    assert sorted(key for _, key, _ in await site.effects()) == expected
    assert site.settled(queue="parcels", why="duplicate") == 0
    assert await site.taken("parcels") == []


async def test_a_web_application_sends_with_its_own_transaction(site: Site) -> None:
    """Rolled back, nothing is ever sent; committed, a worker's relay sends it."""
    await site.prepare(APP)
    async with web(site) as engine:
        async with AsyncSession(engine) as session:
            await Outbox(session).send(Parcel(number=1), key="rolled back")
            await session.rollback()
        async with AsyncSession(engine) as session, session.begin():
            await Outbox(session).send(Parcel(number=2), key="committed")
    async with site.worker(APP):
        await site.until(lambda: site.settled(queue="parcels") == 1, "it arrives")
        await site.until(site.outbox_empty, "the outbox is empty")
    assert [key for _, key, _ in await site.effects()] == ["committed"]


async def test_a_scheduled_message_comes_not_before_its_time(site: Site) -> None:
    """`at=` is a minimum; until a relay has taken the message it can be cancelled, and never comes.
    """
    await site.prepare(APP)
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    async with web(site) as engine, AsyncSession(engine) as session:
        async with session.begin():
            cancelled = await Outbox(session).send(Parcel(number=1), key="cancelled", at=at)
            sent = await Outbox(session).send(Parcel(number=2), key="kept", at=at)
        async with session.begin():
            assert await Outbox(session).cancel(cancelled)
        async with site.worker(APP):
            await site.until(lambda: site.settled(queue="parcels") == 1, "it arrives")
            await site.until(site.outbox_empty, "the outbox is empty")
        async with session.begin():
            assert not await Outbox(session).cancel(sent)
    [(_, key, ran_at)] = await site.effects()
    assert key == "kept"
    assert datetime.fromisoformat(ran_at) >= at


async def in_turn(engine: AsyncEngine, sender: int, rounds: int) -> None:
    """Transactions that overlap those of the other senders, each with two messages of one key."""
    for number in range(rounds):
        async with AsyncSession(engine) as session, session.begin():
            for half in range(2):
                key = f"{sender}.{number}.{half}"
                await Outbox(session).send(Parcel(number=number), key=key, ordering_key="account")
                await session.execute(
                    text("INSERT INTO journal (entry) VALUES (:entry)"), {"entry": key})
                await asyncio.sleep(0)


async def test_one_ordering_key_keeps_the_order_of_commits(site: Site) -> None:
    """Overlapping transactions send under one key while two relays sweep: what the queue holds is
    in the order in which the transactions held the key, and nothing is missing or double.
    """
    idle = App("shop", handlers=[Ordering])
    await site.prepare(APP)
    # Its ids are drawn while the ordering key is held, so they are in the order of commits.
    await site.database.execute("CREATE TABLE journal (id bigserial, entry text)")
    async with site.worker(idle), site.worker(idle), web(site) as engine:
        await asyncio.gather(*(in_turn(engine, sender, 10) for sender in range(4)))
        await site.until(site.outbox_empty, "the outbox is empty", 40)
    committed = [row["entry"] for row in await site.database.fetch(
        "SELECT entry FROM journal ORDER BY id")]
    assert len(committed) == 80
    senders = [entry.partition(".")[0] for entry in committed]
    assert senders != sorted(senders), "the transactions did not overlap"
    published = await site.taken("parcels")
    assert [message.headers["idempotency-key"] for message in published] == committed


def row(key: str, exchange: str = commands_exchange("consumer"), routing_key: str = "shop.parcel",
        body: bytes = b'{"number": 1}', headers: dict[str, Any] | None = None) -> OutboxRow:
    """A row as `send` writes it, and as it never would."""
    properties = Properties(
        type="shop.parcel", message_id=key,
        headers=Headers.of({**(headers or {}), "idempotency-key": key})).to_wire()
    return OutboxRow(Outgoing(exchange, routing_key, body, properties, key), "shop.parcel")


async def left_behind(site: Site, *rows: OutboxRow) -> None:
    """Rows of a transaction whose worker was killed before it could publish them, a while ago."""
    async with site.database.transaction():
        await outbox.insert(site.database, SCHEMA, rows)
        await now_due(site.database)


async def now_due(database: "asyncpg.Connection[Any]") -> None:
    await database.execute("UPDATE consumer.outbox SET available_at = clock_timestamp()")


async def test_the_relay_sends_what_a_killed_worker_had_committed(site: Site) -> None:
    """Rows nobody dispatched are sent; one that was published before the kill, too, is a duplicate.
    """
    await site.prepare(APP)
    await left_behind(site, row("unsent"), row("sent, not deleted"))
    await site.publish(post("shop.parcel", {"number": 1}, "sent, not deleted"))
    async with site.worker(APP):
        await site.until(lambda: site.settled(queue="parcels") == 3, "all are settled")
        await site.until(site.outbox_empty, "the outbox is empty")
    assert sorted(key for _, key, _ in await site.effects()) == ["sent, not deleted", "unsent"]


async def exchange(site: Site, name: str, *queues: str) -> None:
    """There is such a topic exchange, and it routes all it gets to these queues, which exist too.
    """
    session = await connect(parse_address(site.amqp_url), ConnectionOptions(name="test"))
    try:
        channel = await session.channel()
        await channel.exchange_declare(name, exchange_type="topic", durable=True)
        for queue in queues:
            await channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
            await channel.queue_bind(queue, name, "#")
    finally:
        await session.close()


async def test_an_unroutable_row_waits_and_the_others_go(site: Site) -> None:
    """A queue or an exchange that does not exist, an exchange without a binding: the row says why,
    backs off, holds nobody up; once there is a place for it, it is delivered once (B38).
    """
    await site.prepare(APP)
    await exchange(site, "elsewhere")
    async with site.worker(APP):
        await left_behind(
            site, row("good 1"), row("no queue", "", "nobody.home"), row("good 2"),
            row("no binding", "elsewhere", "nobody.home"), row("no exchange", "nowhere"),
            row("good 3"))
        await site.until(
            lambda: site.settled(queue="parcels", why="done") == 3, "the good ones are done")
        await site.until(lambda: tries(site, 3), "the bad ones were tried")
        errors = {found["message_id"]: found["last_error"] for found in await site.database.fetch(
            "SELECT message_id, last_error FROM consumer.outbox WHERE parked_at IS NULL")}
        assert sorted(errors) == ["no binding", "no exchange", "no queue"]
        assert all(error.startswith("unroutable: ") for error in errors.values())
        await exchange(site, "elsewhere", "nobody.home")
        await exchange(site, "nowhere", "nobody.home")
        await now_due(site.database)
        await site.until(site.outbox_empty, "all are sent")
    found = [message.properties.message_id for message in await site.taken("nobody.home")]
    assert sorted(map(str, found)) == ["no binding", "no exchange", "no queue"]
    assert sorted(key for _, key, _ in await site.effects()) == ["good 1", "good 2", "good 3"]


async def tries(site: Site, rows: int) -> bool:
    return bool(await site.database.fetchval(
        "SELECT count(*) = $1 FROM consumer.outbox WHERE tries > 0", rows))


async def test_a_row_no_broker_takes_is_parked_and_the_others_go(site: Site) -> None:
    """Too large, a routing key too long, headers too large: parked at once with the reason, visible
    to operators, and no connection is lost over it; the others go, once (B40).
    """
    await site.prepare(APP)
    await left_behind(
        site, row("good 1"), row("body", body=b'"' + b"x" * (17 << 20) + b'"'), row("good 2"),
        row("routing key", routing_key="k" * 300), row("good 3"),
        row("headers", headers={f"h{n}": "x" * 10_000 for n in range(20)}), row("good 4"))
    async with site.worker(APP), site.worker(APP):
        await site.until(lambda: site.settled(queue="parcels") == 4, "the good ones are done")
        await site.until(lambda: parked(site, 3), "the bad ones are parked")
    async with site.database.transaction():
        found = {one.message_id: one.error for one in await backlog.parked(site.database, SCHEMA)}
    assert "17825794 bytes" in found["body"]
    assert "300 bytes" in found["routing key"]
    assert "properties and headers need" in found["headers"]
    assert site.logged("broker_lost") == []
    assert sorted(key for _, key, _ in await site.effects()) == [f"good {n}" for n in range(1, 5)]
    assert site.settled(queue="parcels", why="duplicate") == 0


async def parked(site: Site, rows: int) -> bool:
    """Whether so many are, each at its first try."""
    return bool(await site.database.fetchval(
        "SELECT count(*) = $1 FROM consumer.outbox WHERE parked_at IS NOT NULL AND tries = 1",
        rows))
