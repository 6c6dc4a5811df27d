"""`consumer services` prints what shells and programs can read."""

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from consumer.cli.services import app
from consumer.testing.services.errors import ServicesError

PASSWORD = "it's $HOME `id`"
ENCODED = "it%27s%20%24HOME%20%60id%60"
AMQP = f"amqp://app:{ENCODED}@127.0.0.1:1/"
DATABASE = f"postgresql+asyncpg://app:{ENCODED}@127.0.0.1:1/x"


@pytest.fixture(autouse=True)
def services_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONSUMER_AMQP_URL", AMQP)
    monkeypatch.setenv("CONSUMER_DATABASE_URL", DATABASE)
    monkeypatch.setenv("CONSUMER_MANAGEMENT_URL", "http://app:it's@127.0.0.1:1")
    monkeypatch.setenv("CONSUMER_SERVICES_DIR", str(tmp_path))


def test_env_can_be_evaluated_by_a_shell() -> None:
    """`eval "$(consumer services env)"` sets the variables to exactly the URLs."""
    lines = CliRunner().invoke(app, ["env"], catch_exceptions=False).stdout
    assert all(line.startswith("export CONSUMER_") for line in lines.splitlines())
    assert f"export CONSUMER_AMQP_URL='{AMQP}'" in lines
    shown = (
        'printf "%s\\n" "$CONSUMER_AMQP_URL" "$CONSUMER_DATABASE_URL" "$CONSUMER_MANAGEMENT_URL"'
    )
    shell = ["/bin/sh", "-c", f"{lines}\n{shown}"]
    seen = subprocess.run(shell, env={}, capture_output=True, text=True, check=True).stdout
    assert seen.splitlines() == [AMQP, DATABASE, "http://app:it's@127.0.0.1:1"]


def test_env_as_json() -> None:
    """Programs read the same variables as JSON."""
    printed = CliRunner().invoke(app, ["env", "--json"], catch_exceptions=False).stdout
    assert json.loads(printed)["CONSUMER_AMQP_URL"] == AMQP


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["up"], ["down"]])
def test_no_other_command_shows_the_password(arguments: list[str]) -> None:
    """Only `env` may print a secret."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "it%27s" not in done.output
    assert "it's" not in done.output


def test_status_fails_unless_everything_answers() -> None:
    """Scripts can ask with the exit code, and read the details."""
    done = CliRunner().invoke(app, ["status", "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (found["mode"], found["ready"]) == ("env", False)
    assert {service["name"] for service in found["services"]} == {
        "rabbitmq",
        "management",
        "postgres",
    }
    assert found["services"][0]["port"] == 1


def test_errors_are_left_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command raises ServicesError, whose text is one line with a remedy."""
    monkeypatch.delenv("CONSUMER_DATABASE_URL")
    with pytest.raises(ServicesError, match="CONSUMER_DATABASE_URL is not"):
        CliRunner().invoke(app, ["up"], catch_exceptions=False)
