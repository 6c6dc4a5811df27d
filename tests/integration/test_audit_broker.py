"""What an audit reads from a real broker and a real database."""

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import aiormq
import asyncpg
import pytest
from aiormq.abc import DeliveredMessage

from consumer.broker.declare import apply
from consumer.broker.path_retries import PathAtBroker, path_at_broker
from consumer.core.findings import Code, DatabaseTimeouts, Severity
from consumer.core.topology import plan
from consumer.store import probe
from consumer.store.engine import create_engine
from consumer.store.statements import Statements
from consumer.testing.broker_admin import BrokerAdmin, eventually
from consumer.testing.plugin import Database, Vhost
from consumer.testing.services import Endpoints

pytestmark = pytest.mark.integration
PLAN = plan("shop", {"orders": ["order.place"]})
Found = set[tuple[Code, Severity, str | None]]


class Looking:
    """Looks at the path through one virtual host."""

    def __init__(self, vhost: Vhost, services: Endpoints) -> None:
        self._urls = vhost.url, services.management_url

    async def path(self) -> PathAtBroker:
        return await path_at_broker(*self._urls, PLAN, ["orders"])

    async def found(self) -> Found:
        return {(f.code, f.severity, f.queue) for f in (await self.path()).findings}

    async def until(self, expected: Found) -> None:
        """The API shows new policies a moment after they hold."""
        try:
            async def there() -> bool:
                return await self.found() == expected
            await eventually(there, timeout_s=20)
        except TimeoutError:
            assert await self.found() == expected


@pytest.fixture
async def looking(consumer_vhost: Vhost, consumer_services: Endpoints) -> Looking:
    await apply(consumer_vhost.url, PLAN)
    return Looking(consumer_vhost, consumer_services)


async def declare(channel: aiormq.abc.AbstractChannel, name: str, arguments: dict[str, Any]
                  ) -> None:
    await channel.queue_declare(name, durable=True, arguments=arguments)


async def test_what_apply_declares_hides_no_retry(looking: Looking) -> None:
    path = await looking.path()
    assert (path.findings, path.missing, path.consumer_timeouts) == ([], [], {})


async def test_queues_that_are_not_there_are_told(
    consumer_vhost: Vhost, consumer_services: Endpoints
) -> None:
    path = await Looking(consumer_vhost, consumer_services).path()
    assert set(path.missing) == {"orders", "orders.replay", "orders.dead", "shop.unroutable"}


async def test_limits_by_policy_and_by_operator_policy_are_violations(
    looking: Looking, admin: BrokerAdmin
) -> None:
    await admin.set_policy("ops", r"^orders$", {"delivery-limit": 3})
    await looking.until({(Code.DELIVERY_LIMIT, Severity.VIOLATION, "orders")})
    vhost = quote(admin.vhost, safe="")
    await admin.delete(f"/api/policies/{vhost}/ops")
    await admin.put(f"/api/operator-policies/{vhost}/platform", {
        "pattern": r"^orders\.replay$", "definition": {"delivery-limit": 3}, "apply-to": "queues"})
    await looking.until({(Code.DELIVERY_LIMIT, Severity.VIOLATION, "orders.replay")})
    [finding] = (await looking.path()).findings
    assert "'platform'" in finding.message


async def test_an_expiring_dead_letter_loop_is_found_and_is_one(
    looking: Looking, channel: aiormq.abc.AbstractChannel
) -> None:
    await channel.exchange_declare("again", exchange_type="topic", durable=True)
    await declare(channel, "retry", {"x-message-ttl": 50, "x-dead-letter-exchange": "again"})
    await channel.queue_bind("retry", "again", "wait.#")
    assert await looking.found() == set(), "it leads nowhere yet"
    await channel.queue_bind("orders", "again", "*.order")
    assert await looking.found() == {(Code.DEAD_LETTER_LOOP, Severity.VIOLATION, "orders")}
    await channel.basic_publish(b"again", exchange="again", routing_key="wait.order")
    came = [(await taken(channel, "orders")).body for _ in range(2)]
    assert came == [b"again"] * 2, "once by its key, once more when it has expired"


async def taken(channel: aiormq.abc.AbstractChannel, queue: str) -> DeliveredMessage:
    """The next message of the queue, as soon as there is one, not acknowledged."""
    arrived: list[DeliveredMessage] = []

    async def take() -> bool:
        message = await channel.basic_get(queue)
        arrived.append(message)
        return bool(message.body)

    await eventually(take)
    return arrived[-1]


async def test_a_dead_letter_policy_is_found_where_it_overrides_ours(
    looking: Looking, admin: BrokerAdmin
) -> None:
    await admin.set_policy("ops", r"^orders(\.dead)?$", {"dead-letter-exchange": "amq.fanout"})
    await looking.until({
        (Code.DEAD_LETTER_POLICY, Severity.VIOLATION, "orders.dead"),
        (Code.DEAD_LETTER_POLICY, Severity.NOTE, "orders")})


async def test_an_argument_overrules_a_dead_letter_policy_at_the_broker(
    looking: Looking, admin: BrokerAdmin, channel: aiormq.abc.AbstractChannel
) -> None:
    """Why it is a note: what is rejected goes where the argument says."""
    await channel.queue_declare("elsewhere", durable=True)
    await channel.queue_bind("elsewhere", "amq.fanout", "")
    await admin.set_policy("ops", r"^orders$", {"dead-letter-exchange": "amq.fanout"})
    await looking.until({(Code.DEAD_LETTER_POLICY, Severity.NOTE, "orders")})
    await channel.basic_publish(b"rejected", routing_key="orders")
    message = await taken(channel, "orders")
    assert message.delivery_tag is not None
    await channel.basic_reject(message.delivery_tag, requeue=False)
    dead = await taken(channel, "orders.dead")
    assert dead.body == b"rejected"
    assert not (await channel.basic_get("elsewhere", no_ack=True)).body


async def test_a_consumer_timeout_of_a_queue_is_read_where_the_broker_knows_such_policies(
    looking: Looking, admin: BrokerAdmin
) -> None:
    version = (await admin.get("/api/overview"))["rabbitmq_version"]
    if tuple(map(int, version.split(".")[:2])) < (3, 12):
        assert (await looking.path()).consumer_timeouts == {}
        return
    await admin.set_policy("slow", r"^orders$", {"consumer-timeout": 120_000})

    async def read() -> bool:
        return bool((await looking.path()).consumer_timeouts)

    await eventually(read, timeout_s=20)
    timeout = (await looking.path()).consumer_timeouts["orders"]
    assert (timeout.after.total_seconds(), timeout.source) == (120, "policy 'slow' of orders")


@pytest.mark.parametrize(("setting", "expected_ms"), [
    ("", (0, 0)),
    ("ALTER DATABASE \"{name}\" SET statement_timeout = '25s'", (25_000, 0)),
    ("ALTER DATABASE \"{name}\" SET idle_in_transaction_session_timeout = '1500ms'", (0, 1500)),
])
async def test_timeouts_are_those_the_database_gives_to_connections(
    setting: str, expected_ms: tuple[int, int], consumer_empty_database: Database
) -> None:
    if setting:
        connection = await asyncpg.connect(
            consumer_empty_database.url.replace("+asyncpg", ""))
        await connection.execute(setting.format(name=consumer_empty_database.name))
        await connection.close()
    engine = create_engine(consumer_empty_database.url, pool_size=1)
    statements = Statements(engine)
    async with statements.driver() as driver:
        found = await probe.timeouts(driver)
    await statements.close()
    await engine.dispose()
    statement, idle = (timedelta(milliseconds=value) for value in expected_ms)
    assert found == DatabaseTimeouts(statement, idle)
