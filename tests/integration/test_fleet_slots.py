# ruff: noqa: F811 - fixtures are imported
"""The slots of a dependency, shared by processes that come, go and are killed."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from store_fixtures import Stores, stores  # noqa: F401

from consumer.core.slots import SlotWish, shares
from consumer.errors import StoreUnavailable
from consumer.store.engine import create_engine
from consumer.store.slots import PostgresSlots
from consumer.store.sql import Schema
from consumer.store.statements import Statements

pytestmark = pytest.mark.integration

LIMIT = 10
LEASE = timedelta(seconds=8)
# A call must end within its lease; on a busy machine it can take this long.
LONGEST_CALL_S = 6.0

# One row a call. One that a dead process left open counts until that one's lease ended.
CALLS = "CREATE TABLE call (id uuid PRIMARY KEY, worker uuid, began timestamptz, ended timestamptz)"
MOST_AT_ONCE = """
WITH step AS (
    SELECT began AS at, 1 AS n FROM call
    UNION ALL SELECT coalesce(ended, 'infinity'), -1 FROM call
), running AS (
    SELECT sum(n) OVER (ORDER BY at, n) AS calls FROM step
)
SELECT max(calls) FROM running
"""


class Caller:
    """What a process of the fleet does: calls as often as its share allows."""

    def __init__(self, engine: AsyncEngine, worker: UUID) -> None:
        self._engine, self._worker = engine, worker
        self._in_flight, self._share, self._until_s = 0, 0, 0.0
        self._changed = asyncio.Condition()
        self._leaving = False

    async def run(self, slots: PostgresSlots) -> None:
        """Until the standard input ends; then what is in flight ends, and it leaves."""
        renewing = asyncio.create_task(self._renew(slots))
        calling = [asyncio.create_task(self._call()) for _ in range(2 * LIMIT)]
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        async with self._changed:
            self._leaving = True
            self._changed.notify_all()
        await asyncio.gather(*calling)
        renewing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await renewing
        await slots.leave(self._worker)

    async def _renew(self, slots: PostgresSlots) -> None:
        while True:
            until_s = time.monotonic() + LEASE.total_seconds() - LONGEST_CALL_S
            wish = SlotWish("psp", LIMIT, self._in_flight, LEASE)
            [share] = await slots.renew(self._worker, [wish])
            async with self._changed:
                self._share, self._until_s = share, until_s
                self._changed.notify_all()
            await asyncio.sleep(0.05)

    def _free(self) -> bool:
        return self._leaving or (
            self._in_flight < self._share and time.monotonic() < self._until_s)

    async def _call(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(self._free)
                if self._leaving:
                    return
                self._in_flight += 1
            await self._log_a_call()
            async with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()

    async def _log_a_call(self) -> None:
        values = {"id": uuid4(), "worker": self._worker}
        async with self._engine.begin() as connection:
            await connection.execute(text(
                "INSERT INTO call VALUES (:id, :worker, clock_timestamp())"), values)
        async with self._engine.begin() as connection:
            await connection.execute(text(
                "UPDATE call SET ended = clock_timestamp() WHERE id = :id"), {"id": values["id"]})


async def call_as_often_as_allowed(url: str, worker: UUID) -> None:
    engine = create_engine(url, pool_size=LIMIT + 1)
    statements = Statements(engine)
    await Caller(engine, worker).run(PostgresSlots(statements, Schema()))
    await statements.close()
    await engine.dispose()


class Fleet:
    """Processes by worker."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.processes: dict[UUID, asyncio.subprocess.Process] = {}

    async def start(self, number: int) -> None:
        for _ in range(number):
            worker = uuid4()
            self.processes[worker] = await asyncio.create_subprocess_exec(
                sys.executable, __file__, self._stores.url, str(worker),
                stdin=asyncio.subprocess.PIPE)

    async def kill(self, workers: Sequence[UUID]) -> None:
        for worker in workers:
            process = self.processes.pop(worker)
            process.send_signal(signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL

    async def stop(self, worker: UUID) -> None:
        process = self.processes.pop(worker)
        assert process.stdin is not None
        process.stdin.close()
        assert await process.wait() == 0

    async def settled(self) -> None:
        """Every worker alive holds just what it should, nobody else holds anything, and all are
        making calls.
        """
        targets = shares("psp", LIMIT, map(str, self.processes))
        wanted = ", ".join(f"('{worker}'::uuid, {held})" for worker, held in targets.items())
        differing = (f"SELECT worker, held FROM (VALUES {wanted}) AS w (worker, held) EXCEPT"
                     " SELECT worker, held FROM consumer.slot_share")
        others = " OR ".join(f"worker = '{worker}'" for worker in targets)
        await self._stores.until(
            f"NOT EXISTS ({differing}) AND NOT EXISTS (SELECT FROM consumer.slot_share"
            f" WHERE NOT ({others}))")
        await self._stores.run("UPDATE mark SET at = clock_timestamp()")
        await self._stores.until(
            f"(SELECT count(DISTINCT worker) FROM call, mark WHERE began > at) = {len(targets)}")


async def test_scaling_and_killing_never_exceed_the_limit_and_shares_come_back(
    stores: Stores,
) -> None:
    await stores.run(CALLS)
    await stores.run("CREATE TABLE mark AS SELECT clock_timestamp() AS at")
    fleet = Fleet(stores)
    await fleet.start(2)
    await fleet.settled()
    await fleet.start(3)
    await fleet.settled()
    victims = list(fleet.processes)[1:3]
    await fleet.kill(victims)
    await stores.run("CREATE TABLE dead AS SELECT worker, lease_until FROM consumer.slot_share"
                     " WHERE worker = ANY (:victims)", victims=victims)
    await fleet.settled()
    await fleet.stop(next(iter(fleet.processes)))
    await fleet.settled()
    for worker in list(fleet.processes):
        await fleet.stop(worker)
    await stores.run("UPDATE call SET ended = lease_until FROM dead"
                     " WHERE call.worker = dead.worker AND ended IS NULL")
    [(calls, unfinished, most)] = await stores.read(
        f"SELECT count(*), count(*) FILTER (WHERE ended IS NULL), ({MOST_AT_ONCE}) FROM call")
    assert calls > 100
    assert unfinished == 0
    assert LIMIT / 2 < most <= LIMIT
    assert await stores.read("SELECT * FROM consumer.slot_share") == []


@pytest.fixture
async def statements(stores: Stores) -> AsyncIterator[Statements]:
    kept = Statements(stores.engine)
    yield kept
    await kept.close()


async def test_a_lost_answer_does_not_free_what_the_worker_may_still_use(
    stores: Stores, statements: Statements
) -> None:
    """It was told 10, and the answer that told it 5 got lost."""
    slots, other = PostgresSlots(statements, Schema()), PostgresSlots(statements, Schema())
    a, b = uuid4(), uuid4()
    wish = SlotWish("psp", LIMIT, 0, timedelta(minutes=10))
    assert await slots.renew(a, [wish]) == [10]
    assert await other.renew(b, [wish]) == [0]
    for _ in range(3):
        before = dict(slots._told)
        assert await slots.renew(a, [wish]) == [5]
        slots._told = before
        assert await other.renew(b, [wish]) == [0]
    await slots.renew(a, [wish])
    assert await slots.renew(a, [wish]) == [5]
    assert await other.renew(b, [wish]) == [5]


async def test_a_renewal_waits_for_another_and_counts_what_it_took(
    stores: Stores, statements: Statements
) -> None:
    """Its snapshot is younger than the lock."""
    slots = PostgresSlots(statements, Schema())
    wishes = [SlotWish(name, LIMIT, 0, timedelta(minutes=10)) for name in ("psp", "mail")]
    async with stores.engine.begin() as first:
        await first.execute(text(Schema().sql(
            "SELECT pg_advisory_xact_lock({slot_lock}) FROM (VALUES ('psp')) AS w (dependency)")))
        renewal = asyncio.create_task(slots.renew(uuid4(), wishes))
        await stores.until("EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        await first.execute(text(
            "INSERT INTO consumer.slot_share VALUES"
            " ('psp', gen_random_uuid(), 8, clock_timestamp() + interval '10 minutes')"))
    assert await renewal == [2, 10]


async def test_a_failed_renewal_leaves_nothing_half_done(
    stores: Stores, statements: Statements
) -> None:
    slots, worker = PostgresSlots(statements, Schema()), uuid4()
    wishes = [SlotWish(name, LIMIT, 0, timedelta(minutes=10)) for name in ("a", "b")]
    await stores.run("ALTER TABLE consumer.slot_share ADD CONSTRAINT no CHECK (dependency <> 'b')")
    with pytest.raises(Exception, match="violates check constraint"):
        await slots.renew(worker, wishes)
    assert await stores.read("SELECT * FROM consumer.slot_share") == []
    assert await slots.renew(worker, wishes[:1]) == [10]


async def test_a_database_that_is_away_is_infrastructure() -> None:
    engine = create_engine("postgresql://nobody@127.0.0.1:1/nowhere")
    slots, worker = PostgresSlots(Statements(engine), Schema()), uuid4()
    with pytest.raises(StoreUnavailable):
        await slots.renew(worker, [SlotWish("psp", LIMIT, 0, LEASE)])
    with pytest.raises(StoreUnavailable):
        await slots.leave(worker)
    await engine.dispose()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_database_with_another_default_isolation_is_no_matter(
    stores: Stores, isolation: str
) -> None:
    await stores.run(f'ALTER DATABASE "{stores.url.rsplit("/", 1)[1]}"'
                     f" SET default_transaction_isolation = '{isolation}'")
    await stores.engine.dispose()
    everyone = [(uuid4(), Statements(stores.engine)) for _ in range(4)]
    wishes = [SlotWish("psp", LIMIT, 0, timedelta(minutes=10))]
    stores_of = {worker: PostgresSlots(s, Schema()) for worker, s in everyone}
    for _ in range(4):
        told = await asyncio.gather(*(s.renew(w, wishes) for w, s in stores_of.items()))
    assert sum(share for [share] in told) == LIMIT
    for _, statements in everyone:
        await statements.close()


async def test_behind_a_pooler_it_is_the_same(stores: Stores) -> None:
    engine: Any = create_engine(stores.url, pooler="transaction")
    statements = Statements(engine)
    slots, a, b = PostgresSlots(statements, Schema()), uuid4(), uuid4()
    wishes = [SlotWish("psp", LIMIT, 0, timedelta(minutes=10))]
    assert await slots.renew(a, wishes) == [10]
    assert await slots.renew(b, wishes) == [0]
    await slots.leave(a)
    assert await slots.renew(b, wishes) == [10]
    await statements.close()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(call_as_often_as_allowed(sys.argv[1], UUID(sys.argv[2])))
