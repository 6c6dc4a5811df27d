"""The publisher of RabbitMQ keeps the promises of `Publisher`."""

from collections.abc import AsyncIterator

import aiormq
import pytest

from consumer.broker.publish import RabbitPublisher
from consumer.testing.contract.publisher import QUEUE, PublisherContract
from consumer.testing.plugin import Vhost

pytestmark = pytest.mark.integration


class RabbitUnderTest:
    """A publisher on RabbitMQ, and a channel that looks into the queue."""

    def __init__(self, publisher: RabbitPublisher, channel: aiormq.abc.AbstractChannel) -> None:
        self.publisher, self._channel = publisher, channel

    async def bodies(self) -> list[bytes]:
        found = []
        while (message := await self._channel.basic_get(QUEUE, no_ack=True)).delivery_tag:
            found.append(message.body)
        return found


@pytest.fixture
async def broker(consumer_vhost: Vhost) -> AsyncIterator[RabbitUnderTest]:
    connection = await aiormq.connect(consumer_vhost.url)
    channel = await connection.channel()
    await channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    publisher = RabbitPublisher(lambda: [consumer_vhost.url])
    publisher.open()
    yield RabbitUnderTest(publisher, channel)
    await publisher.close()
    await connection.close()


class TestRabbitPublisher(PublisherContract):
    """On a real broker."""
