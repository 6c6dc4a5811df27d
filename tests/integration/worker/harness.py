"""One application on real services, driven from a test."""

import asyncio
import inspect
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg
import httpx
from postbox import Found, Post, publish, take
from sqlalchemy import text
from structlog.testing import capture_logs

from consumer import App, Context, Options
from consumer.broker.declare import apply
from consumer.broker.depths import Depth, depths
from consumer.compose import run_worker
from consumer.core.topology import plan
from consumer.exit_codes import ExitCode
from consumer.settings import Settings
from consumer.store import topology
from consumer.store.address import address_of
from consumer.store.sql import Schema
from consumer.worker.link import ChildLink

FAST = Options(backoff_base=timedelta(milliseconds=50), backoff_cap=timedelta(milliseconds=200))
SCHEMA = Schema()


async def effect(context: Context, value: str = "") -> None:
    """What a handler does: one row, in its transaction."""
    await context.session.execute(
        text("INSERT INTO effect (handler, key, value) VALUES (:handler, :key, :value)"),
        {"handler": context.scope, "key": context.key, "value": value})


@dataclass
class Running:
    """A worker in this process."""

    task: "asyncio.Task[ExitCode]"
    health_port: int

    async def unready(self) -> dict[str, str]:
        """Why it is not ready; nothing if it is."""
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://127.0.0.1:{self.health_port}/ready")
        return dict(answer.json()["reasons"])


@dataclass
class Site:
    """Where one test plays. `logs` is what everything in this process has logged so far."""

    amqp_url: str
    database_url: str
    database: "asyncpg.Connection[asyncpg.Record]"
    logs: list[Any]
    workers: list[Running] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def opened(cls, amqp_url: str, database_url: str) -> AsyncIterator["Site"]:
        """A site on an empty virtual host and a database with the framework's tables."""
        connection = await asyncpg.connect(
            address_of(database_url).dsn, server_settings={"application_name": "test"})
        try:
            with capture_logs() as logs:
                yield cls(amqp_url, database_url, connection, logs)
        finally:
            await connection.close()

    async def prepare(self, app: App) -> None:
        """Topology applied and recorded as `consumer topology apply` does; effects can be had."""
        declared = await apply(self.amqp_url, plan(app.prefix, app.bindings()))
        objects = [topology.DeclaredObject(d.kind, d.name, d.arguments) for d in declared]
        await topology.record(
            self.database, SCHEMA, objects, broker_version=declared[0].broker_version)
        await self.database.execute("CREATE TABLE IF NOT EXISTS effect "
                                    "(id bigserial, handler text, key text, value text)")

    async def publish(self, *posts: Post) -> None:
        await publish(self.amqp_url, posts)

    async def taken(self, queue: str) -> list[Found]:
        return await take(self.amqp_url, queue)

    async def depth(self, queue: str) -> Depth:
        found = (await depths(self.amqp_url, [queue]))[queue]
        assert found is not None, f"there is no queue {queue}"
        return found

    async def effects(self) -> list[tuple[str, str, str]]:
        """(handler, key, value) of each effect, in their order."""
        found = await self.database.fetch("SELECT handler, key, value FROM effect ORDER BY id")
        return [(handler, key, value) for handler, key, value in found]

    async def claims(self) -> dict[str, tuple[str, int]]:
        """State and attempts by key, where no two handlers share one."""
        found = await self.database.fetch("SELECT key, state, attempts FROM consumer.claim")
        return {key: (state, attempts) for key, state, attempts in found}

    async def outbox_empty(self) -> bool:
        return not await self.database.fetch("SELECT FROM consumer.outbox")

    def logged(self, event: str, **wanted: object) -> list[Any]:
        """The lines of that event with those values."""
        return [line for line in self.logs
                if line["event"] == event and wanted.items() <= line.items()]

    def settled(self, **wanted: object) -> int:
        """How many deliveries were settled so, and the broker could be told."""
        return len(self.logged("settled", stale=False, **wanted))

    async def until(self, condition: Callable[[], Any], what: str, seconds: float = 20) -> None:
        """Return once `condition` holds, asynchronous or not. Fails when a worker ends."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            held = condition()
            if await held if inspect.isawaitable(held) else held:
                return
            for worker in self.workers:
                assert not worker.task.done(), f"a worker has ended: {worker.task!r}"
            assert asyncio.get_running_loop().time() < deadline, f"{what}: not in {seconds:g} s"
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def worker(self, app: App, **settings: Any) -> AsyncIterator[Running]:
        """A worker of the app. At the end of the block it drains, within its grace."""
        ours, theirs = socket.socketpair()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        chosen = Settings(**{
            "amqp_url": self.amqp_url, "database_url": self.database_url, "health_port": port,
            "heartbeat": timedelta(seconds=0.2), "relay_interval": timedelta(seconds=0.1),
            "grace": timedelta(seconds=10), **settings})
        with ChildLink(theirs) as link, ours:
            running = Running(asyncio.create_task(run_worker(app, chosen, link=link)), port)
            self.workers.append(running)
            try:
                yield running
            finally:
                self.workers.remove(running)
                ours.close()
                code = await asyncio.wait_for(running.task, 30)
        assert code is ExitCode.OK
