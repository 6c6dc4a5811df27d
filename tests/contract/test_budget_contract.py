"""Budgets in memory and on Postgres keep the promises of `BudgetStore`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from consumer.core.budget import Account
from consumer.store.budgets import PostgresBudgets
from consumer.store.engine import create_engine
from consumer.store.sql import Schema
from consumer.store.statements import Statements
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


class PostgresUnderTest:
    """A migrated database."""

    def __init__(self, engine: AsyncEngine, stack: AsyncExitStack) -> None:
        self._engine, self._stack = engine, stack

    def budgets(self) -> PostgresBudgets:
        statements = Statements(self._engine)
        self._stack.push_async_callback(statements.close)
        return PostgresBudgets(statements, Schema())

    async def account(self, dependency: str) -> Account:
        async with self._engine.connect() as connection:
            row = (await connection.execute(text(
                "SELECT credits, extract(epoch FROM floor_at)::float8, cost::int,"
                " (granted - returned)::int FROM consumer.retry_budget WHERE dependency = :name"),
                {"name": dependency})).one()
        return Account(*row)

    async def forget(self, dependency: str) -> None:
        await self._run("DELETE FROM consumer.retry_budget WHERE dependency = :name",
                        name=dependency)

    async def pass_time(self, by: timedelta) -> None:
        await self._run(
            "UPDATE consumer.retry_budget SET floor_at = floor_at - CAST(:by AS interval)", by=by)

    async def _run(self, statement: str, **parameters: Any) -> None:
        async with self._engine.begin() as connection:
            await connection.execute(text(statement), parameters)


class TestMemoryBudgets(BudgetContract):
    @pytest.fixture
    def database(self) -> MemoryUnderTest:
        return MemoryUnderTest()


@pytest.mark.integration
class TestPostgresBudgets(BudgetContract):
    @pytest.fixture
    async def database(self, consumer_database: Any) -> AsyncIterator[PostgresUnderTest]:
        engine = create_engine(consumer_database.url, pool_size=10)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.dispose)
            yield PostgresUnderTest(engine, stack)
