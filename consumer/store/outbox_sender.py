"""The outbox for code outside of workers: a web application's own transaction, say."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.command import Command, to_row
from consumer.message import OutboxRow
from consumer.store.sql import DEFAULT_SCHEMA, ORDERING_SEED
from consumer.store.tables import table
from consumer.store.text import storable
from consumer.wire import HeaderValue


class Outbox:
    """Sends commands if, and only if, the session's transaction commits.

    Any worker's relay publishes them, within a few seconds of the COMMIT.

    Args:
        session: The caller's; it is never flushed, committed or rolled back here.
        prefix: The application's prefix, as the workers have it.
        schema: Where the framework's tables are.
    """

    def __init__(
        self, session: AsyncSession, *, prefix: str = "consumer", schema: str = DEFAULT_SCHEMA
    ) -> None:
        self._session, self._prefix = session, prefix
        self._table = table("outbox", schema)

    async def send(
        self, command: Command, *, key: str | None = None, at: datetime | None = None,
        ordering_key: str | None = None, headers: Mapping[str, HeaderValue] | None = None,
        deadline: datetime | None = None,
    ) -> str:
        """Write the command into the outbox, in the session's transaction.

        With an ordering key it waits for other transactions that send under the same one, until
        they end. Use several of them in one transaction always in the same order.

        Args:
            key: Idempotency key; None makes one of its own for this send.
            at: Not before this time (aware).
            ordering_key: Commands sent under one key are published in the order of commits.
            headers: Further headers.
            deadline: When it is too late (aware): handlers do not begin it any more.

        Returns:
            The message id.

        Raises:
            UnsendableMessage: It cannot be a message; nothing was written.
        """
        row = to_row(command, prefix=self._prefix, key=key, at=at, ordering_key=ordering_key,
                     headers=headers, deadline=deadline)
        if ordering_key is not None:
            # A statement of its own: the id must be drawn when the lock is held.
            await self._session.execute(select(func.pg_advisory_xact_lock(
                func.hashtextextended(ordering_key, ORDERING_SEED))))
        await self._session.execute(insert(self._table).values(**self._values(row)))
        return row.message.message_id

    async def cancel(self, message_id: str) -> bool:
        """Delete a scheduled message, in the session's transaction.

        Returns:
            False where there is none, or a relay has taken it already.
        """
        found = await self._session.execute(
            delete(self._table)
            .where(self._table.c.scheduled, self._table.c.message_id == message_id)
            .returning(self._table.c.id))
        return found.first() is not None

    @staticmethod
    def _values(row: OutboxRow) -> dict[str, object]:
        now, out = func.clock_timestamp(), row.message
        not_before = row.available_at
        return {
            "exchange": out.exchange, "routing_key": out.routing_key, "body": out.body,
            "properties": out.properties, "message_id": storable(out.message_id),
            "type": storable(row.type), "ordering_key": row.ordering_key, "created_at": now,
            "scheduled": False if not_before is None else now < not_before,
            "available_at": now if not_before is None else not_before,
            "due_at": None if row.delay is None else (
                (now if not_before is None else not_before) + row.delay),
        }
