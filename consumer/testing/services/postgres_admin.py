"""Statements for the administration of a Postgres server, from code that is not async."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import asyncpg

Result = TypeVar("Result")


def query(
    database_url: str, statement: str, *arguments: object, timeout_seconds: float = 30.0
) -> object:
    """Run one statement outside of a transaction, on a connection of its own.

    Returns:
        The first column of the first row; None if there is no row.

    Raises:
        asyncpg.PostgresError, asyncpg.InterfaceError, OSError: As the driver raises them; a
            time-out is an OSError.
    """
    return blocking(_query(database_url, statement, arguments, timeout_seconds))


def create_database(database_url: str, name: str, *, template: str | None = None) -> None:
    """Create a database, as a copy of a template if one is named.

    Args:
        database_url: Any database of the server, on which the user may create databases.
        name: The new database, not quoted.
        template: A database to which nobody is connected, not quoted.
    """
    source = f" TEMPLATE {quoted(template)}" if template else ""
    query(database_url, f"CREATE DATABASE {quoted(name)}{source}")


def drop_database(database_url: str, name: str) -> None:
    """Drop a database, if it is there, and end the connections to it."""
    query(database_url, f"DROP DATABASE IF EXISTS {quoted(name)} WITH (FORCE)")


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def blocking(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, also when the caller's thread runs an event loop already."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _query(
    database_url: str, statement: str, arguments: tuple[object, ...], timeout_seconds: float
) -> object:
    async with asyncio.timeout(timeout_seconds):
        connection = await asyncpg.connect(database_url.replace("+asyncpg://", "://", 1))
        try:
            return await connection.fetchval(statement, *arguments)
        finally:
            await connection.close(timeout=5.0)
