"""`consumer audit` without services: what it prints, and how it ends."""

import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner, Result

from consumer.cli.main import app
from consumer.core.findings import Code, Severity
from consumer.exit_codes import ExitCode

APP = """
from datetime import timedelta
from consumer import App, Command, Context, Dependency, Handler, Options, Queue

class Pay(Command, type="pay"):
    order_id: str

class PayHandler(Handler[Pay]):
    name = "[bold]pay"
    queue = "payments"
    dependencies = ("psp", "mail")
    options = Options(max_attempts=4, max_age=timedelta(minutes=1))

    async def handle(self, command: Pay, context: Context) -> None: ...

psp = Dependency("psp", attempts=2, calls=3, timeout=timedelta(seconds=5))
mail = Dependency("mail", timeout=timedelta(seconds=5))
queues = [Queue("payments", prefetch=10), Queue("empty")]
app = App("shop", handlers=[PayHandler], queues=queues, dependencies=[psp, mail])
empty = App("nothing")
unlimited = App("shop", handlers=[PayHandler], queues=queues, dependencies=[
    Dependency("psp", budget=None), mail])

default_prefetch = App("shop", handlers=[PayHandler], dependencies=[psp, mail],
                       queues=[Queue("payments"), Queue("empty")])

class NoteHandler(Handler[Pay]):
    name = "note"
    queue = "notes"
    options = Options(attempt_timeout=timedelta(seconds=5))

    async def handle(self, command: Pay, context: Context) -> None: ...

plain = App("notes", handlers=[NoteHandler])
of_the_queue = App("notes", handlers=[NoteHandler], dependencies=[
    Dependency("notes", attempts={"driver": 2}, calls=3)])
"""


@pytest.fixture(autouse=True)
def environment_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("CONSUMER_")]:
        monkeypatch.delenv(name)
    (tmp_path / "audited_shop.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "audited_shop", raising=False)


@pytest.fixture(autouse=True)
def logging_of_this_process_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands set logging up for their process, which here is pytest's."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def audit(*arguments: str, path: str = "audited_shop:app") -> Result:
    return CliRunner().invoke(app, ["audit", path, *arguments], prog_name="consumer")


def report(*arguments: str, path: str = "audited_shop:app") -> dict[str, Any]:
    return dict(json.loads(audit("--json", *arguments, path=path).stdout))


def test_programs_get_the_inventory_in_one_object() -> None:
    done = audit("--json")
    assert done.exit_code == ExitCode.OK
    assert done.stdout.count("\n") == 1
    found = json.loads(done.stdout)
    assert (found["app"], found["ok"], found["limit"]) == ("shop", True, 10)
    payments, empty = found["queues"]
    assert (empty["queue"], empty["handlers"]) == ("empty", [])
    assert (payments["consumer_timeout_seconds"], payments["prefetch"]) == (1800.0, 10)
    [handler] = payments["handlers"]
    mail, psp = handler["paths"]
    assert (mail["dependency"], mail["attempts"], mail["calls"]) == ("mail", 4, 4)
    assert (psp["dependency"], psp["attempts"], psp["calls"]) == ("psp", 8, 24)
    assert psp["layers"] == [{"layer": "framework", "attempts": 4},
                             {"layer": "call", "attempts": 2}]
    assert handler["calls"] == 28
    assert (handler["running_seconds"], handler["backoff_seconds"], handler["max_age_seconds"],
            handler["longest_seconds"]) == (120.0, 7.0, 60.0, 60.0)


def test_people_get_names_as_they_are_and_the_product() -> None:
    shown = audit().stdout
    assert "[bold]pay" in shown
    assert "4 \u00d7 2 = 8" in shown
    assert "shop: 0 violations, 0 warnings, 0 notes, 2 not checked" in shown


def test_a_violation_ends_with_1_and_says_what_to_do() -> None:
    done = audit("--limit", "7")
    assert done.exit_code == ExitCode.FAILED
    assert "violation: [bold]pay: 8 attempts for one command on the way to 'psp'" in done.stdout
    assert "--limit 8" in done.stdout
    [finding] = report("--limit", "7")["findings"]
    assert (finding["code"], finding["severity"]) == (Code.RETRIES_MULTIPLY, Severity.VIOLATION)
    assert (finding["queue"], finding["handler"], finding["dependency"]) == (
        "payments", "[bold]pay", "psp")


def test_a_warning_fails_no_audit() -> None:
    done = audit("--json", path="audited_shop:unlimited")
    assert done.exit_code == ExitCode.OK
    [finding] = json.loads(done.stdout)["findings"]
    assert (finding["code"], finding["severity"]) == (Code.UNLIMITED_RETRIES, Severity.WARNING)


@pytest.mark.parametrize(("path", "dependency", "layers", "calls"), [
    ("audited_shop:plain", None, {"framework": 5}, None),
    ("audited_shop:of_the_queue", "notes", {"framework": 5, "driver": 2}, 30),
])
def test_a_handler_that_names_no_dependency_has_what_is_declared_for_its_queue(
    path: str, dependency: str | None, layers: dict[str, int], calls: int | None
) -> None:
    found = report(path=path)
    [handler] = found["queues"][0]["handlers"]
    [way] = handler["paths"]
    assert (way["dependency"], handler["calls"]) == (dependency, calls)
    assert {layer["layer"]: layer["attempts"] for layer in way["layers"]} == layers
    assert found["ok"], "a timeout that the handler never comes under is none"


def test_what_is_held_in_hand_is_what_workers_hold() -> None:
    [queue, _] = report(path="audited_shop:default_prefetch")["queues"]
    assert (queue["prefetch"], queue["replay_prefetch"]) == (4, 4)


def test_options_stand_in_for_the_surroundings() -> None:
    found = report("--consumer-timeout", "25", "--grace", "29")
    assert {finding["code"] for finding in found["findings"]} == {
        Code.ATTEMPT_TIMEOUT, Code.HAND_OVER, Code.DRAIN_GRACE}
    assert found["queues"][0]["consumer_timeout_source"] == "--consumer-timeout"
    assert found["grace_seconds"] == 29.0


def test_a_grace_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUMER_GRACE", "29")
    assert [finding["code"] for finding in report()["findings"]] == [Code.DRAIN_GRACE]
    assert report("--grace", "30")["findings"] == []


def test_what_cannot_be_checked_is_listed_with_the_variable_to_set(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    database, broker = report()["not_checked"]
    assert "CONSUMER_DATABASE_URL" in database["why"]
    assert "CONSUMER_MANAGEMENT_URL" in broker["why"]
    monkeypatch.setenv("CONSUMER_MANAGEMENT_URL", "http://u:p@127.0.0.1:1")
    assert "CONSUMER_AMQP_URL" in report()["not_checked"][1]["why"]


def test_services_that_do_not_answer_are_listed_and_their_secrets_are_not(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    nowhere = f"u:s3cret@127.0.0.1:{unused_tcp_port}"
    monkeypatch.setenv("CONSUMER_MANAGEMENT_URL", f"http://{nowhere}")
    monkeypatch.setenv("CONSUMER_AMQP_URL", f"amqp://{nowhere}/")
    monkeypatch.setenv("CONSUMER_DATABASE_URL", f"postgresql://{nowhere}/db")
    done = audit()
    assert done.exit_code == ExitCode.OK
    assert done.stdout.count("not checked: ") == 2
    assert "s3cret" not in done.output
    offline = audit("--offline")
    assert offline.stdout.count("--offline was given") == 2


def test_a_url_that_is_none_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUMER_DATABASE_URL", "mysql://u:s3cret@h/")
    done = audit()
    assert done.exit_code == ExitCode.USAGE
    assert "s3cret" not in done.output


@pytest.mark.parametrize("arguments", [
    ["--limit", "0"], ["--grace", "-1"], ["--grace", "nan"], ["--consumer-timeout", "0"],
    ["--consumer-timeout", "inf"],
])
def test_options_without_sense_are_refused(arguments: list[str]) -> None:
    assert audit(*arguments).exit_code == ExitCode.USAGE


def test_an_app_without_handlers_has_nothing_wrong() -> None:
    done = audit("--offline", path="audited_shop:empty")
    assert done.exit_code == ExitCode.OK
    assert done.stdout.splitlines()[-1].startswith("nothing: 0 violations")


def test_an_app_that_is_none_is_a_wrong_argument() -> None:
    assert audit(path="audited_shop:psp").exit_code == ExitCode.USAGE
