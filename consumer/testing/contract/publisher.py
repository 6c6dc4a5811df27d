"""What every `Publisher` promises. Subclass `PublisherContract`; give it a fixture `broker`."""

import asyncio
from typing import Protocol

from consumer.message import Outgoing
from consumer.ports import Publisher, Receipt
from consumer.wire import Headers, Properties

QUEUE = "shop.orders"


class PublisherUnderTest(Protocol):
    """A publisher, and a queue `QUEUE` whose messages can be looked at."""

    @property
    def publisher(self) -> Publisher:
        """What is tested."""

    async def bodies(self) -> list[bytes]:
        """The bodies of the messages in the queue, which are taken out of it."""


def outgoing(
    body: bytes, *, message_id: str | None = None, exchange: str = "", routing_key: str = QUEUE
) -> Outgoing:
    """A message to the queue, if nothing else is said."""
    name = message_id or f"id-{body.decode()}"
    properties = Properties(message_id=name, delivery_mode=2, headers=Headers.of({"n": name}))
    return Outgoing(exchange, routing_key, body, properties.to_wire(), name)


class PublisherContract:
    """One answer per message, in order, and the answer is true."""

    async def test_nothing_to_publish_is_nothing(self, broker: PublisherUnderTest) -> None:
        assert await broker.publisher.publish([]) == []

    async def test_confirmed_messages_are_in_the_queue_in_order(
        self, broker: PublisherUnderTest
    ) -> None:
        answers = await broker.publisher.publish([outgoing(b"%d" % n) for n in range(50)])
        assert {answer.receipt for answer in answers} == {Receipt.CONFIRMED}
        assert await broker.bodies() == [b"%d" % n for n in range(50)]

    async def test_unroutable_ones_are_told_apart_from_their_neighbours(
        self, broker: PublisherUnderTest
    ) -> None:
        messages = [
            outgoing(b"%d" % n, routing_key=QUEUE if n % 2 else "nobody.home") for n in range(20)
        ]
        answers = await broker.publisher.publish(messages)
        assert [answer.receipt for answer in answers] == [
            Receipt.CONFIRMED if n % 2 else Receipt.UNROUTABLE for n in range(20)
        ]
        assert all(answer.detail for answer in answers if answer.receipt is Receipt.UNROUTABLE)
        assert await broker.bodies() == [b"%d" % n for n in range(1, 20, 2)]

    async def test_an_exchange_that_does_not_exist_costs_only_its_own_message(
        self, broker: PublisherUnderTest
    ) -> None:
        messages = [outgoing(b"a"), outgoing(b"b", exchange="nowhere"), outgoing(b"c")]
        answers = await broker.publisher.publish(messages)
        assert [answer.receipt for answer in answers] == [
            Receipt.CONFIRMED, Receipt.UNROUTABLE, Receipt.CONFIRMED]
        assert {b"a", b"c"} == set(await broker.bodies())
        again = await broker.publisher.publish([outgoing(b"d")])
        assert [answer.receipt for answer in again] == [Receipt.CONFIRMED]

    async def test_messages_of_one_id_get_each_its_own_answer(
        self, broker: PublisherUnderTest
    ) -> None:
        messages = [
            outgoing(b"%d" % n, message_id="same", routing_key="nobody" if n % 2 else QUEUE)
            for n in range(10)
        ]
        answers = await broker.publisher.publish(messages)
        assert [answer.receipt for answer in answers] == [
            Receipt.UNROUTABLE if n % 2 else Receipt.CONFIRMED for n in range(10)
        ]
        assert await broker.bodies() == [b"%d" % n for n in range(0, 10, 2)]

    async def test_calls_at_the_same_time_get_their_own_answers(
        self, broker: PublisherUnderTest
    ) -> None:
        calls = [
            [outgoing(b"%d-%d" % (call, n), message_id=f"{n}",
                      routing_key=QUEUE if call % 2 else "nobody") for n in range(5)]
            for call in range(8)
        ]
        answers = await asyncio.gather(*(broker.publisher.publish(call) for call in calls))
        for number, of_call in enumerate(answers):
            expected = Receipt.CONFIRMED if number % 2 else Receipt.UNROUTABLE
            assert [answer.receipt for answer in of_call] == [expected] * 5
        assert len(await broker.bodies()) == 20
