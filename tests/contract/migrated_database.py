"""A migrated database, and what a contract suite does to it beside the port under test."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncEngine

from consumer.store.engine import create_engine
from consumer.store.statements import Statements


class MigratedDatabase:
    """Base of databases under test. What is made of it is closed with it."""

    def __init__(self, engine: AsyncEngine, stack: AsyncExitStack) -> None:
        self.engine, self.stack = engine, stack

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str) -> AsyncIterator[Self]:
        engine = create_engine(url, pool_size=10)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.dispose)
            yield cls(engine, stack)

    def statements(self) -> Statements:
        """One more connection of the framework's."""
        statements = Statements(self.engine)
        self.stack.push_async_callback(statements.close)
        return statements

    async def read(self, statement: str, **parameters: Any) -> Sequence[Row[Any]]:
        async with self.engine.connect() as connection:
            return (await connection.execute(text(statement), parameters)).all()

    async def run(self, statement: str, **parameters: Any) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(text(statement), parameters)
