"""A real RabbitMQ and a real Postgres for development and tests.

They come, in this order, from URLs in the environment, from a Docker engine, from server
programs on this machine, or from the distribution's packages. Everything listens on the
loopback interface only, and what `up` has started, `down` stops.
"""

from consumer.testing.services.choice import Mode
from consumer.testing.services.endpoints import Endpoints
from consumer.testing.services.errors import ServicesError
from consumer.testing.services.folder import default_directory
from consumer.testing.services.lifecycle import down, env, status, up
from consumer.testing.services.status import ServicesStatus, ServiceStatus

__all__ = [
    "Endpoints",
    "Mode",
    "ServiceStatus",
    "ServicesError",
    "ServicesStatus",
    "default_directory",
    "down",
    "env",
    "status",
    "up",
]
