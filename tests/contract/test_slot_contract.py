"""Slots in memory and on Postgres keep the promises of `SlotStore`."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from migrated_database import MigratedDatabase

from consumer.store.slots import PostgresSlots
from consumer.store.sql import Schema
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


class PostgresUnderTest(MigratedDatabase):
    def slots(self) -> PostgresSlots:
        return PostgresSlots(self.statements(), Schema())

    async def held(self, dependency: str) -> dict[UUID, int]:
        rows = await self.read(
            "SELECT worker, held FROM consumer.slot_share WHERE dependency = :name",
            name=dependency)
        return {row.worker: row.held for row in rows}

    async def pass_time(self, by: timedelta) -> None:
        await self.run(
            "UPDATE consumer.slot_share SET lease_until = lease_until - CAST(:by AS interval)",
            by=by)


class TestMemorySlots(SlotContract):
    @pytest.fixture
    def database(self) -> MemoryUnderTest:
        return MemoryUnderTest()


@pytest.mark.integration
class TestPostgresSlots(SlotContract):
    @pytest.fixture
    async def database(self, consumer_database: Any) -> AsyncIterator[PostgresUnderTest]:
        async with PostgresUnderTest.opened(consumer_database.url) as database:
            yield database
