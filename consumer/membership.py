"""A worker process in the database: its heartbeats and what they tell, pauses, and its farewell."""

import importlib.metadata
import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import structlog

from consumer.core.breaker import State
from consumer.errors import StoreUnavailable
from consumer.ports import Clock
from consumer.store import backlog, workers
from consumer.store.dependency_view import budget_levels
from consumer.store.sql import Schema
from consumer.store.statements import Statements
from consumer.store.workers import DependencyUse, QueueUse, WorkerInfo
from consumer.telemetry.metrics import Metrics
from consumer.worker.gate import Gate
from consumer.worker.queues import QueueConsumer

log = structlog.get_logger("consumer.worker")

VERSION = importlib.metadata.version("idempotent-consumer")


class Membership:
    """One process's.

    Args:
        me: Its id in the fleet.
    """

    def __init__(
        self, me: UUID, statements: Statements, schema: Schema, gate: Gate, metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._me, self._statements, self._schema = me, statements, schema
        self._gate, self._metrics, self._clock = gate, metrics, clock
        self._started = datetime.now(UTC)

    async def beat(self, queues: Sequence[QueueConsumer]) -> frozenset[str]:
        """The process is alive, and says what it does; returns the queues that are paused."""
        info = WorkerInfo(
            self._me, socket.gethostname(), os.getpid(), self._started,
            {queue.queue.name: [self._queue(queue)] for queue in queues}, VERSION,
            {name: self._dependency(name) for name in self._gate.windows})
        async with self._statements.driver() as driver:
            paused = await workers.heartbeat(driver, self._schema, info)
        await self._read_gauges()
        return frozenset(paused)

    async def pause(self, queue: str, why: str) -> None:
        """The queue is paused in the whole fleet, in the name of this worker. Idempotent."""
        actor = f"the brake of worker {socket.gethostname()}:{os.getpid()}"
        async with self._statements.driver() as driver:
            await workers.pause(driver, self._schema, queue, actor=actor, reason=why)

    async def leave(self) -> None:
        """The process is struck off the list, if the database answers."""
        try:
            async with self._statements.driver() as driver:
                await workers.remove(driver, self._schema, self._me)
        except StoreUnavailable as error:
            log.warning("not_signed_off", error=str(error))

    async def _read_gauges(self) -> None:
        """What all processes share, for the metrics of this one."""
        async with self._statements.driver() as driver:
            levels = await budget_levels(driver, self._schema)
        async with self._statements.driver() as driver:
            behind = await backlog.lag(driver, self._schema)
        for name in self._gate.windows.keys() & levels.keys():
            self._metrics.budget_level(name, levels[name].left)
        self._metrics.outbox(behind.pending, behind.late_seconds, behind.parked)

    def _queue(self, queue: QueueConsumer) -> QueueUse:
        name, in_flight = queue.queue.name, queue.intake.in_flight
        self._metrics.in_flight(name, in_flight)
        return QueueUse("live", queue.queue.concurrency, in_flight, queue.resting)

    def _dependency(self, name: str) -> DependencyUse:
        now_s, slots = self._clock.monotonic(), self._gate.slots
        share, in_flight = slots.limit(name), slots.in_flight(name)
        self._metrics.dependency_in_flight(name, in_flight)
        self._metrics.slots(name, share)
        self._metrics.budget_leased(name, self._gate.leased(name))
        circuit = self._gate.circuits.get(name)
        window = self._gate.windows[name].totals(now_s)
        if circuit is None:
            return DependencyUse("none", in_flight=in_flight, share=share, window=window)
        state, opened = circuit.state(now_s), circuit.opened_at
        self._metrics.breaker(name, state)
        return DependencyUse(
            state, "" if state is State.CLOSED else circuit.why(now_s),
            None if opened is None else now_s - opened, in_flight, share, window)
