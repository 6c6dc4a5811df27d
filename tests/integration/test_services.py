"""`consumer services` with real servers, by local processes and by Docker Compose."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

from consumer.testing import services
from consumer.testing.services.binaries import find_binaries
from consumer.testing.services.docker_engine import containers
from consumer.testing.services.management import Management
from consumer.testing.services.postgres_admin import query
from consumer.testing.services.process import find, identify, is_running, wait_until
from consumer.testing.services.state import ServicesState, read, write

pytestmark = pytest.mark.integration

StartMode = Literal["docker", "local"]
COMMAND = [sys.executable, "-c", "from consumer.cli.services import app; app()"]


@dataclass(frozen=True)
class Set:
    """One set of services that was started by these tests."""

    directory: Path
    mode: StartMode

    @property
    def state(self) -> ServicesState:
        state = read(self.directory)
        assert state is not None
        return state

    def up(self) -> services.Endpoints:
        return services.up(self.directory, mode=self.mode)

    def running(self) -> dict[str, str]:
        """What runs, by name; the value changes when a server is replaced."""
        if self.mode == "docker":
            return containers(self.state.project)
        records = self.state.processes
        return {name: str(record.pid) for name, record in records.items() if is_running(record)}

    def kill(self, name: str) -> None:
        if self.mode == "docker":
            container = self.running()[name]
            subprocess.run(["docker", "kill", container], check=True, capture_output=True)
        else:
            os.kill(self.state.processes[name].pid, signal.SIGKILL)
        assert wait_until(lambda: name not in self.running(), timeout_seconds=10)


@pytest.fixture(scope="module", autouse=True)
def clean_environment() -> Iterator[None]:
    """These tests are about what `up` starts, not about what the environment names."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONSUMER_AMQP_URL", "CONSUMER_DATABASE_URL", "CONSUMER_SERVICES_DIR"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module", params=["local", "docker"])
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Set]:
    directory = tmp_path_factory.mktemp(request.param) / "with space" / "services"
    try:
        services.up(directory, mode=request.param)
        yield Set(directory, request.param)
    finally:
        services.down(directory, remove_data=True)


def command(arguments: list[str], directory: Path) -> "subprocess.CompletedProcess[str]":
    whole = [*COMMAND, *arguments, "--dir", str(directory)]
    return subprocess.run(whole, capture_output=True, text=True, check=False)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_both_servers_can_be_used(started: Set) -> None:
    """The URLs lead to a broker with management API and to a database that is durable."""
    endpoints = started.state.endpoints
    management = Management(endpoints.management_url)
    management.create_vhost("made by the test")
    assert "made by the test" in management.vhosts()
    management.delete_vhost("made by the test")
    assert query(endpoints.database_url, "SELECT current_database()") == "app"
    assert query(endpoints.database_url, "SHOW fsync") == "on"


def test_a_second_up_changes_nothing(started: Set) -> None:
    """`up` is idempotent: same URLs, same processes."""
    before, endpoints = started.running(), started.state.endpoints
    assert started.up() == endpoints
    assert services.up(started.directory) == endpoints
    assert started.running() == before


def test_two_ups_at_once_start_one_set(started: Set) -> None:
    """Commands for one folder take turns, so the broker is repaired once."""
    started.kill("rabbitmq")
    whole = [*COMMAND, "up", "--mode", started.mode, "--dir", str(started.directory)]
    both = [subprocess.Popen(whole, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("already" in lines for lines in said) == 1
    assert services.status(started.directory).ready


def test_a_killed_broker_is_repaired_with_its_data(started: Set) -> None:
    """`up` starts what died, on the same ports and with what it had stored."""
    endpoints = started.state.endpoints
    Management(endpoints.management_url).create_vhost("stored")
    database = started.running()["postgres"]
    started.kill("rabbitmq")
    assert not services.status(started.directory).ready
    assert started.up() == endpoints
    assert services.status(started.directory).ready
    assert started.running()["postgres"] == database
    assert "stored" in Management(endpoints.management_url).vhosts()


def test_a_killed_database_is_repaired_with_its_rows(started: Set) -> None:
    """`up` gets Postgres past what a killed one leaves behind, and leaves the broker alone."""
    endpoints = started.state.endpoints
    query(endpoints.database_url, "CREATE TABLE survivors AS SELECT 7 AS number")
    broker = started.running()["rabbitmq"]
    started.kill("postgres")
    assert started.up() == endpoints
    assert query(endpoints.database_url, "SELECT number FROM survivors") == 7
    assert started.running()["rabbitmq"] == broker


def test_status_and_env_for_programs(started: Set) -> None:
    """`status --json` says that all is well and hides the password; `env --json` has it."""
    state = started.state
    done = command(["status", "--json"], started.directory)
    found = json.loads(done.stdout)
    assert (done.returncode, found["ready"], found["mode"]) == (0, True, started.mode)
    ports = {service["name"]: service["port"] for service in found["services"]}
    assert ports["rabbitmq"] == state.ports.amqp
    assert all(service["process"] for service in found["services"])
    assert state.password not in done.stdout + done.stderr
    variables = json.loads(command(["env", "--json"], started.directory).stdout)
    assert variables == state.endpoints.variables()
    assert variables["CONSUMER_DATABASE_URL"].startswith("postgresql+asyncpg://")


def test_our_own_variables_do_not_hide_a_dead_server(
    started: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `eval "$(consumer services env)"`, `up` still looks after the servers."""
    for name, value in services.env(started.directory).items():
        monkeypatch.setenv(name, value)
    started.kill("rabbitmq")
    services.up(started.directory)
    found = services.status(started.directory)
    assert (found.mode, found.ready) == (started.mode, True)


def test_servers_listen_on_loopback_only(started: Set) -> None:
    """No port of ours can be reached from another machine."""
    ports = [port for port in started.state.ports.model_dump().values() if port]
    hexadecimal = {f"{port:04X}" for port in ports}
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        addresses |= {row[1] for row in rows if row[3] == "0A" and row[1][-4:] in hexadecimal}
    hosts = {address.partition(":")[0] for address in addresses}
    assert len(addresses) >= 3
    assert hosts <= {"0100007F", "00000000000000000000000001000000"}


def test_another_mode_is_refused_while_services_run(started: Set) -> None:
    """A folder holds one set; changing its mode takes a `down` first."""
    other: StartMode = "local" if started.mode == "docker" else "docker"
    with pytest.raises(services.ServicesError, match="services down"):
        services.up(started.directory, mode=other)


def test_down_keeps_data_and_up_finds_it(started: Set) -> None:
    """`down` stops everything of ours; the next `up` has the data and the password again."""
    endpoints, ports = started.state.endpoints, started.state.ports
    query(endpoints.database_url, "CREATE TABLE kept ()")
    services.down(started.directory)
    services.down(started.directory)
    assert started.running() == {}
    assert not any(listens(port) for port in (ports.amqp, ports.management, ports.database))
    with pytest.raises(services.ServicesError, match="services up"):
        services.env(started.directory)
    assert started.up() == endpoints
    assert query(endpoints.database_url, "SELECT to_regclass('kept')::text") == "kept"


def test_down_leaves_strangers_alone(tmp_path: Path) -> None:
    """A process that has got the pid of a server of ours is not stopped."""
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        seen = identify(stranger.pid, "input()")
        assert seen is not None
        state = ServicesState(mode="local", instance="0" * 16, password="x", data=tmp_path)
        for name in ("rabbitmq", "epmd", "postgres"):
            state = state.started(name, seen.model_copy(update={"marker": state.project}))
        write(tmp_path, state)
        services.down(tmp_path)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()


def test_down_leaves_other_containers_alone(tmp_path: Path) -> None:
    """Only containers of our own Compose project are removed."""
    run = ["docker", "run", "-d", "--rm", "--network", "none", "postgres:18", "sleep", "600"]
    stranger = subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()
    try:
        write(tmp_path, ServicesState(mode="docker", instance="0" * 16, password="x"))
        services.down(tmp_path)
        show = ["docker", "inspect", "-f", "{{.State.Running}}", stranger]
        shown = subprocess.run(show, check=True, capture_output=True, text=True)
        assert shown.stdout.strip() == "true"
    finally:
        subprocess.run(["docker", "rm", "-f", "-v", stranger], check=True, capture_output=True)


@pytest.mark.parametrize("forget", [False, True])
def test_an_up_that_was_killed_half_way_is_finished_by_the_next(
    tmp_path: Path, forget: bool
) -> None:
    """Whatever a killed `up` has started is taken over, also if it could not note it down."""
    whole = [*COMMAND, "up", "--mode", "local", "--dir", str(tmp_path)]
    first = subprocess.Popen(whole, stderr=subprocess.DEVNULL)
    try:

        def broker_is_noted() -> bool:
            state = read(tmp_path)
            return state is not None and "rabbitmq" in state.processes

        assert wait_until(broker_is_noted, timeout_seconds=30)
        first.kill()
        first.wait()
        state = read(tmp_path)
        assert state is not None
        broker = state.processes["rabbitmq"]
        if forget:
            write(tmp_path, state.stopped())
        services.up(tmp_path, mode="local")
        assert services.status(tmp_path).ready
        assert find(broker.marker) == [broker]
    finally:
        first.kill()
        services.down(tmp_path, remove_data=True)
    assert find(broker.marker) == []


def test_a_server_that_cannot_start_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error holds the end of the server's log, and no password."""
    # Stands in for a Postgres that refuses its options; every account can run it.
    binaries = replace(find_binaries(), postgres=Path("/bin/cat"))
    monkeypatch.setattr("consumer.testing.services.local.find_binaries", lambda: binaries)
    try:
        with pytest.raises(
            services.ServicesError, match=r"postgres ended .*(\n.*)?invalid option"
        ) as caught:
            services.up(tmp_path, mode="local")
        state = read(tmp_path)
        assert state is not None
        assert state.password not in str(caught.value)
    finally:
        services.down(tmp_path, remove_data=True)
