"""Applying a topology, finding what differs, and the permissions each of us needs."""

from collections.abc import AsyncIterator
from datetime import timedelta

import aiormq
import pytest
from yarl import URL

from consumer.broker.check import Finding, State, check
from consumer.broker.consume import RabbitBroker
from consumer.broker.declare import Mismatch, apply, every, missing
from consumer.broker.permissions import Permissions, relay, topology_job, worker
from consumer.broker.publish import RabbitPublisher
from consumer.core.topology import commands_exchange, plan, route_delay, unroutable
from consumer.errors import BrokerUnavailable, ConfigurationError, TopologyError
from consumer.message import Delivery, Lane
from consumer.ports import Receipt, Settlement
from consumer.testing.broker_admin import BrokerAdmin, eventually
from consumer.testing.contract.publisher import outgoing
from consumer.testing.plugin import Vhost
from consumer.testing.services import Endpoints

pytestmark = pytest.mark.integration
PLAN = plan("shop", {"orders": ["order.place"], "a.orders": []})
OBJECTS = len(every(PLAN))


@pytest.fixture
async def channel(consumer_vhost: Vhost) -> AsyncIterator[aiormq.abc.AbstractChannel]:
    connection = await aiormq.connect(consumer_vhost.url)
    yield await connection.channel()
    await connection.close()


def faults(findings: list[Finding]) -> list[Finding]:
    return [found for found in findings if found.state is not State.DECLARED]


async def test_apply_declares_everything_and_again_changes_nothing(
    consumer_vhost: Vhost, consumer_services: Endpoints
) -> None:
    before = await missing(consumer_vhost.url, PLAN)
    assert len(before) == len(PLAN.exchanges) + len(PLAN.queues)
    for _ in range(2):
        applied = await apply(consumer_vhost.url, PLAN)
        assert len(applied) == OBJECTS
        assert all(item.broker_version[0] in "34" for item in applied)
    assert await missing(consumer_vhost.url, PLAN) == []
    found = await check(
        consumer_vhost.url, PLAN, management_url=consumer_services.management_url)
    assert len(found) == OBJECTS
    assert faults(found) == []


async def test_a_mismatch_is_one_line_and_nobody_else_notices(
    consumer_vhost: Vhost, channel: aiormq.abc.AbstractChannel
) -> None:
    await channel.queue_declare("orders", durable=True, arguments={
        "x-queue-type": "quorum", "x-delivery-limit": 5})
    await channel.basic_publish(b"kept", routing_key="orders")
    with pytest.raises(Mismatch) as caught:
        await apply(consumer_vhost.url, PLAN)
    line = str(caught.value)
    assert "\n" not in line
    assert "'orders'" in line
    assert "drain and delete" in line
    assert (caught.value.argument, caught.value.actual) in (
        ("x-delivery-limit", "5"), ("x-overflow", "none"), ("x-dead-letter-exchange", "none"),
        ("x-dead-letter-routing-key", "none"), ("x-dead-letter-strategy", "none"))
    assert (await channel.basic_get("orders", no_ack=True)).body == b"kept"


async def test_a_classic_queue_of_somebody_else_is_named(
    consumer_vhost: Vhost, channel: aiormq.abc.AbstractChannel
) -> None:
    await channel.queue_declare("orders.dead", durable=True)
    with pytest.raises(TopologyError, match=r"'orders\.dead'.*(x-queue-type|quorum)"):
        await apply(consumer_vhost.url, PLAN)


@pytest.mark.parametrize("by_management", [True, False])
async def test_check_finds_what_is_missing_and_what_differs_and_makes_nothing(
    by_management: bool, consumer_vhost: Vhost, consumer_services: Endpoints,
    channel: aiormq.abc.AbstractChannel,
) -> None:
    await apply(consumer_vhost.url, PLAN)
    await channel.queue_delete("orders.replay")
    await channel.queue_delete("shop.delay.05")
    await channel.queue_declare("shop.delay.05", durable=True, arguments={
        **PLAN.queues[6].arguments, "x-message-ttl": 1})
    await channel.queue_unbind("orders", "shop.commands", "order.place")
    url = consumer_services.management_url if by_management else None
    for _ in range(2):
        found = {(f.name, f.state): f for f in faults(
            await check(consumer_vhost.url, PLAN, management_url=url))}
        assert ("orders.replay", State.MISSING) in found
        different = found["shop.delay.05", State.DIFFERENT]
        assert (different.argument, different.expected, different.actual) == (
            "x-message-ttl", "3200", "1")
        unbound = ("shop.commands -[order.place]-> orders", State.UNBOUND) in found
        assert unbound is by_management
        assert (State.UNCHECKED in {state for _, state in found}) is not by_management


async def test_check_without_an_answer_of_the_management_api_declares_again(
    consumer_vhost: Vhost, unused_tcp_port: int
) -> None:
    await apply(consumer_vhost.url, PLAN)
    found = await check(
        consumer_vhost.url, PLAN, management_url=f"http://u:p@127.0.0.1:{unused_tcp_port}")
    assert {f.state for f in found if f.kind != "binding"} == {State.DECLARED}


@pytest.mark.parametrize(("definition", "names"), [
    ({"delivery-limit": 3}, {"orders", "orders.replay", "orders.dead", "shop.unroutable"}),
    ({"max-length": 10, "overflow": "drop-head"}, {"orders", "orders.dead", "shop.delay.00"}),
    ({"message-ttl": 60_000}, {"orders", "orders.dead", "shop.delay.23"}),
])
async def test_check_tells_policies_that_would_lose_messages(
    definition: dict[str, object], names: set[str], consumer_vhost: Vhost,
    consumer_services: Endpoints, admin: BrokerAdmin,
) -> None:
    await apply(consumer_vhost.url, PLAN)
    await admin.set_policy("ops", ".*", definition)
    found: list[Finding] = []

    async def told() -> bool:
        found[:] = faults(await check(
            consumer_vhost.url, PLAN, management_url=consumer_services.management_url))
        return names <= {f.name for f in found if f.state is State.POLICY}

    await eventually(told)
    assert {f.argument for f in found} == set(definition)
    assert all("'ops'" in (f.remedy or "") for f in found)
    assert not any(f.name.startswith("shop.delay") for f in found if f.argument == "delivery-limit")


async def test_apply_without_a_broker_is_an_infrastructure_error(unused_tcp_port: int) -> None:
    with pytest.raises(BrokerUnavailable):
        await apply(f"amqp://u:p@127.0.0.1:{unused_tcp_port}/", PLAN)


async def test_a_management_url_that_is_none_is_not_echoed(consumer_vhost: Vhost) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await check(consumer_vhost.url, PLAN, management_url="http://u:s3cr#t@host:x/")
    assert "s3cr" not in str(caught.value)


async def user(
    admin: BrokerAdmin, vhost: Vhost, name: str, permissions: Permissions
) -> str:
    """The URL of a new user with those permissions."""
    unique = f"{vhost.name}-{name}"
    await admin.add_user(unique, "p@ss/w:rd#", permissions)
    return str(URL(vhost.url).with_user(unique).with_password("p@ss/w:rd#"))


@pytest.fixture
async def job_url(admin: BrokerAdmin, consumer_vhost: Vhost) -> AsyncIterator[str]:
    """A topology job's user, who has applied the plan."""
    url = await user(admin, consumer_vhost, "job", topology_job("shop", ["orders", "a.orders"]))
    await apply(url, PLAN)
    yield url
    for name in ("job", "worker", "relay", "stranger"):
        await admin.delete(f"/api/users/{consumer_vhost.name}-{name}")


async def test_the_job_may_apply_its_plan_and_nothing_else(job_url: str) -> None:
    assert len(await apply(job_url, PLAN)) == OBJECTS
    with pytest.raises(TopologyError, match=r"docs/permissions\.md"):
        await apply(job_url, plan("shop", {"payments": []}))


async def test_a_worker_consumes_delays_and_dead_letters_with_the_least_permissions(
    job_url: str, admin: BrokerAdmin, consumer_vhost: Vhost
) -> None:
    url = await user(admin, consumer_vhost, "worker", worker("shop", ["orders"]))
    assert await missing(url, plan("shop", {"orders": ["order.place"]})) == []
    found: list[tuple[Delivery, Settlement]] = []
    broker, publisher = RabbitBroker(lambda: [url]), RabbitPublisher(lambda: [url])
    broker.open()
    publisher.open()
    await broker.wait_connected(30)
    for lane in Lane:
        subscription = await broker.subscribe("orders", lane, 50, lambda *d: found.append(d))
        assert subscription.active
    dead = await broker.subscribe("orders.dead", Lane.LIVE, 50, lambda *d: found.append(d))
    assert dead.active
    routes = [route_delay("shop", timedelta(milliseconds=ms), destination)
              for ms, destination in ((0, "orders"), (300, "orders"), (0, "orders.replay"),
                                      (0, "orders.dead"))]
    messages = [outgoing(b"c", exchange=commands_exchange("shop"), routing_key="order.place")]
    messages += [outgoing(b"%d" % n, exchange=r.exchange, routing_key=r.routing_key)
                 for n, r in enumerate(routes)]
    answers = await publisher.publish([
        *messages,
        outgoing(b"stranger", exchange="amq.topic", routing_key="x"),
        outgoing(b"direct", routing_key="orders"),
    ])
    assert [a.receipt for a in answers] == [Receipt.CONFIRMED] * 5 + [Receipt.REFUSED] * 2
    assert "access" in answers[-1].detail
    # More than five arrive where a publish was repeated because of one that was refused.
    await eventually(lambda: {d.message.body for d, _ in found} == {b"c", b"0", b"1", b"2", b"3"})
    assert all([await settlement.ack() for _, settlement in found])
    other = await broker.subscribe("a.orders", Lane.LIVE, 5, lambda *d: found.append(d))
    assert not other.active
    await broker.close()
    await publisher.close()
    with pytest.raises(TopologyError):
        await apply(url, PLAN)


async def test_a_relay_publishes_and_reads_nothing(
    job_url: str, admin: BrokerAdmin, consumer_vhost: Vhost
) -> None:
    url = await user(admin, consumer_vhost, "relay", relay("shop"))
    publisher, broker = RabbitPublisher(lambda: [url]), RabbitBroker(lambda: [url])
    publisher.open()
    broker.open()
    await broker.wait_connected(30)
    route = route_delay("shop", timedelta(0), "orders")
    answers = await publisher.publish([
        outgoing(b"1", exchange=route.exchange, routing_key=route.routing_key),
        outgoing(b"2", exchange=commands_exchange("shop"), routing_key="order.unknown"),
    ])
    assert [a.receipt for a in answers] == [Receipt.CONFIRMED] * 2
    subscription = await broker.subscribe("orders", Lane.LIVE, 5, lambda *_: None)
    assert not subscription.active
    await publisher.close()
    await broker.close()


async def test_what_nothing_is_bound_for_ends_at_unroutable(
    consumer_vhost: Vhost, channel: aiormq.abc.AbstractChannel
) -> None:
    await apply(consumer_vhost.url, PLAN)
    gone = route_delay("shop", timedelta(milliseconds=200), "deleted.queue")
    await channel.basic_publish(b"1", exchange=gone.exchange, routing_key=gone.routing_key)
    await channel.basic_publish(b"2", exchange="shop.commands", routing_key="no.such.command")
    found = set[bytes]()

    async def both() -> bool:
        message = await channel.basic_get(unroutable("shop"), no_ack=True)
        found.add(message.body)
        return found >= {b"1", b"2"}

    await eventually(both)
