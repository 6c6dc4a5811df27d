"""Chaos is made on sites like those of the tests of a worker, with the same tools."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "integration" / "worker"))

from harness import Site

from consumer.testing.plugin import Database, Vhost


@pytest.fixture
async def site(consumer_vhost: Vhost, consumer_database: Database) -> AsyncIterator[Site]:
    """A virtual host and a database of the test's own."""
    async with Site.opened(consumer_vhost.url, consumer_database.url) as opened:
        yield opened
