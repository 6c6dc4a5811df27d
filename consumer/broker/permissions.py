"""The least permissions each kind of user needs, as RabbitMQ's three regular expressions.

`docs/permissions.md` explains them.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Permissions(NamedTuple):
    """What a user may configure, write to and read from in a virtual host."""

    configure: str
    write: str
    read: str


_NOTHING = "^$"


def worker(prefix: str, queues: Iterable[str], *, replies: bool = False) -> Permissions:
    """For worker processes: consume their queues and the unroutable one, publish, relay.

    Args:
        replies: They answer requesters too. Replies go through the default exchange, which leads
            to every queue of the virtual host. Where permissions are concerned its name is
            `amq.default` (https://www.rabbitmq.com/docs/access-control).
    """
    unroutable = re.escape(f"{prefix}.unroutable")
    return Permissions(
        _NOTHING, _exchanges(prefix, replies=replies), f"^({_queues(queues)}|{unroutable})$")


def relay(prefix: str) -> Permissions:
    """For a process that publishes outbox rows and consumes nothing."""
    return Permissions(_NOTHING, _exchanges(prefix), _NOTHING)


def producer(prefix: str) -> Permissions:
    """For applications that send commands."""
    return Permissions(_NOTHING, f"^{re.escape(prefix)}\\.commands$", _NOTHING)


def topology_job(prefix: str, queues: Iterable[str]) -> Permissions:
    """For the job that applies the topology: binding takes write and read as well."""
    ours = f"{re.escape(prefix)}\\.(commands|unroutable|delay\\..*)"
    everything = f"^({ours}|{_queues(queues)})$"
    return Permissions(everything, everything, everything)


def _exchanges(prefix: str, *, replies: bool = False) -> str:
    ours = f"{re.escape(prefix)}\\.(commands|delay\\..*)"
    return f"^({ours}|amq\\.default)$" if replies else f"^{ours}$"


def _queues(queues: Iterable[str]) -> str:
    names = "|".join(re.escape(name) for name in queues)
    return f"({names})(\\.replay|\\.dead)?"
