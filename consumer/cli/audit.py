"""`consumer audit`: the retries and timeouts on an app's paths, checked before it runs."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Annotated

import typer

from consumer.app import App, load
from consumer.broker.management import ManagementUnavailable
from consumer.broker.path_retries import PathAtBroker, path_at_broker
from consumer.cli.audit_report import Report, as_dict, print_report
from consumer.cli.inventory import inventory
from consumer.core.audit import audit as find
from consumer.core.findings import ConsumerTimeout, DatabaseTimeouts, NotChecked, Surroundings
from consumer.core.topology import plan
from consumer.errors import ConfigurationError, StoreUnavailable
from consumer.exit_codes import ExitCode
from consumer.settings import Settings, read_settings
from consumer.store import probe
from consumer.store.engine import create_engine
from consumer.store.statements import Statements
from consumer.telemetry import logs

app = typer.Typer()

_LONGEST_SECONDS = 1e9
_BROKER = "retries and consumer timeouts at the broker"
_DATABASE = "timeouts of the database"
_OFFLINE = "--offline was given"


@app.command()
def audit(
    path: Annotated[str, typer.Argument(metavar="MODULE:APP", show_default=False,
                                        help="The app, importable from here.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object.")] = False,
    limit: Annotated[int, typer.Option(
        min=1, help="Most attempts for one command on one path, all layers multiplied.")] = 10,
    consumer_timeout: Annotated[float | None, typer.Option(
        min=0.001, max=_LONGEST_SECONDS, metavar="SECONDS", show_default=False,
        help="The broker's consumer timeout, where no policy tells.  [default: RabbitMQ's, "
        "1800]")] = None,
    grace: Annotated[float | None, typer.Option(
        min=0, max=_LONGEST_SECONDS, metavar="SECONDS", show_default=False,
        help="How long a drain of the workers may take.  [default: CONSUMER_GRACE, or 30]")] = None,
    offline: Annotated[bool, typer.Option(
        "--offline", help="Ask neither database nor broker.")] = False,
) -> None:
    """Count the retries on an app's paths and check its timeouts; exit code 1 on a violation.

    Asks the database (CONSUMER_DATABASE_URL) and the management API (CONSUMER_MANAGEMENT_URL)
    where they are set; what could not be checked is listed and is no failure.
    """
    logs.configure("error", "console")
    application, settings = load(path), read_settings(grace=_duration("--grace", grace))
    timeout = _duration("--consumer-timeout", consumer_timeout)
    otherwise = ConsumerTimeout(timeout, "--consumer-timeout") if timeout else ConsumerTimeout()
    report = asyncio.run(_report(application, settings, limit, otherwise, offline))
    if as_json:
        typer.echo(json.dumps(as_dict(report)))
    else:
        print_report(report)
    if report.violations:
        raise typer.Exit(ExitCode.FAILED)


def _duration(option: str, seconds: float | None) -> timedelta | None:
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except ValueError:  # not a number
        raise ConfigurationError(f"{option} {seconds} is no duration in seconds") from None


async def _report(application: App, settings: Settings, limit: int, otherwise: ConsumerTimeout,
                  offline: bool) -> Report:
    around = Surroundings(application.deploy_grace, settings.grace, otherwise=otherwise)
    seen = PathAtBroker([], {}, [])
    if offline:
        unchecked = [
            NotChecked(what, _OFFLINE, "leave --offline away") for what in (_DATABASE, _BROKER)]
    else:
        database, no_database = await _database(settings)
        seen, no_broker = await _broker(application, settings)
        around = replace(around, database=database, consumer_timeouts=seen.consumer_timeouts)
        unchecked = [*no_database, *no_broker]
    queues = inventory(application)
    findings = [*find(queues, around, limit=limit), *seen.findings]
    return Report(application.name, limit, queues, around, findings, unchecked)


async def _database(settings: Settings) -> tuple[DatabaseTimeouts | None, list[NotChecked]]:
    if not settings.database_url.get_secret_value().strip():
        return None, [NotChecked(_DATABASE, "CONSUMER_DATABASE_URL is not set", "set it")]
    engine = create_engine(settings.database(), pooler=settings.pooler, pool_size=1,
                           application_name="consumer: operator")
    statements = Statements(engine)
    try:
        async with statements.driver() as driver:
            return await probe.timeouts(driver), []
    except StoreUnavailable as error:
        return None, [NotChecked(_DATABASE, str(error),
                                 "check CONSUMER_DATABASE_URL, and that Postgres runs")]
    finally:
        await statements.close()
        await engine.dispose()


async def _broker(application: App, settings: Settings) -> tuple[PathAtBroker, list[NotChecked]]:
    nothing, management = PathAtBroker([], {}, []), settings.management_url.get_secret_value()
    if not management.strip():
        return nothing, [NotChecked(_BROKER, "CONSUMER_MANAGEMENT_URL is not set", "set it")]
    try:
        amqp_url, *_ = settings.amqp_urls()
    except ConfigurationError:
        return nothing, [NotChecked(_BROKER, "CONSUMER_AMQP_URL is not set",
                                    "set it, for it names the virtual host")]
    topology = plan(application.prefix, application.bindings())
    try:
        seen = await path_at_broker(
            amqp_url, management.strip(), topology, list(application.queues))
    except ManagementUnavailable as error:
        return nothing, [NotChecked(_BROKER, str(error), "check CONSUMER_MANAGEMENT_URL")]
    return seen, [NotChecked(f"queue {name}", "it does not exist",
                             "run: consumer topology apply MODULE:APP") for name in seen.missing]
