"""Budgets in memory and on Postgres keep the promises of `BudgetStore`."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from migrated_database import MigratedDatabase

from consumer.core.budget import Account
from consumer.store.budgets import PostgresBudgets
from consumer.store.sql import Schema
from consumer.testing.contract.budgets import BudgetContract
from consumer.testing.memory import FakeClock, MemoryDatabase
from consumer.testing.memory.dependencies import MemoryBudgets


class MemoryUnderTest:
    def __init__(self) -> None:
        self._clock = FakeClock()
        self._budgets = MemoryBudgets(MemoryDatabase(self._clock))

    def budgets(self) -> MemoryBudgets:
        return self._budgets

    async def account(self, dependency: str) -> Account:
        return self._budgets.accounts[dependency]

    async def forget(self, dependency: str) -> None:
        del self._budgets.accounts[dependency]

    async def pass_time(self, by: timedelta) -> None:
        self._clock.advance(by)


class PostgresUnderTest(MigratedDatabase):
    def budgets(self) -> PostgresBudgets:
        return PostgresBudgets(self.statements(), Schema())

    async def account(self, dependency: str) -> Account:
        [row] = await self.read(
            "SELECT credits, extract(epoch FROM floor_at)::float8, cost::int,"
            " (granted - returned)::int FROM consumer.retry_budget WHERE dependency = :name",
            name=dependency)
        return Account(*row)

    async def forget(self, dependency: str) -> None:
        await self.run("DELETE FROM consumer.retry_budget WHERE dependency = :name",
                        name=dependency)

    async def pass_time(self, by: timedelta) -> None:
        await self.run(
            "UPDATE consumer.retry_budget SET floor_at = floor_at - CAST(:by AS interval)", by=by)


class TestMemoryBudgets(BudgetContract):
    @pytest.fixture
    def database(self) -> MemoryUnderTest:
        return MemoryUnderTest()


@pytest.mark.integration
class TestPostgresBudgets(BudgetContract):
    @pytest.fixture
    async def database(self, consumer_database: Any) -> AsyncIterator[PostgresUnderTest]:
        async with PostgresUnderTest.opened(consumer_database.url) as database:
            yield database
