"""The renewals of a process's shares: what it reports, what it may use then, and its farewell."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from simulation.bench import Charge, guards_of
from simulation.loop import in_virtual_time

from consumer import App, Context, Dependency, Handler, Options
from consumer.core.slots import SlotWish
from consumer.errors import SerializationConflict, StoreUnavailable
from consumer.telemetry.metrics import Metrics
from consumer.testing.memory import FakeClock, MemoryDatabase
from consumer.worker.shares import Shares
from consumer.worker.slots import SlotRoom

ME = uuid4()
SECOND = timedelta(seconds=1)
FAULTS = [StoreUnavailable("away"), SerializationConflict("55P03"), RuntimeError("no such table")]


class Register:
    """A store that gives the share it is told to."""

    def __init__(self) -> None:
        self.share, self.takes_s = 5, 0.0
        self.renewals: list[tuple[UUID, list[SlotWish]]] = []
        self.at_s: list[float] = []
        self.left: list[UUID] = []
        self.error: Exception | None = None

    async def renew(self, worker: UUID, wishes: Sequence[SlotWish]) -> list[int]:
        self.renewals.append((worker, list(wishes)))
        self.at_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error
        return [self.share] * len(wishes)

    async def leave(self, worker: UUID) -> None:
        if self.error is not None:
            raise self.error
        self.left.append(worker)


class Desk:
    """Shares of psp, whose calls take 10 s at most; nothing limits free in the fleet."""

    def __init__(self, heartbeat: timedelta = 5 * SECOND, *, limited: bool = True) -> None:
        now = asyncio.get_running_loop().time
        dependencies = [Dependency("free", max_in_flight=3)]
        if limited:
            dependencies.append(
                Dependency("psp", timeout=10 * SECOND, max_in_flight_fleet=20))
        self.register, self.room = Register(), SlotRoom(dependencies, now)
        self.shares = Shares(self.register, dependencies, self.room, ME, heartbeat, now)


@in_virtual_time
async def test_a_renewal_reports_what_is_in_use_and_brings_the_share() -> None:
    desk = Desk()
    await desk.shares.renew()
    assert desk.room.limit("psp") == 5
    desk.room.try_take(["psp"])
    desk.register.share = 7
    await desk.shares.renew()
    assert desk.room.limit("psp") == 7
    assert [(worker, [(wish.dependency, wish.limit, wish.in_flight) for wish in wishes])
            for worker, wishes in desk.register.renewals] == [
        (ME, [("psp", 20, 0)]), (ME, [("psp", 20, 1)])]


@pytest.mark.parametrize(("heartbeat", "lease"), [
    (5 * SECOND, 25 * SECOND), (SECOND, 25 * SECOND), (20 * SECOND, 70 * SECOND)])
@in_virtual_time
async def test_a_lease_is_three_heartbeats_and_a_call_but_never_short(
    heartbeat: timedelta, lease: timedelta
) -> None:
    desk = Desk(heartbeat)
    await desk.shares.renew()
    [(_, [wish])] = desk.register.renewals
    assert wish.lease == lease
    await asyncio.sleep((lease - 10 * SECOND).total_seconds())
    assert desk.room.limit("psp") == 5
    await asyncio.sleep(0.125)
    assert desk.room.limit("psp") == 0


@in_virtual_time
async def test_a_lease_counts_from_before_the_question() -> None:
    """The store's clock began no earlier, so this process lets go first."""
    desk = Desk()
    desk.register.takes_s = 4.0
    await desk.shares.renew()
    await asyncio.sleep(11)
    assert desk.room.limit("psp") == 5
    await asyncio.sleep(0.125)
    assert desk.room.limit("psp") == 0


@in_virtual_time
async def test_while_a_renewal_is_under_way_no_more_is_used_than_it_reported() -> None:
    desk = Desk()
    await desk.shares.renew()
    desk.room.try_take(["psp"])
    desk.register.takes_s = 4.0
    renewal = asyncio.create_task(desk.shares.renew())
    await asyncio.sleep(1)
    assert not desk.room.try_take(["psp"])
    await renewal
    assert desk.room.try_take(["psp"])


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
@in_virtual_time
async def test_a_failed_renewal_leaves_what_was_in_use_until_the_lease_ends(
    error: Exception
) -> None:
    desk = Desk()
    await desk.shares.renew()
    desk.room.try_take(["psp"])
    desk.register.error = error
    await desk.shares.renew()
    assert not desk.room.try_take(["psp"])
    desk.room.release(["psp"])
    assert desk.room.try_take(["psp"])
    desk.room.release(["psp"])
    await asyncio.sleep(15.125)
    assert not desk.room.try_take(["psp"])
    desk.register.error = None
    await desk.shares.renew()
    assert all(desk.room.try_take(["psp"]) for _ in range(5))


@pytest.mark.parametrize(("heartbeat", "every_s"), [(5 * SECOND, 2), (SECOND, 1)])
@in_virtual_time
async def test_shares_are_renewed_as_long_as_the_process_lives(
    heartbeat: timedelta, every_s: float
) -> None:
    desk = Desk(heartbeat)
    run = asyncio.create_task(desk.shares.run())
    await asyncio.sleep(every_s * 10.5)
    assert desk.register.at_s == [every_s * n for n in range(11)]
    assert not run.done()


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
@in_virtual_time
async def test_renewing_goes_on_after_a_failure(error: Exception) -> None:
    desk = Desk()
    desk.register.error = error
    run = asyncio.create_task(desk.shares.run())
    await asyncio.sleep(7)
    desk.register.error = None
    await asyncio.sleep(2)
    assert desk.room.limit("psp") == 5
    assert not run.done()


@in_virtual_time
async def test_without_a_limit_of_the_fleet_the_store_is_left_alone() -> None:
    desk = Desk(limited=False)
    await desk.shares.run()
    await desk.shares.renew()
    await desk.shares.leave()
    assert (desk.register.renewals, desk.register.left) == ([], [])


@in_virtual_time
async def test_a_process_that_ends_lets_go_unless_something_is_in_flight() -> None:
    desk = Desk()
    await desk.shares.renew()
    desk.room.try_take(["psp"])
    await desk.shares.leave()
    assert desk.register.left == []
    desk.room.release(["psp"])
    await desk.shares.leave()
    assert desk.register.left == [ME]


@pytest.mark.parametrize("error", FAULTS[:2], ids=lambda error: type(error).__name__)
@in_virtual_time
async def test_a_farewell_that_fails_stops_nobody(error: Exception) -> None:
    desk = Desk()
    desk.register.error = error
    await desk.shares.leave()
    assert desk.register.left == []


def test_a_share_is_leased_for_as_long_as_a_whole_attempt_may_hold_its_slot() -> None:
    class Slow(Handler[Charge]):
        name, queue, dependencies = "slow", "slow", ("psp", "mail")
        options = Options(attempt_timeout=timedelta(seconds=40))

        async def handle(self, command: Charge, context: Context) -> None: ...

    class Brief(Handler[Charge]):
        name, queue, dependencies = "brief", "brief", ("sms",)
        options = Options(attempt_timeout=timedelta(seconds=40), hold_slots="call")

        async def handle(self, command: Charge, context: Context) -> None: ...

    limited = [Dependency(name, timeout=timedelta(seconds=seconds), max_in_flight_fleet=4)
               for name, seconds in (("psp", 3), ("mail", 60), ("sms", 5))]
    app = App("shop", handlers=[Slow, Brief], dependencies=limited)
    database = MemoryDatabase(FakeClock())
    slots = guards_of(app, database, FakeClock(), Metrics()).gate.slots
    assert {name: slots.held_for(name).total_seconds() for name in app.dependencies} == {
        "psp": 40, "mail": 60, "sms": 5}
