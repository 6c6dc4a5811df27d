"""`consumer worker`: runs handlers, in this process or in several under a supervisor."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import structlog
import typer

from consumer.app import load
from consumer.compose import run_worker
from consumer.errors import ConfigurationError, ConsumerError
from consumer.exit_codes import ExitCode
from consumer.settings import Settings, read_settings
from consumer.telemetry import logs
from consumer.worker.supervisor import child_link, supervise

try:
    import uvloop
except ImportError:
    _new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
else:
    _new_loop = uvloop.new_event_loop

_HIGHEST_PORT = 65_535

app = typer.Typer()
log = structlog.get_logger("consumer.worker")


class LogLevel(StrEnum):
    """Lowest level that is written."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class LogFormat(StrEnum):
    """How log lines look."""

    json = "json"
    console = "console"


@app.command()
def worker(
    path: Annotated[str, typer.Argument(metavar="MODULE:APP", show_default=False,
                                        help="The app, importable from here.")],
    *,
    queue: Annotated[list[str] | None, typer.Option(
        "--queue", "-q", metavar="NAME", show_default=False,
        help="Consume only this queue of the app; may be repeated.")] = None,
    processes: Annotated[int, typer.Option(
        "--processes", "-p", min=1, help="Worker processes, started again when they die.")] = 1,
    grace: Annotated[float | None, typer.Option(
        min=0, metavar="SECONDS", show_default=False,
        help="How long a drain may take.  [default: CONSUMER_GRACE, or 30]")] = None,
    health_port: Annotated[int | None, typer.Option(
        min=0, max=_HIGHEST_PORT, show_default=False, metavar="PORT",
        help="Port of /live, /ready and /metrics; with several processes the first of so many "
        "ports; 0 takes a free one and logs it.  [default: CONSUMER_HEALTH_PORT, or 0]")] = None,
    log_level: Annotated[LogLevel | None, typer.Option(
        show_default=False, help="[default: CONSUMER_LOG_LEVEL, or info]")] = None,
    log_format: Annotated[LogFormat | None, typer.Option(
        show_default=False, help="[default: CONSUMER_LOG_FORMAT, or json]")] = None,
) -> None:
    """Run the handlers of an app until SIGTERM or SIGINT.

    The first signal drains: what has begun is finished within the grace, the rest goes back
    untouched. A second one cuts the grace short.
    """
    settings = read_settings(
        grace=_duration("--grace", grace), health_port=health_port,
        log_level=log_level and log_level.value, log_format=log_format and log_format.value)
    code = (_one(path, queue, settings) if processes == 1
            else _several(path, queue or [], processes, settings))
    raise typer.Exit(code)


def _duration(option: str, seconds: float | None) -> timedelta | None:
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except (ValueError, OverflowError):  # not a number, or more than 2.7 million years
        raise ConfigurationError(f"{option} {seconds} is no duration in seconds") from None


def _one(path: str, queues: Sequence[str] | None, settings: Settings) -> ExitCode:
    link = child_link()
    logs.configure(settings.log_level, settings.log_format)
    application = load(path)
    logs.configure(settings.log_level, settings.log_format, app=application.name)
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(run_worker(application, settings, queues=queues or None, link=link))
    except ConsumerError:
        raise
    except Exception:
        log.exception("worker_crashed")  # the command line would show its last line only
        raise


def _several(path: str, queues: Sequence[str], processes: int, settings: Settings) -> ExitCode:
    logs.configure(settings.log_level, settings.log_format)
    if settings.health_port and settings.health_port + processes - 1 > _HIGHEST_PORT:
        raise ConfigurationError(
            f"--health-port {settings.health_port} leaves no port for each of {processes} "
            "processes", remedy="choose a lower one, or 0")

    def command_line(index: int) -> list[str]:
        port = settings.health_port + index if settings.health_port else 0
        return [
            # -P: a folder of the app's that is named like a module of ours must not replace it.
            sys.executable, "-P", "-m", "consumer", "worker", path,
            *(part for name in queues for part in ("--queue", name)),
            "--grace", str(settings.grace.total_seconds()), "--health-port", str(port),
            "--log-level", settings.log_level, "--log-format", settings.log_format,
        ]

    return supervise(processes, command_line, settings.grace)
