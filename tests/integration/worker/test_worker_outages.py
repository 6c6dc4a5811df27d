"""Database or broker in trouble: consuming stops, resumes by itself, and no message is blamed."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import asyncpg
import pytest
from harness import FAST, Running, Site, effect
from postbox import Post, post
from yarl import URL

import consumer.compose
from consumer import App, Command, Context, Handler, Options, Queue
from consumer.broker.connection import ConnectionOptions
from consumer.broker.consume import RabbitBroker
from consumer.broker.repeat import Pace
from consumer.store.address import address_of
from consumer.testing.broker_admin import BrokerAdmin
from consumer.testing.plugin import Database, Vhost
from consumer.testing.services import Endpoints

pytestmark = pytest.mark.integration


class Weigh(Command, type="depot.weigh"):
    number: int


class Scales(Handler[Weigh]):
    """Takes a moment."""

    name, queue, options = "depot.weigh", "depot", FAST

    def __init__(self) -> None:
        self.busy = 0

    async def handle(self, command: Weigh, context: Context) -> None:
        self.busy += 1
        try:
            await effect(context)
            await asyncio.sleep(0.02)
        finally:
            self.busy -= 1


APP = App("depot", handlers=[Scales], queues=[Queue("depot", concurrency=2, prefetch=10)])


def weigh(*numbers: int) -> list[Post]:
    return [post("depot.weigh", {"number": number}, f"K{number}") for number in numbers]


async def each_done_once(site: Site, count: int) -> None:
    """One effect a command, at its first attempt, and nobody was given up."""
    keys = sorted(f"K{number}" for number in range(count))
    assert sorted(key for _, key, _ in await site.effects()) == keys
    assert await site.claims() == dict.fromkeys(keys, ("done", 1))
    assert await site.database.fetchval("SELECT count(*) FROM consumer.attempt") == 0
    for queue in ("depot", "depot.dead"):
        assert await site.taken(queue) == []


class Postgres:
    """The server of one database, which can refuse that database to everybody."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", name: str) -> None:
        self._connection, self._name = connection, name

    async def shut(self) -> None:
        """No program is connected to the database, and none gets in; the test itself remains."""
        await self._connection.execute(
            f'ALTER DATABASE "{self._name}" WITH ALLOW_CONNECTIONS false')
        await self._connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = $1 AND application_name <> 'test'", self._name)

    async def open(self) -> None:
        await self._connection.execute(f'ALTER DATABASE "{self._name}" WITH ALLOW_CONNECTIONS true')


@pytest.fixture
async def postgres(
    consumer_services: Endpoints, consumer_database: Database
) -> AsyncIterator[Postgres]:
    connection = await asyncpg.connect(address_of(consumer_services.database_url).dsn)
    try:
        yield Postgres(connection, consumer_database.name)
    finally:
        await connection.close()


async def test_a_database_outage_pauses_consuming(site: Site, postgres: Postgres) -> None:
    """While Postgres refuses us there is no consumer, no attempt, no dead letter, and the process
    is not ready; when it is back, everything is done, once, without anybody's help.
    """
    await site.prepare(APP)
    await site.publish(*weigh(*range(40)))
    async with site.worker(APP) as worker:
        await site.until(lambda: site.settled() >= 5, "it works")
        await postgres.shut()
        try:
            await site.until(lambda: consumers(site, 0), "consuming has stopped")
            assert "database" in await worker.unready()
            await site.publish(*weigh(*range(40, 50)))
            assert (await site.depth("depot")).ready >= 10
            assert (await site.depth("depot.dead")).ready == 0
            await site.until(lambda: site.logged("database_unavailable"), "the probe fails")
        finally:
            await postgres.open()
        await site.until(lambda: done(site, 50), "all are done", 40)
        await site.until(worker_is_ready(worker), "it is ready")
    await each_done_once(site, 50)


async def consumers(site: Site, expected: int) -> bool:
    return (await site.depth("depot")).consumers == expected


async def done(site: Site, count: int) -> bool:
    """Whether so many are, and their deliveries acked."""
    return len(await site.claims()) == count and not (await site.depth("depot")).ready


def worker_is_ready(worker: Running) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        return not await worker.unready()

    return ready


@pytest.mark.parametrize("group_size", [1, 50])
async def test_a_database_session_lost_in_mid_handler_costs_nothing(
    site: Site, postgres: Postgres, group_size: int
) -> None:
    """Every database connection is cut three times during work: rolled back, delivered again, done
    once, at the first attempt (B21 d).
    """
    scales = Scales()
    scales.options = Options(group_size=group_size)  # type: ignore[misc]
    app = App("depot", handlers=[scales], queues=APP.queues.values())
    await site.prepare(app)
    await site.publish(*weigh(*range(60)))
    async with site.worker(app):
        for cut in range(1, 4):
            await site.until(lambda: site.settled(why="done") >= 8 * cut, "it works")  # noqa: B023
            await site.until(lambda: scales.busy, "a handler is running")
            await postgres.shut()
            await postgres.open()
        await site.until(lambda: done(site, 60), "all are done", 40)
    assert site.logged("infrastructure_fault")
    await each_done_once(site, 60)


@pytest.fixture
def quick_to_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections and consumers come back at once, however often they are lost."""
    pace = Pace(first_s=0.05, longest_s=0.1)
    monkeypatch.setattr(
        consumer.compose, "ConnectionOptions", partial(ConnectionOptions, pace=pace))
    monkeypatch.setattr(consumer.compose, "RabbitBroker", partial(RabbitBroker, resume_pace=pace))


@pytest.fixture
async def admin(consumer_services: Endpoints, consumer_vhost: Vhost) -> AsyncIterator[BrokerAdmin]:
    async with BrokerAdmin(consumer_services.management_url, consumer_vhost.name) as operator:
        yield operator


@pytest.mark.usefixtures("quick_to_resume")
async def test_connections_closed_ten_times_during_work(site: Site, admin: BrokerAdmin) -> None:
    """Each time the worker consumes again with the consumers it should have; no stale ack closes a
    channel, and every command takes effect once (B30).
    """
    await site.prepare(APP)

    def has_seen(event: str, times: int) -> bool:
        return len(site.logged(event)) == times

    user = f"depot-{secrets.token_hex(6)}"
    await admin.add_user(user, "secret", (".*", ".*", ".*"))
    as_user = str(URL(site.amqp_url).with_user(user).with_password("secret"))
    try:
        async with site.worker(APP, amqp_url=as_user) as worker:
            for cut in range(10):
                await site.publish(*weigh(*range(10 * cut, 10 * cut + 10)))
                both = 2 * cut + 2
                await site.until(partial(has_seen, "broker_connected", both), "both are connected")
                await site.until(lambda: consumers(site, 1), "it consumes")
                await admin.delete(f"/api/connections/username/{user}")
                await site.until(partial(has_seen, "broker_lost", both), "both are lost")
            await site.until(lambda: done(site, 100), "all are done", 40)
            await site.until(lambda: consumers(site, 1), "it consumes")
            await site.until(worker_is_ready(worker), "it is ready")
            assert (await site.depth("depot.replay")).consumers == 1
    finally:
        await admin.delete(f"/api/users/{user}")
    assert not [line for line in site.logs if "PRECONDITION" in str(line.get("error"))]
    await each_done_once(site, 100)


@pytest.mark.usefixtures("quick_to_resume")
async def test_a_deleted_queue_is_noticed_and_consumed_when_it_is_back(
    site: Site, admin: BrokerAdmin
) -> None:
    """Not consuming while we should is not ready, and names the queue; never idle for ever (B30).
    """
    await site.prepare(APP)
    async with site.worker(APP) as worker:
        await site.publish(*weigh(0))
        await site.until(lambda: done(site, 1), "it works")
        await admin.delete_queue("depot")

        async def unready() -> bool:
            return "depot" in (await worker.unready()).get("consumers", "")

        await site.until(unready, "it is not ready")
        await site.prepare(APP)
        await site.publish(*weigh(1))
        await site.until(lambda: done(site, 2), "it works again")
        await site.until(worker_is_ready(worker), "it is ready")
    await each_done_once(site, 2)
