"""What runs and what answers, without secrets."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from consumer.testing.services import urls
from consumer.testing.services.docker_engine import containers, engine_answers
from consumer.testing.services.endpoints import Endpoints
from consumer.testing.services.local_plan import adopt
from consumer.testing.services.probes import (
    broker_accepts,
    database_answers,
    management_answers,
)
from consumer.testing.services.readiness import is_ready
from consumer.testing.services.state import ServicesState


@dataclass(frozen=True)
class ServiceStatus:
    """One service.

    `process` is `pid 123` or `container 1a2b3c`; None when nothing of ours runs, as with
    services that the environment names.
    """

    name: str
    host: str
    port: int
    ready: bool
    process: str | None


@dataclass(frozen=True)
class ServicesStatus:
    """All services of a folder; `mode` is None where `up` was never run."""

    mode: Literal["docker", "local", "env"] | None
    directory: Path
    services: tuple[ServiceStatus, ...]

    @property
    def ready(self) -> bool:
        """Whether everything answers."""
        return bool(self.services) and all(service.ready for service in self.services)

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {**asdict(self), "directory": str(self.directory), "ready": self.ready}


def status_of(directory: Path, endpoints: Endpoints, state: ServicesState | None) -> ServicesStatus:
    """Ask every service once; takes at most a few seconds and changes nothing.

    Args:
        directory: The services folder.
        endpoints: Where to ask.
        state: What `up` has started; None for services that the environment names.
    """
    processes = _processes(state) if state else {}
    questions: dict[str, tuple[str, str, Callable[[str], None]]] = {
        "rabbitmq": (endpoints.amqp_url, "rabbitmq", broker_accepts),
        "management": (endpoints.management_url, "rabbitmq", management_answers),
        "postgres": (endpoints.database_url, "postgres", database_answers),
    }
    services = []
    for name, (url, owner, probe) in questions.items():
        host, port = urls.address(url)
        process = processes.get(owner)
        # Somebody else may listen on the port of a server of ours that does not run.
        ready = (state is None or process is not None) and is_ready(partial(probe, url))
        services.append(ServiceStatus(name, host, port, ready, process))
    return ServicesStatus(state.mode if state else "env", directory, tuple(services))


def _processes(state: ServicesState) -> dict[str, str]:
    if state.mode == "local":
        running = adopt(state).processes
        return {name: f"pid {process.pid}" for name, process in running.items()}
    if not engine_answers():
        return {}
    return {name: f"container {id_}" for name, id_ in containers(state.project).items()}
