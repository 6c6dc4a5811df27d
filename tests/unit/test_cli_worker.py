"""`consumer worker` passes on what it was told."""

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from consumer import App
from consumer.cli import worker
from consumer.cli.main import app
from consumer.exit_codes import ExitCode
from consumer.settings import Settings
from consumer.telemetry import logs


@pytest.fixture(autouse=True)
def no_logging_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logging of this process stays as it is."""
    monkeypatch.setattr(logs, "configure", lambda *_, **__: None)


def test_children_get_the_options_of_their_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def supervise(processes: int, start: Callable[[int], Sequence[str]], grace: timedelta
                  ) -> ExitCode:
        started.extend(list(start(index)) for index in range(processes))
        assert grace == timedelta(seconds=7.5)
        return ExitCode.GRACE_EXCEEDED

    monkeypatch.setattr(worker, "supervise", supervise)
    result = CliRunner().invoke(app, [
        "worker", "shop:app", "--processes", "2", "-q", "payments", "-q", "mails", "--grace", "7.5",
        "--health-port", "8000", "--log-level", "debug", "--log-format", "console"])
    assert result.exit_code == ExitCode.GRACE_EXCEEDED
    assert [line[line.index("--health-port") + 1] for line in started] == ["8000", "8001"]
    assert started[0] == [
        sys.executable, "-P", "-m", "consumer", "worker", "shop:app", "--queue", "payments",
        "--queue", "mails", "--grace", "7.5", "--health-port", "8000", "--log-level", "debug",
        "--log-format", "console"]


def test_ports_that_do_not_suffice_are_refused() -> None:
    result = CliRunner().invoke(
        app, ["worker", "shop:app", "--processes", "3", "--health-port", "65534"])
    assert result.exit_code == ExitCode.USAGE
    assert "--health-port 65534" in result.stderr


@pytest.mark.parametrize("options", [
    ["--processes", "0"], ["--grace", "-1"], ["--grace", "nan"], ["--grace", "1e30"],
    ["--health-port", "70000"], ["--log-level", "loud"]])
def test_options_that_make_no_sense_are_refused(options: list[str]) -> None:
    assert CliRunner().invoke(app, ["worker", "shop:app", *options]).exit_code == ExitCode.USAGE


def test_a_single_worker_runs_here_with_the_settings_it_was_given(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    application = App("shop")
    seen: list[tuple[App, Settings, Sequence[str] | None, object]] = []

    async def run_worker(app: App, settings: Settings, *, queues: Sequence[str] | None,
                         link: object) -> ExitCode:
        seen.append((app, settings, queues, link))
        return ExitCode.TOPOLOGY

    monkeypatch.setattr(worker, "load", lambda path: application)
    monkeypatch.setattr(worker, "run_worker", run_worker)
    monkeypatch.setenv("CONSUMER_GRACE", "12")
    monkeypatch.setenv("CONSUMER_HEALTH_PORT", "8123")
    result = CliRunner().invoke(app, ["worker", "shop:app", "--health-port", "0"])
    assert result.exit_code == ExitCode.TOPOLOGY
    [(given, settings, queues, link)] = seen
    assert (given, queues, link) == (application, None, None)
    assert (settings.grace, settings.health_port) == (timedelta(seconds=12), 0)
