"""The outbox as dispatch and relay see it."""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncEngine

from consumer.message import SentRow
from consumer.store import outbox
from consumer.store.sql import DEFAULT_SCHEMA, Schema
from consumer.store.statements import Statements


class PostgresOutbox:
    """Takes, confirms and fails outbox rows, on one connection that it keeps.

    Each call is one transaction. Calls at the same time take turns.

    Args:
        engine: Made by `consumer.store.engine.create_engine`.
        schema: Where the framework's tables are.
    """

    def __init__(self, engine: AsyncEngine, *, schema: str = DEFAULT_SCHEMA) -> None:
        self._schema = Schema(schema)
        self._statements = Statements(engine)

    async def due(self, limit: int) -> list[SentRow]:
        """Rows that should have been published by now, taken for a minute; lowest id first.

        Of rows with an ordering key, only the oldest of each key. Parked rows never.
        """
        async with self._statements.driver() as driver:
            return await outbox.due(driver, self._schema, limit)

    async def confirmed(self, rows: Sequence[SentRow]) -> None:
        """Delete them; rows with an owner stay and come due again when overdue."""
        if rows:
            async with self._statements.driver() as driver:
                await outbox.confirm(driver, self._schema, rows)

    async def failed(self, row: SentRow, error: str, *, retry_in: timedelta | None) -> None:
        """Count a try; come due again after `retry_in`, or park where it is None."""
        async with self._statements.driver() as driver:
            await outbox.fail(driver, self._schema, row, error, retry_in)

    async def close(self) -> None:
        """Give the connection back. Idempotent."""
        await self._statements.close()
