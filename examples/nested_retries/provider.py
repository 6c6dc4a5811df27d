"""The payment provider's HTTP API, in a client like many: it tries again by itself."""

from collections.abc import Mapping

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_fixed

ATTEMPTS = 3
"""How often the client tries one call."""


class Provider:
    """Charges customers.

    Args:
        attempts: How often one call is tried, the first included.
    """

    def __init__(self, http: httpx.AsyncClient, attempts: int) -> None:
        self._http, self._attempts = http, attempts

    async def charge(self, order_id: str, amount_cents: int, *, idempotency_key: str,
                     headers: Mapping[str, str], timeout_s: float) -> None:
        """The customer was charged once for this idempotency key, however often it is asked for.

        Raises:
            httpx.HTTPError: The provider could not be reached, or refused.
        """
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(httpx.TransportError), reraise=True,
            stop=stop_after_attempt(self._attempts), wait=wait_fixed(0.1),
        ):
            with attempt:
                answer = await self._http.post(
                    "/charges", json={"order": order_id, "cents": amount_cents},
                    headers={**headers, "idempotency-key": idempotency_key},
                    timeout=timeout_s / self._attempts)
                answer.raise_for_status()
