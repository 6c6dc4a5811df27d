"""The application: `consumer worker examples.exchange_rates.app:app` runs it."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx

from consumer import App, Dependency, Queue
from examples.exchange_rates.handlers import Price

RATES_URL = os.environ.get("RATES_URL", "http://127.0.0.1:9001")


@asynccontextmanager
async def rates(app: App) -> AsyncIterator[httpx.AsyncClient]:
    """One client for all calls of a process. It does not retry; the framework does."""
    async with httpx.AsyncClient(base_url=RATES_URL, trust_env=False) as client:
        yield client


app = App(
    "invoices", handlers=[Price], queues=[Queue("invoices", concurrency=4)], lifespan=rates,
    dependencies=[Dependency("rates", timeout=timedelta(seconds=2), max_in_flight_fleet=4)])
