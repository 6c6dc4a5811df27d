"""What database and broker say about what happened. Nothing here asks the workers."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pika  # type: ignore[import-untyped]

from consumer.core.topology import plan as topology_of
from examples.payments.demo.app import app

DEAD = "payments.dead"
QUEUES = [queue.name for queue in topology_of(app.prefix, app.bindings()).queues]


@dataclass(frozen=True)
class Letter:
    """One dead letter; copies of a message that died of the same reason share an id."""

    id: str
    reason: str
    body: bytes


@dataclass(frozen=True)
class Evidence:
    """The state of everything after the workers have ended.

    Args:
        ledger: (order, amount) of every ledger entry.
        receipts: (order, amount) of every receipt.
        claims: (key, state, attempts) of every claim of a capture.
        failed: Failed attempts of captures, by key.
        outbox: Messages still to be sent.
        depths: Messages in each queue of the broker, dead letters aside.
    """

    ledger: list[tuple[str, int]]
    receipts: list[tuple[str, int]]
    claims: list[tuple[str, str, int]]
    failed: Counter[str]
    outbox: int
    letters: list[Letter]
    depths: dict[str, int]


@dataclass(frozen=True)
class Progress:
    """How far the work is, by a quick look."""

    effects: int
    receipts: int
    retrying: int
    outbox: int
    dead: int
    waiting: int


async def look(database: "asyncpg.Connection[Any]", amqp_url: str) -> Progress:
    """How far the work is now."""
    row = await database.fetchrow("""
        SELECT (SELECT count(*) FROM ledger_entry), (SELECT count(*) FROM receipt),
               (SELECT count(*) FROM consumer.claim WHERE state <> 'done'),
               (SELECT count(*) FROM consumer.outbox)""")
    assert row is not None
    depths = queue_depths(amqp_url, QUEUES)
    effects, receipts, retrying, outbox = row
    return Progress(effects, receipts, retrying, outbox,
                    dead=depths.pop(DEAD), waiting=sum(depths.values()))


async def gather(database: "asyncpg.Connection[Any]", amqp_url: str) -> Evidence:
    """Everything there is to know. The workers must have ended, so that no message is in flight."""
    failed = await database.fetch(
        "SELECT key, count(*) FROM consumer.attempt WHERE scope = 'payments.capture' GROUP BY key")
    depths = queue_depths(amqp_url, QUEUES)
    depths.pop(DEAD)
    return Evidence(
        ledger=_tuples(await database.fetch("SELECT order_id, amount_cents FROM ledger_entry")),
        receipts=_tuples(await database.fetch("SELECT order_id, amount_cents FROM receipt")),
        claims=_tuples(await database.fetch(
            "SELECT key, state, attempts FROM consumer.claim WHERE scope = 'payments.capture'")),
        failed=Counter({row[0]: row[1] for row in failed}),
        outbox=await database.fetchval("SELECT count(*) FROM consumer.outbox"),
        letters=list(_letters(amqp_url)),
        depths=depths,
    )


async def diagnosis(database: "asyncpg.Connection[Any]", amqp_url: str) -> str:
    """Why the work may not be done yet: claims, messages to send and queues that hold messages."""
    claims = await database.fetch(
        "SELECT scope, state, count(*) FROM consumer.claim GROUP BY scope, state")
    outbox = await database.fetch("""
        SELECT routing_key, parked_at IS NOT NULL AS parked, last_error, count(*)
        FROM consumer.outbox GROUP BY routing_key, parked, last_error""")
    depths = {name: n for name, n in queue_depths(amqp_url, QUEUES).items() if n}
    return "\n".join([f"queues: {json.dumps(depths)}",
                      *(f"claims: {dict(row)}" for row in claims),
                      *(f"outbox: {dict(row)}" for row in outbox)])


def queue_depths(amqp_url: str, queues: Iterable[str]) -> dict[str, int]:
    """Messages ready in each queue."""
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        channel = connection.channel()
        return {name: channel.queue_declare(name, passive=True).method.message_count
                for name in queues}


def _letters(amqp_url: str) -> Iterator[Letter]:
    """All dead letters. They go back to their queue when the connection ends."""
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get(DEAD)
            if method is None:
                return
            headers = properties.headers or {}
            yield Letter(headers["consumer-dead-id"], headers["consumer-dead-reason"], body)


def _tuples(rows: list[asyncpg.Record]) -> list[Any]:
    return [tuple(row) for row in rows]
