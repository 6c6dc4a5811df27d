"""`consumer pause` and `consumer resume`: of a queue, for all workers, remembered."""

import asyncio
from typing import Annotated

import typer

from consumer.cli.access import database, operator
from consumer.cli.failures import warn
from consumer.cli.known import known_queues
from consumer.core.names import check_queue_name
from consumer.settings import Settings, read_settings
from consumer.store import workers
from consumer.telemetry import logs

app = typer.Typer()

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="A work queue.",
                                          show_default=False)]
Reason = Annotated[str, typer.Option(help="Why; kept with the pause and in the audit log.")]


@app.command()
def pause(queue: QueueName, reason: Reason = "") -> None:
    """Stop all workers from consuming a queue, those started later too, until `resume`.

    What a worker has begun it finishes; what it has not goes back to the queue, untouched.
    """
    check_queue_name(queue)
    logs.configure("error", "console")
    asyncio.run(_pause(queue, reason, read_settings()))


@app.command()
def resume(queue: QueueName, reason: Reason = "") -> None:
    """Let workers consume a queue again."""
    check_queue_name(queue)
    logs.configure("error", "console")
    asyncio.run(_resume(queue, reason, read_settings()))


async def _pause(queue: str, reason: str, settings: Settings) -> None:
    async with database(settings) as (statements, schema), statements.driver() as driver:
        new = await workers.pause(driver, schema, queue, actor=operator(), reason=reason)
        there = {pause.queue: pause for pause in await workers.pauses(driver, schema)}
        known = await known_queues(driver, schema, settings)
    if queue not in known:
        warn(f"no worker consumes {queue!r} and no topology holds it")
    if new:
        typer.echo(f"{queue}: paused; workers stop within {_seconds(settings)}")
    elif (old := there.get(queue)) is not None:
        because = f": {old.reason}" if old.reason else ""
        typer.echo(f"{queue}: {old.actor} paused it at {old.paused_at:%Y-%m-%d %H:%M:%S %Z}"
                   f"{because}")


async def _resume(queue: str, reason: str, settings: Settings) -> None:
    async with database(settings) as (statements, schema), statements.driver() as driver:
        resumed = await workers.resume(driver, schema, queue, actor=operator(), reason=reason)
    typer.echo(f"{queue}: resumed; workers begin within {_seconds(settings)}" if resumed
               else f"{queue}: was not paused")


def _seconds(settings: Settings) -> str:
    return f"{settings.heartbeat.total_seconds():g} s"
