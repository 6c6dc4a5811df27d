"""One worker with dependencies on memory ports, in the time of the event loop.

For tests that run `in_virtual_time`: what a clock says there passes as the loop's timers do.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families

from consumer import Command, Context, Dependency, Handler, Options
from consumer.command import to_outgoing
from consumer.core.breaker import CallOutcome
from consumer.core.budget import Account
from consumer.guards import guards
from consumer.message import Delivery, Lane
from consumer.outcome import Outcome
from consumer.relay.outbox import Dispatcher
from consumer.relay.send import RowSender
from consumer.settings import Settings
from consumer.telemetry.metrics import Metrics
from consumer.testing.memory import FakeClock, MemoryBroker, MemoryDatabase, MemoryOutbox
from consumer.testing.memory.dependencies import MemoryBudgets, MemorySlots
from consumer.wire import Properties
from consumer.worker.brakes import Brakes
from consumer.worker.executor import Executor
from consumer.worker.intake import Intake, Item
from consumer.worker.observer import Observer
from consumer.worker.requests import Request, RequestReader
from consumer.worker.settle import Settler
from simulation.bench import PREFIX, QUEUE, Bench, Charge, ChargeHandler, arrived

_PUMP_S = 0.5


class LoopClock(FakeClock):
    """Goes with the event loop; `advance` is a step besides."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self._loop.time())

    def monotonic(self) -> float:
        return super().monotonic() + self._loop.time()


class Refund(Command, type="orders.refund"):
    key: str


class RefundHandler(Handler[Refund]):
    """On the same queue, and calls nothing: so the queue is mixed."""

    name, queue = "orders.refund", QUEUE

    async def handle(self, command: Refund, context: Context) -> None: ...


class Site(Bench):
    """A Bench whose handler calls `dependencies`, all of them by name.

    Args:
        names: The dependencies it names instead.
        mixed: Its queue has a second handler, which calls nothing.
    """

    def __init__(self, *dependencies: Dependency, names: Sequence[str] | None = None,
                 options: Options | None = None, mixed: bool = False, **app: Any) -> None:
        handler = ChargeHandler(options)
        handler.dependencies = tuple(  # type: ignore[misc]
            [d.name for d in dependencies] if names is None else names)
        super().__init__(handler, dependencies=dependencies, **app)
        self.handler, self.clock = handler, LoopClock()
        self.database = MemoryDatabase(self.clock)
        if mixed:
            self.app.register(RefundHandler)
        self.broker = MemoryBroker(PREFIX, self.app.bindings(), self.clock)
        self.outbox = MemoryOutbox(self.database)
        self.reader = RequestReader(self.app, self.clock, "worker")
        self.outcomes: list[Outcome] = []
        self._open()

    def _open(self) -> None:
        self.metrics = Metrics()
        self.budget_store, self.slot_store = MemoryBudgets(self.database), MemorySlots(
            self.database)
        self.guards = guards(
            self.app, Settings(), self.budget_store, self.slot_store, metrics=self.metrics,
            clock=self.clock, worker=uuid4(), changed=lambda: None)
        self.gate = self.guards.gate
        self.processor = self.new_processor()

    def request(self, delivery: Delivery) -> Request:
        [request] = self.requests([delivery])
        return request

    def credit(self, dependency: str, retries: int) -> None:
        """The fleet's account of it can pay for so many retries."""
        budget = next(d.budget for entry in self.app.registrations
                      for d in self.app.dependencies_of(entry) if d.name == dependency)
        assert budget is not None
        self.budget_store.accounts[dependency] = Account(
            retries * budget.cost, cost=budget.cost, outstanding=retries)

    def credits(self, dependency: str) -> int:
        return self.budget_store.accounts.get(dependency, Account()).credits

    async def paid(self, request: Request) -> Request:
        """Its toll is asked for, and answered."""
        asking = asyncio.create_task(self.gate.pay_toll(request))
        await asyncio.sleep(0)
        await self.guards.budgets.exchange()
        await asking
        return request

    def open_breaker(self, dependency: str) -> None:
        """Calls fail until it opens."""
        circuit = self.gate.circuits[dependency]
        for _ in range(1000):
            permit = circuit.try_enter(self.clock.monotonic())
            if permit is None:
                return
            circuit.leave(permit, self.clock.monotonic(), CallOutcome.FAILURE, 0.0)
        raise AssertionError("it never opened")

    def judgements(self, dependency: str) -> list[CallOutcome]:
        """From now on, what its breaker is told of calls."""
        circuit, told = self.gate.circuits[dependency], list[CallOutcome]()
        leave = circuit.leave

        def noted(permit: Any, now: float, outcome: CallOutcome, duration_s: float) -> None:
            told.append(outcome)
            leave(permit, now, outcome, duration_s)

        circuit.leave = noted  # type: ignore[method-assign]
        return told

    async def next_copy(self, key: str = "a") -> Delivery:
        """The next copy of a key, once its delay is over."""
        [stored] = [s for s in self.database.tables.outbox.values()
                    if s.row.owner is not None and s.row.owner[1] == key]
        if stored.due_at is not None:
            await asyncio.sleep(max(0.0, (stored.due_at - self.clock.now()).total_seconds()))
        return arrived(stored.row.message)

    async def send(self, key: str, amount: int = 1, *, body: bytes | None = None,
                   deadline: datetime | None = None, **properties: Any) -> None:
        """A producer publishes a command, or something else as its body."""
        outgoing = to_outgoing(Charge(key=key, amount=amount), prefix=PREFIX, key=key,
                               dated=self.clock.now(), deadline=deadline)
        made = replace(Properties.from_wire(outgoing.properties), **properties)
        await self.broker.publish([replace(
            outgoing, body=outgoing.body if body is None else body, properties=made.to_wire())])

    @asynccontextmanager
    async def working(self, executors: int = 4) -> AsyncIterator[None]:
        """A queue of it is consumed, with all that surrounds a processor, until the block ends."""
        dispatcher = Dispatcher(RowSender(PREFIX, self.broker, self.outbox, self.clock))
        intake = Intake(self.reader, self.gate, self.clock, 10_000)
        settler = Settler(self.broker, dispatcher.dispatch)
        observer = _Recorder(self)
        loops = [dispatcher.run(), self.guards.budgets.run(), self.guards.shares.run(),
                 self._pump()]
        for _ in range(executors):
            loops.append(Executor(intake, self.reader, self.new_processor(), settler, observer,
                                  _no_fault).run())
        await self.broker.subscribe(QUEUE, Lane.LIVE, 0, intake.put)
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            yield
            for task in tasks:
                if task.done() and task.exception() is not None:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self) -> None:
        while True:
            self.broker.release_due()
            self.broker.deliver()
            await asyncio.sleep(_PUMP_S)


class _Recorder(Observer):
    """Keeps all outcomes, too."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.gate, site.metrics, site.clock, Brakes(asyncio.Event()))
        self._site = site

    def settled(self, item: Item, outcome: Outcome) -> None:
        super().settled(item, outcome)
        self._site.outcomes.append(outcome)


async def _no_fault() -> None:
    raise AssertionError("an infrastructure fault")


def counted(metrics: Metrics, name: str, **labels: str) -> float:
    """The value of one series that is exposed; 0 where it is not."""
    return sum(sample.value
               for family in text_string_to_metric_families(metrics.render()[0].decode())
               for sample in family.samples if sample.name == name and sample.labels == labels)


