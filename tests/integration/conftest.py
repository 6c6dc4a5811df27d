"""What the broker's tests share: an operator, and somebody else's channel."""

from collections.abc import AsyncIterator

import aiormq
import pytest

from consumer.testing.broker_admin import BrokerAdmin
from consumer.testing.plugin import Vhost
from consumer.testing.services import Endpoints


@pytest.fixture
async def admin(
    consumer_services: Endpoints, consumer_vhost: Vhost
) -> AsyncIterator[BrokerAdmin]:
    """An operator at the management API of the test's virtual host."""
    async with BrokerAdmin(consumer_services.management_url, consumer_vhost.name) as admin:
        yield admin


@pytest.fixture
async def channel(consumer_vhost: Vhost) -> AsyncIterator[aiormq.abc.AbstractChannel]:
    """A channel of somebody else, with the quorum queue `work`."""
    connection = await aiormq.connect(consumer_vhost.url)
    channel = await connection.channel()
    await channel.queue_declare("work", durable=True, arguments={"x-queue-type": "quorum"})
    yield channel
    await connection.close()
