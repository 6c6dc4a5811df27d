"""`consumer topology`: what an app needs at the broker, declared or compared."""

import asyncio
import json
from typing import Annotated

import typer

from consumer.app import App, load
from consumer.broker import check as broker_check
from consumer.broker import declare
from consumer.broker.check import Finding, State
from consumer.broker.declare import Declared
from consumer.cli.access import at_first_broker, database
from consumer.cli.findings import is_fine, print_findings
from consumer.core.topology import Topology, plan
from consumer.exit_codes import ExitCode
from consumer.settings import Settings, read_settings
from consumer.store import topology as record
from consumer.store.topology import DeclaredObject
from consumer.telemetry import logs

app = typer.Typer(
    help="Declare what an app needs at the broker, or compare.", no_args_is_help=True)

AppPath = Annotated[str, typer.Argument(metavar="MODULE:APP", show_default=False,
                                        help="The app, importable from here.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def apply(path: AppPath, as_json: AsJson = False) -> None:
    """Declare exchanges, queues and bindings, and record them. Deletes and changes nothing."""
    logs.configure("warning", "console")
    application, settings = load(path), read_settings()
    declared = asyncio.run(_apply(_plan(application), settings))
    if as_json:
        typer.echo(json.dumps([{"kind": d.kind, "name": d.name, "arguments": dict(d.arguments)}
                               for d in declared]))
        return
    queues = ", ".join(application.queues) or "no queues"
    typer.echo(f"{len(declared)} objects declared and recorded for {queues}")


@app.command()
def check(
    path: AppPath, as_json: AsJson = False,
    everything: Annotated[bool, typer.Option(
        "--all", help="List every object of the delay ladder, too.")] = False,
) -> None:
    """Compare the broker with what an app needs; exit code 1 unless all is fine.

    Bindings and policies are seen through the management API only: set CONSUMER_MANAGEMENT_URL.
    """
    logs.configure("warning", "console")
    application, settings = load(path), read_settings()
    findings = asyncio.run(_check(_plan(application), settings))
    if as_json:
        typer.echo(json.dumps([_as_json(finding) for finding in findings]))
    else:
        print_findings(findings, prefix=application.prefix, everything=everything)
    if not all(is_fine(finding) for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


def _plan(application: App) -> Topology:
    return plan(application.prefix, application.bindings())


async def _apply(wanted: Topology, settings: Settings) -> list[Declared]:
    async with database(settings) as (statements, schema):
        declared = await at_first_broker(settings, lambda url: declare.apply(url, wanted))
        objects = [DeclaredObject(d.kind, d.name, d.arguments) for d in declared]
        async with statements.driver() as driver:
            await record.record(driver, schema, objects,
                                broker_version=declared[0].broker_version)
    return declared


async def _check(wanted: Topology, settings: Settings) -> list[Finding]:
    management = settings.management_url.get_secret_value().strip() or None
    return await at_first_broker(
        settings, lambda url: broker_check.check(url, wanted, management_url=management))


def _as_json(finding: Finding) -> dict[str, str | None]:
    return {"kind": finding.kind, "name": finding.name, "state": State(finding.state).value,
            "argument": finding.argument, "expected": finding.expected, "actual": finding.actual,
            "remedy": finding.remedy}
