"""A worker process or a relay on a stage: what really runs in one, stopped at gates.

A gate stands before each statement, publish, confirm and ack, and inside the handler.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consumer.errors import StoreUnavailable
from consumer.message import Outgoing, SentRow
from consumer.ports import Published, Receipt, Transaction
from consumer.relay.outbox import Dispatcher
from consumer.relay.send import RowSender
from consumer.telemetry.metrics import Metrics
from consumer.testing.memory import MemoryDatabase, MemoryStore
from consumer.testing.memory.broker import MemorySettlement
from consumer.worker.brakes import Brakes
from consumer.worker.executor import Executor
from consumer.worker.intake import Intake
from consumer.worker.observer import Observer
from consumer.worker.process import Processor
from consumer.worker.settle import Settler
from simulation.bench import guards_of

if TYPE_CHECKING:
    from simulation.stage import Stage

IN_TRANSACTION = ("claim", "handle", "finish", "savepoint", "release savepoint", "record", "commit")


@dataclass(eq=False)
class Gate:
    """Where a process waits to be let on."""

    process: "Process"
    point: str
    opened: "asyncio.Future[str]"

    def open(self, what: str = "") -> None:
        """Let it on; `what` happens there."""
        self.opened.set_result(what)
        self.process.stage.settle()


_current: ContextVar["Process"] = ContextVar("process")


def current() -> "Process":
    """The process that runs now."""
    return _current.get()


class Process:
    """Something that can be killed: a worker or a relay."""

    def __init__(self, stage: "Stage", name: str) -> None:
        self.stage, self.name = stage, name
        self.alive, self.lost_commit = True, False
        self.gates: list[Gate] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        async def inside() -> None:
            _current.set(self)
            await work

        self.tasks.append(self.stage.loop.create_task(inside()))
        self.stage.settle()

    async def reach(self, point: str) -> str:
        """Wait at a gate. Raises where the process is dead, or its connection fails there."""
        if not self.alive:
            raise asyncio.CancelledError
        gate = Gate(self, point, self.stage.loop.create_future())
        self.gates.append(gate)
        try:
            what = await gate.opened
        finally:
            self.gates.remove(gate)
        if what == "connection lost":
            raise StoreUnavailable("the connection is lost")
        if what == "answer lost":
            self.lost_commit = True
        return what

    def at(self, point: str) -> Gate:
        """The gate of that name it waits at."""
        for gate in self.gates:
            if gate.point == point:
                return gate
        raise AssertionError(f"{self.name} is not at {point!r} but at "
                             f"{[gate.point for gate in self.gates]}")

    def kill(self) -> None:
        """It is gone; the database notices at once, and rolls back."""
        self.alive = False
        for task in self.tasks:
            task.cancel()
        self.stage.settle()
        assert not self.gates

    @property
    def idle(self) -> bool:
        return not self.gates and all(task.done() for task in self.tasks)


class Worker(Process):
    """A worker process with one executor."""

    def __init__(self, stage: "Stage", name: str) -> None:
        super().__init__(stage, name)
        self.settlements: list[GatedSettlement] = []
        publisher = GatedPublisher(self)
        metrics = Metrics()
        gate = guards_of(stage.app, stage.database, stage.clock, metrics).gate
        self.processor = Processor(stage.app, GatedStore(stage.database), stage.clock, stage.reader,
                                   gate, metrics)
        self.dispatcher = Dispatcher(
            RowSender(stage.app.prefix, publisher, stage.outbox, stage.clock))
        self.intake = Intake(stage.reader, gate, stage.clock, bound=1000)
        self.settler = Settler(publisher, self._dispatch)
        observer = Observer(gate, metrics, stage.clock, Brakes(asyncio.Event()))
        self.executor = Executor(self.intake, stage.reader, self.processor, self.settler,
                                 observer, self._on_fault)
        self.spawn(self.executor.run())
        self.spawn(self.dispatcher.run())

    async def _on_fault(self) -> None:
        """Consuming would pause here."""

    def _dispatch(self, rows: Sequence[SentRow]) -> None:
        if self.alive:  # the executor of an orphan is beyond the grave
            self.dispatcher.dispatch(rows)

    def deliver(self, count: int = 1) -> None:
        """It gets the oldest messages of its queue, all before it looks at one."""
        for _ in range(count):
            taken = self.stage.broker.take(self.stage.queue)
            if taken is None:
                break
            settlement = GatedSettlement(self, taken[1])
            self.settlements.append(settlement)
            self.intake.put(taken[0], settlement)
        self.stage.settle()

    @property
    def idle(self) -> bool:
        return not self.gates and not self.intake.in_flight and not len(self.intake)

    @property
    def unsettled(self) -> list["GatedSettlement"]:
        return [settlement for settlement in self.settlements if settlement.inner.live]

    def lose_channel(self) -> None:
        """Its deliveries return to the queue, and it works on."""
        for settlement in reversed(self.unsettled):
            del self.stage.broker.unacked[id(settlement.inner)]
            self.stage.broker.give_back(settlement.inner)

    def kill(self) -> None:
        self.lose_channel()
        super().kill()

    def orphan(self) -> Gate:
        """It is gone, and the database has not noticed: its transaction is still open."""
        gate = next(gate for gate in self.gates if gate.point in IN_TRANSACTION)
        self.lose_channel()
        self.alive = False
        for task in self.tasks[1:]:
            task.cancel()
        self.stage.settle()
        self.stage.orphans.append((self, gate))
        return gate


class GatedSettlement:
    """Acks through a gate."""

    def __init__(self, process: Process, inner: MemorySettlement) -> None:
        self._process, self.inner = process, inner

    @property
    def live(self) -> bool:
        return self._process.alive and self.inner.live

    async def ack(self) -> bool:
        await self._process.reach("ack")
        return await self.inner.ack()

    async def requeue(self) -> bool:
        return await self.inner.requeue()


class GatedStore:
    """A store whose COMMIT may take effect without an answer."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._store = MemoryStore(database)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._store.transaction() as transaction:
            yield transaction
        if current().lost_commit:
            current().lost_commit = False
            raise StoreUnavailable("the connection is lost, with a COMMIT in flight")


class GatedPublisher:
    """Publishes through a gate, and waits for confirms at another one."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        what = await self._process.reach("publish")
        if what == "refused":
            return [Published(Receipt.REFUSED, "a queue is full")] * len(messages)
        if what == "not sent":
            return [Published(Receipt.UNKNOWN, "the connection is lost")] * len(messages)
        answers = await self._process.stage.broker.publish(messages)
        what = await self._process.reach("confirm")
        if what == "no answer":
            return [Published(Receipt.UNKNOWN, "timed out")] * len(messages)
        return answers


def running_here() -> Process | None:
    """The process that runs now, or None where a test itself does."""
    return _current.get(None)
