"""The application under test. The environment says how it is protected:

    OVERLOAD_CONFIGURATION   a name of `plan.CONFIGURATIONS`
    OVERLOAD_PROVIDER_URL    where the provider listens
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import aiohttp
from sqlalchemy import text

from benchmarks.overload.plan import (
    BUDGET_CAPACITY,
    BUDGET_FLOOR_PER_MINUTE,
    BUDGET_RATIO,
    CALL_TIMEOUT_SECONDS,
    CONFIGURATIONS,
    DEADLINE_SECONDS,
    MAX_ATTEMPTS,
    MIN_ATTEMPT_SECONDS,
    NAIVE_CONCURRENCY,
    SLOTS,
    SLOTTED_CONCURRENCY,
    Configuration,
)
from consumer import App, Command, Context, Handler, Options, Queue
from consumer.core.breaker import Breaker
from consumer.core.budget import Budget
from consumer.dependency import Dependency

QUEUE = "charges"
_WRITE = text("INSERT INTO charge (key) VALUES (:key)")
_CALL_TIMEOUT = timedelta(seconds=CALL_TIMEOUT_SECONDS)


class ChargeCard(Command, type="overload.charge"):
    """Charge a card."""

    card: str


_NAIVE = Options(
    max_attempts=MAX_ATTEMPTS,
    backoff_base=timedelta(milliseconds=200),
    backoff_cap=timedelta(seconds=1),
    attempt_timeout=timedelta(seconds=DEADLINE_SECONDS),
    group_size=1,
    max_age=timedelta(seconds=DEADLINE_SECONDS + 1),  # timestamps of messages are whole seconds
    min_attempt=timedelta(seconds=MIN_ATTEMPT_SECONDS),
)


class NaiveCharge(Handler[ChargeCard]):
    """Calls with a timeout and leaves the rest to retries."""

    name, queue, options = "overload.charge", QUEUE, _NAIVE

    async def handle(self, command: ChargeCard, context: Context) -> None:
        client: aiohttp.ClientSession = context.resources
        async with client.post("/charge", headers={"x-command": context.key}) as response:
            response.raise_for_status()
        await context.session.execute(_WRITE, {"key": context.key})


class Charge(Handler[ChargeCard]):
    """Calls as the dependency's limits allow. A slot is held around the call only."""

    name, queue, dependencies = "overload.charge", QUEUE, ("psp",)
    options = replace(_NAIVE, hold_slots="call")

    async def handle(self, command: ChargeCard, context: Context) -> None:
        client: aiohttp.ClientSession = context.resources
        async with context.call("psp") as call, client.post(
            "/charge", timeout=aiohttp.ClientTimeout(total=call.timeout_s),
            headers={"x-command": context.key, **call.headers},
        ) as response:
            response.raise_for_status()
        await context.session.execute(_WRITE, {"key": context.key})


def application(configuration: Configuration, provider_url: str) -> App:
    """The app of a configuration."""

    @asynccontextmanager
    async def client(app: App) -> AsyncIterator[aiohttp.ClientSession]:
        async with aiohttp.ClientSession(
            provider_url, timeout=aiohttp.ClientTimeout(total=CALL_TIMEOUT_SECONDS),
            connector=aiohttp.TCPConnector(limit=0),
        ) as opened:
            yield opened

    concurrency = SLOTTED_CONCURRENCY if configuration.slots else NAIVE_CONCURRENCY
    return App(
        "overload", handlers=[Charge if configuration.protected else NaiveCharge],
        queues=[Queue(QUEUE, concurrency=concurrency, prefetch=concurrency + 2)],
        dependencies=[_provider(configuration)], retry_budget=None, lifespan=client,
    )


def _provider(configuration: Configuration) -> Dependency:
    budget = Budget(ratio=BUDGET_RATIO, capacity=BUDGET_CAPACITY,
                    floor_per_minute=BUDGET_FLOOR_PER_MINUTE)
    return Dependency(
        "psp", timeout=_CALL_TIMEOUT,
        max_in_flight_fleet=SLOTS if configuration.slots else None,
        budget=budget if configuration.budget else None,
        breaker=Breaker() if configuration.breaker else None,
    )


app = application(CONFIGURATIONS[os.environ.get("OVERLOAD_CONFIGURATION", "a")],
                  os.environ.get("OVERLOAD_PROVIDER_URL", ""))
