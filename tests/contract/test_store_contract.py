"""Every store and outbox keeps the promises of its port."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from consumer.store.engine import create_engine
from consumer.store.outbox_store import PostgresOutbox
from consumer.store.transactions import PostgresStore
from consumer.testing.contract.outbox import OutboxContract
from consumer.testing.contract.store import StoreContract

pytestmark = pytest.mark.integration


class PostgresUnderTest:
    """A migrated database."""

    def __init__(self, engine: AsyncEngine, stack: AsyncExitStack) -> None:
        self._engine, self._stack = engine, stack

    def store(self) -> PostgresStore:
        store = PostgresStore(self._engine)
        self._stack.push_async_callback(store.close)
        return store

    def relay(self) -> PostgresOutbox:
        relay = PostgresOutbox(self._engine)
        self._stack.push_async_callback(relay.close)
        return relay

    async def write(self, session: Any, effect: str) -> None:
        await session.execute(text("INSERT INTO effect VALUES (:name)"), {"name": effect})

    async def effects(self) -> list[str]:
        return [name for (name,) in await self._read("SELECT name FROM effect")]

    async def failures(self) -> list[tuple[str, int, str]]:
        found = await self._read("SELECT key, number, error FROM consumer.attempt ORDER BY id")
        return [(row.key, row.number, row.error) for row in found]

    async def outbox(self) -> list[str]:
        found = await self._read("SELECT message_id FROM consumer.outbox ORDER BY id")
        return [name for (name,) in found]

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def pass_time(self, by: timedelta) -> None:
        async with self._engine.begin() as connection:
            await connection.execute(text(
                "UPDATE consumer.outbox SET available_at = available_at - CAST(:by AS interval),"
                " due_at = due_at - CAST(:by AS interval)"), {"by": by})

    async def _read(self, statement: str) -> Any:
        async with self._engine.connect() as connection:
            return (await connection.execute(text(statement))).all()


@pytest.fixture
async def postgres(consumer_database: Any) -> AsyncIterator[PostgresUnderTest]:
    engine = create_engine(consumer_database.url, pool_size=10)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.dispose)
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE effect (name text NOT NULL)"))
        yield PostgresUnderTest(engine, stack)


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def database(self, postgres: PostgresUnderTest) -> PostgresUnderTest:
        return postgres


class TestPostgresOutbox(OutboxContract):
    @pytest.fixture
    def database(self, postgres: PostgresUnderTest) -> PostgresUnderTest:
        return postgres
