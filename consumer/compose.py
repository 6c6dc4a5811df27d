"""Puts a worker process together: the only place that opens things, in one exit stack."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog

from consumer.app import App, Queue
from consumer.broker.connection import ConnectionOptions
from consumer.broker.consume import RabbitBroker
from consumer.broker.publish import PublishLimits, RabbitPublisher
from consumer.errors import BrokerUnavailable, ConfigurationError
from consumer.exit_codes import ExitCode
from consumer.guards import dependencies, guards, watch
from consumer.membership import VERSION, Membership
from consumer.preflight import check_database, check_topology
from consumer.relay.outbox import Dispatcher, Relay
from consumer.relay.send import RowSender
from consumer.settings import Settings
from consumer.store.budgets import PostgresBudgets
from consumer.store.engine import create_engine
from consumer.store.outbox_store import PostgresOutbox
from consumer.store.slots import PostgresSlots
from consumer.store.sql import Schema
from consumer.store.statements import Statements
from consumer.store.transactions import PostgresStore
from consumer.telemetry.metrics import Metrics
from consumer.worker.background import run_beside
from consumer.worker.brakes import Brakes
from consumer.worker.clock import SystemClock
from consumer.worker.executor import Executor
from consumer.worker.gate import Gate
from consumer.worker.health import Health
from consumer.worker.intake import Intake
from consumer.worker.link import ChildLink
from consumer.worker.observer import Observer
from consumer.worker.process import Processor
from consumer.worker.queues import QueueConsumer
from consumer.worker.requests import RequestReader
from consumer.worker.runtime import Worker
from consumer.worker.settle import Settler
from consumer.worker.shutdown import Stop, drain

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

log = structlog.get_logger("consumer.worker")

_START_TIMEOUT_SECONDS = 30.0
_SPARE_CONNECTIONS = 2  # the outbox's and the heartbeat's, besides one per executor


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the queues of a process share."""

    app: App
    settings: Settings
    engine: "AsyncEngine"
    broker: RabbitBroker
    reader: RequestReader
    settler: Settler
    clock: SystemClock
    metrics: Metrics
    gate: Gate
    observer: Observer
    resources: Any


async def run_worker(
    app: App, settings: Settings, *, queues: Sequence[str] | None = None,
    link: ChildLink | None = None,
) -> ExitCode:
    """Consume the app's queues until a signal, then drain.

    SIGTERM or SIGINT drains: nothing new begins, what has begun is finished within
    `settings.grace`, the rest goes back. A second signal cuts the grace short.

    Args:
        queues: Only these queues of the app; None is all.
        link: To the supervisor, if there is one; its end drains too.

    Raises:
        ConfigurationError, SchemaError, TopologyError: Starting again cannot help.
        StoreUnavailable, BrokerUnavailable: The services could not be reached at the start.
    """
    chosen = _chosen(app, queues)
    stop = Stop(link)
    async with AsyncExitStack() as stack:
        stop.listen()
        clock, metrics = SystemClock(), _metrics(app)
        health = Health(settings.health_host, settings.health_port, metrics=metrics.render)
        health.start()
        stack.callback(health.stop)
        engine = await stack.enter_async_context(_engine(settings, chosen))
        statements = Statements(engine)
        stack.push_async_callback(statements.close)
        await check_database(statements, settings)
        broker, publisher = await _brokers(stack, app, settings)
        await check_topology(app, chosen, settings, statements)
        dispatcher = await _outbox(stack, app, settings, engine, publisher, clock)
        resources = await stack.enter_async_context(app.lifespan(app))
        me, schema, changed = uuid4(), Schema(settings.schema_name), asyncio.Event()
        watching = guards(app, settings, PostgresBudgets(statements, schema),
                          PostgresSlots(statements, schema), metrics=metrics, clock=clock,
                          worker=me, changed=changed.set)
        await watch(stack, watching)
        gate, brakes = watching.gate, Brakes(changed)
        membership = Membership(me, statements, schema, gate, metrics, clock)
        stack.push_async_callback(membership.leave)
        worker = Worker(membership, settings.heartbeat, health, link.beat if link else _nothing,
                        brakes, changed)
        name = f"{socket.gethostname()}:{os.getpid()}"
        parts = _Parts(app, settings, engine, broker, RequestReader(app, clock, name),
                       Settler(publisher, dispatcher.dispatch), clock, metrics, gate,
                       Observer(gate, metrics, clock, brakes), resources)
        for queue in chosen:
            worker.add(_consumer(stack, parts, queue, worker.on_fault))
        stack.push_async_callback(worker.abort)
        log.info("worker_started", app=app.name, queues=[queue.name for queue in chosen],
                 version=VERSION)
        await worker.run(stop.drain)
        code = await drain(worker, dispatcher.drained, settings.grace, stop)
        log.info("worker_stopped", code=code.name)
    return code


def _nothing() -> None:
    pass


def _metrics(app: App) -> Metrics:
    return Metrics(handlers=[entry.scope for entry in app.registrations], queues=app.queues,
                   dependencies=[dependency.name for dependency in dependencies(app)])


def _chosen(app: App, names: Sequence[str] | None) -> list[Queue]:
    for name in names or ():
        if name not in app.queues:
            raise ConfigurationError(f"app {app.name!r} has no queue {name!r}",
                                     remedy=f"it has {', '.join(app.queues) or 'none'}")
    chosen = [queue for name, queue in app.queues.items() if not names or name in names]
    if not chosen:
        raise ConfigurationError(f"app {app.name!r} has no handlers, so there is nothing to do",
                                 remedy="register handlers with App(handlers=[…])")
    return chosen


@asynccontextmanager
async def _engine(settings: Settings, queues: Sequence[Queue]) -> AsyncIterator["AsyncEngine"]:
    size = sum(queue.concurrency for queue in queues) + _SPARE_CONNECTIONS
    engine = create_engine(settings.database(), pooler=settings.pooler, pool_size=size)
    try:
        yield engine
    finally:
        await engine.dispose()


async def _brokers(stack: AsyncExitStack, app: App, settings: Settings
                   ) -> tuple[RabbitBroker, RabbitPublisher]:
    broker = RabbitBroker(settings.amqp_urls, ConnectionOptions(name=f"{app.name}: consuming"))
    stack.push_async_callback(broker.close)
    publisher = RabbitPublisher(
        settings.amqp_urls, ConnectionOptions(name=f"{app.name}: publishing"),
        PublishLimits(timeout_s=settings.publish_timeout.total_seconds()))
    stack.push_async_callback(publisher.close)
    broker.open()
    publisher.open()
    try:
        await broker.wait_connected(_START_TIMEOUT_SECONDS)
        await publisher.wait_connected(_START_TIMEOUT_SECONDS)
    except BrokerUnavailable:
        raise BrokerUnavailable(
            f"RabbitMQ did not answer within {_START_TIMEOUT_SECONDS:.0f} s",
            remedy="check CONSUMER_AMQP_URL and that the broker runs") from None
    return broker, publisher


async def _outbox(
    stack: AsyncExitStack, app: App, settings: Settings, engine: "AsyncEngine",
    publisher: RabbitPublisher, clock: SystemClock,
) -> Dispatcher:
    """Dispatch and relay run until the stack unwinds."""
    outbox = PostgresOutbox(engine, schema=settings.schema_name)
    stack.push_async_callback(outbox.close)
    sender = RowSender(app.prefix, publisher, outbox, clock)
    dispatcher = Dispatcher(sender)
    relay = Relay(outbox, sender, settings.relay_interval.total_seconds())
    run_beside(stack, dispatcher.run(), relay.run())
    return dispatcher


def _consumer(stack: AsyncExitStack, parts: _Parts, queue: Queue,
              on_fault: Callable[[], Awaitable[None]]) -> QueueConsumer:
    prefetch = parts.app.prefetch(queue.name)
    intake = Intake(parts.reader, parts.gate, parts.clock, sum(prefetch))
    executors = []
    for _ in range(queue.concurrency):
        store = PostgresStore(parts.engine, schema=parts.settings.schema_name)
        stack.push_async_callback(store.close)
        processor = Processor(parts.app, store, parts.clock, parts.reader, parts.gate,
                              parts.metrics, parts.resources)
        executors.append(Executor(
            intake, parts.reader, processor, parts.settler, parts.observer, on_fault))
    return QueueConsumer(
        queue, parts.broker, intake, executors, prefetch=prefetch,
        held_back=partial(parts.gate.held_back, queue.name),
        probing=partial(parts.gate.probing, queue.name), requeued=parts.metrics.requeued)
