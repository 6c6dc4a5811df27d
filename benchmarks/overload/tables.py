"""The tables of the experiment, as every configuration writes them."""

from typing import Any

import asyncpg

_CREATE = """
CREATE TABLE charge (key text PRIMARY KEY, completed_at timestamptz);
CREATE TABLE refusal (key text, reason text, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION charge_completed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE charge SET completed_at = clock_timestamp() WHERE key = NEW.key;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER completed AFTER INSERT ON charge
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION charge_completed();
"""
# A deferred trigger runs inside COMMIT, after everything else of the transaction, so that the time
# it takes down is that of the commit and not of the handler's statement.

Connection = asyncpg.Connection


async def create(database: "Connection[Any]") -> None:
    """The tables exist. They must not have existed."""
    await database.execute(_CREATE)


async def completions(database: "Connection[Any]") -> dict[str, float]:
    """When each command took effect, by key; seconds since the epoch."""
    rows = await database.fetch("SELECT key, completed_at FROM charge")
    return {row["key"]: row["completed_at"].timestamp() for row in rows}


async def refusals(database: "Connection[Any]") -> list[tuple[str, str, float]]:
    """Key, reason and time of what Celery's task gave up."""
    rows = await database.fetch("SELECT key, reason, at FROM refusal")
    return [(row["key"], row["reason"], row["at"].timestamp()) for row in rows]


async def unsent(database: "Connection[Any]") -> set[str]:
    """Keys of the commands whose next copy or dead letter is in the outbox."""
    rows = await database.fetch("SELECT DISTINCT owner_key FROM consumer.outbox "
                                "WHERE owner_key IS NOT NULL")
    return {row["owner_key"] for row in rows}


async def ended(database: "Connection[Any]") -> tuple[int, int]:
    """How many commands took effect, and how many refusals Celery's task wrote."""
    row = await database.fetchrow(
        "SELECT (SELECT count(*) FROM charge), (SELECT count(*) FROM refusal)")
    assert row is not None
    return row[0], row[1]
