"""The pytest plugin, run as users run it: in a pytest of its own."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from consumer.testing.services.process import wait_until

pytestmark = pytest.mark.integration

SUITE = """
import asyncio, time
import pytest
from consumer.testing.services.management import Management
from consumer.testing.services.postgres_admin import query

seen = []

@pytest.fixture(scope="session")
def consumer_create_schema():
    return lambda url: query(url, "CREATE TABLE made_by_migrations (id int)")

@pytest.mark.parametrize("turn", [1, 2])
def test_each_gets_its_own(turn, consumer_vhost, consumer_database, consumer_services):
    assert consumer_vhost.name in Management(consumer_services.management_url).vhosts()
    assert consumer_vhost.url.endswith("/" + consumer_vhost.name)
    assert query(consumer_database.url, "SELECT count(*) FROM made_by_migrations") == 0
    query(consumer_database.url, "INSERT INTO made_by_migrations VALUES (1)")
    assert consumer_vhost.name not in seen and consumer_database.name not in seen
    seen.extend([consumer_vhost.name, consumer_database.name])

def test_all_is_gone_afterwards(consumer_services, consumer_empty_database):
    assert len(seen) == 4
    assert not set(seen) & set(Management(consumer_services.management_url).vhosts())
    names = "SELECT string_agg(datname, ' ') FROM pg_database"
    databases = query(consumer_services.database_url, names).split()
    assert consumer_empty_database.name in databases and not set(seen) & set(databases)
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert query(consumer_empty_database.url, tables) == 0
"""

WAITING = """
import threading
from pathlib import Path
from consumer.testing.services import urls

def test_waits(consumer_services, consumer_vhost, consumer_empty_database):
    ports = [urls.address(url)[1] for url in consumer_services.variables().values()]
    Path("ports.part").write_text(" ".join(map(str, ports)))
    Path("ports.part").rename("ports")
    threading.Event().wait()
"""


def start(folder: Path, suite: str, *options: str, **environment: str) -> "subprocess.Popen[str]":
    """pytest on a suite of its own, away from this project's configuration."""
    (folder / "test_suite.py").write_text(suite)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    unset = ("CONSUMER_AMQP_URL", "CONSUMER_DATABASE_URL", "CONSUMER_TEST_SERVICES")
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("source", ["local", "docker"])
def test_every_test_gets_a_corner_of_its_own(tmp_path: Path, source: str) -> None:
    """Virtual hosts and databases are fresh for each test and gone after it."""
    suite = start(tmp_path, SUITE, f"--consumer-services={source}")
    output, _ = suite.communicate(timeout=180)
    assert suite.returncode == 0, output
    assert "3 passed" in output


@pytest.mark.parametrize("source", ["local", "docker"])
def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path, source: str) -> None:
    """After Ctrl-C the servers are stopped like after any other end."""
    suite = start(tmp_path, WAITING, CONSUMER_TEST_SERVICES=source)
    try:
        ports_file = tmp_path / "ports"
        assert wait_until(
            lambda: ports_file.exists() or suite.poll() is not None, timeout_seconds=120
        )
        assert suite.poll() is None, suite.communicate()[0]
        ports = [int(word) for word in ports_file.read_text().split()]
        assert all(listens(port) for port in ports)
        suite.send_signal(signal.SIGINT)
        output, _ = suite.communicate(timeout=60)
    finally:
        suite.kill()
        suite.communicate()
    assert "KeyboardInterrupt" in output
    assert not any(listens(port) for port in ports)


def test_a_missing_service_is_an_error_not_a_skip(tmp_path: Path) -> None:
    """A suite without services fails and says how to get them."""
    suite = start(tmp_path, SUITE, "--consumer-services=docker", DOCKER_HOST="tcp://127.0.0.1:1")
    output, _ = suite.communicate(timeout=60)
    assert suite.returncode == 1, output
    assert "3 errors" in output
    assert "skipped" not in output
    assert "apt-get install rabbitmq-server postgresql" in output
