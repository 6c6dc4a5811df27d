"""Every store and outbox keeps the promises of its port."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from migrated_database import MigratedDatabase
from sqlalchemy import text

from consumer.store.outbox_store import PostgresOutbox
from consumer.store.transactions import PostgresStore
from consumer.testing.contract.outbox import OutboxContract
from consumer.testing.contract.store import StoreContract

pytestmark = pytest.mark.integration


class PostgresUnderTest(MigratedDatabase):
    def store(self) -> PostgresStore:
        store = PostgresStore(self.engine)
        self.stack.push_async_callback(store.close)
        return store

    def relay(self) -> PostgresOutbox:
        relay = PostgresOutbox(self.engine)
        self.stack.push_async_callback(relay.close)
        return relay

    async def write(self, session: Any, effect: str) -> None:
        await session.execute(text("INSERT INTO effect VALUES (:name)"), {"name": effect})

    async def effects(self) -> list[str]:
        return [name for (name,) in await self.read("SELECT name FROM effect")]

    async def failures(self) -> list[tuple[str, int, str]]:
        found = await self.read("SELECT key, number, error FROM consumer.attempt ORDER BY id")
        return [(row.key, row.number, row.error) for row in found]

    async def outbox(self) -> list[str]:
        found = await self.read("SELECT message_id FROM consumer.outbox ORDER BY id")
        return [name for (name,) in found]

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def pass_time(self, by: timedelta) -> None:
        await self.run(
            "UPDATE consumer.outbox SET available_at = available_at - CAST(:by AS interval),"
            " due_at = due_at - CAST(:by AS interval)", by=by)


@pytest.fixture
async def postgres(consumer_database: Any) -> AsyncIterator[PostgresUnderTest]:
    async with PostgresUnderTest.opened(consumer_database.url) as database:
        await database.run("CREATE TABLE effect (name text NOT NULL)")
        yield database


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def database(self, postgres: PostgresUnderTest) -> PostgresUnderTest:
        return postgres


class TestPostgresOutbox(OutboxContract):
    @pytest.fixture
    def database(self, postgres: PostgresUnderTest) -> PostgresUnderTest:
        return postgres
