"""The in-memory store and outbox keep the promises that Postgres keeps."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from consumer.testing.contract.outbox import OutboxContract
from consumer.testing.contract.store import StoreContract
from consumer.testing.memory import FakeClock, MemoryDatabase, MemoryOutbox, MemoryStore


class MemoryUnderTest:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self._database = MemoryDatabase(self.clock)

    def store(self) -> MemoryStore:
        return MemoryStore(self._database)

    def relay(self) -> MemoryOutbox:
        return MemoryOutbox(self._database)

    async def write(self, session: Any, effect: str) -> None:
        session.add(effect)

    async def effects(self) -> list[str]:
        return list(self._database.tables.effects)

    async def failures(self) -> list[tuple[str, int, str]]:
        return [(f.request.key, f.attempts, f.error) for f in self._database.tables.attempts]

    async def outbox(self) -> list[str]:
        rows = sorted(self._database.tables.outbox.items())
        return [stored.row.message.message_id for _, stored in rows]

    def now(self) -> datetime:
        return self.clock.now()

    async def pass_time(self, by: timedelta) -> None:
        self.clock.advance(by)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def database(self) -> MemoryUnderTest:
        return MemoryUnderTest()


class TestMemoryOutbox(OutboxContract):
    @pytest.fixture
    def database(self) -> MemoryUnderTest:
        return MemoryUnderTest()
