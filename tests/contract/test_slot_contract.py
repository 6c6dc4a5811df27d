"""Slots in memory and on Postgres keep the promises of `SlotStore`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from consumer.store.engine import create_engine
from consumer.store.slots import PostgresSlots
from consumer.store.sql import Schema
from consumer.store.statements import Statements
from consumer.testing.contract.slots import SlotContract
from consumer.testing.memory import FakeClock, MemoryDatabase
from consumer.testing.memory.dependencies import MemorySlots


class MemoryUnderTest:
    def __init__(self) -> None:
        self._clock = FakeClock()
        self._slots = MemorySlots(MemoryDatabase(self._clock))

    def slots(self) -> MemorySlots:
        return self._slots

    async def held(self, dependency: str) -> dict[UUID, int]:
        members = self._slots.members.get(dependency, {})
        return {worker: share.held for worker, share in members.items()}

    async def pass_time(self, by: timedelta) -> None:
        self._clock.advance(by)


class PostgresUnderTest:
    """A migrated database."""

    def __init__(self, engine: AsyncEngine, stack: AsyncExitStack) -> None:
        self._engine, self._stack = engine, stack

    def slots(self) -> PostgresSlots:
        statements = Statements(self._engine)
        self._stack.push_async_callback(statements.close)
        return PostgresSlots(statements, Schema())

    async def held(self, dependency: str) -> dict[UUID, int]:
        async with self._engine.connect() as connection:
            rows = await connection.execute(text(
                "SELECT worker, held FROM consumer.slot_share WHERE dependency = :name"),
                {"name": dependency})
            return {row.worker: row.held for row in rows}

    async def pass_time(self, by: timedelta) -> None:
        async with self._engine.begin() as connection:
            await connection.execute(text(
                "UPDATE consumer.slot_share SET lease_until = lease_until - CAST(:by AS interval)"),
                {"by": by})


class TestMemorySlots(SlotContract):
    @pytest.fixture
    def database(self) -> MemoryUnderTest:
        return MemoryUnderTest()


@pytest.mark.integration
class TestPostgresSlots(SlotContract):
    @pytest.fixture
    async def database(self, consumer_database: Any) -> AsyncIterator[PostgresUnderTest]:
        engine = create_engine(consumer_database.url, pool_size=10)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.dispose)
            yield PostgresUnderTest(engine, stack)
