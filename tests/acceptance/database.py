"""The database as any other program sees it."""

import asyncio
from typing import Any, Self

import asyncpg


def fetch(database_url: str, statement: str, *arguments: object) -> list[Any]:
    """The rows of one statement, on a connection of its own."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        connection = runner.run(_connect(database_url))
        try:
            return runner.run(connection.fetch(statement, *arguments))
        finally:
            runner.run(connection.close())


def count(database_url: str, table: str) -> int:
    """How many rows `table` has."""
    [[rows]] = fetch(database_url, f"SELECT count(*) FROM {table}")
    return int(rows)


class Gate:
    """Closed, it makes everybody who writes to a table wait, in the middle of a transaction."""

    def __init__(self, database_url: str, table: str) -> None:
        self._url, self._table = database_url, table
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def __enter__(self) -> Self:
        self._holder = self._runner.run(_connect(self._url))
        self._runner.run(self._holder.execute(self._lock))
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._holder.close())
        self._runner.close()

    def waiting(self) -> int:
        """How many connections wait."""
        return self._runner.run(self._queue_length())

    def let_pass(self) -> None:
        """Those who wait write and commit; whoever comes behind them waits again."""
        self._runner.run(self._change_holder())

    async def _change_holder(self) -> None:
        """Locks are granted in the order they were asked for."""
        following, before = await _connect(self._url), await self._queue_length()
        closing = asyncio.create_task(following.execute(self._lock))
        async with asyncio.timeout(30):
            while await self._queue_length() == before:  # noqa: ASYNC110 - there is no such event
                await asyncio.sleep(0.02)
        await self._holder.close()
        await closing
        self._holder = following

    async def _queue_length(self) -> int:
        return int(await self._holder.fetchval(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::regclass",
            self._table))

    @property
    def _lock(self) -> str:
        return f'BEGIN; LOCK TABLE "{self._table}" IN SHARE ROW EXCLUSIVE MODE'


async def _connect(database_url: str) -> "asyncpg.Connection[Any]":
    return await asyncpg.connect(database_url.replace("+asyncpg", "", 1), timeout=30)
