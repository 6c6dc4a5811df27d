"""`up`, `down`, `status` and `env` of a services folder."""

from collections.abc import Callable
from pathlib import Path

from consumer.testing.services.choice import Mode, choose_mode
from consumer.testing.services.docker import start_docker, stop_docker
from consumer.testing.services.docker_engine import containers, engine_answers
from consumer.testing.services.endpoints import Endpoints, from_environment
from consumer.testing.services.errors import (
    DOWN_FIRST,
    SET_BOTH,
    START_FIRST,
    ServicesError,
)
from consumer.testing.services.folder import prepare
from consumer.testing.services.local import start_local, stop_local
from consumer.testing.services.local_plan import adopt
from consumer.testing.services.lock import exclusive
from consumer.testing.services.state import ServicesState, new_state, read, write
from consumer.testing.services.status import ServicesStatus, status_of


def _silent(_line: str) -> None:
    pass


def up(
    directory: Path,
    *,
    mode: Mode = "auto",
    install: bool = False,
    progress: Callable[[str], None] = _silent,
) -> Endpoints:
    """Make a RabbitMQ and a Postgres available; both answer afterwards. Blocks; idempotent.

    What runs already is kept, what died is started again with its data, and two calls for the
    same folder run one after the other.

    Args:
        directory: The folder that keeps state and, in local mode, data. Created if missing.
        mode: `auto` takes the environment's URLs, else Docker, else this machine's programs;
            the others allow one way only. URLs from the environment are not checked.
        install: Allow `auto` and `local` to install the distribution's packages, as root.
        progress: Called with one line per step.

    Raises:
        ServicesError: There is no way, or a server did not get ready.
    """
    directory = prepare(directory)
    if (named := _named(mode, directory)) is not None:
        progress("using the services that the environment names; nothing is started")
        return named
    with exclusive(directory, progress):
        state = read(directory)
        running = state is not None and _runs(state)
        if state and running and mode not in ("auto", state.mode):
            raise ServicesError(f"services are up in {state.mode} mode", remedy=DOWN_FIRST)
        if state and running and _is_complete(directory, state):
            progress("services are up already")
            return state.endpoints
        if not running:
            state = _choose(state, mode, install=install, progress=progress)
        assert state is not None
        start = start_docker if state.mode == "docker" else start_local
        state = start(directory, state, progress)
        progress("RabbitMQ and Postgres are ready")
        return state.endpoints


def down(
    directory: Path,
    *,
    remove_data: bool = False,
    progress: Callable[[str], None] = _silent,
) -> None:
    """Stop what `up` has started, and nothing else. Blocks until it has ended; idempotent.

    Args:
        directory: The folder given to `up`.
        remove_data: Delete databases and queues too; otherwise the next `up` finds them.
        progress: Called with one line per step.

    Raises:
        ServicesError: Compose failed.
    """
    if read(directory) is None:
        return
    directory = directory.resolve()
    with exclusive(directory, progress):
        state = read(directory)
        if state is None:
            return
        progress(f"stopping the services of {directory}")
        stop = stop_docker if state.mode == "docker" else stop_local
        write(directory, stop(state, remove_data=remove_data))
        if remove_data:
            (directory / "state.json").unlink()


def status(directory: Path) -> ServicesStatus:
    """What runs and what answers, asked now; changes nothing.

    Raises:
        ServicesError: The environment names one service only, or the state file is broken.
    """
    if (named := _named("auto", directory)) is not None:
        return status_of(directory, named, None)
    state = read(directory)
    if state is None:
        return ServicesStatus(None, directory, ())
    return status_of(directory, state.endpoints, state)


def env(directory: Path) -> dict[str, str]:
    """The environment variables that lead a program to the services. Holds the password.

    Raises:
        ServicesError: The services are not up.
    """
    if (named := _named("auto", directory)) is not None:
        return named.variables()
    state = read(directory)
    if state is None or not _runs(state):
        raise ServicesError(f"no services are up for {directory}", remedy=START_FIRST)
    return state.endpoints.variables()


def _named(mode: Mode, directory: Path) -> Endpoints | None:
    """The services the environment names, unless they are those of this very folder.

    After `eval "$(consumer services env)"` the variables are ours, and `up` has to look after
    what they lead to.
    """
    if mode in ("docker", "local"):
        return None
    named = from_environment()
    if mode == "env":
        if named is None:
            raise ServicesError("the environment names no services", remedy=SET_BOTH)
        return named
    state = read(directory)
    ours = named and state and state.password in named.amqp_url
    return None if ours else named


def _choose(
    state: ServicesState | None, mode: Mode, *, install: bool, progress: Callable[[str], None]
) -> ServicesState:
    """What to start: as before where that works, else a new way with the same password."""
    chosen = choose_mode(
        mode, used_before=state.mode if state else None, install=install, progress=progress
    )
    return state.model_copy(update={"mode": chosen}) if state else new_state(chosen)


def _runs(state: ServicesState) -> bool:
    if state.mode == "local":
        return bool(adopt(state).processes)
    return engine_answers() and bool(containers(state.project))


def _is_complete(directory: Path, state: ServicesState) -> bool:
    nothing_lost = state.mode == "docker" or "epmd" in adopt(state).processes
    return nothing_lost and status_of(directory, state.endpoints, state).ready
