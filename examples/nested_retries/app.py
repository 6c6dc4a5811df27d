"""Retries in three places, and the same application with retries in one.

`consumer audit` counts 27 attempts on the way to the provider in `app`, and 3 in `mended`.
"""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

import httpx

from consumer import App, Dependency, Queue
from examples.nested_retries.handlers import Charge
from examples.nested_retries.provider import ATTEMPTS, Provider

PROVIDER_URL = os.environ.get("PROVIDER_URL", "http://127.0.0.1:9000")
QUEUES = (Queue("charges", concurrency=4),)
TIMEOUT = timedelta(seconds=10)


def provider(attempts: int) -> Callable[[App], AbstractAsyncContextManager[Provider]]:
    """A lifespan that opens a client which tries each call so often."""
    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[Provider]:
        async with httpx.AsyncClient(base_url=PROVIDER_URL) as http:
            yield Provider(http, attempts)

    return lifespan


app = App(
    "shop", handlers=[Charge], queues=QUEUES, lifespan=provider(ATTEMPTS),
    dependencies=[Dependency(
        "psp", attempts={"client library": ATTEMPTS, "service mesh": 3}, timeout=TIMEOUT)])

mended = App(
    "shop", handlers=[Charge], queues=QUEUES, lifespan=provider(1),
    dependencies=[Dependency("psp", timeout=TIMEOUT)])
