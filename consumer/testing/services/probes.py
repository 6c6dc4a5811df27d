"""Is a service ready? One quick question each; the answer is an error or nothing."""

import socket

import asyncpg

from consumer.testing.services import urls
from consumer.testing.services.errors import ServicesError
from consumer.testing.services.management import Management
from consumer.testing.services.postgres_admin import query

_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_METHOD_FRAME = b"\x01"
_TIMEOUT_SECONDS = 5.0


def broker_accepts(amqp_url: str) -> None:
    """Return when the broker begins an AMQP 0-9-1 handshake.

    With `amqps` only the connection is made, since its certificates are the application's
    business.

    Raises:
        ServicesError: It does not, or not yet.
    """
    host, port = urls.address(amqp_url, source="the AMQP URL")
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS) as connection:
            if amqp_url.startswith("amqps:"):
                return
            connection.sendall(_PROTOCOL_HEADER)
            answer = connection.recv(1)
    except OSError as error:
        raise ServicesError(f"no broker at {host}:{port}: {error}") from None
    if answer != _METHOD_FRAME:
        raise ServicesError(f"what listens at {host}:{port} does not speak AMQP 0-9-1")


def management_answers(management_url: str) -> None:
    """Return when the management API answers for a running node.

    Raises:
        ServicesError: It does not, or not yet.
    """
    Management(management_url, timeout_seconds=_TIMEOUT_SECONDS).answers()


def database_answers(database_url: str) -> None:
    """Return when Postgres has run a query.

    Raises:
        ServicesError: It has not, or not yet.
    """
    host, port = urls.address(database_url, source="the database URL")
    try:
        query(database_url, "SELECT 1", timeout_seconds=_TIMEOUT_SECONDS)
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ServicesError(f"no Postgres at {host}:{port}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    # A ValueError may quote a part of the URL that failed to parse, which may be the password.
    if isinstance(error, ValueError):
        return "its URL is not valid"
    return str(error) or type(error).__name__
