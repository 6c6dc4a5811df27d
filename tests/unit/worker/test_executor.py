"""An executor: takes, processes, settles, and survives what it meets."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from simulation.bench import QUEUE, Acks, Bench, Charge, headers_of, sent
from simulation.loop import in_virtual_time

from consumer import Context, Reject
from consumer import message as names
from consumer.errors import StoreUnavailable
from consumer.message import Outgoing, SentRow
from consumer.outcome import Outcome
from consumer.ports import Published, Receipt
from consumer.worker.brakes import Brakes
from consumer.worker.executor import Executor
from consumer.worker.intake import Intake
from consumer.worker.observer import Observer
from consumer.worker.settle import Settler


class Shift:
    """An executor at work."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.intake = Intake(self.bench.reader, self.bench.gate, self.bench.clock, 100)
        self.faults = 0
        self.published: list[Outgoing] = []
        self.receipt = Receipt.CONFIRMED
        self.rows: list[SentRow] = []
        self.events: list[str] = []
        self.brakes = Brakes(asyncio.Event())
        observer = Observer(self.bench.gate, self.bench.metrics, self.bench.clock, self.brakes)
        self.executor = Executor(self.intake, self.bench.reader, self.bench.processor,
                                 Settler(self, self.rows.extend), observer, self._on_fault)

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        await asyncio.sleep(0)
        self.published += messages
        return [Published(self.receipt)] * len(messages)

    async def _on_fault(self) -> None:
        self.events.append("fault")

    def put(self, key: str, amount: int = 1) -> Acks:
        settlement = Acks()
        self.intake.put(self.bench.delivery(key, amount), settlement)
        return settlement

    async def work(self) -> None:
        """Work until nothing waits, then end."""
        task = asyncio.create_task(self.executor.run())
        await asyncio.sleep(1000)
        self.intake.close()
        await task


@in_virtual_time
async def test_every_delivery_is_settled_once() -> None:
    shift = Shift()
    shift.bench.handler.on("b", Reject("x"), Reject("x"))
    acks = [shift.put("a"), shift.put("b"), shift.put("c"), shift.put("a"), shift.put("a", 2)]
    await shift.work()
    assert [settlement.done for settlement in acks] == [["ack"]] * 5
    assert [headers_of(copy)[names.DEAD_REASON] for copy in shift.published] == ["key_conflict"]
    assert shift.intake.in_flight == 0


@in_virtual_time
async def test_a_malformed_delivery_dies_and_the_next_is_handled() -> None:
    shift, settlement = Shift(), Acks()
    shift.intake.put(sent(b"\x80\x04garbage"), settlement)
    good = shift.put("a")
    await shift.work()
    assert (settlement.done, good.done) == (["ack"], ["ack"])
    assert [copy.body for copy in shift.published] == [b"\x80\x04garbage"]


@in_virtual_time
async def test_consuming_pauses_before_deliveries_go_back_for_a_fault() -> None:
    shift = Shift()
    shift.bench.fail_at("begin", StoreUnavailable("x"))
    settlement = shift.put("a")
    requeue = settlement.requeue

    async def noted() -> bool:
        shift.events.append("requeue")
        return await requeue()

    settlement.requeue = noted  # type: ignore[method-assign]
    await shift.work()
    assert shift.events == ["fault", "requeue"]


@in_virtual_time
async def test_a_defect_parks_the_delivery_and_the_executor_goes_on() -> None:
    shift = Shift()

    async def defect(_: Any) -> list[Outcome]:
        shift.bench.processor.process = process  # type: ignore[method-assign]
        raise RuntimeError("a defect of ours")

    process = shift.bench.processor.process
    shift.bench.processor.process = defect  # type: ignore[method-assign, assignment]
    first, second = shift.put("a"), shift.put("b")
    shift.put("a")
    await shift.work()
    assert (first.done, second.done) == (["ack"], ["ack"])
    assert [copy.routing_key.endswith(f".{QUEUE}") for copy in shift.published] == [True, True]
    assert shift.bench.effects == [("a", 1)]


@in_virtual_time
async def test_a_publish_that_is_refused_holds_up_no_ack() -> None:
    """Done deliveries are acked first; those that wait for confirms wait together."""
    shift = Shift()
    await shift.bench.process(shift.bench.delivery("a"))
    shift.receipt = Receipt.REFUSED
    conflict, good, other = shift.put("a", 2), shift.put("b"), shift.put("c")
    task = asyncio.create_task(shift.executor.run())
    await asyncio.sleep(60)
    assert (conflict.done, good.done, other.done) == ([], ["ack"], ["ack"])
    shift.receipt = Receipt.CONFIRMED
    await asyncio.sleep(60)
    assert conflict.done == ["ack"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_virtual_time
async def test_cancelling_rolls_back_settles_nothing_and_frees_the_key() -> None:
    shift = Shift()
    begun = asyncio.Event()

    async def wait(_: Charge, __: Context) -> None:
        begun.set()
        await asyncio.sleep(20)

    shift.bench.handler.on("a", wait)
    settlement = shift.put("a")
    task = asyncio.create_task(shift.executor.run())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (settlement.done, shift.bench.effects, shift.intake.in_flight) == ([], [], 0)
    again = shift.put("a")
    await shift.work()
    assert again.done == ["ack"]


@in_virtual_time
async def test_a_handler_that_cancels_its_own_task_does_not_end_the_executor() -> None:
    shift = Shift()

    async def cancel_self(_: Charge, __: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    shift.bench.handler.on("a", cancel_self)
    first, second = shift.put("a"), shift.put("b")
    await shift.work()
    assert (first.done, second.done) == (["ack"], ["ack"])


@in_virtual_time
async def test_a_hundred_waiting_commands_take_two_transactions() -> None:
    shift = Shift()
    steps = shift.bench.watch()
    for number in range(100):
        shift.put(f"k{number}")
    await shift.work()
    assert steps.count("begin") == 2


@in_virtual_time
async def test_rows_of_handlers_are_dispatched() -> None:
    shift = Shift()

    async def send(_: Charge, context: Context) -> None:
        await context.outbox.send(Charge(key="x"))

    shift.bench.handler.on("a", send)
    shift.put("a")
    await shift.work()
    assert [row.id for row in shift.rows] == list(shift.bench.database.tables.outbox)
