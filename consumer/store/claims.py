"""Statements on `claim`: one function each, all in the caller's open transaction.

Every writer of a claim row holds the advisory transaction lock of its key, taken by `claim` or
`lock`. Isolation is READ COMMITTED throughout: what must be read after a lock is read by a
statement of its own, whose snapshot is younger than the lock.
"""

from collections.abc import Sequence

from consumer.claim import Claim, ClaimRequest, ClaimState, Completion, Fingerprint, Meeting
from consumer.store.sql import Driver, Record, Schema
from consumer.store.text import storable

_CLAIM = """
WITH request AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::bool[], $4::text[], $5::bytea[], $6::text[],
                         $7::text[], $8::text[], $9::interval[])
    WITH ORDINALITY AS r (scope, key, may_create, algorithm, digest, worker, lane, message_id,
                          retention, place)
), locked AS MATERIALIZED (
    SELECT request.*, pg_try_advisory_xact_lock({claim_lock}) AS free
    FROM request
), created AS (
    INSERT INTO {schema}.claim (scope, key, state, fingerprint_algorithm, fingerprint, attempts,
                                created_at, finished_at, expires_at, worker, lane, message_id)
    SELECT scope, key, 'done', algorithm, digest, 1, clock_timestamp(), clock_timestamp(),
           clock_timestamp() + retention, worker, lane, message_id
    FROM locked WHERE free AND may_create
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING scope, key
)
SELECT free, created.key IS NOT NULL AS created
FROM locked LEFT JOIN created USING (scope, key) ORDER BY place
"""

_COLUMNS = """
    c.scope, c.key, c.state, c.fingerprint_algorithm, c.fingerprint, c.attempts, c.ticket,
    c.replay_item, extract(epoch FROM clock_timestamp() - c.due_at)::float8 AS overdue_seconds
"""

_READ_MANY = "SELECT " + _COLUMNS + """
FROM unnest($1::text[], $2::text[]) AS r (scope, key) JOIN {schema}.claim c USING (scope, key)
"""

_LOCK = """
SELECT pg_advisory_xact_lock({claim_lock}) FROM (VALUES ($1::text, $2::text)) AS r (scope, key)
"""

_READ = "SELECT " + _COLUMNS + "FROM {schema}.claim c WHERE c.scope = $1 AND c.key = $2"

_COMPLETE = """
WITH completion AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::int[], $4::interval[], $5::text[])
    AS r (scope, key, attempts, retention, worker)
), completed AS (
    UPDATE {schema}.claim c
    SET state = 'done', attempts = r.attempts, ticket = NULL, due_at = NULL, token = c.token + 1,
        finished_at = clock_timestamp(), expires_at = clock_timestamp() + r.retention,
        worker = r.worker
    FROM completion r WHERE c.scope = r.scope AND c.key = r.key
    RETURNING c.key
), kept AS MATERIALIZED (
    SELECT o.id FROM completion r JOIN {schema}.outbox o
    ON o.owner_scope = r.scope AND o.owner_key = r.key
    ORDER BY o.id FOR UPDATE OF o
), gone AS (
    DELETE FROM {schema}.outbox WHERE id IN (SELECT id FROM kept)
)
SELECT count(*) FROM completed
"""


async def claim(
    driver: Driver, schema: Schema, requests: Sequence[ClaimRequest]
) -> list[Meeting]:
    """Lock the keys that are free, make the claims that are missing, read those that stand.

    Locks: `pg_try_advisory_xact_lock` per key, in the order of keys; never waits. Index: primary
    key. One statement; a second one reads the claims that were locked and not made, because the
    snapshot of the first can be older than the lock.

    Args:
        requests: Of distinct keys.

    Returns:
        What each met, in the order given.
    """
    order = sorted(range(len(requests)), key=lambda i: (requests[i].scope, requests[i].key))
    sorted_requests = [requests[i] for i in order]
    assert len({(r.scope, r.key) for r in requests}) == len(requests), "keys must be distinct"
    rows = await driver.fetch(schema.sql(_CLAIM), *_columns(sorted_requests))
    standing = [r for r, row in zip(sorted_requests, rows, strict=True)
                if row["free"] and not row["created"]]
    found = await _read_many(driver, schema, standing) if standing else {}
    meetings: list[Meeting] = [Meeting(False)] * len(requests)
    for place, request, row in zip(order, sorted_requests, rows, strict=True):
        if row["free"]:
            meetings[place] = Meeting(True, row["created"], found.get((request.scope, request.key)))
    return meetings


def _columns(requests: Sequence[ClaimRequest]) -> tuple[list[object], ...]:
    return (
        [r.scope for r in requests], [r.key for r in requests], [r.may_create for r in requests],
        [r.fingerprint.algorithm for r in requests], [r.fingerprint.digest for r in requests],
        [storable(r.worker) for r in requests], [r.lane.value for r in requests],
        [storable(r.message_id) for r in requests], [r.retention for r in requests],
    )


async def _read_many(
    driver: Driver, schema: Schema, requests: Sequence[ClaimRequest]
) -> dict[tuple[str, str], Claim]:
    rows = await driver.fetch(schema.sql(_READ_MANY), [r.scope for r in requests],
                              [r.key for r in requests])
    return {(row["scope"], row["key"]): _claim_of(row) for row in rows}


async def lock(driver: Driver, schema: Schema, scope: str, key: str) -> None:
    """Hold the key's advisory transaction lock. Waits for it, under `lock_timeout` if one is set.

    Read the claim with another statement, not with this one.
    """
    await driver.fetchval(schema.sql(_LOCK), scope, key)


async def read(driver: Driver, schema: Schema, scope: str, key: str) -> Claim | None:
    """The claim as committed, or as this transaction left it. Takes no lock. Index: primary key."""
    row = await driver.fetchrow(schema.sql(_READ), scope, key)
    return None if row is None else _claim_of(row)


async def complete(
    driver: Driver, schema: Schema, completions: Sequence[Completion]
) -> None:
    """The claims are done, and the next copies kept for them are gone; one statement for many.

    Locks: the rows it writes, outbox rows in the order of ids. The caller holds the keys' advisory
    locks. Indexes: primary key, `outbox_owner`.
    """
    updated = await driver.fetchval(
        schema.sql(_COMPLETE), [c.scope for c in completions], [c.key for c in completions],
        [c.attempts for c in completions], [c.retention for c in completions],
        [storable(c.worker) for c in completions])
    assert updated == len(completions), "a claim to complete is missing"


def _claim_of(row: Record) -> Claim:
    return Claim(
        row["scope"], row["key"], ClaimState(row["state"]),
        Fingerprint(row["fingerprint_algorithm"], row["fingerprint"]),
        attempts=row["attempts"], ticket=row["ticket"], overdue_seconds=row["overdue_seconds"],
        replay_item=row["replay_item"],
    )
