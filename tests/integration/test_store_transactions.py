# ruff: noqa: F811, PT012 - fixtures are imported; a transaction is a block that raises
"""Transactions on a real Postgres: what commits, what cannot, and what errors mean."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine
from store_fixtures import Effect, Stores, insert, store, stores  # noqa: F401

from consumer.errors import (
    CommitFailed,
    SerializationConflict,
    StoreUnavailable,
    TransactionOwned,
)
from consumer.store.transactions import PostgresStore
from consumer.testing.contract.samples import SCOPE, request, row

pytestmark = pytest.mark.integration

KILL_ME = text("SELECT pg_terminate_backend(pg_backend_pid())")


def raise_state(state: str) -> str:
    return f"DO $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{state}'; END $$"


async def test_objects_added_are_flushed_and_stay_readable(
    stores: Stores, store: PostgresStore
) -> None:
    effect = Effect(name="a")
    async with store.transaction() as transaction:
        transaction.session.add(effect)
        await transaction.finish([], [])
    assert effect.name == "a"
    assert await stores.effects() == ["a"]


@pytest.mark.parametrize("finishes", [True, False])
async def test_a_swallowed_error_cannot_end_as_success(
    stores: Stores, store: PostgresStore, finishes: bool
) -> None:
    """Postgres answers such a COMMIT with ROLLBACK, and without an error."""
    with pytest.raises(CommitFailed):
        async with store.transaction() as transaction:
            await transaction.claim([request("a")])
            await insert(transaction.session, "x")
            with pytest.raises(IntegrityError):
                await insert(transaction.session, "x")
            if finishes:
                await transaction.finish([], [row("m")])
    assert await stores.effects() == await stores.claims() == []
    async with store.transaction() as transaction:
        assert [m.created for m in await transaction.claim([request("a")])] == [True]


async def test_a_swallowed_flush_error_cannot_end_as_success(
    stores: Stores, store: PostgresStore
) -> None:
    with pytest.raises(CommitFailed) as raised:
        async with store.transaction() as transaction:
            await transaction.claim([request("a")])
            await insert(transaction.session, "x")
            transaction.session.add(Effect(name="x"))
            with pytest.raises(IntegrityError):
                await transaction.session.flush()
            await transaction.finish([], [])
    assert isinstance(raised.value.__cause__, IntegrityError)
    assert await stores.claims() == []


async def test_an_error_in_a_savepoint_of_the_handler_may_be_swallowed(
    stores: Stores, store: PostgresStore
) -> None:
    async with store.transaction() as transaction:
        await transaction.claim([request("a")])
        await insert(transaction.session, "x")
        with pytest.raises(IntegrityError):
            async with transaction.session.begin_nested():
                await insert(transaction.session, "x")
        await insert(transaction.session, "y")
        await transaction.finish([], [])
    assert await stores.effects() == ["x", "y"]
    assert await stores.claims() == ["a"]


async def test_a_swallowed_request_to_run_again_is_still_one(store: PostgresStore) -> None:
    with pytest.raises(SerializationConflict):
        async with store.transaction() as transaction:
            with pytest.raises(DBAPIError):
                await transaction.session.execute(text(raise_state("40001")))
            await transaction.finish([], [])


async def test_a_deferred_constraint_refuses_the_commit(
    stores: Stores, store: PostgresStore
) -> None:
    await stores.run("ALTER TABLE effect ADD parent text REFERENCES effect"
                     " DEFERRABLE INITIALLY DEFERRED")
    with pytest.raises(CommitFailed) as raised:
        async with store.transaction() as transaction:
            await transaction.claim([request("a")])
            await transaction.session.execute(text("INSERT INTO effect VALUES ('x', 'none')"))
            await transaction.finish([], [])
    assert getattr(raised.value.__cause__, "sqlstate", None) == "23503"
    assert await stores.claims() == []
    async with store.transaction() as transaction:
        await transaction.claim([request("a")])
    assert await stores.claims() == ["a"]


@pytest.mark.parametrize("call", ["commit", "rollback", "close", "aclose", "reset", "invalidate"])
async def test_the_handler_cannot_end_the_transaction(
    stores: Stores, store: PostgresStore, call: str
) -> None:
    async with store.transaction() as transaction:
        await insert(transaction.session, "x")
        with pytest.raises(TransactionOwned, match="begin_nested"):
            await getattr(transaction.session, call)()
        await transaction.finish([], [])
    assert await stores.effects() == ["x"]


async def test_neither_can_it_through_other_doors(stores: Stores, store: PostgresStore) -> None:
    async with store.transaction() as transaction:
        await insert(transaction.session, "x")
        with pytest.raises(TransactionOwned):
            transaction.session.begin()
        with pytest.raises(TransactionOwned):
            await transaction.session.run_sync(lambda session: session.commit())
        with pytest.raises(TransactionOwned):
            async with transaction.session:
                pass
        await transaction.finish([], [])
    assert await stores.effects() == ["x"]


@pytest.mark.parametrize("statement", ["ROLLBACK", "COMMIT"])
async def test_ending_it_with_sql_is_noticed(store: PostgresStore, statement: str) -> None:
    with pytest.raises(TransactionOwned):
        async with store.transaction() as transaction:
            await transaction.session.execute(text(statement))
            await transaction.finish([], [])


async def test_rolling_back_behind_the_session_is_noticed(
    stores: Stores, store: PostgresStore
) -> None:
    with pytest.raises(CommitFailed):
        async with store.transaction() as transaction:
            await insert(transaction.session, "x")
            await (await transaction.session.connection()).rollback()
            await transaction.finish([], [])
    assert await stores.effects() == []


async def test_a_savepoint_left_open_is_noticed(stores: Stores, store: PostgresStore) -> None:
    with pytest.raises(TransactionOwned, match="savepoint"):
        async with store.transaction() as transaction:
            await transaction.session.begin_nested()
            await insert(transaction.session, "x")
            await transaction.finish([], [])
    async with store.transaction() as transaction:
        await insert(transaction.session, "y")
        await transaction.finish([], [])
    assert await stores.effects() == ["y"]


async def test_a_connection_killed_under_the_handler_is_infrastructure(
    stores: Stores, store: PostgresStore
) -> None:
    with pytest.raises(DBAPIError) as raised:
        async with store.transaction() as transaction:
            await transaction.claim([request("a")])
            await transaction.session.execute(KILL_ME)
    assert isinstance(transaction.translate(raised.value), StoreUnavailable)
    async with store.transaction() as transaction:
        assert [m.created for m in await transaction.claim([request("a")])] == [True]


async def test_what_a_handler_makes_of_our_error_means_the_same(store: PostgresStore) -> None:
    with pytest.raises(LookupError) as raised:
        async with store.transaction() as transaction:
            try:
                await transaction.session.execute(KILL_ME)
            except DBAPIError as error:
                raise LookupError("order") from error
    assert isinstance(transaction.translate(raised.value), StoreUnavailable)


async def test_a_swallowed_kill_is_infrastructure_at_the_end(store: PostgresStore) -> None:
    with pytest.raises(StoreUnavailable):
        async with store.transaction() as transaction:
            with pytest.raises(DBAPIError):
                await transaction.session.execute(KILL_ME)
            await transaction.finish([], [row("m")])


async def test_a_connection_killed_before_commit_commits_nothing(
    stores: Stores, store: PostgresStore
) -> None:
    with pytest.raises(StoreUnavailable):
        async with store.transaction() as transaction:
            await transaction.claim([request("a")])
            pid = (await transaction.session.execute(text("SELECT pg_backend_pid()"))).scalar()
            await stores.run("SELECT pg_terminate_backend(:pid)", pid=pid)
            await stores.until(f"NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})")
    assert await stores.claims() == []


async def test_a_connection_killed_while_idle_costs_one_transaction_at_most(
    stores: Stores, store: PostgresStore
) -> None:
    async with store.transaction() as transaction:
        pid = (await transaction.session.execute(text("SELECT pg_backend_pid()"))).scalar()
    await stores.run("SELECT pg_terminate_backend(:pid)", pid=pid)
    try:
        async with store.transaction() as transaction:
            await transaction.claim([request("a")])
    except StoreUnavailable:
        async with store.transaction() as transaction:
            await transaction.claim([request("a")])
    assert await stores.claims() == ["a"]


@pytest.mark.parametrize(("state", "meaning"), [
    ("08006", StoreUnavailable), ("53300", StoreUnavailable), ("57P01", StoreUnavailable),
    ("58030", StoreUnavailable), ("XX000", StoreUnavailable), ("25006", StoreUnavailable),
    ("40001", SerializationConflict), ("40P01", SerializationConflict),
    ("55P03", SerializationConflict),
    ("57014", DBAPIError), ("23505", DBAPIError), ("22003", DBAPIError), ("42P01", DBAPIError),
])
async def test_what_states_mean(
    stores: Stores, store: PostgresStore, state: str, meaning: type[Exception]
) -> None:
    statement = text(raise_state(state))
    with pytest.raises(DBAPIError) as ours:
        async with store.transaction() as transaction:
            await transaction.session.execute(statement)
    assert isinstance(transaction.translate(ours.value), meaning)
    other = create_async_engine(stores.url.replace("postgresql://", "postgresql+asyncpg://"))
    with pytest.raises(DBAPIError) as theirs:
        async with store.transaction() as transaction, other.connect() as connection:
            await transaction.claim([request("a")])
            await connection.execute(statement)
    assert transaction.translate(theirs.value) is theirs.value
    await other.dispose()


async def test_a_standby_is_infrastructure(stores: Stores) -> None:
    await stores.run(f"ALTER DATABASE \"{stores.url.rsplit('/', 1)[1]}\""
                     " SET default_transaction_read_only = on")
    await stores.engine.dispose()
    with pytest.raises(StoreUnavailable):
        async with stores.store().transaction() as transaction:
            await transaction.claim([request("a")])


async def test_cancelled_in_a_statement_nothing_commits(
    stores: Stores, store: PostgresStore
) -> None:
    async def handle() -> None:
        async with store.transaction() as transaction:
            await transaction.claim([request("a")])
            await insert(transaction.session, "x")
            await transaction.session.execute(text("SELECT pg_sleep(600) /* handler */"))

    task = asyncio.create_task(handle())
    await stores.until("EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep')")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await stores.effects() == await stores.claims() == []
    async with store.transaction() as transaction:
        assert [m.created for m in await transaction.claim([request("a")])] == [True]


async def test_cancelled_while_waiting_for_a_lock_nothing_is_held(
    stores: Stores, store: PostgresStore
) -> None:
    other = stores.store()

    async def wait() -> None:
        async with other.transaction() as transaction:
            await transaction.lock(SCOPE, "free")
            await transaction.lock(SCOPE, "a")

    async with store.transaction() as transaction:
        await transaction.claim([request("a")])
        task = asyncio.create_task(wait())
        await stores.until("EXISTS (SELECT FROM pg_locks"
                           " WHERE locktype = 'advisory' AND NOT granted)")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        [met] = await transaction.claim([request("free")])
        assert met.created
    async with other.transaction() as transaction:
        assert await transaction.lock(SCOPE, "a") is not None


async def test_a_claim_never_waits_for_a_lock(stores: Stores, store: PostgresStore) -> None:
    keys = [f"k{n}" for n in range(10)]
    async with store.transaction() as transaction:
        await transaction.claim([request(key) for key in keys])
        async with stores.store().transaction() as other:
            async with asyncio.timeout(30):
                met = await other.claim([request(key) for key in reversed(keys)])
        assert not any(meeting.locked for meeting in met)


async def test_a_handlers_own_timeout_is_not_an_outage(
    stores: Stores, store: PostgresStore
) -> None:
    """It costs the connection; counted as an outage, the message would come again for ever."""
    with pytest.raises(CommitFailed):
        async with store.transaction() as transaction:
            await transaction.claim([request("a")])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await transaction.session.execute(text("SELECT pg_sleep(600)"))
            await transaction.finish([], [row("m")])
    assert await stores.claims() == []
    async with store.transaction() as transaction:
        await transaction.claim([request("a")])
    assert await stores.claims() == ["a"]


async def test_a_timeout_in_a_savepoint_fails_the_whole_transaction(
    stores: Stores, store: PostgresStore
) -> None:
    with pytest.raises(CommitFailed):
        async with store.transaction() as transaction:
            with pytest.raises(TimeoutError):
                async with transaction.savepoint():
                    await transaction.claim([request("a")])
                    async with asyncio.timeout(0.05):
                        await transaction.session.execute(text("SELECT pg_sleep(600)"))
            with pytest.raises(CommitFailed):
                async with transaction.savepoint():
                    pytest.fail("entered without a connection")
    async with store.transaction() as transaction:
        await transaction.claim([request("a")])


async def test_savepoints_isolate_errors_of_flush_and_statement(
    stores: Stores, store: PostgresStore
) -> None:
    await stores.run("INSERT INTO effect VALUES ('taken')")
    async with store.transaction() as transaction:
        for name in ("a", "taken", "b"):
            try:
                async with transaction.savepoint():
                    await transaction.claim([request(name)])
                    transaction.session.add(Effect(name=name))
                    await transaction.finish([], [])
            except IntegrityError:
                assert name == "taken"
        with pytest.raises(CommitFailed):
            async with transaction.savepoint():
                await transaction.claim([request("swallows")])
                with pytest.raises(IntegrityError):
                    await insert(transaction.session, "a")
    assert await stores.effects() == ["a", "b", "taken"]
    assert await stores.claims() == ["a", "b"]


async def test_a_deadlock_asks_to_run_again(stores: Stores, store: PostgresStore) -> None:
    await stores.run("INSERT INTO effect VALUES ('x'), ('y')")
    lock = text("SELECT FROM effect WHERE name = :name FOR UPDATE")
    meet = asyncio.Barrier(2)

    async def handle(own: PostgresStore, first: str, second: str) -> Exception | None:
        try:
            async with own.transaction() as transaction:
                await transaction.session.execute(lock, {"name": first})
                await meet.wait()
                await transaction.session.execute(lock, {"name": second})
        except DBAPIError as error:
            return transaction.translate(error)
        return None

    ends = await asyncio.gather(handle(store, "x", "y"), handle(stores.store(), "y", "x"))
    assert sorted(type(end).__name__ for end in ends) == ["NoneType", "SerializationConflict"]


async def test_one_transaction_at_a_time(store: PostgresStore) -> None:
    async with store.transaction():
        with pytest.raises(RuntimeError):
            async with store.transaction():
                pass
