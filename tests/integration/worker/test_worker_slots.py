"""Calls in flight: never more than a process and the fleet may have, whoever comes and goes."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import metered
import pytest
from fleet import Fleet, beats, unready
from harness import FAST, Site, effect
from metered import LONG, Meter
from postbox import Post, post
from pydantic import SecretStr
from worker_programs import programs

from consumer import App, Command, Context, Dependency, Handler, Options, Queue
from consumer.cli.overview import overview
from consumer.exit_codes import ExitCode
from consumer.settings import Settings

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent


class Ship(Command, type="depot.ship"):
    pass


class Bill(Command, type="depot.bill"):
    pass


class Traffic:
    """Who is where; they go on once `free` is set."""

    def __init__(self) -> None:
        self.now, self.most, self.free = 0, 0, asyncio.Event()

    async def pass_through(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.free.wait()
        finally:
            self.now -= 1


class Shipping(Handler[Ship]):
    name, queue, dependencies = "depot.ship", "depot", ("carrier",)

    def __init__(self, options: Options = FAST) -> None:
        self.options = options  # type: ignore[misc]
        self.calling, self.packing = Traffic(), Traffic()
        self.packing.free.set()

    async def handle(self, command: Ship, context: Context) -> None:
        async with context.call():
            await self.calling.pass_through()
        await self.packing.pass_through()
        await effect(context)


def depot(handler: Handler[Any], *others: Handler[Any], **limits: int | None) -> App:
    """Its dependencies are those given with their limits for a process."""
    return App("depot", handlers=[handler, *others], queues=[Queue("depot", concurrency=8)],
               dependencies=[Dependency(name, max_in_flight=limit, budget=None)
                             for name, limit in limits.items()])


def ship(*numbers: int) -> list[Post]:
    return [post("depot.ship", {}, f"K{number}") for number in numbers]


@pytest.mark.parametrize("hold", ["attempt", "call"])
@pytest.mark.parametrize(("limit", "at_once"), [(3, 3), (1, 1), (None, 8)])
async def test_a_process_makes_no_more_calls_at_once_than_it_may(
    site: Site, limit: int | None, at_once: int, hold: str
) -> None:
    """Those that find no slot wait in the worker; none is parked."""
    shipping = Shipping(Options(hold_slots=hold))  # type: ignore[arg-type]
    app = depot(shipping, carrier=limit)
    await site.prepare(app)
    await site.publish(*ship(*range(30)))
    async with site.worker(app):
        await site.until(lambda: shipping.calling.now == at_once, "all slots are used")
        await beats(site)
        shipping.calling.free.set()
        await site.until(lambda: site.settled(why="done") == 30, "all are done")
    assert shipping.calling.most == at_once
    assert site.settled(outcome="delay") == 0


async def test_slots_held_for_the_call_are_free_while_the_handler_does_other_things(
    site: Site
) -> None:
    shipping = Shipping(Options(hold_slots="call"))
    shipping.calling.free.set()
    shipping.packing.free.clear()
    app = depot(shipping, carrier=1)
    await site.prepare(app)
    await site.publish(*ship(*range(8)))
    async with site.worker(app):
        await site.until(lambda: shipping.packing.now == 8, "all have made their call")
        shipping.packing.free.set()
        await site.until(lambda: site.settled(why="done") == 8, "all are done")
    assert shipping.calling.most == 1


async def test_slots_held_for_the_attempt_are_held_to_its_end(site: Site) -> None:
    shipping = Shipping(Options(hold_slots="attempt"))
    shipping.calling.free.set()
    shipping.packing.free.clear()
    app = depot(shipping, carrier=2)
    await site.prepare(app)
    await site.publish(*ship(*range(8)))
    async with site.worker(app):
        await site.until(lambda: shipping.packing.now == 2, "two have made their call")
        await beats(site)
        shipping.packing.free.set()
        await site.until(lambda: site.settled(why="done") == 8, "all are done")
    assert shipping.packing.most == 2


class Billing(Handler[Bill]):
    name, queue = "depot.bill", "depot"

    def __init__(self, options: Options, *dependencies: str) -> None:
        self.options, self.dependencies = options, dependencies  # type: ignore[misc]

    async def handle(self, command: Bill, context: Context) -> None:
        async with context.call(*self.dependencies):
            await asyncio.sleep(0)
        await effect(context)


class Insuring(Handler[Ship]):
    name, queue = "depot.ship", "depot"

    def __init__(self, options: Options, *dependencies: str) -> None:
        self.options, self.dependencies = options, dependencies  # type: ignore[misc]

    async def handle(self, command: Ship, context: Context) -> None:
        async with context.call(*self.dependencies):
            await asyncio.sleep(0)
        await effect(context)


@pytest.mark.parametrize("hold", ["attempt", "call"])
async def test_dependencies_taken_in_opposite_order_do_not_deadlock(site: Site, hold: str) -> None:
    """Both limits are 1; every command is done at its first attempt, none waits for a timeout."""
    options = Options(hold_slots=hold, attempt_timeout=LONG)  # type: ignore[arg-type]
    app = depot(Insuring(options, "carrier", "bank"), Billing(options, "bank", "carrier"),
                carrier=1, bank=1)
    await site.prepare(app)
    await site.publish(*(one for number in range(50) for one in (
        *ship(number), post("depot.bill", {}, f"B{number}"))))
    async with site.worker(app):
        await site.until(lambda: site.settled(why="done") == 100, "all are done")
    assert set((await site.claims()).values()) == {("done", 1)}
    assert site.settled(outcome="delay") == 0


async def test_a_call_that_gets_no_slot_in_time_is_no_attempt(site: Site) -> None:
    """It is parked without a claim, and done when a slot is free."""
    shipping = Shipping(Options(hold_slots="call", attempt_timeout=LONG))
    short = Options(hold_slots="call", attempt_timeout=timedelta(seconds=0.2))
    app = depot(shipping, Billing(short, "carrier"), carrier=1)
    await site.prepare(app)
    await site.publish(*ship(0))
    async with site.worker(app):
        await site.until(lambda: shipping.calling.now == 1, "the slot is taken")
        await site.publish(post("depot.bill", {}, "B0"))
        await site.until(lambda: site.settled(why="no_slot") >= 1, "the other is parked")
        assert await site.claims() == {}
        shipping.calling.free.set()
        await site.until(lambda: site.settled(why="done") == 2, "both are done")
    assert await site.claims() == {"K0": ("done", 1), "B0": ("done", 1)}


@pytest.fixture
async def meter() -> AsyncIterator[Meter]:
    async with metered.meter() as serving:
        yield serving


MakeFleet = Callable[[int, int], Awaitable[Fleet]]


@pytest.fixture
async def make_fleet(site: Site, meter: Meter, tmp_path: Path) -> AsyncIterator[MakeFleet]:
    """Makes a fleet that has so many slots, and so many commands to do."""
    async with programs(site, HERE, tmp_path) as started:
        async def make(limit: int, commands: int) -> Fleet:
            await site.prepare(metered.app)
            await site.publish(*(post("meter.measure", {}, f"K{n}") for n in range(commands)))
            return Fleet(site, started, meter, limit)

        yield make


async def test_the_fleet_keeps_its_limit_while_it_grows_and_shrinks(make_fleet: MakeFleet) -> None:
    """Two workers, then four, then two again, with calls in flight all the time; those that are
    told to end finish their calls and give their shares back.
    """
    fleet = await make_fleet(6, 100)
    await fleet.grow(2)
    await fleet.busy(6)
    await fleet.grow(2)
    await fleet.busy(6)
    await fleet.answered(10)
    await fleet.busy(6)
    await fleet.site.until(lambda: fleet.spread([1, 1, 2, 2]), "all have a share")
    leaving, fleet.workers = fleet.workers[:2], fleet.workers[2:]
    for worker in leaving:
        worker.send(signal.SIGTERM)
    await fleet.answered(10)
    for worker in leaving:
        assert await worker.ended() == ExitCode.OK
    await fleet.site.until(lambda: fleet.spread([3, 3]), "the others have their shares")
    await fleet.busy(6)
    await fleet.all_done(100)
    assert fleet.meter.most == 6


async def test_the_share_of_a_killed_worker_comes_back_when_its_lease_is_over(
    make_fleet: MakeFleet
) -> None:
    """Killed in the middle of its calls: nobody makes calls in its place before."""
    fleet = await make_fleet(6, 40)
    await fleet.grow(3)
    await fleet.busy(6)
    await fleet.answered(10)
    await fleet.site.until(lambda: fleet.spread([2, 2, 2]), "all have a share")
    await fleet.busy(6)
    victim = fleet.workers.pop()
    victim.send(signal.SIGKILL)
    assert await victim.ended() == -signal.SIGKILL
    await fleet.busy(4)
    await fleet.answered(10)
    await fleet.busy(4)
    assert (await fleet.held())[victim.process.pid] == 2
    await fleet.site.database.execute(
        "UPDATE consumer.slot_share SET lease_until = clock_timestamp() WHERE worker ="
        " (SELECT id FROM consumer.worker WHERE pid = $1)", victim.process.pid)
    await fleet.busy(6)
    await fleet.all_done(40)
    assert fleet.meter.calls == 42
    assert fleet.meter.most == 6


async def test_a_worker_without_a_share_does_not_consume(make_fleet: MakeFleet) -> None:
    """It says why, is ready, and consumes once a share is free."""
    fleet = await make_fleet(2, 0)
    site = fleet.site
    await fleet.grow(3)
    await site.until(lambda: fleet.spread([0, 1, 1]), "two have a share")

    async def two_consume() -> bool:
        return (await site.depth("meter")).consumers == 2

    async def reasons() -> list[tuple[str, int]]:
        settings = Settings(amqp_url=SecretStr(site.amqp_url),
                            database_url=SecretStr(site.database_url))
        [queue] = (await overview(settings, metered.app)).queues
        return [(each.why, each.workers) for each in queue.resting]

    async def told() -> bool:
        return await reasons() == [("no slot of meter is free for this worker", 1)]

    await site.until(two_consume, "two consume")
    await site.until(told, "the third says why")
    for worker in fleet.workers:
        assert await unready(worker) == {}
    await site.publish(*(post("meter.measure", {}, f"K{n}") for n in range(20)))
    await fleet.busy(2)
    held = await fleet.held()
    leaving = next(worker for worker in fleet.workers if held[worker.process.pid])
    leaving.send(signal.SIGTERM)
    fleet.meter.answer(2)
    assert await leaving.ended() == ExitCode.OK
    await site.until(two_consume, "two consume again")
    await fleet.all_done(20)

    async def nothing_to_say() -> bool:
        return await reasons() == []

    await site.until(nothing_to_say, "none rests")


@pytest.mark.parametrize("grace", ["30", "0.5"])
async def test_a_worker_that_ends_gives_its_slots_back(make_fleet: MakeFleet, grace: str) -> None:
    """With calls in flight, whether it may finish them or not: its share is another's at once, and
    what it could not finish is done by that.
    """
    fleet = await make_fleet(2, 20)
    await fleet.grow(1, "--grace", grace)
    await fleet.busy(2)
    await fleet.grow(1)
    [leaving, other] = fleet.workers
    leaving.send(signal.SIGTERM)
    if grace == "30":
        await fleet.site.until(lambda: leaving.logged("draining"), "it drains")
        await fleet.busy(2)
        fleet.meter.answer(2)
        assert await leaving.ended() == ExitCode.OK
    else:
        assert await leaving.ended() == ExitCode.GRACE_EXCEEDED
        await fleet.busy(2)
    await fleet.site.until(lambda: fleet.spread([2]), "the share has moved")
    assert set(await fleet.held()) == {other.process.pid}
    await fleet.all_done(20)
    other.send(signal.SIGTERM)
    assert await other.ended() == ExitCode.OK
    assert await fleet.counts("SELECT count(*) FROM consumer.slot_share", 0)
