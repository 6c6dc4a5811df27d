"""Services in throw-away containers, for the length of a `with` block."""

import os
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, cast

from consumer.testing.services import urls
from consumer.testing.services.docker_engine import engine_answers
from consumer.testing.services.endpoints import Endpoints
from consumer.testing.services.errors import ServicesError
from consumer.testing.services.probes import (
    broker_accepts,
    database_answers,
    management_answers,
)
from consumer.testing.services.process import wait_until
from consumer.testing.services.readiness import is_ready
from consumer.testing.services.state import DATABASE, MAX_CONNECTIONS, USER

_READY_SECONDS = 60.0
_AMQP, _MANAGEMENT, _POSTGRES = 5672, 15672, 5432


def containers_lack() -> list[str]:
    """What is missing on this machine for `throwaway_containers`, in words; empty if nothing."""
    lacks = []
    if find_spec("testcontainers") is None or find_spec("pika") is None:
        lacks.append("testcontainers[rabbitmq] package")
    if not engine_answers():
        lacks.append("Docker engine that answers")
    return lacks


@contextmanager
def throwaway_containers() -> Iterator[Endpoints]:
    """RabbitMQ and Postgres in containers that are removed at the end, whatever ends the block.

    The images are those of `CONSUMER_RABBITMQ_IMAGE` and `CONSUMER_POSTGRES_IMAGE`; one that is
    on the machine is not pulled.

    Raises:
        ServicesError: A server did not get ready.
    """
    password = secrets.token_urlsafe(18)
    database, broker = _containers(password)
    _publish_on_loopback(database, _POSTGRES)
    _publish_on_loopback(broker, _AMQP, _MANAGEMENT)
    with database, broker:

        def url(scheme: str, container: Any, port: int, path: str = "") -> str:
            outside = container.get_exposed_port(port)
            return urls.build(scheme, user=USER, password=password, port=outside, path=path)

        endpoints = Endpoints(
            url("amqp", broker, _AMQP, "/"),
            url("postgresql+asyncpg", database, _POSTGRES, f"/{DATABASE}"),
            url("http", broker, _MANAGEMENT),
        )
        _wait(endpoints)
        yield endpoints


def _containers(password: str) -> tuple[Any, Any]:
    """Postgres and RabbitMQ, not started yet."""
    # Read while testcontainers is imported, hence before it. Its reaper would be one more image
    # to pull, and inside of a container it would otherwise dial the bridge instead of loopback.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    os.environ.setdefault("TESTCONTAINERS_CONNECTION_MODE", "docker_host")
    with warnings.catch_warnings():
        # It warns about its own decorators, which is none of the user's concern.
        warnings.simplefilter("ignore", DeprecationWarning)
        from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415
        from testcontainers.community.rabbitmq import RabbitMqContainer  # noqa: PLC0415

    database = PostgresContainer(
        os.environ.get("CONSUMER_POSTGRES_IMAGE", "postgres:18"),
        username=USER,
        password=password,
        dbname=DATABASE,
    ).with_command(f"-c max_connections={MAX_CONNECTIONS}")
    broker = RabbitMqContainer(
        os.environ.get("CONSUMER_RABBITMQ_IMAGE", "rabbitmq:4.3-management"),
        username=USER,
        password=password,
    )
    return database, broker


def _publish_on_loopback(container: Any, *ports: int) -> None:
    # docker-py takes an address alone for "any free port of that address".
    published = cast(dict[str, object], container.ports)
    published.clear()
    published.update({str(port): ("127.0.0.1",) for port in ports})


def _wait(endpoints: Endpoints) -> None:
    def ready() -> bool:
        return is_ready(
            lambda: broker_accepts(endpoints.amqp_url),
            lambda: management_answers(endpoints.management_url),
            lambda: database_answers(endpoints.database_url),
        )

    if not wait_until(ready, timeout_seconds=_READY_SECONDS):
        raise ServicesError(f"the containers were not ready after {_READY_SECONDS:.0f} s")
