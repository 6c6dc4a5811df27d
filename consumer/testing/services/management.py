"""RabbitMQ's management API, as far as tests and start-up need it."""

from urllib.parse import quote

import httpx

from consumer.testing.services import urls
from consumer.testing.services.errors import ServicesError


class Management:
    """A management API, addressed by `http://user:password@host:port`."""

    def __init__(self, url: str, *, timeout_seconds: float = 10.0) -> None:
        parts = urls.parse(url, source="the management URL")
        self.user, password = urls.credentials(url)
        self._address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._auth = httpx.BasicAuth(self.user, password)
        self._timeout_seconds = timeout_seconds

    def answers(self) -> None:
        """Return when the API answers for a node that runs; one request.

        Raises:
            ServicesError: It does not, or not yet: a fresh node answers 500 for a moment.
        """
        self._request("GET", "/api/overview")

    def create_vhost(self, name: str) -> None:
        """Create a virtual host in which this API's user may do everything."""
        vhost = quote(name, safe="")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self._request("PUT", f"/api/vhosts/{vhost}", {})
        self._request("PUT", f"/api/permissions/{vhost}/{quote(self.user, safe='')}", everything)

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with all it holds; its connections are closed."""
        self._request("DELETE", f"/api/vhosts/{quote(name, safe='')}")

    def vhosts(self) -> list[str]:
        """The names of all virtual hosts."""
        return [vhost["name"] for vhost in self._request("GET", "/api/vhosts").json()]

    def _request(self, method: str, path: str, body: object = None) -> httpx.Response:
        try:
            # Proxies are for the outside world; the services are on this machine or near it.
            with httpx.Client(trust_env=False, timeout=self._timeout_seconds) as client:
                url = self._address + path
                answer = client.request(method, url, json=body, auth=self._auth)
        except httpx.HTTPError as error:
            raise self._failed(method, path, str(error) or type(error).__name__) from None
        if not answer.is_success:
            raise self._failed(method, path, f"status {answer.status_code}")
        return answer

    def _failed(self, method: str, path: str, reason: str) -> ServicesError:
        return ServicesError(
            f"the management API at {self._address} did not answer {method} {path}: {reason}"
        )
