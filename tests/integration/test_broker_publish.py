"""Publishing when the broker refuses, forgets, stalls or goes away."""

import asyncio
from collections.abc import AsyncIterator

import aiormq
import pytest
from pamqp.common import FieldTable

from consumer.broker.confirms import Window
from consumer.broker.connection import ConnectionOptions
from consumer.broker.publish import PublishLimits, RabbitPublisher
from consumer.broker.repeat import Pace
from consumer.message import Outgoing
from consumer.ports import Receipt
from consumer.testing.broker_admin import BrokerAdmin, eventually
from consumer.testing.contract.publisher import outgoing
from consumer.testing.plugin import Vhost
from consumer.testing.proxy import Proxy, proxy
from consumer.testing.services import Endpoints
from consumer.wire import Headers, Properties

pytestmark = pytest.mark.integration
QUORUM: FieldTable = {"x-queue-type": "quorum"}
OPTIONS = ConnectionOptions(
    name="test", close_timeout_s=1.0, pace=Pace(first_s=0.05, longest_s=0.2, shortest_s=0.02)
)
NOT_A_NUMBER = b"\x01nd\x7f\xf8" + b"\0" * 6
OK, UNROUTABLE = Receipt.CONFIRMED, Receipt.UNROUTABLE
REFUSED, UNKNOWN, UNSENDABLE = Receipt.REFUSED, Receipt.UNKNOWN, Receipt.UNSENDABLE


def work(body: bytes, **others: str) -> Outgoing:
    return outgoing(body, **{"routing_key": "work", **others})


@pytest.fixture
async def publisher(consumer_vhost: Vhost) -> AsyncIterator[RabbitPublisher]:
    publisher = RabbitPublisher(lambda: [consumer_vhost.url], OPTIONS)
    publisher.open()
    await publisher.wait_connected(30)
    yield publisher
    await publisher.close()


@pytest.fixture
async def between(consumer_vhost: Vhost) -> AsyncIterator[Proxy]:
    async with proxy(consumer_vhost.url) as passing:
        yield passing


@pytest.fixture
async def impatient(between: Proxy) -> AsyncIterator[RabbitPublisher]:
    """A publisher through the proxy, with short time limits."""
    limits = PublishLimits(timeout_s=1.5, connect_wait_s=0.5, window=Window(messages=8))
    publisher = RabbitPublisher(lambda: [between.url], OPTIONS, limits)
    publisher.open()
    await publisher.wait_connected(30)
    yield publisher
    await publisher.close()


async def receipts(publisher: RabbitPublisher, *messages: Outgoing) -> list[Receipt]:
    return [answer.receipt for answer in await publisher.publish(messages)]


async def bodies(channel: aiormq.abc.AbstractChannel, queue: str = "work") -> list[bytes]:
    found = []
    while (message := await channel.basic_get(queue, no_ack=True)).delivery_tag:
        found.append(message.body)
    return found


async def test_a_full_queue_refuses_and_takes_again_once_there_is_room(
    publisher: RabbitPublisher, channel: aiormq.abc.AbstractChannel
) -> None:
    await channel.queue_declare("full", durable=True, arguments={
        **QUORUM, "x-max-length": 1, "x-overflow": "reject-publish"})

    async def refused() -> bool:
        answer, = await publisher.publish([work(b"full", routing_key="full")])
        assert answer.receipt in (OK, REFUSED)
        return answer.receipt is REFUSED and "nack" in answer.detail

    await eventually(refused)
    assert await receipts(publisher, work(b"good")) == [OK]
    await channel.queue_purge("full")

    async def taken() -> bool:
        return await receipts(publisher, work(b"again", routing_key="full")) == [OK]

    await eventually(taken)


async def test_bad_messages_are_told_apart_and_never_hold_up_good_ones(
    publisher: RabbitPublisher, channel: aiormq.abc.AbstractChannel
) -> None:
    def with_properties(properties: bytes) -> Outgoing:
        return Outgoing("", "work", b"bad", properties, "bad")

    large = Properties(message_id="h", headers=Headers.of({"trace": "x" * 200_000}))
    bad = {
        "16777216 are allowed": work(b"x" * (17 * 1024 * 1024), message_id="big"),
        "routing key has 300 bytes": work(b"bad", routing_key="k" * 300),
        "routing key has 260 bytes": work(b"bad", routing_key="é" * 130),
        "routing key is not UTF-8": work(b"bad", routing_key="\udcff"),
        "exchange name has 300": work(b"bad", exchange="e" * 300),
        "exchange name holds a character": work(b"bad", exchange="é"),
        "a frame has 131072": with_properties(large.to_wire()),
        "no message id": with_properties(Properties(type="t").to_wire()),
        "cut off": with_properties(b"\x80\x80\x05a"),
    }
    messages = [message for one in bad.values() for message in (one, work(b"good"))]
    answers = await publisher.publish(messages)
    assert [a.receipt for a in answers] == [UNSENDABLE, OK] * len(bad)
    for answer, reason in zip(answers[::2], bad, strict=True):
        assert reason in answer.detail
    assert await bodies(channel) == [b"good"] * len(bad)


async def test_the_largest_header_frame_that_fits_is_sent(
    publisher: RabbitPublisher, channel: aiormq.abc.AbstractChannel
) -> None:
    def sized(total: int) -> Outgoing:
        empty = len(Properties(message_id="m", headers=Headers.of({"t": ""})).to_wire())
        headers = Headers.of({"t": "x" * (total - 20 - empty)})
        properties = Properties(message_id="m", headers=headers)
        return Outgoing("", "work", b"b", properties.to_wire(), "m")

    assert await receipts(publisher, sized(131_072), sized(131_073)) == [OK, UNSENDABLE]
    assert await bodies(channel) == [b"b"]


@pytest.mark.parametrize(("properties", "reason"), [
    (Properties(message_id="bad", expiration="soon"), "expiration"),
    (Properties(message_id="bad", user_id="somebody"), "user_id"),
    (Properties(message_id="bad", headers=Headers(NOT_A_NUMBER)), "INTERNAL_ERROR"),
])
async def test_one_that_makes_the_broker_close_something_is_refused_alone(
    properties: Properties, reason: str, publisher: RabbitPublisher,
    channel: aiormq.abc.AbstractChannel,
) -> None:
    bad = Outgoing("", "work", b"bad", properties.to_wire(), "bad")
    good = [work(b"%d" % n) for n in range(20)]
    answers = await publisher.publish([*good[:10], bad, *good[10:]])
    assert [a.receipt for a in answers] == [*[OK] * 10, REFUSED, *[OK] * 10]
    assert reason in answers[10].detail
    assert set(await bodies(channel)) == {b"%d" % n for n in range(20)}


async def test_what_follows_a_culprit_in_a_long_call_goes_over_a_new_connection(
    publisher: RabbitPublisher, channel: aiormq.abc.AbstractChannel
) -> None:
    good = [work(b"%d" % n) for n in range(1500)]
    messages = [work(b"bad", exchange="missing"), *good[:700], work(b"also", exchange="missing"),
                *good[700:]]
    found = await receipts(publisher, *messages)
    assert found == [UNROUTABLE, *[OK] * 700, UNROUTABLE, *[OK] * 800]
    assert {b"%d" % n for n in range(1500)} == set(await bodies(channel))


async def test_an_unroutable_one_is_delivered_once_it_is_bound(
    publisher: RabbitPublisher, channel: aiormq.abc.AbstractChannel
) -> None:
    await channel.exchange_declare("topic", exchange_type="topic", durable=True)
    lost = [work(b"1", routing_key="nobody.home"),
            work(b"2", exchange="topic", routing_key="a.b"),
            work(b"3", exchange="missing", routing_key="a.b")]
    assert await receipts(publisher, *lost, work(b"4")) == [UNROUTABLE] * 3 + [OK]
    await channel.queue_bind("work", "topic", "a.*")
    await channel.exchange_declare("missing", exchange_type="fanout", durable=True)
    await channel.queue_bind("work", "missing")
    assert await receipts(publisher, *lost) == [UNROUTABLE, OK, OK]
    assert sorted(await bodies(channel)) == [b"2", b"3", b"4"]


async def test_a_message_id_that_is_not_utf8_is_recognised_when_it_is_returned(
    publisher: RabbitPublisher, channel: aiormq.abc.AbstractChannel
) -> None:
    properties = Properties(message_id="\udcff\udcfe\udcfa").to_wire()
    odd = Outgoing("", "nobody.home", b"odd", properties, "\udcff\udcfe\udcfa")
    assert await receipts(publisher, odd, work(b"good")) == [UNROUTABLE, OK]


async def test_more_than_the_window_goes_through(
    consumer_vhost: Vhost, channel: aiormq.abc.AbstractChannel
) -> None:
    limits = PublishLimits(window=Window(messages=16, bytes=4096))
    publisher = RabbitPublisher(lambda: [consumer_vhost.url], OPTIONS, limits)
    publisher.open()
    messages = [work(b"%d" % n + b"x" * 1000, message_id=f"{n}") for n in range(500)]
    assert await receipts(publisher, *messages) == [OK] * 500
    assert await bodies(channel) == [m.body for m in messages]
    await publisher.close()


async def test_a_stalled_broker_is_unknown_in_time_and_nothing_is_lost_after_it(
    impatient: RabbitPublisher, between: Proxy, channel: aiormq.abc.AbstractChannel
) -> None:
    assert await receipts(impatient, work(b"before")) == [OK]
    between.freeze()
    loop = asyncio.get_running_loop()
    began = loop.time()
    stalled = [work(b"%d" % n) for n in range(20)]
    assert await receipts(impatient, *stalled) == [UNKNOWN] * 20
    assert await receipts(impatient, *stalled[:2]) == [UNKNOWN] * 2
    assert loop.time() - began < 20  # far less than the default of 30 s for each
    between.thaw()

    async def again() -> bool:
        return await receipts(impatient, *stalled) == [OK] * 20

    await eventually(again)
    assert {m.body for m in stalled} <= set(await bodies(channel))


async def test_while_the_broker_blocks_nothing_is_sent_and_the_reason_is_told(
    impatient: RabbitPublisher, channel: aiormq.abc.AbstractChannel
) -> None:
    session = impatient._link.session
    assert session is not None
    assert await receipts(impatient, work(b"1")) == [OK]
    session.flowing.clear()  # what connection.blocked does
    answer, = await impatient.publish([work(b"2")])
    assert answer.receipt is UNKNOWN
    assert "short of memory or disk" in answer.detail
    session.flowing.set()
    assert await receipts(impatient, work(b"3")) == [OK]
    assert await bodies(channel) == [b"1", b"3"]
    assert impatient._link.session is session


async def test_a_lost_connection_is_unknown_and_the_next_publish_goes_through(
    impatient: RabbitPublisher, between: Proxy, channel: aiormq.abc.AbstractChannel
) -> None:
    for number in range(5):
        assert await receipts(impatient, work(b"before %d" % number)) == [OK]
        between.freeze()
        publishing = asyncio.create_task(receipts(impatient, work(b"in flight")))
        await asyncio.sleep(0)
        between.cut()
        between.thaw()
        await impatient.wait_connected(30)
        assert await publishing in ([UNKNOWN], [OK])  # OK: it was sent after the reconnect

    async def sent() -> bool:
        return await receipts(impatient, work(b"after")) == [OK]

    await eventually(sent)


async def test_connections_cut_by_an_operator_are_replaced(
    publisher: RabbitPublisher, channel: aiormq.abc.AbstractChannel, consumer_services: Endpoints,
    consumer_vhost: Vhost,
) -> None:
    await channel.connection.close()
    async with BrokerAdmin(consumer_services.management_url, consumer_vhost.name) as admin:
        for _ in range(5):
            assert await receipts(publisher, work(b"1")) == [OK]
            await admin.cut_connections()

            async def again() -> bool:
                return await receipts(publisher, work(b"2")) == [OK]

            await eventually(again)
    assert publisher.connected


async def test_without_a_broker_the_answer_is_unknown(unused_tcp_port: int) -> None:
    limits = PublishLimits(timeout_s=5, connect_wait_s=0.2)
    publisher = RabbitPublisher(
        lambda: [f"amqp://guest:guest@127.0.0.1:{unused_tcp_port}/"], OPTIONS, limits)
    publisher.open()
    answers = await publisher.publish([work(b"1"), work(b"2")])
    assert [a.receipt for a in answers] == [UNKNOWN, UNKNOWN]
    assert "no connection to RabbitMQ" in answers[0].detail
    assert not publisher.connected
    await publisher.close()
