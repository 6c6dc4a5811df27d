"""RabbitMQ and Postgres are stopped and started again under workers that go on working."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import fulfilment
import pytest
from harness import Site
from postbox import post
from test_killed_workers import everything_happened_once, finish
from worker_programs import programs

from consumer.store.schema import upgrade
from consumer.testing.services.choice import Mode
from consumer.testing.services.containers import containers_lack
from consumer.testing.services.lifecycle import down, up
from consumer.testing.services.provision import chosen_source

pytestmark = pytest.mark.integration

ORDERS = 200


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> Mode:
    """The kind of services the other tests have, for services of this test's own."""
    source = chosen_source(request.config.getoption("--consumer-services"))
    if source == "auto":
        return "local" if containers_lack() else "docker"
    return source


@pytest.fixture
async def own_site(mode: Mode, tmp_path: Path) -> AsyncIterator[Site]:
    """A site on a broker and a server that nobody else uses."""
    folder = tmp_path / "services"
    try:
        ends = await asyncio.to_thread(up, folder, mode=mode)
        await upgrade(ends.database_url)
        async with Site.opened(ends.amqp_url, ends.database_url) as opened:
            yield opened
    finally:
        await asyncio.to_thread(down, folder, remove_data=True)


async def test_both_services_restarted_during_work(
    own_site: Site, mode: Mode, tmp_path: Path
) -> None:
    """The processes survive it, resume by themselves, and every order takes effect once."""
    site = own_site
    await site.prepare(fulfilment.app)
    await site.publish(*(
        post("depot.pack", {"number": n}, f"order {n}") for n in range(ORDERS)))
    async with programs(site, Path(fulfilment.__file__).parent, tmp_path) as started:
        fleet = [await started.worker("fulfilment:app") for _ in range(2)]

        async def effects(at_least: int) -> bool:
            return len(await site.effects()) >= at_least

        await site.until(lambda: effects(ORDERS // 4), "work goes on")
        await asyncio.to_thread(down, tmp_path / "services")
        await asyncio.to_thread(up, tmp_path / "services", mode=mode)
        async with Site.opened(site.amqp_url, site.database_url) as site:
            await site.until(lambda: effects(2 * ORDERS), "all are shipped", 90)
            await site.until(site.outbox_empty, "the outbox is empty", 60)
            assert all(program.process.returncode is None for program in fleet)
            await finish(site, started, fleet)
            await everything_happened_once(site, ORDERS)
