"""Live workers, and the queues operators have paused. One function per statement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from consumer.store.sql import Driver, Schema
from consumer.store.text import note, storable
from consumer.store.worker_load import (
    DependencyUse,
    QueueUse,
    dependencies_json,
    dependencies_of,
    queues_json,
    queues_of,
)

__all__ = (
    "DependencyUse", "LiveWorker", "Pause", "QueueUse", "WorkerInfo", "forget_silent", "heartbeat",
    "live", "pause", "pauses", "remove", "resume",
)


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One process. `queues` by queue name, `dependencies` by name."""

    id: UUID
    host: str
    pid: int
    started_at: datetime
    queues: Mapping[str, Sequence[QueueUse]]
    version: str
    dependencies: Mapping[str, DependencyUse] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A process and how old its last heartbeat is."""

    info: WorkerInfo
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class Pause:
    """A paused queue: who, why, since when."""

    queue: str
    actor: str
    reason: str
    paused_at: datetime


_HEARTBEAT = """
WITH beat AS (
    INSERT INTO {schema}.worker
        (id, host, pid, started_at, heartbeat_at, queues, version, dependencies)
    VALUES ($1, $2, $3, $4, clock_timestamp(), $5::text::jsonb, $6, $7::text::jsonb)
    ON CONFLICT (id) DO UPDATE
    SET heartbeat_at = excluded.heartbeat_at, queues = excluded.queues,
        dependencies = excluded.dependencies
)
SELECT queue FROM {schema}.queue_pause
"""

_REMOVE = "DELETE FROM {schema}.worker WHERE id = $1"

_FORGET = "DELETE FROM {schema}.worker WHERE heartbeat_at < clock_timestamp() - $1::interval"

_LIVE = """
SELECT id, host, pid, started_at, queues::text AS queues, version,
       dependencies::text AS dependencies,
       extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 AS silent_seconds
FROM {schema}.worker WHERE heartbeat_at >= clock_timestamp() - $1::interval
ORDER BY host, pid, id
"""

_PAUSE = """
WITH paused AS (
    INSERT INTO {schema}.queue_pause (queue, actor, reason, paused_at)
    VALUES ($1, $2, $3, clock_timestamp()) ON CONFLICT (queue) DO NOTHING RETURNING queue
)
INSERT INTO {schema}.audit_log (at, actor, action, subject, reason, detail)
SELECT clock_timestamp(), $2, 'queue.pause', queue, $3, '{}' FROM paused
"""

_RESUME = """
WITH resumed AS (
    DELETE FROM {schema}.queue_pause WHERE queue = $1 RETURNING queue, actor, reason, paused_at
)
INSERT INTO {schema}.audit_log (at, actor, action, subject, reason, detail)
SELECT clock_timestamp(), $2, 'queue.resume', queue, $3,
       jsonb_build_object('paused_by', actor, 'paused_because', reason, 'paused_at', paused_at)
FROM resumed
"""

_PAUSES = "SELECT queue, actor, reason, paused_at FROM {schema}.queue_pause ORDER BY queue"


async def heartbeat(driver: Driver, schema: Schema, worker: WorkerInfo) -> set[str]:
    """The worker is live as of now. Returns the queues that are paused.

    One statement. Locks: its own row. Index: primary key.
    """
    rows = await driver.fetch(
        schema.sql(_HEARTBEAT), worker.id, storable(worker.host), worker.pid, worker.started_at,
        queues_json(worker.queues), worker.version, dependencies_json(worker.dependencies))
    return {row["queue"] for row in rows}


async def remove(driver: Driver, schema: Schema, worker: UUID) -> None:
    """The worker is no longer listed. Idempotent."""
    await driver.execute(schema.sql(_REMOVE), worker)


async def forget_silent(driver: Driver, schema: Schema, *, after: timedelta) -> int:
    """Workers without a heartbeat for longer than `after` are removed; says how many."""
    done = await driver.execute(schema.sql(_FORGET), after)
    return int(done.rpartition(" ")[2])


async def live(driver: Driver, schema: Schema, *, within: timedelta) -> list[LiveWorker]:
    """Workers whose last heartbeat is not older than `within`, by the database's clock."""
    return [
        LiveWorker(
            WorkerInfo(row["id"], row["host"], row["pid"], row["started_at"],
                       queues_of(row["queues"]), row["version"],
                       dependencies_of(row["dependencies"])),
            row["silent_seconds"])
        for row in await driver.fetch(schema.sql(_LIVE), within)
    ]


async def pause(
    driver: Driver, schema: Schema, queue: str, *, actor: str, reason: str
) -> bool:
    """Workers stop consuming the queue at their next heartbeat. Audited in the same statement.

    Returns:
        False where it was paused already; then nothing changes, the first reason included.
    """
    done = await driver.execute(schema.sql(_PAUSE), queue, storable(actor), note(reason))
    return done != "INSERT 0 0"


async def resume(
    driver: Driver, schema: Schema, queue: str, *, actor: str, reason: str
) -> bool:
    """Workers consume the queue again. Audited in the same statement.

    Returns:
        False where it was not paused.
    """
    done = await driver.execute(schema.sql(_RESUME), queue, storable(actor), note(reason))
    return done != "INSERT 0 0"


async def pauses(driver: Driver, schema: Schema) -> list[Pause]:
    """All paused queues, by name."""
    return [Pause(row["queue"], row["actor"], row["reason"], row["paused_at"])
            for row in await driver.fetch(schema.sql(_PAUSES))]
