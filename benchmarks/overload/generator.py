"""The open-loop generator: publishes at a fixed rate, whatever becomes of what it published.

Time is cut into slots of 1/rate seconds, and each command is due at a random moment of its slot.
The rate is thus exact over any second, and arrivals are not in step with anything. Confirms are
awaited beside publishing and never hold it up; what is late is published at once and its lag shows
in the log.
"""

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import aiormq
from aiormq.abc import AbstractChannel
from pamqp.commands import Basic

from benchmarks.overload import celery_app
from benchmarks.overload.plan import DEADLINE_SECONDS
from benchmarks.overload.priority import prefer
from benchmarks.overload.records import Publication

CONFIRM_SECONDS = 30

Message = tuple[str, str, bytes, Basic.Properties]
"""Exchange, routing key, body, properties."""


def schedule(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """When each command is due, in seconds from the start, in order."""
    draw = random.Random(seed)  # noqa: S311 - a schedule is no secret
    for slot in range(round(rate * seconds)):
        yield (slot + draw.random()) / rate


def command_message(key: str, published: float) -> Message:
    """A charge as a producer of this framework's commands sends it (`docs/messages.md`)."""
    return "consumer.commands", "overload.charge", json.dumps({"card": key}).encode(), \
        Basic.Properties(
            content_type="application/json", delivery_mode=2, message_id=key,
            timestamp=datetime.fromtimestamp(published, UTC),
            headers={"idempotency-key": key, "x-deadline-ms": deadline_ms(published)})


def celery_message(key: str, published: float) -> Message:
    """The same charge as a Celery client sends it."""
    task = celery_app.app.amqp.as_task_v2(
        key, celery_app.TASK, args=(key, deadline_ms(published)))
    return celery_app.QUEUE, celery_app.QUEUE, json.dumps(task.body).encode(), Basic.Properties(
        content_type="application/json", content_encoding="utf-8", delivery_mode=2,
        message_id=key, correlation_id=key,
        headers={name: value for name, value in task.headers.items() if value is not None})


def deadline_ms(published: float) -> int:
    """The deadline of a command, milliseconds since the epoch."""
    return int((published + DEADLINE_SECONDS) * 1000)


async def generate(
    url: str, message: Callable[[str, float], Message], start: float, due: list[float], run: str,
) -> list[Publication]:
    """All commands are published, and confirmed or given up.

    Args:
        start: When the schedule begins, seconds since the epoch.
        run: Begins the keys.
    """
    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel(publisher_confirms=True)
        publishing: list[asyncio.Task[Publication]] = []
        for number, offset in enumerate(due):
            await asyncio.sleep(max(0.0, start + offset - time.time()))
            publishing.append(asyncio.create_task(
                _publish(channel, message, f"{run}-{number:06}", start + offset)))
        return await asyncio.gather(*publishing)
    finally:
        await connection.close()


async def _publish(
    channel: AbstractChannel, message: Callable[[str, float], Message], key: str, planned: float,
) -> Publication:
    published = time.time()
    exchange, routing_key, body, properties = message(key, published)
    publish = partial(Publication, key, planned, published)
    try:
        await channel.basic_publish(
            body, exchange=exchange, routing_key=routing_key, properties=properties,
            mandatory=True, timeout=CONFIRM_SECONDS)
    except (aiormq.AMQPError, TimeoutError, OSError):
        return publish(None)
    return publish(time.time())


def main() -> None:
    """Publish and write what was published."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload.generator")
    parser.add_argument("--celery", action="store_true", help="messages are tasks of Celery")
    parser.add_argument("--rate", type=float, required=True, help="commands a second")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--start", type=float, required=True, help="seconds since the epoch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run", default="run", help="begins the keys")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    prefer()
    publications = asyncio.run(generate(
        os.environ["CONSUMER_AMQP_URL"], celery_message if options.celery else command_message,
        options.start, list(schedule(options.rate, options.seconds, options.seed)), options.run))
    with options.output.open("w") as log:
        for p in publications:
            log.write(json.dumps({"key": p.key, "planned": p.planned, "published": p.published,
                                  "confirmed": p.confirmed}) + "\n")


if __name__ == "__main__":
    main()
