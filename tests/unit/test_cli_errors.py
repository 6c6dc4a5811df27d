"""A failed command is one line and an exit code; nothing of it is secret."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner, Result

from consumer import errors
from consumer.cli import version
from consumer.cli.failures import exit_code_of
from consumer.cli.lazy import COMMANDS
from consumer.cli.main import app
from consumer.exit_codes import ExitCode

APP = "from consumer import App\napp = App('empty')\nnumber = 1\n"
BROKEN_APP = "half = 1 / 0\n"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CONSUMER_")]:
        monkeypatch.delenv(name)


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


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="consumer")


def consumer(*arguments: str, cwd: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "consumer", *arguments], cwd=cwd, text=True,
                          env={**os.environ, **env}, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize(("error", "code"), [
    (errors.ConfigurationError("x"), ExitCode.USAGE),
    (errors.RegistrationError("x"), ExitCode.USAGE),
    (errors.UnsendableMessage("x"), ExitCode.USAGE),
    (errors.StoreUnavailable("x"), ExitCode.UNAVAILABLE),
    (errors.BrokerUnavailable("x"), ExitCode.UNAVAILABLE),
    (errors.SerializationConflict("x"), ExitCode.UNAVAILABLE),
    (errors.SchemaError("x"), ExitCode.SCHEMA),
    (errors.TopologyError("x"), ExitCode.TOPOLOGY),
    (errors.ServicesError("x"), ExitCode.FAILED),
    (RuntimeError("x"), ExitCode.CRASHED),
])
def test_every_kind_of_error_has_its_exit_code(error: Exception, code: ExitCode) -> None:
    assert exit_code_of(error) is code


@pytest.mark.parametrize("arguments", [
    ["status"], ["pause", "payments"], ["resume", "payments"], ["db", "check"],
    ["send", "payments.capture", "--json", "{}"],
])
def test_a_setting_that_is_missing_is_named_in_one_line(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "CONSUMER_" in result.stderr


@pytest.mark.parametrize("url", ["amqp://app:s3c@ret@h/", "amqp://app:s3cret@h:x/", "s3cret"])
def test_a_wrong_url_is_not_repeated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUMER_AMQP_URL", url)
    result = invoke("send", "payments.capture", "--json", "{}")
    assert result.exit_code == ExitCode.USAGE
    assert "s3c" not in result.output


@pytest.mark.parametrize("url", [
    "postgresql://app:s3c@ret@h/", "postgresql://app:s3cret@h:x/", "s3cret"])
def test_a_wrong_database_url_is_not_repeated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUMER_DATABASE_URL", url)
    result = invoke("pause", "payments")
    assert result.exit_code == ExitCode.USAGE
    assert "s3c" not in result.output


def test_a_service_that_is_not_there_is_worth_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUMER_AMQP_URL", "amqp://app:s3cret@127.0.0.1:1/")
    result = invoke("send", "payments.capture", "--json", "{}")
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "s3c" not in result.output


@pytest.mark.parametrize("path", ["nothing", "nothing_here:app", "shop:nothing", "shop:number"])
def test_an_app_that_is_not_there_is_a_wrong_argument(tmp_path: Path, path: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    done = consumer("topology", "check", path, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_a_module_of_the_folder_does_not_replace_one_of_ours(tmp_path: Path) -> None:
    """Workers of a supervisor are started in the folder of the app, whatever it holds."""
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "structlog.py").write_text("raise SystemExit('the wrong one')")
    done = consumer("worker", "shop:app", "--processes", "2", cwd=tmp_path, PYTHONSAFEPATH="1")
    assert done.returncode == ExitCode.USAGE
    assert "error: app 'empty' has no handlers" in done.stderr


def test_an_app_that_lacks_a_dependency_is_told_which(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import no_such_dependency\n")
    done = consumer("topology", "check", "shop:app", cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr == ("error: shop imports no_such_dependency, which is not installed "
                           "(install what the app needs)\n")


def test_an_app_that_cannot_be_imported_is_unexpected(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(BROKEN_APP)
    done = consumer("topology", "check", "shop:app", cwd=tmp_path)
    assert done.returncode == ExitCode.CRASHED
    assert done.stderr == ("error: ZeroDivisionError: division by zero "
                           "(unexpected; consumer --traceback … shows where)\n")
    done = consumer("--traceback", "topology", "check", "shop:app", cwd=tmp_path)
    assert done.returncode == ExitCode.CRASHED
    assert "shop.py" in done.stderr


@pytest.mark.parametrize("options", [[], ["--traceback"]])
def test_an_unexpected_error_shows_no_secret(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> str:
        raise RuntimeError("cannot reach\n amqp://app:s3cret@h/")

    monkeypatch.setattr(version, "version_of", fail)
    result = invoke(*options, "version")
    assert result.exit_code == ExitCode.CRASHED
    assert "RuntimeError: cannot reach amqp://***@h/" in result.stderr
    assert ("Traceback" in result.stderr) == bool(options)
    assert "s3cret" not in result.output


def test_a_wrong_option_is_a_wrong_argument() -> None:
    assert invoke("version", "--no-such-option").exit_code == ExitCode.USAGE
    assert invoke("no-such-command").exit_code == ExitCode.USAGE


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = invoke(name, "--help")
    assert result.exit_code == ExitCode.OK
    assert f"Usage: consumer {name}" in result.output


def test_help_lists_all_commands_and_exit_codes_without_importing_clients(tmp_path: Path) -> None:
    program = ("import sys\nfrom consumer.cli.main import app\ntry: app(['--help'])\n"
               "finally: print(*{m.partition('.')[0] for m in sys.modules})")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          cwd=tmp_path, timeout=60, check=True)
    shown, loaded = done.stdout.rstrip().rsplit("\n", 1)
    assert set(COMMANDS) <= set(shown.split())
    for code in ExitCode:
        assert str(code.value) in shown
    assert "typer" in loaded.split()
    assert not {"sqlalchemy", "asyncpg", "aio_pika", "aiormq", "alembic"} & set(loaded.split())


@pytest.mark.parametrize(("typed", "offered"), [
    ("consumer sta", {"status"}), ("consumer topology ", {"apply", "check"}),
    ("consumer worker --hea", {"--health-port"}),
])
def test_shells_complete_commands_and_options(
    typed: str, offered: set[str], tmp_path: Path
) -> None:
    done = consumer(cwd=tmp_path, _CONSUMER_COMPLETE="complete_bash", COMP_WORDS=typed,
                    COMP_CWORD=str(typed.count(" ")))
    assert done.stderr == ""
    assert set(done.stdout.split()) == offered


def test_a_reader_that_goes_away_is_no_defect(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        done = subprocess.run([sys.executable, "-m", "consumer", "version", "--json"],
                              stdout=gone, stderr=subprocess.PIPE, cwd=tmp_path, timeout=60,
                              check=False)
    assert done.stderr == b""
    assert done.returncode == ExitCode.FAILED


def test_the_exit_codes_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "exit-codes.md").read_text()
    for code in ExitCode:
        assert f"| {code.value} | `{code.name}` |" in page
