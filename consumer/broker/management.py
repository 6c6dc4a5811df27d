"""What the management API says about a virtual host.

It tells arguments, bindings and policies, which AMQP does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)
from yarl import URL

from consumer.errors import ConfigurationError, InfrastructureError


class ManagementUnavailable(InfrastructureError):
    """The management API does not answer, or refuses to."""


class _NotYet(Exception):
    """It answered that it cannot answer now."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a virtual host holds, as the API describes it."""

    exchanges: Mapping[str, Mapping[str, Any]]
    queues: Mapping[str, Mapping[str, Any]]
    bindings: frozenset[tuple[str, str, str, str]]
    """(exchange, routing key, destination, kind of the destination)"""


async def holdings(management_url: str, vhost: str, *, timeout_s: float = 10.0) -> Holdings:
    """What `vhost` holds now.

    Args:
        management_url: `http://user:password@host:port`.
        vhost: The virtual host.
        timeout_s: Longest time for one request, in seconds.

    Raises:
        ConfigurationError: The URL is not valid. Nothing of it is in the message.
        ManagementUnavailable: The API does not answer, or the user may not see the virtual host.
    """
    try:
        url = URL(management_url)
        auth = httpx.BasicAuth(url.user or "", url.password or "")
        address = str(url.with_user(None).origin())
    except ValueError:
        raise ConfigurationError(
            "invalid URL of the management API, is the password percent-encoded?"
        ) from None
    async with httpx.AsyncClient(
        base_url=address, auth=auth, timeout=timeout_s, trust_env=False
    ) as client:
        exchanges, queues, bindings = [
            await _get(client, f"/api/{kind}/{quote(vhost, safe='')}")
            for kind in ("exchanges", "queues", "bindings")
        ]
    return Holdings(
        {item["name"]: item for item in exchanges},
        {item["name"]: item for item in queues},
        frozenset(
            (b["source"], b["routing_key"], b["destination"], b["destination_type"])
            for b in bindings
        ),
    )


async def _get(client: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    async def once() -> list[dict[str, Any]]:
        try:
            answer = await client.get(path)
        except httpx.HTTPError as error:
            raise _NotYet(f"{type(error).__name__}") from None
        if answer.status_code in (500, 503):  # a node that has just started
            raise _NotYet(f"status {answer.status_code}")
        if not answer.is_success:
            raise ManagementUnavailable(
                f"the management API answers {path} with status {answer.status_code}",
                remedy="its user needs the tag management and access to the virtual host",
            )
        found: list[dict[str, Any]] = answer.json()
        return found

    try:
        return await AsyncRetrying(
            retry=retry_if_exception_type(_NotYet), stop=stop_after_attempt(4), reraise=True,
            wait=wait_random_exponential(0.2, max=2),
        )(once)
    except _NotYet as error:
        raise ManagementUnavailable(f"the management API does not answer: {error}") from None
