"""The wheel alone is enough: it holds the migrations and the compose file, and its command runs."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from consumer.testing.plugin import Database

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds the built wheel, and nothing else of ours."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT],
                   check=True, capture_output=True, cwd=folder)
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", "-c",
                    ROOT / "constraints.txt", wheel], check=True, cwd=folder)
    return programs


def run(programs: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """`consumer` from the wheel, started in a folder that holds none of our sources."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([programs / "consumer", *arguments], cwd=programs.parent, text=True,
                          capture_output=True, check=False, timeout=120,
                          env={**clean, **environment})


def test_the_wheel_upgrades_a_database(installed: Path, consumer_empty_database: Database) -> None:
    """`db upgrade` from the wheel creates the schema, and `db check` is content with it."""
    url = consumer_empty_database.url
    upgraded = run(installed, "db", "upgrade", CONSUMER_DATABASE_URL=url)
    assert upgraded.returncode == 0, upgraded.stderr
    checked = run(installed, "db", "check", CONSUMER_DATABASE_URL=url)
    assert checked.returncode == 0, checked.stderr


def test_the_wheel_holds_what_services_need(installed: Path) -> None:
    """The compose file lies beside the module that reads it."""
    found = list((installed.parent / "lib").rglob("consumer/testing/services/docker-compose.yml"))
    assert len(found) == 1


def test_the_wheel_tells_its_version(installed: Path) -> None:
    """The command is on the path and starts."""
    told = run(installed, "version")
    assert told.returncode == 0, told.stderr
    assert "0.1.0" in told.stdout
