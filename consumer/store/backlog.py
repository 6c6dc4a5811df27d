"""What waits in the outbox, for operators and users."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from consumer.store.sql import Driver, Schema


class RowStatus(StrEnum):
    """Why a row is in the outbox."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    KEPT = "kept"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows of one status and destination.

    Args:
        destination: The routing key: a queue for next copies, a command type for sends.
        oldest_at: When the oldest of them was written.
        late_seconds: For how long the first of them has been due; negative: not yet.
    """

    status: RowStatus
    exchange: str
    destination: str
    count: int
    oldest_at: datetime
    late_seconds: float


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row nobody publishes until an operator acts. `error` says why."""

    id: int
    exchange: str
    destination: str
    type: str
    message_id: str
    ordering_key: str | None
    tries: int
    error: str
    parked_at: datetime


_WAITING = """
SELECT CASE WHEN parked_at IS NOT NULL THEN 'parked' WHEN published_at IS NOT NULL THEN 'kept'
            WHEN scheduled THEN 'scheduled' ELSE 'pending' END AS status,
       exchange, routing_key, count(*) AS count, min(created_at) AS oldest_at,
       extract(epoch FROM statement_timestamp() - min(available_at))::float8 AS late_seconds
FROM {schema}.outbox GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""

# Bounded, for every worker asks every few seconds: beyond that, the number hardly matters.
_LAG = """
SELECT (SELECT count(*) FROM (
            SELECT FROM {schema}.outbox WHERE parked_at IS NULL AND ordering_key IS NULL
            AND available_at <= statement_timestamp() LIMIT $1) AS due)
     + (SELECT count(*) FROM (
            SELECT FROM {schema}.outbox WHERE parked_at IS NULL AND ordering_key IS NOT NULL
            LIMIT $1) AS ordered) AS pending,
       (SELECT count(*) FROM (
            SELECT FROM {schema}.outbox WHERE parked_at IS NOT NULL LIMIT $1) AS parked) AS parked,
       coalesce(extract(epoch FROM statement_timestamp() - (
            SELECT min(available_at) FROM {schema}.outbox
            WHERE parked_at IS NULL AND ordering_key IS NULL)), 0)::float8 AS late_seconds
"""
_COUNTED_AT_MOST = 10_000

_PARKED = """
SELECT id, exchange, routing_key, type, message_id, ordering_key, tries, last_error, parked_at
FROM {schema}.outbox WHERE parked_at IS NOT NULL AND id > $1 ORDER BY id LIMIT $2
"""

_CANCEL = "DELETE FROM {schema}.outbox WHERE scheduled AND message_id = $1"


async def waiting(driver: Driver, schema: Schema) -> list[Waiting]:
    """How many rows wait, by status and destination, and how old they are.

    `kept` rows were published and wait for their claim to be written again. Takes no lock; reads
    the whole table.
    """
    return [
        Waiting(RowStatus(row["status"]), row["exchange"], row["routing_key"], row["count"],
                row["oldest_at"], row["late_seconds"])
        for row in await driver.fetch(schema.sql(_WAITING))
    ]


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind the outbox is. Counts end at 10,000.

    Args:
        pending: Rows that should have been published by now.
        late_seconds: For how long the first of them has been due; 0 where none is.
        parked: Rows nobody publishes until an operator acts.
    """

    pending: int
    late_seconds: float
    parked: int


async def lag(driver: Driver, schema: Schema) -> Lag:
    """How far behind the outbox is. Takes no lock; reads little, however much waits. Indexes:
    `outbox_due`, `outbox_ordered`, `outbox_parked`.
    """
    row = await driver.fetchrow(schema.sql(_LAG), _COUNTED_AT_MOST)
    assert row is not None
    return Lag(row["pending"], max(0.0, row["late_seconds"]), row["parked"])


async def parked(
    driver: Driver, schema: Schema, *, after_id: int = 0, limit: int = 100
) -> list[ParkedRow]:
    """Parked rows with an id above `after_id`, in the order of ids. Index: `outbox_parked`."""
    return [
        ParkedRow(row["id"], row["exchange"], row["routing_key"], row["type"], row["message_id"],
                  row["ordering_key"], row["tries"], row["last_error"] or "", row["parked_at"])
        for row in await driver.fetch(schema.sql(_PARKED), after_id, limit)
    ]


async def cancel(driver: Driver, schema: Schema, message_id: str) -> bool:
    """Delete a scheduled message. False: there is none, or a relay has taken it already.

    Locks: the row; waits for a relay that is just taking it. Index: `outbox_scheduled`.
    """
    return await driver.execute(schema.sql(_CANCEL), message_id) != "DELETE 0"
