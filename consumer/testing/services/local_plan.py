"""Local mode: what runs already, where the data lives, which ports to use."""

from pathlib import Path

from consumer.testing.services.account import account_for, can_reach
from consumer.testing.services.ports import choose
from consumer.testing.services.process import ProcessRecord, find, is_running
from consumer.testing.services.state import Ports, ServicesState

# Reached by every account, and kept over a restart of the machine.
_OUTSIDE = Path("/var/tmp")  # noqa: S108 - the name below it is random

_PORT_OWNERS = {
    "amqp": "rabbitmq",
    "management": "rabbitmq",
    "distribution": "rabbitmq",
    "epmd": "epmd",
    "database": "postgres",
}


def adopt(state: ServicesState) -> ServicesState:
    """The state as it is: without processes that ended, with those a killed `up` had started."""
    running: dict[str, ProcessRecord] = {}
    for name, marker in _markers(state).items():
        recorded = state.processes.get(name)
        if recorded is not None and is_running(recorded):
            running[name] = recorded
        elif found := find(marker):
            running[name] = found[0]
    return state.model_copy(update={"processes": running})


def _markers(state: ServicesState) -> dict[str, str]:
    word = f"consumer-{state.instance}"
    markers = {"rabbitmq": word, "postgres": f"cluster_name={word}"}
    if state.data is not None:
        markers["epmd"] = str(state.data / "rabbitmq" / "epmd")
    return markers


def with_data(directory: Path, state: ServicesState) -> ServicesState:
    """Decide where the data lives: in the folder, or where the servers' accounts get to it."""
    if state.data is not None and state.data.is_dir():
        return state
    data = directory
    if not all(can_reach(account_for(server), directory) for server in ("rabbitmq", "postgres")):
        data = _OUTSIDE / state.project
        data.mkdir(mode=0o711, exist_ok=True)
    return state.model_copy(update={"data": data})


def with_ports(state: ServicesState) -> ServicesState:
    """Keep the ports of what runs; replace those that someone else has taken meanwhile."""
    chosen: dict[str, int] = {}
    for name, owner in _PORT_OWNERS.items():
        port: int = getattr(state.ports, name)
        keep = port and owner in state.processes
        chosen[name] = port if keep else choose(port or None, chosen.values())
    return state.model_copy(update={"ports": Ports(**chosen)})
