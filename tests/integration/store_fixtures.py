"""A migrated database with one table of the application's own, and stores on it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from consumer.store.engine import create_engine
from consumer.store.transactions import PostgresStore


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effect"

    name: Mapped[str] = mapped_column(primary_key=True)


class Stores:
    """Makes stores, and reads what is committed."""

    def __init__(self, engine: AsyncEngine, url: str, stack: AsyncExitStack) -> None:
        self.engine, self.url, self._stack = engine, url, stack

    def store(self) -> PostgresStore:
        store = PostgresStore(self.engine)
        self._stack.push_async_callback(store.close)
        return store

    async def read(self, statement: str) -> Any:
        async with self.engine.connect() as connection:
            return (await connection.execute(text(statement))).all()

    async def run(self, statement: str, **parameters: Any) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(text(statement), parameters)

    async def effects(self) -> list[str]:
        return [name for (name,) in await self.read("SELECT name FROM effect ORDER BY name")]

    async def claims(self) -> list[str]:
        return [key for (key,) in await self.read("SELECT key FROM consumer.claim ORDER BY key")]

    async def until(self, condition: str) -> None:
        """Ask until the statement says true; give up after half a minute."""
        async with asyncio.timeout(30):
            while not (await self.read(f"SELECT {condition}"))[0][0]:
                pass


@pytest.fixture
async def stores(consumer_database: Any) -> AsyncIterator[Stores]:
    engine = create_engine(consumer_database.url, pool_size=10)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.dispose)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield Stores(engine, consumer_database.url, stack)


@pytest.fixture
async def store(stores: Stores) -> PostgresStore:
    return stores.store()


async def insert(session: Any, name: str) -> None:
    await session.execute(text("INSERT INTO effect VALUES (:name)"), {"name": name})


class RoundTrips:
    """A relay in front of Postgres that counts how often the client waits for an answer."""

    def __init__(self) -> None:
        self.count, self._answered = 0, True

    async def serve(self, host: str, port: int) -> tuple[asyncio.Server, int]:
        """Listen on a free port and pass everything on."""
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            up_reader, up_writer = await asyncio.open_connection(host, port)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, up_writer, asks=True))
                tasks.create_task(self._pass(up_reader, writer, asks=False))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, asks: bool
    ) -> None:
        try:
            while data := await reader.read(65_536):
                self.count += asks and self._answered
                self._answered = not asks
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
