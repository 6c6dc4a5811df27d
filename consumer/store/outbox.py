"""Statements on `outbox`: one function each, in the caller's open transaction."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

from consumer.message import OutboxRow, Outgoing, SentRow
from consumer.store.sql import Driver, Record, Schema
from consumer.store.text import note, storable
from consumer.wire import Properties

# The worker that writes a row publishes it right after its COMMIT; the relay waits that long.
HEAD_START = timedelta(seconds=5)
TAKEN_FOR = timedelta(minutes=1)
OVERDUE_AFTER = timedelta(minutes=10)
OVERDUE_AFTER_AT_MOST = timedelta(days=1)

_LOCK_ORDERING_KEYS = """
SELECT pg_advisory_xact_lock({ordering_lock}) FROM unnest($1::text[]) AS o (ordering_key)
"""

_INSERT = """
WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS at)
INSERT INTO {schema}.outbox (exchange, routing_key, body, properties, message_id, type,
                             ordering_key, scheduled, available_at, created_at, due_at,
                             owner_scope, owner_key)
SELECT exchange, routing_key, body, properties, message_id, type, ordering_key,
       coalesce(not_before > at, false),
       coalesce(not_before, CASE WHEN ordering_key IS NULL THEN at + $12 ELSE at END),
       at, coalesce(not_before, at) + delay, owner_scope, owner_key
FROM moment, unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[], $5::text[], $6::text[],
                    $7::text[], $8::timestamptz[], $9::interval[], $10::text[], $11::text[])
     WITH ORDINALITY AS r (exchange, routing_key, body, properties, message_id, type, ordering_key,
                           not_before, delay, owner_scope, owner_key, place)
ORDER BY place
RETURNING id, due_at, scheduled
"""

# Plain rows come off the index by time. Ordered ones are found by hopping from key to key, so a
# long queue behind one key costs nothing; only the oldest row of a key is ever looked at. A row
# another relay has taken in the meantime fails the test on `available_at` when it is locked, and
# one that is gone is skipped; its successor is not the oldest in this snapshot.
_DUE = """
WITH RECURSIVE oldest AS (
    (SELECT ordering_key, id FROM {schema}.outbox WHERE ordering_key IS NOT NULL
     ORDER BY ordering_key, id LIMIT 1)
    UNION ALL
    SELECT next.ordering_key, next.id FROM oldest CROSS JOIN LATERAL (
        SELECT ordering_key, id FROM {schema}.outbox WHERE ordering_key > oldest.ordering_key
        ORDER BY ordering_key, id LIMIT 1) AS next
), ordered AS MATERIALIZED (
    SELECT o.id, o.available_at FROM {schema}.outbox o
    WHERE o.id = ANY (ARRAY(SELECT id FROM oldest)) AND o.parked_at IS NULL
      AND o.available_at <= statement_timestamp()
    ORDER BY o.available_at, o.id LIMIT $1 FOR UPDATE OF o SKIP LOCKED
), plain AS MATERIALIZED (
    SELECT o.id, o.available_at FROM {schema}.outbox o
    WHERE o.ordering_key IS NULL AND o.parked_at IS NULL
      AND o.available_at <= statement_timestamp()
    ORDER BY o.available_at, o.id LIMIT $1 FOR UPDATE OF o SKIP LOCKED
), due AS MATERIALIZED (
    SELECT id FROM (TABLE ordered UNION ALL TABLE plain) AS either
    ORDER BY available_at, id LIMIT $1
), taken AS (
    UPDATE {schema}.outbox o SET available_at = clock_timestamp() + $2, scheduled = false
    FROM due WHERE o.id = due.id RETURNING o.*
)
SELECT id, exchange, routing_key, body, properties, message_id, due_at, ordering_key, tries,
       owner_key IS NOT NULL AS kept
FROM taken ORDER BY id
"""

_DELETE = "DELETE FROM {schema}.outbox WHERE id = ANY($1::bigint[])"

_KEEP = """
WITH kept AS MATERIALIZED (
    SELECT id FROM {schema}.outbox WHERE id = ANY($2::bigint[]) ORDER BY id FOR UPDATE
), gone AS (
    DELETE FROM {schema}.outbox WHERE id = ANY($1::bigint[])
)
UPDATE {schema}.outbox o SET
    published_at = clock_timestamp(), publishes = publishes + 1, tries = 0, last_error = NULL,
    available_at = greatest(o.due_at, clock_timestamp())
                   + least($3::interval * (2 ^ least(publishes, 20)), $4)
FROM kept WHERE o.id = kept.id
"""

_FAIL = """
UPDATE {schema}.outbox SET
    tries = tries + 1, last_error = $2,
    available_at = clock_timestamp() + coalesce($3::interval, '0'::interval),
    parked_at = CASE WHEN $3::interval IS NULL THEN clock_timestamp() END
WHERE id = $1
"""

Columns: TypeAlias = tuple[
    str, str, bytes, bytes, str, str, str | None, datetime | None, timedelta | None, str | None,
    str | None]


def row_columns(row: OutboxRow) -> Columns:
    """What the statements that insert a row are given of it."""
    out, (scope, key) = row.message, row.owner or (None, None)
    return (out.exchange, out.routing_key, out.body, out.properties, storable(out.message_id),
            storable(row.type), row.ordering_key, row.available_at, row.delay, scope, key)


def sent_row(row: OutboxRow, written: Record) -> SentRow:
    """The row as written. Scheduled ones count as ordered: only the relay may publish them."""
    return SentRow(written["id"], row.message, due_at=written["due_at"],
                   kept=row.owner is not None,
                   relay_only=row.ordering_key is not None or written["scheduled"])


async def lock_ordering_keys(
    driver: Driver, schema: Schema, rows: Sequence[OutboxRow]
) -> None:
    """Until the transaction ends, nobody else draws an id under these rows' ordering keys.

    Locks: waits for an advisory transaction lock per key, in the order of keys. No statement where
    no row has an ordering key.
    """
    keys = sorted({row.ordering_key for row in rows if row.ordering_key is not None})
    if keys:
        await driver.fetch(schema.sql(_LOCK_ORDERING_KEYS), keys)


async def insert(
    driver: Driver, schema: Schema, rows: Sequence[OutboxRow]
) -> list[SentRow]:
    """The rows are written, ids ascending in the order given. Nobody publishes before COMMIT.

    Locks: those of `lock_ordering_keys`, whose statement goes first: an id drawn before the lock
    could commit after a higher one. One statement otherwise.
    """
    await lock_ordering_keys(driver, schema, rows)
    columns = zip(*map(row_columns, rows), strict=True)
    written = await driver.fetch(schema.sql(_INSERT), *map(list, columns), HEAD_START)
    written.sort(key=lambda row: int(row["id"]))
    return [sent_row(row, found) for row, found in zip(rows, written, strict=True)]


async def due(driver: Driver, schema: Schema, limit: int) -> list[SentRow]:
    """Take up to `limit` rows whose time has come, for a minute; oldest first.

    Of an ordering key, only the oldest row that exists, if it is not parked. Locks: row locks with
    SKIP LOCKED; never waits. Indexes: `outbox_due`, `outbox_ordered`.
    """
    rows = await driver.fetch(schema.sql(_DUE), limit, TAKEN_FOR)
    return [
        SentRow(row["id"], _outgoing(row), due_at=row["due_at"], kept=row["kept"],
                relay_only=row["ordering_key"] is not None, tries=row["tries"])
        for row in rows
    ]


def _outgoing(row: Record) -> Outgoing:
    message_id: str = row["message_id"]
    if "\\" in message_id:  # the column may hold escapes for what text cannot; properties never do
        message_id = Properties.from_wire(row["properties"]).message_id or message_id
    return Outgoing(row["exchange"], row["routing_key"], row["body"], row["properties"], message_id)


async def confirm(driver: Driver, schema: Schema, rows: Sequence[SentRow]) -> None:
    """The rows are gone; those with an owner stay, and come due again when overdue.

    Overdue is 10 minutes after the end of the delay, twice that after each further publish, one
    day at most. Rows that no longer exist do not matter. One statement. Locks: row locks, kept
    rows in the order of ids. Index: primary key.
    """
    gone = sorted(row.id for row in rows if not row.kept)
    kept = sorted(row.id for row in rows if row.kept)
    if kept:
        await driver.execute(schema.sql(_KEEP), gone, kept, OVERDUE_AFTER, OVERDUE_AFTER_AT_MOST)
    elif gone:
        await driver.execute(schema.sql(_DELETE), gone)


async def fail(
    driver: Driver, schema: Schema, row: SentRow, error: str, retry_in: timedelta | None
) -> None:
    """One more try is counted; the row comes due after `retry_in`, or is parked where None.

    A row that no longer exists does not matter. Locks: the row. Index: primary key.
    """
    await driver.execute(schema.sql(_FAIL), row.id, note(error), retry_in)
