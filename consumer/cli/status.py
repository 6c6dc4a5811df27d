"""`consumer status`: queues, workers and the outbox at a glance."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from consumer.app import App, load
from consumer.cli import dependencies_view, queues_view
from consumer.cli.failures import warn
from consumer.cli.overview import Overview, overview
from consumer.cli.queues_view import duration
from consumer.cli.tables import cell, console
from consumer.errors import InfrastructureError
from consumer.settings import Settings, read_settings
from consumer.store.backlog import RowStatus
from consumer.telemetry import logs

app = typer.Typer()


@app.command()
def status(
    path: Annotated[str | None, typer.Option(
        "--app", metavar="MODULE:APP", show_default=False,
        help="Show this app's queues; without it, those that were applied or are in use.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(
        min=0.2, metavar="SECONDS", help="How often, with --watch.")] = 2.0,
) -> None:
    """Show queues, dependencies and the outbox.

    in flight, workers and all of dependencies come from heartbeats, which are some seconds old.
    delayed counts retries on their way through the delay ladder and scheduled sends. ? is what the
    broker does not tell.

    amplification is attempts for each original, 1.00 without retries; it, attempts, originals and
    denied (retries the budget refused) are of the last 5 minutes. budget is the retries left, of
    as many as can be saved up. slots is the calls that may be in flight at once. - is none.
    """
    logs.configure("error", "console")
    application, settings = load(path) if path else None, read_settings()
    asyncio.run(_watch(application, settings, every, as_json) if watch
                else _once(application, settings, as_json))


async def _once(application: App | None, settings: Settings, as_json: bool) -> None:
    now = await overview(settings, application)
    if as_json:
        typer.echo(json.dumps(as_dict(now)))
    else:
        console().print(rendered(now))


async def _watch(application: App | None, settings: Settings, every_s: float, as_json: bool
                 ) -> None:
    if as_json:
        async for now in _repeatedly(application, settings, every_s):
            typer.echo(json.dumps(as_dict(now)))
        return
    with Live(console=console(), auto_refresh=False) as live:
        async for now in _repeatedly(application, settings, every_s):
            live.update(rendered(now), refresh=True)


async def _repeatedly(application: App | None, settings: Settings, every_s: float
                      ) -> AsyncIterator[Overview]:
    """Overviews for ever; while broker or database are away, their errors go to stderr."""
    while True:
        try:
            yield await overview(settings, application)
        except InfrastructureError as error:
            warn(str(error))
        await asyncio.sleep(every_s)


def as_dict(now: Overview) -> dict[str, Any]:
    """What programs get; unknown counts are null, times are ISO 8601."""
    return {
        "at": now.at.isoformat(),
        "queues": [queues_view.as_dict(queue) for queue in now.queues],
        "unroutable": dict(now.unroutable),
        "workers": [{"host": w.info.host, "pid": w.info.pid, "version": w.info.version,
                     "queues": sorted(w.info.queues),
                     "started_at": w.info.started_at.isoformat(),
                     "heartbeat_age_seconds": round(w.silent_seconds, 1)} for w in now.workers],
        "outbox": {status.value: {"count": _count(now, status),
                                  "oldest_seconds": _oldest_s(now, status)}
                   for status in RowStatus},
        "dependencies": [dependencies_view.as_dict(each) for each in now.dependencies],
    }


def rendered(now: Overview) -> RenderableType:
    """What people get."""
    if not now.queues:
        return Text("no queue is known; run consumer topology apply, or name an app with --app")
    parts = [queues_view.rendered(now.queues, now.at)]
    if now.dependencies:
        parts += ["", dependencies_view.rendered(now.dependencies), ""]
    parts.append(cell(f"outbox: {_outbox_line(now)}",
                      "bold red" if _count(now, RowStatus.PARKED) else ""))
    parts += [cell(f"{name}: {count} that no queue takes", "bold red")
              for name, count in now.unroutable.items() if count]
    return Group(*parts)


def _outbox_line(now: Overview) -> str:
    parts = []
    for status in (RowStatus.PENDING, RowStatus.PARKED):
        oldest = _oldest_s(now, status)
        age = "" if oldest is None else f" (oldest {duration(oldest)})"
        parts.append(f"{_count(now, status)} {status.value}{age}")
    return ", ".join(parts)


def _count(now: Overview, status: RowStatus) -> int:
    return sum(row.count for row in now.outbox if row.status is status)


def _oldest_s(now: Overview, status: RowStatus) -> float | None:
    ages = [(now.at - row.oldest_at).total_seconds() for row in now.outbox if row.status is status]
    return round(max(0.0, *ages), 1) if ages else None
