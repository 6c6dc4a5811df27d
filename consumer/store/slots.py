"""The shares of the fleet's slots: one row of `slot_share` a dependency and live worker.

The rules are those of `consumer.core.slots`, by the database's clock. Every writer of a share but
`leave`, which only frees, holds the advisory transaction lock of its dependency.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from consumer.core.slots import SlotWish
from consumer.store.sql import Driver, Schema
from consumer.store.statements import Statements

_MOST_SLOTS = 1_000_000_000

_LOCK = """
SELECT pg_advisory_xact_lock({slot_lock}) FROM unnest($1::text[]) AS w (dependency)
"""

_RENEW = """
WITH wish AS MATERIALIZED (
    SELECT w.*, clock_timestamp() AS now
    FROM unnest($2::text[], $3::int[], $4::int[], $5::int[], $6::interval[])
    AS w (dependency, slots, in_flight, told, lease)
), expired AS MATERIALIZED (
    SELECT s.dependency, s.worker
    FROM wish w JOIN {schema}.slot_share s USING (dependency)
    WHERE s.worker <> $1 AND s.lease_until <= w.now FOR UPDATE OF s SKIP LOCKED
), forgotten AS (
    DELETE FROM {schema}.slot_share s USING expired e
    WHERE s.dependency = e.dependency AND s.worker = e.worker
), member AS (
    SELECT s.dependency, s.worker, s.held
    FROM wish w JOIN {schema}.slot_share s USING (dependency)
    WHERE s.worker <> $1 AND s.lease_until > w.now
    UNION ALL SELECT dependency, $1, 0 FROM wish
), ranked AS (
    SELECT dependency, worker, count(*) OVER everyone AS members,
           sum(held) OVER everyone AS others_held,
           row_number() OVER (everyone ORDER BY sha256(
               convert_to(dependency, 'UTF8') || '\\x00'::bytea
               || convert_to(worker::text, 'UTF8'))) AS place
    FROM member WINDOW everyone AS (PARTITION BY dependency)
), allowed AS (
    SELECT w.*, greatest(0, least(w.slots / members + (place <= w.slots % members)::int,
                                  w.slots - others_held))::int AS share
    FROM ranked r JOIN wish w USING (dependency) WHERE r.worker = $1
), renewed AS MATERIALIZED (
    SELECT a.*, greatest(a.in_flight, a.share, CASE WHEN s.lease_until > a.now THEN a.told END)
        AS held
    FROM allowed a
    LEFT JOIN {schema}.slot_share s ON s.dependency = a.dependency AND s.worker = $1
), written AS (
    INSERT INTO {schema}.slot_share (dependency, worker, held, lease_until)
    SELECT dependency, $1, held, now + lease FROM renewed
    ON CONFLICT (dependency, worker) DO UPDATE
    SET held = excluded.held, lease_until = excluded.lease_until
)
SELECT dependency, share FROM renewed
"""

_LEAVE = """
WITH mine AS MATERIALIZED (
    SELECT dependency FROM {schema}.slot_share WHERE worker = $1 ORDER BY dependency FOR UPDATE
)
DELETE FROM {schema}.slot_share WHERE worker = $1 AND dependency IN (SELECT dependency FROM mine)
"""


@dataclass(frozen=True, slots=True)
class Renewal:
    """A wish, and the share its worker was last told, which it may use until it is told anew."""

    wish: SlotWish
    told: int


async def lock(driver: Driver, schema: Schema, dependencies: Sequence[str]) -> None:
    """Hold the slot locks of the dependencies, given sorted, until the transaction ends. Waits.

    Read shares with another statement: the snapshot of this one can be older than its locks.
    """
    await driver.fetch(schema.sql(_LOCK), dependencies)


async def renew(
    driver: Driver, schema: Schema, worker: UUID, renewals: Sequence[Renewal]
) -> dict[str, int]:
    """The worker is a member with a new lease, expired ones are gone. Its shares by dependency.

    One statement, in a transaction that holds the slot locks. Index: primary key.

    Args:
        renewals: Of distinct dependencies.
    """
    wishes = [renewal.wish for renewal in renewals]
    assert len({wish.dependency for wish in wishes}) == len(wishes), "dependencies must be distinct"
    rows = await driver.fetch(
        schema.sql(_RENEW), worker, [w.dependency for w in wishes],
        [_count(w.limit) for w in wishes], [_count(w.in_flight) for w in wishes],
        [renewal.told for renewal in renewals], [w.lease for w in wishes])
    return {row["dependency"]: row["share"] for row in rows}


async def leave(driver: Driver, schema: Schema, worker: UUID) -> None:
    """The worker is no member of anything. Idempotent. Locks: its rows, by dependency."""
    await driver.execute(schema.sql(_LEAVE), worker)


class PostgresSlots:
    """`SlotStore` on Postgres.

    A worker begins a call only while it has fewer in flight than its share, and only if the call
    ends before the lease does, counted from before `renew` was asked. Then calls in flight in the
    whole fleet never exceed the limit:

    * A share that shrinks is held in full until the next renewal, for the worker may have begun
      calls before it was told; and beyond that as long as they are in flight.
    * A dead worker's share is held until its lease ends.
    * A worker that comes back after its lease starts anew, with what it has in flight. Should that
      break the limit, the others shrink; it takes a call that outlives its lease.

    Where processes have different limits, during a deploy, none gets more than its own leaves free.
    """

    def __init__(self, statements: Statements, schema: Schema) -> None:
        self._statements, self._schema = statements, schema
        self._told: dict[tuple[UUID, str], int] = {}

    async def renew(self, worker: UUID, wishes: Sequence[SlotWish]) -> list[int]:
        """The worker's shares from now on, each held for its lease; per wish.

        A share can be smaller than what is in flight: then nothing begins until enough has ended.
        A member that wants nothing still counts as one. One transaction; waits for other renewals.

        Args:
            wishes: Of distinct dependencies.

        Raises:
            StoreUnavailable: Postgres failed. The shares told before stand until their leases end.
            SerializationConflict: A timeout of Postgres ended the wait; likewise.
        """
        if not wishes:
            return []
        renewals = [Renewal(wish, self._told.get((worker, wish.dependency), 0)) for wish in wishes]
        async with self._statements.driver() as driver, _in_transaction(driver):
            await lock(driver, self._schema, sorted(wish.dependency for wish in wishes))
            shares = await renew(driver, self._schema, worker, renewals)
        self._told.update(((worker, name), share) for name, share in shares.items())
        return [shares[wish.dependency] for wish in wishes]

    async def leave(self, worker: UUID) -> None:
        """The worker holds no share any more. Nothing of it may be in flight. Idempotent.

        Raises:
            StoreUnavailable: Postgres failed; its shares come back when their leases end.
        """
        async with self._statements.driver() as driver:
            await leave(driver, self._schema, worker)
        for key in [key for key in self._told if key[0] == worker]:
            del self._told[key]


@asynccontextmanager
async def _in_transaction(driver: Driver) -> AsyncIterator[None]:
    """A transaction around the block, unless one is open: behind a pooler there always is."""
    if driver.is_in_transaction():
        yield
        return
    async with driver.transaction(isolation="read_committed"):
        yield


def _count(value: int) -> int:
    return min(max(value, 0), _MOST_SLOTS)
