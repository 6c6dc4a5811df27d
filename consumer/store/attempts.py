"""The record of a failed attempt: attempt, claim and next place of the message in one statement."""

from consumer.claim import FailureRecord
from consumer.message import SentRow
from consumer.store.outbox import HEAD_START, lock_ordering_keys, row_columns, sent_row
from consumer.store.sql import Driver, Schema
from consumer.store.text import note, storable

_RECORD = """
WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS at),
noted AS (
    INSERT INTO {schema}.attempt (scope, key, number, worker, started_at, ended_at, outcome,
                                  decision, error)
    VALUES ($1, $2, $3, $4, $5, $6, $30, $7, $8)
), written AS (
    INSERT INTO {schema}.claim AS c (
        scope, key, state, fingerprint_algorithm, fingerprint, ticket, attempts, replay_item,
        due_at, created_at, finished_at, worker, lane, message_id, expires_at)
    SELECT $1, $2, $9, $10, $11, $12, $3, $13, at + $14::interval, at,
           CASE $9 WHEN 'dead' THEN at END, $4, $15, $16, at + coalesce($14, '0'::interval) + $17
    FROM moment
    ON CONFLICT (scope, key) DO UPDATE SET
        state = excluded.state, ticket = excluded.ticket, attempts = excluded.attempts,
        token = c.token + 1, replay_item = excluded.replay_item, due_at = excluded.due_at,
        finished_at = excluded.finished_at, worker = excluded.worker, lane = excluded.lane,
        message_id = excluded.message_id, expires_at = excluded.expires_at
), kept AS MATERIALIZED (
    SELECT id FROM {schema}.outbox WHERE owner_scope = $1 AND owner_key = $2
    ORDER BY id FOR UPDATE
), gone AS (
    DELETE FROM {schema}.outbox WHERE id IN (SELECT id FROM kept)
)
INSERT INTO {schema}.outbox (exchange, routing_key, body, properties, message_id, type,
                             ordering_key, scheduled, available_at, created_at, due_at,
                             owner_scope, owner_key)
SELECT $18, $19, $20, $21, $22, $23, $24, coalesce($25::timestamptz > at, false),
       coalesce($25, at + CASE WHEN $24::text IS NULL THEN $29::interval ELSE '0'::interval END),
       at, coalesce($25, at) + $26::interval, $27, $28
FROM moment
RETURNING id, due_at, scheduled
"""


async def record(driver: Driver, schema: Schema, failure: FailureRecord) -> SentRow:
    """The attempt is noted, the claim is retrying or dead, and its next place is an outbox row.

    Next copies kept for the claim are gone. Whatever the error text holds, it can be stored.

    Locks: the rows it writes, outbox rows in the order of ids; the caller holds the key's advisory
    lock. Indexes: primary key, `outbox_owner`. One statement; one more for an ordering key.

    Returns:
        The row, which this worker may publish after its COMMIT.
    """
    request = failure.request
    await lock_ordering_keys(driver, schema, [failure.row])
    row = await driver.fetchrow(
        schema.sql(_RECORD), request.scope, request.key, failure.attempts,
        storable(request.worker), failure.started_at, failure.ended_at, note(failure.decision),
        note(failure.error), failure.state.value, request.fingerprint.algorithm,
        request.fingerprint.digest, failure.ticket, failure.replay_item, failure.delay,
        request.lane.value, storable(request.message_id), request.retention,
        *row_columns(failure.row), HEAD_START, failure.outcome)
    assert row is not None
    return sent_row(failure.row, row)
