"""Business commands over RabbitMQ take effect in Postgres exactly once."""

from typing import TYPE_CHECKING, Any

from consumer.app import App, Queue
from consumer.call import Call
from consumer.command import Command
from consumer.context import Context
from consumer.core.breaker import Breaker
from consumer.core.budget import Budget
from consumer.core.classify import Permanent, Transient
from consumer.dependency import Dependency
from consumer.errors import ConsumerError, DependencyUnavailable, Reject, Retry
from consumer.handler import Handler, Options

if TYPE_CHECKING:
    from consumer.store.outbox_sender import Outbox

__all__ = [
    "App",
    "Breaker",
    "Budget",
    "Call",
    "Command",
    "ConsumerError",
    "Context",
    "Dependency",
    "DependencyUnavailable",
    "Handler",
    "Options",
    "Outbox",
    "Permanent",
    "Queue",
    "Reject",
    "Retry",
    "Transient",
]


def __getattr__(name: str) -> Any:
    # SQLAlchemy takes longer to import than everything else here, and only Outbox needs it.
    if name == "Outbox":
        from consumer.store.outbox_sender import Outbox  # noqa: PLC0415

        return Outbox
    raise AttributeError(f"module 'consumer' has no attribute {name!r}")
