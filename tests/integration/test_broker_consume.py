"""Consuming through whatever the broker, an operator or a producer does."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from functools import partial

import aiormq
import pytest
import structlog
from pamqp.common import FieldTable

from consumer.broker.connection import ConnectionOptions
from consumer.broker.consume import RabbitBroker, RabbitSubscription
from consumer.broker.declare import apply
from consumer.broker.repeat import Pace
from consumer.core.topology import plan
from consumer.message import Delivery, Lane
from consumer.ports import Settlement
from consumer.testing.broker_admin import BrokerAdmin, eventually
from consumer.testing.plugin import Vhost
from consumer.testing.raw_amqp import RawPublisher
from consumer.wire import Headers, Properties

pytestmark = pytest.mark.integration
QUORUM: FieldTable = {"x-queue-type": "quorum"}
SOON = Pace(first_s=0.05, longest_s=0.2, shortest_s=0.02)


class Taken:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[Delivery, Settlement]] = asyncio.Queue()

    def __call__(self, delivery: Delivery, settlement: Settlement) -> None:
        self.queue.put_nowait((delivery, settlement))

    async def next(self) -> tuple[Delivery, Settlement]:
        async with asyncio.timeout(30):
            return await self.queue.get()


@pytest.fixture
async def broker(consumer_vhost: Vhost) -> AsyncIterator[RabbitBroker]:
    broker = RabbitBroker(
        lambda: [consumer_vhost.url], ConnectionOptions(name="test", pace=SOON), resume_pace=SOON
    )
    broker.open()
    await broker.wait_connected(30)
    yield broker
    await broker.close()


async def depth(channel: aiormq.abc.AbstractChannel, queue: str = "work") -> int:
    """Messages that are ready."""
    answer = await channel.queue_declare(queue, passive=True)
    return answer.message_count or 0


def deep_table(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        table = b"\x01aF" + len(table).to_bytes(4) + table
    return table


ODD_PROPERTIES = {
    "timestamp in microseconds": Properties(timestamp=1_700_000_000_000_000),
    "timestamp 2^63": Properties(timestamp=2**63),
    "timestamp 2^64-1": Properties(timestamp=2**64 - 1),
    "header timestamp 2^64-1": Properties(headers=Headers(b"\x01tT" + b"\xff" * 8)),
    "message id": Properties(message_id="\udcff\udcfe\udcfa"),
    "content type": Properties(content_type="\udcff"),
    "header name": Properties(headers=Headers(b"\x02\xff\xfeV")),
    "nested 3000 deep": Properties(headers=Headers(deep_table(3000))),
}


@pytest.mark.parametrize("kind", ODD_PROPERTIES)
async def test_an_undecodable_message_arrives_as_one_between_its_healthy_neighbours(
    kind: str, consumer_vhost: Vhost, broker: RabbitBroker,
    channel: aiormq.abc.AbstractChannel,
) -> None:
    odd, healthy = ODD_PROPERTIES[kind], Properties(message_id="h").to_wire()
    with RawPublisher(consumer_vhost.url) as raw:
        raw.publish(b"", b"work", healthy, b"H1")
        raw.publish(b"", b"work", odd.to_wire(), b"P")
        raw.publish(b"", b"work", healthy, b"H2")
    taken = Taken()
    subscription = await broker.subscribe("work", Lane.LIVE, 10, taken)
    found = [await taken.next() for _ in range(3)]
    assert [d.message.body for d, _ in found] == [b"H1", b"P", b"H2"]
    assert [d.message.defect is None for d, _ in found] == [True, False, True]
    assert found[1][0].message.properties == odd
    assert found[1][0].message.raw_properties == odd.to_wire()
    assert not any(d.redelivered for d, _ in found)
    assert all([await settlement.ack() for _, settlement in found])
    assert subscription.active
    await broker.close()
    await eventually(lambda: _is(depth(channel), 0))


async def test_a_routing_key_that_is_not_utf8_does_no_harm(
    consumer_vhost: Vhost, broker: RabbitBroker, channel: aiormq.abc.AbstractChannel
) -> None:
    await channel.exchange_declare("all", exchange_type="fanout", durable=True)
    await channel.queue_bind("work", "all")
    with RawPublisher(consumer_vhost.url) as raw:
        raw.publish(b"all", b"a\xff\xfe", b"\0\0", b"P")
        raw.publish(b"all", b"a", b"\0\0", b"H")
    taken = Taken()
    await broker.subscribe("work", Lane.LIVE, 10, taken)
    odd, healthy = (await taken.next())[0], (await taken.next())[0]
    assert odd.routing_key.encode("utf-8", "surrogateescape") == b"a\xff\xfe"
    assert odd.message.defect == "routing key is not UTF-8"
    assert (healthy.routing_key, healthy.message.defect) == ("a", None)


@pytest.mark.parametrize("table", [
    b"\x07x-deathS\x00\x00\x00\x0b[{count=1}]",
    b"\x07x-deathA" + (16).to_bytes(4) + b"F" + (11).to_bytes(4) + b"\x05countS\x00\x00\x00\x00",
    b"\x07x-deathA\x00\x00\x00\x00",
    b"\x07attemptS\x00\x00\x00\x03abc",
    b"\x07attempts\xff\xfb",
    b"\x07attemptx\x00\x00\x00\x01\xff",
    b"\x07attemptl\x7f" + b"\xff" * 7,
])
async def test_garbage_in_counters_is_carried_as_it_is(
    table: bytes, consumer_vhost: Vhost, broker: RabbitBroker,
    channel: aiormq.abc.AbstractChannel,
) -> None:
    properties = Properties(headers=Headers(table))
    with RawPublisher(consumer_vhost.url) as raw:
        raw.publish(b"", b"work", properties.to_wire(), b"G")
    taken = Taken()
    await broker.subscribe("work", Lane.LIVE, 10, taken)
    delivery, settlement = await taken.next()
    assert delivery.message.properties == properties
    assert await settlement.ack()


def none_live(deliveries: list[tuple[Delivery, Settlement]]) -> bool:
    return not any(settlement.live for _, settlement in deliveries)


async def test_every_lost_connection_is_resumed_and_no_old_tag_is_used(
    broker: RabbitBroker, channel: aiormq.abc.AbstractChannel, consumer_vhost: Vhost,
    admin: BrokerAdmin,
) -> None:
    await channel.connection.close()
    taken = Taken()
    subscription = await broker.subscribe("work", Lane.LIVE, 10, taken)
    with RawPublisher(consumer_vhost.url) as raw:
        for number in range(10):
            raw.publish(b"", b"work", b"\0\0", b"%d" % number)
    for _ in range(5):
        stale = [await taken.next() for _ in range(10)]
        assert all(settlement.live for _, settlement in stale)
        await admin.cut_connections()
        await eventually(partial(none_live, stale))
        assert [await settlement.ack() for _, settlement in stale] == [False] * 10
        assert [await settlement.requeue() for _, settlement in stale] == [False] * 10
    fresh = [await taken.next() for _ in range(10)]
    assert subscription.active
    assert {d.message.body for d, _ in fresh} == {b"%d" % number for number in range(10)}
    assert all([await settlement.ack() for _, settlement in fresh])
    await eventually(lambda: _is(admin.consumers("work"), 1))
    assert taken.queue.empty()


async def _is(question: Awaitable[int], answer: int) -> bool:
    return await question == answer


async def test_a_channel_error_of_one_subscription_leaves_the_others_alone(
    broker: RabbitBroker, channel: aiormq.abc.AbstractChannel, consumer_vhost: Vhost
) -> None:
    await channel.queue_declare("other", durable=True, arguments=QUORUM)
    for body in (b"1", b"2"):
        for queue in ("work", "other"):
            await channel.basic_publish(body, routing_key=queue)
    taken, others = Taken(), Taken()
    subscription = await broker.subscribe("work", Lane.LIVE, 1, taken)
    await broker.subscribe("other", Lane.LIVE, 1, others)
    _, settlement = await taken.next()
    _, other = await others.next()
    await _break_channel(subscription)
    await eventually(lambda: not settlement.live)
    assert not await settlement.ack()
    assert other.live
    assert await other.ack()
    assert (await others.next())[0].message.body == b"2"
    again, settlement = await taken.next()
    assert again.message.body == b"1"
    assert again.redelivered
    assert await settlement.ack()


async def _break_channel(subscription: RabbitSubscription) -> None:
    """Make the broker close the subscription's channel: 406, unknown delivery tag."""
    generation = subscription._generation
    assert generation is not None
    await generation._channel.basic_ack(4711)


async def test_a_deleted_queue_is_noticed_and_consumed_again_when_it_is_back(
    broker: RabbitBroker, channel: aiormq.abc.AbstractChannel, admin: BrokerAdmin
) -> None:
    taken = Taken()
    subscription = await broker.subscribe("work", Lane.LIVE, 10, taken)
    assert subscription.active
    assert broker.inactive() == []
    await admin.delete_queue("work")
    await eventually(lambda: not subscription.active)
    assert broker.inactive() == [("work", Lane.LIVE)]
    assert broker.connected
    with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):  # nobody made it anew
        await channel.queue_declare("work", passive=True)
    channel = await channel.connection.channel()
    await channel.queue_declare("work", durable=True, arguments=QUORUM)
    await channel.basic_publish(b"back", routing_key="work")
    delivery, settlement = await taken.next()
    assert delivery.message.body == b"back"
    assert await settlement.ack()


async def test_a_queue_that_is_not_there_yet_is_waited_for(
    broker: RabbitBroker, channel: aiormq.abc.AbstractChannel
) -> None:
    taken = Taken()
    with structlog.testing.capture_logs() as logs:
        subscription = await broker.subscribe("later", Lane.REPLAY, 10, taken)
    assert not subscription.active
    assert broker.inactive() == [("later", Lane.REPLAY)]
    failed = next(entry for entry in logs if entry["event"] == "consume_failed")
    assert "no queue 'later.replay'" in failed["error"]
    await channel.queue_declare("later.replay", durable=True, arguments=QUORUM)
    await channel.basic_publish(b"r", routing_key="later.replay")
    delivery, _ = await taken.next()
    assert (delivery.queue, delivery.lane) == ("later", Lane.REPLAY)


async def test_after_cancel_nothing_arrives_and_what_was_taken_can_be_settled(
    broker: RabbitBroker, channel: aiormq.abc.AbstractChannel
) -> None:
    for number in range(4):
        await channel.basic_publish(b"%d" % number, routing_key="work")
    taken = Taken()
    subscription = await broker.subscribe("work", Lane.LIVE, 2, taken)
    (_, first), (_, second) = await taken.next(), await taken.next()
    await subscription.cancel()
    await subscription.cancel()
    assert not subscription.active
    assert broker.inactive() == []
    assert await first.ack()
    assert await second.requeue()
    assert not await first.ack()
    await eventually(lambda: _is(depth(channel), 3))
    assert taken.queue.empty()
    assert subscription.ended


async def test_what_was_settled_before_close_has_reached_the_broker(
    broker: RabbitBroker, channel: aiormq.abc.AbstractChannel
) -> None:
    # RabbitMQ itself forgets acks when a channel ends with more than 32 not yet applied.
    for number in range(20):
        await channel.basic_publish(b"%d" % number, routing_key="work")
    taken = Taken()
    subscription = await broker.subscribe("work", Lane.LIVE, 20, taken)
    found = [await taken.next() for _ in range(20)]
    await subscription.cancel()
    for _, settlement in found:
        assert await settlement.ack()
    await broker.close()
    await eventually(lambda: _is(depth(channel), 0))


async def test_no_more_than_the_prefetch_is_delivered(
    broker: RabbitBroker, channel: aiormq.abc.AbstractChannel
) -> None:
    for number in range(5):
        await channel.basic_publish(b"%d" % number, routing_key="work")
    taken = Taken()
    await broker.subscribe("work", Lane.LIVE, 3, taken)
    for _ in range(3):
        await taken.next()
    assert await depth(channel) == 2
    assert taken.queue.empty()


async def test_a_delivery_the_sink_does_not_take_comes_again(
    broker: RabbitBroker, channel: aiormq.abc.AbstractChannel
) -> None:
    taken, failures = Taken(), iter([RuntimeError("full")])

    def sink(delivery: Delivery, settlement: Settlement) -> None:
        for failure in failures:
            raise failure
        taken(delivery, settlement)

    await channel.basic_publish(b"1", routing_key="work")
    await broker.subscribe("work", Lane.LIVE, 10, sink)
    delivery, settlement = await taken.next()
    assert delivery.message.body == b"1"
    assert await settlement.ack()


async def test_a_queue_may_have_any_name_that_the_rules_allow(
    broker: RabbitBroker, consumer_vhost: Vhost
) -> None:
    await apply(consumer_vhost.url, plan("p", {"日本 o'rders; --": ["t"]}))
    subscription = await broker.subscribe("日本 o'rders; --", Lane.REPLAY, 1, Taken())
    assert subscription.active
