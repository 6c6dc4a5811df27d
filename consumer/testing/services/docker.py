"""Docker mode: both servers as containers of one Compose project."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from consumer.testing.services.docker_engine import (
    compose_command,
    compose_file,
    containers,
    log_tail,
    run,
)
from consumer.testing.services.errors import ServicesError
from consumer.testing.services.ports import choose
from consumer.testing.services.probes import (
    broker_accepts,
    database_answers,
    management_answers,
)
from consumer.testing.services.readiness import wait_ready
from consumer.testing.services.state import Ports, ServicesState, write

_CHANGE_SECONDS = 900.0  # may have to pull images
_LOOK_AGAIN_SECONDS = 2.0
_STANDARD_PORTS = {"amqp": 5672, "management": 15672, "database": 5432}
_PORT_OWNERS = {"amqp": "rabbitmq", "management": "rabbitmq", "database": "postgres"}


def start_docker(
    directory: Path, state: ServicesState, progress: Callable[[str], None]
) -> ServicesState:
    """Create or start the containers that do not run, and return when both are ready.

    Raises:
        ServicesError: Compose failed, or a server did not get ready.
    """
    state = _choose_ports(state)
    write(directory, state)
    progress(f"starting the containers of Compose project {state.project}")
    _compose(state, "up", "-d")
    ends = state.endpoints
    _wait(state, "postgres", partial(database_answers, ends.database_url))
    _wait(
        state,
        "rabbitmq",
        partial(broker_accepts, ends.amqp_url),
        partial(management_answers, ends.management_url),
    )
    return state


def stop_docker(state: ServicesState, *, remove_data: bool = False) -> ServicesState:
    """Stop and remove the project's containers; its volumes only if the data shall go."""
    _compose(state, "down", "--timeout", "20", *(["--volumes"] if remove_data else []))
    return state.stopped()


def _choose_ports(state: ServicesState) -> ServicesState:
    """Keep the ports of what runs; else the standard ones where they are free."""
    running = containers(state.project)
    chosen: dict[str, int] = {}
    for name, owner in _PORT_OWNERS.items():
        port: int = getattr(state.ports, name) or _STANDARD_PORTS[name]
        chosen[name] = port if owner in running else choose(port, chosen.values())
    return state.model_copy(update={"ports": Ports(**chosen)})


def _compose(state: ServicesState, *arguments: str) -> None:
    command = compose_command()
    if command is None:
        raise ServicesError(
            "Docker is here but neither `docker compose` nor `docker-compose` is",
            remedy="install the Compose plugin of Docker",
        )
    environment = {
        "CONSUMER_PASSWORD": state.password,
        "CONSUMER_AMQP_PORT": str(state.ports.amqp),
        "CONSUMER_MANAGEMENT_PORT": str(state.ports.management),
        "CONSUMER_DATABASE_PORT": str(state.ports.database),
    }
    whole = [*command, "-p", state.project, "-f", str(compose_file()), *arguments]
    done = run(whole, timeout_seconds=_CHANGE_SECONDS, extra=environment)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().replace(state.password, "***")
        raise ServicesError(f"`{' '.join(command)} {arguments[0]}` failed:\n{said}")


def _wait(state: ServicesState, service: str, *probes: Callable[[], None]) -> None:
    looked, running = time.monotonic(), True

    def still_running() -> bool:
        # Asking Docker costs much more than asking the server.
        nonlocal looked, running
        if time.monotonic() - looked > _LOOK_AGAIN_SECONDS:
            looked, running = time.monotonic(), service in containers(state.project)
        return running

    def log() -> str:
        return log_tail(state.project, service).replace(state.password, "***")

    wait_ready(service, *probes, running=still_running, log=log)
