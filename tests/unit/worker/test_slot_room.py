"""Slots of a process: all or none, in the order of asking, and none is ever lost."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random

import pytest
from simulation.loop import in_virtual_time

from consumer import Dependency
from consumer.worker.slots import SlotRoom

LIMITS = {"a": 1, "b": 1, "c": 2}


def room() -> SlotRoom:
    """One slot of a, one of b, two of c, any number of free ones."""
    limited = [Dependency(name, max_in_flight=limit) for name, limit in LIMITS.items()]
    return SlotRoom([*limited, Dependency("free")], asyncio.get_running_loop().time)


def fleet_room(share: int, until_s: float, at_most: int | None = None) -> SlotRoom:
    """Of one dependency, x, whose calls take 10 s at most, with a share of the fleet's slots."""
    made = SlotRoom([Dependency("x", max_in_flight=at_most, max_in_flight_fleet=100)],
                    asyncio.get_running_loop().time)
    made.grant("x", share, until_s)
    return made


def used(slots: SlotRoom) -> dict[str, int]:
    return {name: slots.in_flight(name) for name in LIMITS if slots.in_flight(name)}


def taking(slots: SlotRoom, *names: str, within_s: float = 1000) -> asyncio.Task[bool]:
    return asyncio.create_task(slots.take(names, within_s))


async def turn() -> None:
    """Whatever can go on now, does."""
    for _ in range(5):
        await asyncio.sleep(0)


# --- all or nothing --------------------------------------------------------------------------


@in_virtual_time
async def test_several_slots_are_taken_together_or_not_at_all() -> None:
    slots = room()
    assert slots.try_take(["b"])
    assert not slots.try_take(["a", "b"])
    assert used(slots) == {"b": 1}
    slots.release(["b"])
    assert slots.try_take(["a", "b"])
    assert used(slots) == {"a": 1, "b": 1}


@in_virtual_time
async def test_whoever_waits_holds_nothing() -> None:
    slots = room()
    slots.try_take(["b"])
    waiting = taking(slots, "a", "b")
    await turn()
    assert not waiting.done()
    assert used(slots) == {"b": 1}
    slots.release(["b"])
    assert await waiting
    assert used(slots) == {"a": 1, "b": 1}


@in_virtual_time
async def test_without_a_limit_a_slot_is_always_free_and_still_counted() -> None:
    slots = room()
    assert all(slots.try_take(["free"]) for _ in range(1000))
    assert (slots.limit("free"), slots.in_flight("free")) == (None, 1000)


@in_virtual_time
async def test_takers_of_two_in_either_order_never_wait_for_each_other() -> None:
    """The loop of these tests fails where every task waits for another one."""
    slots, most = room(), 0

    async def work(names: Sequence[str]) -> None:
        nonlocal most
        assert await slots.take(names, 10_000)
        most = max(most, *used(slots).values())
        await asyncio.sleep(0.5)
        slots.release(names)

    await asyncio.gather(*(work(["a", "b"] if n % 2 else ["b", "a"]) for n in range(50)))
    assert (most, used(slots)) == (1, {})


# --- the order of asking ---------------------------------------------------------------------


@in_virtual_time
async def test_those_who_wait_for_one_dependency_are_served_in_the_order_of_asking() -> None:
    slots, served = room(), list[int]()
    slots.try_take(["a"])

    async def work(number: int) -> None:
        assert await slots.take(["a"], 1000)
        served.append(number)
        slots.release(["a"])

    tasks = [asyncio.create_task(work(number)) for number in range(5)]
    await turn()
    slots.release(["a"])
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4]


@in_virtual_time
async def test_nobody_passes_one_who_waits_for_the_same_though_a_slot_is_free() -> None:
    slots = room()
    slots.try_take(["b"])
    both = taking(slots, "a", "b")
    await turn()
    assert not slots.try_take(["a"])
    later = taking(slots, "a")
    await turn()
    slots.try_take(["c"])
    slots.release(["c"])  # so those who wait are looked at
    await turn()
    assert not later.done()
    slots.release(["b"])
    assert await both
    await turn()
    assert not later.done()
    slots.release(["a", "b"])
    assert await later


@in_virtual_time
async def test_who_needs_something_else_does_not_stand_in_line() -> None:
    slots = room()
    slots.try_take(["b"])
    taking(slots, "a", "b")
    await turn()
    assert slots.try_take(["c"])
    assert await slots.take(["c"], 0)


# --- giving up -------------------------------------------------------------------------------


@pytest.mark.parametrize("within_s", [5.0, 0.25])
@in_virtual_time
async def test_a_slot_is_waited_for_so_long_and_no_longer(within_s: float) -> None:
    slots, loop = room(), asyncio.get_running_loop()
    slots.try_take(["a"])
    assert not await slots.take(["a"], within_s)
    assert loop.time() == within_s
    assert used(slots) == {"a": 1}


@pytest.mark.parametrize("within_s", [0.0, -3.0])
@in_virtual_time
async def test_without_time_only_a_free_slot_is_taken(within_s: float) -> None:
    slots = room()
    assert await slots.take(["a"], within_s)
    assert not await slots.take(["a"], within_s)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
@in_virtual_time
async def test_whoever_gives_up_leaves_the_line_and_the_next_is_served(how: str) -> None:
    slots = room()
    slots.try_take(["b"])
    first, second = taking(slots, "a", "b", within_s=5), taking(slots, "a")
    await turn()
    if how == "cancel":
        first.cancel()
    assert await second
    assert (await asyncio.gather(first, return_exceptions=True))[0] is not True
    assert used(slots) == {"a": 1, "b": 1}
    slots.release(["b"])
    assert used(slots) == {"a": 1}


@in_virtual_time
async def test_a_slot_that_comes_free_as_its_taker_is_cancelled_is_not_lost() -> None:
    slots = room()
    slots.try_take(["a"])
    waiting, next_ = taking(slots, "a"), taking(slots, "a")
    await turn()
    slots.release(["a"])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await next_
    slots.release(["a"])
    assert used(slots) == {}


@pytest.mark.parametrize("first", ["timeout", "release"])
@in_virtual_time
async def test_a_slot_that_comes_free_as_time_runs_out_is_taken_or_free(first: str) -> None:
    slots, loop = room(), asyncio.get_running_loop()
    slots.try_take(["a"])
    if first == "release":
        loop.call_at(5.0, slots.release, ["a"])
    waiting = taking(slots, "a", within_s=5.0)
    await turn()
    if first == "timeout":
        loop.call_at(5.0, slots.release, ["a"])
    taken = await waiting
    await turn()
    assert used(slots) == ({"a": 1} if taken else {})


@pytest.mark.parametrize("seed", range(20))
@in_virtual_time
async def test_whatever_happens_no_slot_is_lost_and_none_is_made(seed: int) -> None:
    slots, chance = room(), Random(seed)

    async def work() -> None:
        names = chance.sample(sorted(LIMITS), chance.randint(1, 3))
        if await slots.take(names, chance.choice([0, 0.5, 3, 100])):
            try:
                assert all(slots.in_flight(name) <= limit for name, limit in LIMITS.items())
                await asyncio.sleep(chance.choice([0, 0.5, 1]))
            finally:
                slots.release(names)

    tasks = [asyncio.create_task(work()) for _ in range(60)]
    for _ in range(30):
        chance.choice(tasks).cancel()
        await asyncio.sleep(chance.choice([0, 0, 0.5]))
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ends} <= {type(None), asyncio.CancelledError}
    assert used(slots) == {}
    assert slots.try_take(["a", "b", "c"])


# --- shares of the fleet's slots -------------------------------------------------------------


@in_virtual_time
async def test_before_it_has_a_share_a_process_has_no_slot_of_the_fleets() -> None:
    slots = SlotRoom([Dependency("x", max_in_flight_fleet=5)], asyncio.get_running_loop().time)
    assert slots.limit("x") == 0
    assert not slots.try_take(["x"])


@pytest.mark.parametrize(("at_s", "limit"), [(0.0, 3), (90.0, 3), (90.125, 0), (500.0, 0)])
@in_virtual_time
async def test_no_call_begins_that_could_outlast_the_lease(at_s: float, limit: int) -> None:
    """A lease of 100 s, calls of 10 s."""
    slots = fleet_room(3, until_s=100.0)
    await asyncio.sleep(at_s)
    assert slots.limit("x") == limit
    assert slots.try_take(["x"]) is (limit > 0)


@pytest.mark.parametrize(("share", "at_most", "limit"), [(3, 2, 2), (1, 2, 1), (0, 2, 0),
                                                         (3, None, 3)])
@in_virtual_time
async def test_the_smaller_of_share_and_own_limit_counts(
    share: int, at_most: int | None, limit: int
) -> None:
    slots = fleet_room(share, 100.0, at_most)
    assert slots.limit("x") == limit
    assert [slots.try_take(["x"]) for _ in range(4)].count(True) == limit


@in_virtual_time
async def test_a_share_that_shrinks_lets_nothing_begin_until_so_much_has_ended() -> None:
    slots = fleet_room(3, 100.0)
    assert all(slots.try_take(["x"]) for _ in range(3))
    slots.grant("x", 1, 100.0)
    slots.release(["x"])
    slots.release(["x"])
    assert not slots.try_take(["x"])
    slots.release(["x"])
    assert slots.try_take(["x"])


@in_virtual_time
async def test_between_report_and_grant_no_more_is_used_than_was_reported() -> None:
    slots = fleet_room(5, 100.0)
    slots.try_take(["x"])
    slots.try_take(["x"])
    assert slots.report("x") == 2
    assert not slots.try_take(["x"])
    slots.release(["x"])
    assert slots.try_take(["x"])
    assert not slots.try_take(["x"])
    slots.grant("x", 5, 100.0)
    assert slots.try_take(["x"])


@in_virtual_time
async def test_a_grant_serves_those_who_wait() -> None:
    slots = fleet_room(0, 100.0)
    waiting = [taking(slots, "x") for _ in range(3)]
    await turn()
    slots.grant("x", 2, 100.0)
    await turn()
    assert [task.done() for task in waiting] == [True, True, False]


# --- listeners -------------------------------------------------------------------------------


@in_virtual_time
async def test_listeners_hear_of_every_slot_that_may_have_come_free() -> None:
    slots, heard = room(), list[str]()
    slots.on_free(lambda: heard.append("one"))
    slots.on_free(lambda: heard.append("other"))
    slots.try_take(["b"])
    assert heard == []
    slots.release(["b"])
    assert heard == ["one", "other"]
    slots.try_take(["b"])
    heard.clear()
    assert not await slots.take(["a", "b"], 1)
    assert heard == ["one", "other"]  # a is not bespoken any more


@in_virtual_time
async def test_listeners_hear_of_a_grant() -> None:
    slots, heard = fleet_room(0, 100.0), list[str]()
    slots.on_free(lambda: heard.append("grant"))
    slots.grant("x", 1, 100.0)
    assert heard == ["grant"]


@in_virtual_time
async def test_no_slot_is_taken_that_could_be_held_beyond_the_lease_of_its_share() -> None:
    """A slot that is held for a whole attempt is held for longer than a call's timeout."""
    loop = asyncio.get_running_loop()
    dependency = Dependency("x", timeout=timedelta(seconds=2), max_in_flight_fleet=5)
    slots = SlotRoom([dependency], loop.time, {"x": timedelta(seconds=30)})
    slots.grant("x", 5, loop.time() + 29)
    assert slots.limit("x") == 0
    slots.grant("x", 5, loop.time() + 30)
    assert slots.limit("x") == 5
