"""The site each test of a worker plays on."""

from collections.abc import AsyncIterator

import pytest
from harness import Site

from consumer.testing.plugin import Database, Vhost


@pytest.fixture
async def site(consumer_vhost: Vhost, consumer_database: Database) -> AsyncIterator[Site]:
    """A virtual host and a database without an application, and what is logged meanwhile."""
    async with Site.opened(consumer_vhost.url, consumer_database.url) as opened:
        yield opened
