"""Local mode: RabbitMQ and Postgres as private processes of this machine's programs."""

import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from consumer.testing.services.binaries import Binaries, find_binaries
from consumer.testing.services.errors import INSTALL_SOMETHING, ServicesError
from consumer.testing.services.local_plan import adopt, with_data, with_ports
from consumer.testing.services.local_postgres import ensure_database, prepare_postgres
from consumer.testing.services.local_rabbitmq import prepare_rabbitmq
from consumer.testing.services.probes import (
    broker_accepts,
    database_answers,
    management_answers,
)
from consumer.testing.services.process import is_running, stop, tail
from consumer.testing.services.readiness import wait_ready
from consumer.testing.services.spawn import Server, spawn
from consumer.testing.services.state import ServicesState, write

# The broker before its epmd, without which it could not say goodbye.
_STOP_ORDER = (
    ("rabbitmq", signal.SIGTERM),
    ("epmd", signal.SIGTERM),
    ("postgres", signal.SIGINT),  # Postgres's "fast" shutdown
)
_PATIENCE_SECONDS = 20.0


def required_binaries() -> Binaries:
    """This machine's server programs.

    Raises:
        ServicesError: One of them is missing; names it and the remedies.
    """
    binaries = find_binaries()
    if missing := binaries.missing():
        raise ServicesError(
            f"this machine has no {' and no '.join(missing)}", remedy=INSTALL_SOMETHING
        )
    return binaries


def start_local(
    directory: Path, state: ServicesState, progress: Callable[[str], None]
) -> ServicesState:
    """Start what does not run yet, and return when all of it is ready.

    What was started is in the state file before it is waited for, so that whatever happens in
    between, the next command finds it.

    Raises:
        ServicesError: A program is missing, or a server did not get ready.
    """
    binaries = required_binaries()
    state = with_ports(with_data(directory, adopt(state)))
    write(directory, state)
    data = state.data or directory
    servers = prepare_rabbitmq(state, data, binaries)
    for server in servers:
        state = _ensure_started(directory, state, server, progress)
    postgres = prepare_postgres(state, data, binaries)
    state = _ensure_started(directory, state, postgres, progress)
    _wait(state, postgres, partial(database_answers, _server_url(state)))
    ensure_database(state)
    _wait(
        state,
        servers[-1],
        partial(broker_accepts, state.endpoints.amqp_url),
        partial(management_answers, state.endpoints.management_url),
    )
    return state


def stop_local(state: ServicesState, *, remove_data: bool = False) -> ServicesState:
    """Stop every process of this state, and no other; blocks until they are gone.

    With `remove_data` the databases, queues and logs are deleted too.
    """
    state = adopt(state)
    for name, polite in _STOP_ORDER:
        if (process := state.processes.get(name)) is not None:
            # The broker takes seconds to put in order what is about to be deleted.
            first = signal.SIGKILL if remove_data and name == "rabbitmq" else polite
            stop(process, polite=first, patience_seconds=_PATIENCE_SECONDS)
    if remove_data and state.data is not None:
        _remove_data(state, state.data)
    return state.stopped()


def _remove_data(state: ServicesState, data: Path) -> None:
    for name in ("rabbitmq", "postgres"):
        shutil.rmtree(data / name, ignore_errors=True)
    if data.name == state.project:
        shutil.rmtree(data, ignore_errors=True)


def _ensure_started(
    directory: Path, state: ServicesState, server: Server, progress: Callable[[str], None]
) -> ServicesState:
    if is_running(state.processes.get(server.name)):
        return state
    progress(f"starting {server.name}, log in {server.log}")
    state = state.started(server.name, spawn(server))
    write(directory, state)
    return state


def _wait(state: ServicesState, server: Server, *probes: Callable[[], None]) -> None:
    process = state.processes[server.name]
    wait_ready(
        server.name,
        *probes,
        running=partial(is_running, process),
        log=lambda: tail(server.log).replace(state.password, "***"),
    )


def _server_url(state: ServicesState) -> str:
    return state.endpoints.database_url.rpartition("/")[0] + "/postgres"
