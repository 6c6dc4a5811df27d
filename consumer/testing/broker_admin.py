"""What an operator does to a broker, for tests of how we take it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import httpx

from consumer.testing.services import urls

Permissions = tuple[str, str, str]
"""Regular expressions of what may be configured, written and read."""


class BrokerAdmin:
    """The management API, for one virtual host."""

    def __init__(self, management_url: str, vhost: str) -> None:
        parts = urls.parse(management_url, source="the management URL")
        self.vhost = vhost
        self._v = quote(vhost, safe="")
        self._client = httpx.AsyncClient(
            base_url=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}",
            auth=httpx.BasicAuth(*urls.credentials(management_url)), trust_env=False, timeout=10,
        )

    async def __aenter__(self) -> "BrokerAdmin":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> Any:
        """What the API answers."""
        answer = await self._client.get(path)
        answer.raise_for_status()
        return answer.json()

    async def put(self, path: str, body: object) -> None:
        """The API has accepted `body`."""
        (await self._client.put(path, json=body)).raise_for_status()

    async def delete(self, path: str) -> None:
        """What was there is deleted; it may have been gone."""
        answer = await self._client.delete(path)
        if answer.status_code != httpx.codes.NOT_FOUND:
            answer.raise_for_status()

    async def connections(self) -> list[str]:
        """Names of the open connections to the virtual host."""
        found = await self.get("/api/connections")
        return [c["name"] for c in found if c.get("vhost") == self.vhost]

    async def cut_connections(self) -> None:
        """The connections to the virtual host, of which there is at least one, are closed."""
        await eventually(self.connections)
        for name in await self.connections():
            await self.delete(f"/api/connections/{quote(name, safe='')}")

    async def delete_queue(self, name: str) -> None:
        """The queue is deleted, with what it holds."""
        await self.delete(f"/api/queues/{self._v}/{quote(name, safe='')}")

    async def consumers(self, queue: str) -> int:
        """Number of consumers of the queue."""
        found = await self.get(f"/api/consumers/{self._v}")
        return sum(consumer["queue"]["name"] == queue for consumer in found)

    async def add_user(self, name: str, password: str, permissions: Permissions) -> None:
        """The user may do what `permissions` say in the virtual host."""
        await self.put(f"/api/users/{name}", {"password": password, "tags": ""})
        configure, write, read = permissions
        await self.put(f"/api/permissions/{self._v}/{name}",
                       {"configure": configure, "write": write, "read": read})

    async def set_policy(self, name: str, pattern: str, definition: dict[str, Any]) -> None:
        """The policy is in force for the queues that match `pattern`."""
        await self.put(f"/api/policies/{self._v}/{name}",
                       {"pattern": pattern, "definition": definition, "apply-to": "queues"})


async def eventually(
    condition: Callable[[], Awaitable[object]] | Callable[[], object], timeout_s: float = 30.0
) -> None:
    """Return as soon as `condition` is true.

    Raises:
        TimeoutError: It was not within `timeout_s` seconds.
    """
    async with asyncio.timeout(timeout_s):
        while True:
            result = condition()
            if isinstance(result, Awaitable):
                result = await result
            if result:
                return
            await asyncio.sleep(0.05)
