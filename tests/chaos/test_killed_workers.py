"""Workers that are killed at any moment: every command takes effect once, and nothing is left."""

from collections import Counter
from functools import partial
from pathlib import Path

import fulfilment
import pytest
from harness import Site
from postbox import post
from worker_programs import Program, Programs, programs

from consumer.broker.depths import depths
from consumer.core.topology import LEVELS, delay_level, unroutable
from consumer.exit_codes import ExitCode

pytestmark = pytest.mark.integration

ORDERS, WORKERS, KILLS = 500, 3, 8
APP = "fulfilment:app"


async def everything_happened_once(site: Site, orders: int) -> None:
    """Each order has one effect of each step, all claims are done at their first attempt, and
    neither a queue nor the outbox holds anything (I1, I2, I3, I4, I5, I7).
    """
    expected = {("depot.pack", f"order {n}") for n in range(orders)} | {
        ("depot.ship", f"parcel {n}") for n in range(orders)}
    effects = Counter((handler, key) for handler, key, _ in await site.effects())
    assert set(effects) == expected
    assert effects.total() == len(expected)
    claims = await site.claims()
    assert claims == dict.fromkeys((key for _, key in expected), ("done", 1))
    assert await site.database.fetchval("SELECT count(*) FROM consumer.attempt") == 0
    assert await site.outbox_empty()
    assert await held(site) == {}


async def held(site: Site) -> dict[str, int]:
    """What waits in which queue: work, replay, dead letters, unroutable and the delay ladder."""
    names = [f"{queue}{suffix}" for queue in fulfilment.app.queues
             for suffix in ("", ".replay", ".dead")]
    names += [unroutable("consumer"), *(delay_level("consumer", n) for n in range(LEVELS))]
    found = await depths(site.amqp_url, names)
    return {name: depth.ready for name, depth in found.items() if depth and depth.ready}


async def nothing_waits(site: Site) -> bool:
    return not await held(site)


async def test_workers_killed_during_work(site: Site, tmp_path: Path) -> None:
    """500 orders, some of them sent twice, three workers; while work goes on, one is killed with -9
    and replaced, eight times.
    """
    await site.prepare(fulfilment.app)
    orders = [post("depot.pack", {"number": n}, f"order {n}") for n in range(ORDERS)]
    await site.publish(*orders, *orders[::5])

    async def shipped(orders: int) -> bool:
        parcels = [key for _, key, _ in await site.effects() if key.startswith("parcel")]
        return len(parcels) >= orders

    async with programs(site, Path(fulfilment.__file__).parent, tmp_path) as started:
        fleet = [await started.worker(APP) for _ in range(WORKERS)]
        for kill in range(1, KILLS + 1):
            await site.until(partial(shipped, kill * ORDERS // (KILLS + 2)), "work goes on")
            victim = next(filter(works, fleet))
            fleet.remove(victim)
            victim.process.kill()
            await victim.process.wait()
            fleet.append(await started.worker(APP))
        await site.until(lambda: shipped(ORDERS), "all are shipped", 60)
        await site.until(site.outbox_empty, "the outbox is empty", 60)
        await site.until(lambda: all(map(works, fleet)), "the last replacement works")
        await finish(site, started, fleet)
    await everything_happened_once(site, ORDERS)


async def finish(site: Site, started: Programs, fleet: list[Program]) -> None:
    """All programs have drained, and what a drain gave back or had parked was worked off too.

    A duplicate that met a killed worker's open transaction waits in the delay ladder, for one.
    """
    for _ in range(5):
        await site.until(lambda: nothing_waits(site), "the queues are empty", 60)
        for program in fleet:
            program.process.terminate()
        assert {await program.ended() for program in fleet} == {ExitCode.OK}
        if await nothing_waits(site):
            return
        fleet = [await started.worker(APP)]
    raise AssertionError(f"the queues never stay empty: {await held(site)}")


def works(program: Program) -> bool:
    return bool(program.logged("consuming"))
