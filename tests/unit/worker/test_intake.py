"""The intake: which deliveries make a group, and what may not run at once."""

import asyncio

import pytest
from simulation.bench import Acks, Bench, Charge, sent
from simulation.loop import NothingCanHappen, in_virtual_time

from consumer import Command, Context, Handler, Options
from consumer.message import Delivery, Lane
from consumer.outcome import DeadLetter
from consumer.worker.intake import Intake, Item
from consumer.worker.requests import Request


class Refund(Command, type="orders.refund"):
    key: str


class RefundHandler(Handler[Refund]):
    name, queue = "orders.refund", "orders"
    options = Options(group_size=2)

    async def handle(self, command: Refund, context: Context) -> None: ...


class Desk:
    """An intake, and deliveries for it."""

    def __init__(self, bound: int = 100) -> None:
        self.bench = Bench()
        self.bench.register(RefundHandler)
        self.intake = Intake(self.bench.reader, self.bench.gate, self.bench.clock, bound)

    def put(self, *keys: str, live: bool = True, lane: Lane = Lane.LIVE) -> None:
        for key in keys:
            self.intake.put(self.bench.delivery(key, lane=lane), Acks(live))

    def put_refund(self, *keys: str) -> None:
        for key in keys:
            self.intake.put(
                sent(b'{"key":"k"}', {"idempotency-key": key}, type="orders.refund"), Acks())

    def put_garbage(self) -> None:
        self.intake.put(sent(b"garbage"), Acks())

    async def take(self, limit: int = 50) -> list[Item]:
        return await self.intake.take(limit)

    async def keys(self, limit: int = 50) -> list[str]:
        return keys_of(await self.take(limit))


def keys_of(batch: list[Item]) -> list[str]:
    return [item.read.key for item in batch if isinstance(item.read, Request)]


@in_virtual_time
async def test_what_waits_is_taken_at_once_in_order() -> None:
    desk = Desk()
    desk.put("a", "b", "c")
    assert await desk.keys() == ["a", "b", "c"]
    assert len(desk.intake) == 0
    assert desk.intake.in_flight == 3


@pytest.mark.parametrize("limit", [1, 2, 3])
@in_virtual_time
async def test_no_more_than_the_limit_is_taken(limit: int) -> None:
    desk = Desk()
    desk.put("a", "b", "c", "d")
    assert await desk.keys(limit) == ["a", "b", "c", "d"][:limit]


@in_virtual_time
async def test_a_handlers_group_size_is_a_limit_too() -> None:
    desk = Desk()
    desk.put_refund("a", "b", "c")
    assert await desk.keys() == ["a", "b"]


@in_virtual_time
async def test_keys_of_a_group_are_distinct_and_order_is_kept() -> None:
    desk = Desk()
    desk.put("a", "b", "a", "c", "a")
    first = await desk.take()
    assert keys_of(first) == ["a", "b", "c"]
    desk.intake.done(first)
    second = await desk.take()
    assert keys_of(second) == ["a"]
    desk.intake.done(second)
    assert await desk.keys() == ["a"]


@in_virtual_time
async def test_a_key_that_is_running_is_not_taken_until_it_is_settled() -> None:
    desk = Desk()
    desk.put("a")
    first = await desk.take()
    desk.put("a", "b")
    assert await desk.keys() == ["b"]
    waiting = asyncio.create_task(desk.keys())
    await asyncio.sleep(60)
    assert not waiting.done()
    desk.intake.done(first)
    assert await waiting == ["a"]


@in_virtual_time
async def test_one_key_in_two_scopes_may_run_at_once() -> None:
    desk = Desk()
    desk.put("a")
    desk.put_refund("a")
    assert await desk.keys() == ["a"]
    assert await desk.keys() == ["a"]


@in_virtual_time
async def test_a_group_is_of_one_handler() -> None:
    desk = Desk()
    desk.put("a")
    desk.put_refund("b")
    desk.put("c")
    assert await desk.keys() == ["a", "c"]
    assert await desk.keys() == ["b"]


@in_virtual_time
async def test_a_group_is_of_one_lane() -> None:
    desk = Desk()
    desk.put("a")
    desk.put("b", lane=Lane.REPLAY)
    desk.put("c")
    assert await desk.keys() == ["a", "c"]
    assert await desk.keys() == ["b"]


@in_virtual_time
async def test_what_is_no_request_comes_alone() -> None:
    desk = Desk()
    desk.put("a")
    desk.put_garbage()
    desk.put("b")
    assert await desk.keys() == ["a", "b"]
    [item] = await desk.take()
    assert isinstance(item.read, DeadLetter)


@in_virtual_time
async def test_stale_deliveries_are_forgotten() -> None:
    """Their channel is gone; they come again by themselves."""
    desk = Desk()
    desk.put("a", live=False)
    desk.put("b")
    desk.put("c", live=False)
    assert await desk.keys() == ["b"]
    assert len(desk.intake) == 0


@in_virtual_time
async def test_the_bound_is_kept_by_forgetting_stale_deliveries() -> None:
    desk = Desk(bound=10)
    for _ in range(50):
        desk.put("stale", live=False)
    desk.put("fresh")
    assert len(desk.intake) <= 11
    assert await desk.keys() == ["fresh"]


@in_virtual_time
async def test_live_deliveries_are_never_forgotten() -> None:
    desk = Desk(bound=2)
    desk.put("a", "b", "c", "d")
    assert await desk.keys() == ["a", "b", "c", "d"]


@in_virtual_time
async def test_whoever_waits_gets_what_comes() -> None:
    desk = Desk()
    waiting = asyncio.create_task(desk.keys())
    await asyncio.sleep(1)
    desk.put("a")
    assert await waiting == ["a"]


@in_virtual_time
async def test_closing_wakes_all_who_wait_with_nothing() -> None:
    desk = Desk()
    waiting = [asyncio.create_task(desk.take()) for _ in range(3)]
    await asyncio.sleep(1)
    desk.intake.close()
    assert await asyncio.gather(*waiting) == [[], [], []]
    desk.put("a")
    assert await desk.take() == []


@in_virtual_time
async def test_clearing_returns_what_waited_and_not_what_runs() -> None:
    desk = Desk()
    desk.put("a", "b", "c")
    await desk.take(1)
    assert [item.delivery.message.body for item in desk.intake.clear()] == [
        Charge(key=key).model_dump_json().encode() for key in "bc"]
    assert (len(desk.intake), desk.intake.in_flight) == (0, 1)


def test_nothing_is_made_up() -> None:
    """An empty intake waits for ever."""

    @in_virtual_time
    async def wait() -> None:
        await Desk().take()

    with pytest.raises(NothingCanHappen):
        wait()


@in_virtual_time
async def test_a_flood_of_copies_of_one_key_ends() -> None:
    desk = Desk()
    desk.put(*["a"] * 300, "b")
    done = 0
    while len(desk.intake):
        batch = await desk.take(2)
        done += len(batch)
        desk.intake.done(batch)
    assert done == 301


def test_a_delivery_is_read_when_it_is_first_looked_at() -> None:
    desk = Desk()
    desk.intake.put(Delivery(sent(b"garbage").message, "orders"), Acks())
    [item] = desk.intake.clear()
    assert item.read is None
