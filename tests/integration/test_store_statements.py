# ruff: noqa: F811, PT012 - fixtures are imported; a transaction is a block that raises
"""What the statements write, and how many round trips they take."""

import asyncio
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import text
from store_fixtures import RoundTrips, Stores, insert, store, stores  # noqa: F401

from consumer.errors import StoreUnavailable
from consumer.store.connection import transaction as open_transaction
from consumer.store.engine import create_engine
from consumer.store.outbox import due
from consumer.store.schema import upgrade
from consumer.store.sql import Schema
from consumer.store.transactions import PostgresStore
from consumer.testing.contract.samples import SCOPE, completion, death, request, retry, row

pytestmark = pytest.mark.integration

NASTY = "a\0b \ud800 \u00e9\U0001f602"


class Sent:
    """First words of what goes to Postgres on the store's connection."""

    def __init__(self) -> None:
        self._seen: list[str] = []

    def note(self, record: Any) -> None:
        self._seen.append(record.query.split()[0].rstrip(";"))

    async def words(self) -> list[str]:
        """Since the last call."""
        await asyncio.sleep(0)  # the driver tells its loggers in the next turn of the loop
        seen, self._seen = self._seen, []
        return seen


@pytest.fixture
async def sent(store: PostgresStore) -> Sent:
    """Watches a store whose caches are warm."""
    async with store.transaction() as transaction:
        await transaction.claim([request("warm")])
        await transaction.lock(SCOPE, "warm-2")
        await transaction.record(retry("warm-2"))
    async with store.transaction() as transaction:
        await transaction.claim([request("warm-2")])
        await insert(transaction.session, "warm")
        await transaction.finish([completion("warm-2")], [row("warm", ordering_key="k")])
    watch = Sent()
    driver = await store._kept.driver()
    driver.add_query_logger(watch.note)
    return watch


async def test_a_success_costs_begin_claim_handler_outbox_commit(
    store: PostgresStore, sent: Sent
) -> None:
    async with store.transaction() as transaction:
        await transaction.claim([request(f"k{n}") for n in range(50)])
        await transaction.finish([], [row(f"m{n}") for n in range(50)])
    assert await sent.words() == ["BEGIN", "WITH", "WITH", "COMMIT"]


async def test_a_handlers_statement_adds_one_round_trip(
    stores: Stores, consumer_database: Any
) -> None:
    url = urlsplit(consumer_database.url)
    trips = RoundTrips()
    server, port = await trips.serve(url.hostname or "127.0.0.1", url.port or 5432)
    user = url.netloc.rpartition("@")[0]
    engine = create_engine(f"postgresql://{user}@127.0.0.1:{port}{url.path}")
    store = PostgresStore(engine)
    counts = []
    for n in range(3):
        before = trips.count
        async with store.transaction() as transaction:
            await transaction.claim([request(f"k{n}")])
            await insert(transaction.session, f"x{n}")
            await transaction.finish([], [row(f"m{n}")])
        counts.append(trips.count - before)
    await store.close()
    await engine.dispose()
    server.close()
    await server.wait_closed()
    assert counts[1:] == [5, 5]


async def test_a_success_without_rows_costs_begin_claim_commit(
    store: PostgresStore, sent: Sent
) -> None:
    async with store.transaction() as transaction:
        await transaction.claim([request("k")])
        await transaction.finish([], [])
    assert await sent.words() == ["BEGIN", "WITH", "COMMIT"]


async def test_a_retry_that_succeeds_costs_one_look_and_one_update_more(
    store: PostgresStore, sent: Sent
) -> None:
    async with store.transaction() as transaction:
        await transaction.lock(SCOPE, "k")
        await transaction.record(retry("k"))
    await sent.words()
    async with store.transaction() as transaction:
        await transaction.claim([request("k")])
        await transaction.finish([completion("k")], [row("m")])
    assert await sent.words() == ["BEGIN", "WITH", "SELECT", "WITH", "WITH", "COMMIT"]


async def test_a_failure_costs_rollback_and_five_more(
    store: PostgresStore, sent: Sent
) -> None:
    with pytest.raises(LookupError):
        async with store.transaction() as transaction:
            await transaction.claim([request("k")])
            raise LookupError
    async with store.transaction() as transaction:
        await transaction.lock(SCOPE, "k")
        await transaction.record(retry("k"))
    assert await sent.words() == [
        "BEGIN", "WITH", "ROLLBACK", "BEGIN", "SELECT", "SELECT", "WITH", "COMMIT"]


@pytest.mark.parametrize("error", [NASTY, NASTY * 100_000, "\ud800" * 20_000, "x" * 16_384, ""])
async def test_whatever_the_error_says_it_is_recorded(
    stores: Stores, store: PostgresStore, error: str
) -> None:
    failure = retry("k", error=error)
    async with store.transaction() as transaction:
        await transaction.lock(SCOPE, "k")
        await transaction.record(failure)
    [(stored,)] = await stores.read("SELECT error FROM consumer.attempt")
    assert len(stored.encode()) <= 16_384
    assert stored.startswith(error[:1].replace("\ud800", "\\ud800"))


async def test_a_message_id_that_text_cannot_hold_comes_back_whole(
    stores: Stores, store: PostgresStore
) -> None:
    bad = row("bad\0id")
    async with store.transaction() as transaction:
        await transaction.claim([request("k", message_id=NASTY)])
        await transaction.finish([], [bad])
    await stores.run("UPDATE consumer.outbox SET available_at = now()")
    async with open_transaction(stores.engine) as driver:
        [taken] = await due(driver, Schema(), 10)
    assert taken.message == bad.message


async def test_what_a_claim_and_its_end_say(stores: Stores, store: PostgresStore) -> None:
    async with store.transaction() as transaction:
        await transaction.claim([request("done")])
        await transaction.lock(SCOPE, "dead")
        await transaction.record(death("dead", attempts=3))
        await transaction.lock(SCOPE, "again")
        await transaction.record(retry("again", delay=timedelta(hours=1)))
    found = {r.key: r for r in await stores.read(
        "SELECT *, expires_at - finished_at AS kept, expires_at - due_at AS kept_after_due"
        " FROM consumer.claim")}
    assert found["done"].kept == found["dead"].kept == timedelta(days=7)
    assert found["again"].kept_after_due == timedelta(days=7)
    assert found["again"].finished_at is None
    assert found["dead"].due_at is None
    assert [found[k].state for k in ("done", "dead", "again")] == ["done", "dead", "retrying"]
    assert [found[k].attempts for k in ("done", "dead", "again")] == [1, 3, 1]


async def test_updates_of_a_claim_touch_no_index(stores: Stores) -> None:
    """An index on state or time columns would end heap-only updates."""
    found = await stores.read("SELECT indexdef FROM pg_indexes WHERE tablename = 'claim'")
    assert len(found) == 1
    assert "(scope, key)" in found[0].indexdef


async def test_another_schema_is_another_world(stores: Stores) -> None:
    name = 'O"dd %s $1 {schema}; DROP'
    await upgrade(stores.url, name)
    store = PostgresStore(stores.engine, schema=name)
    async with store.transaction() as transaction:
        [met] = await transaction.claim([request("k")])
        await transaction.finish([], [row("m")])
    await store.close()
    assert met.created
    assert await stores.claims() == []


async def test_search_path_does_not_matter(stores: Stores) -> None:
    database = stores.url.rsplit("/", 1)[1]
    await stores.run(f'ALTER DATABASE "{database}" SET search_path = nowhere')
    await stores.engine.dispose()
    store = stores.store()
    async with store.transaction() as transaction:
        await transaction.lock(SCOPE, "k")
        await transaction.record(retry("k"))
    async with store.transaction() as transaction:
        await transaction.claim([request("k")])
        await transaction.finish([completion("k")], [row("m", ordering_key="o")])
    assert await stores.claims() == ["k"]


async def test_statement_timeout_is_the_statements_failure(consumer_database: Any) -> None:
    engine = create_engine(consumer_database.url, statement_timeout=timedelta(milliseconds=50))
    store = PostgresStore(engine)
    with pytest.raises(Exception, match="statement timeout") as raised:
        async with store.transaction() as transaction:
            await transaction.session.execute(text("SELECT pg_sleep(600)"))
    assert transaction.translate(raised.value) is raised.value
    await store.close()
    await engine.dispose()


@pytest.mark.parametrize("change", [
    {"host": "127.0.0.1:1"}, {"user": "nobody-like-this:s3cr3t-w0rd"}, {"database": "missing"}])
async def test_an_unreachable_database_is_infrastructure_and_tells_no_secret(
    consumer_database: Any, change: dict[str, str]
) -> None:
    head, _, _ = consumer_database.url.rpartition("@")
    place = consumer_database.url.rpartition("@")[2]
    host, _, database = place.partition("/")
    user = change.get("user", head.partition("://")[2])
    url = f"postgresql://{user}@{change.get('host', host)}/{change.get('database', database)}"
    engine = create_engine(url)
    with pytest.raises(StoreUnavailable) as raised:
        async with PostgresStore(engine).transaction():
            pytest.fail("entered without a connection")
    assert "s3cr3t" not in str(raised.value) + repr(engine) + repr(raised.value.__cause__)
    await engine.dispose()
