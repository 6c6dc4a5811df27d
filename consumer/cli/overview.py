"""The state of queues, workers and outbox at one moment, from broker and database."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from consumer.app import App
from consumer.broker.depths import Depth, depths
from consumer.cli.access import at_first_broker, database
from consumer.cli.dependency_state import DependencyState, dependency_states
from consumer.cli.known import work_queues
from consumer.cli.resting import Resting, resting
from consumer.core.topology import dead_queue, replay_queue, unroutable
from consumer.settings import Settings, lease
from consumer.store import backlog, topology, workers
from consumer.store.backlog import RowStatus, Waiting
from consumer.store.dependency_view import BudgetLevel, budget_levels
from consumer.store.sql import Driver, Schema
from consumer.store.topology import RecordedObject
from consumer.store.workers import LiveWorker, Pause


@dataclass(frozen=True, slots=True)
class QueueState:
    """A work queue. Counts that cannot be had are None.

    Args:
        ready: Messages that wait in the live lane.
        replay: Messages that wait in the replay lane.
        in_flight: Deliveries that workers hold, by their last heartbeats.
        delayed: Next copies on their way through the delay ladder, and scheduled sends.
        dead: Messages in the queue of dead letters.
        consumers: Consumers of the live lane.
        workers: Live processes that consume it.
        paused: Who paused it and why, if somebody did.
        resting: Why some of its workers do not consume it now.
    """

    name: str
    ready: int | None
    replay: int | None
    in_flight: int
    delayed: int
    dead: int | None
    consumers: int | None
    workers: int
    paused: Pause | None
    resting: Sequence[Resting] = ()


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything `consumer status` shows.

    Args:
        queues: By name.
        unroutable: Messages no queue takes, by the name of the queue that holds them.
        workers: Live processes.
        outbox: Rows that wait.
        at: When this was.
        dependencies: By name.
    """

    queues: Sequence[QueueState]
    unroutable: Mapping[str, int | None]
    workers: Sequence[LiveWorker]
    outbox: Sequence[Waiting]
    at: datetime
    dependencies: Sequence[DependencyState] = ()


@dataclass(frozen=True, slots=True)
class _Stored:
    recorded: list[RecordedObject]
    alive: list[LiveWorker]
    pauses: dict[str, Pause]
    waiting: list[Waiting]
    budgets: dict[str, BudgetLevel] = field(default_factory=dict)


async def overview(settings: Settings, app: App | None) -> Overview:
    """How things are now. Queues and dependencies are the app's; without one, those on record or
    in use.

    Raises:
        ConfigurationError: Broker or database is not set.
        StoreUnavailable, BrokerUnavailable: One of them does not answer.
        SchemaError: The database's schema does not fit.
    """
    async with database(settings) as (statements, schema), statements.driver() as driver:
        stored = await _read(driver, schema, settings)
    asked = [q for name in _queues(stored, app)
             for q in (name, replay_queue(name), dead_queue(name))] + _unroutable(stored, app)
    found = await at_first_broker(settings, lambda url: depths(url, asked))
    return _overview(stored, found, app, datetime.now(UTC))


def _overview(stored: _Stored, found: Mapping[str, Depth | None], app: App | None, at: datetime
              ) -> Overview:
    names = _queues(stored, app)
    routes = app.bindings() if app else _recorded_routes(stored.recorded, names)
    return Overview(
        [_queue(name, found, stored, routes.get(name, ())) for name in names],
        {name: depth.ready if (depth := found[name]) else None
         for name in _unroutable(stored, app)},
        stored.alive, stored.waiting, at,
        dependency_states(stored.alive, stored.budgets, _dependencies(app)))


async def _read(driver: Driver, schema: Schema, settings: Settings) -> _Stored:
    return _Stored(
        await topology.read(driver, schema),
        await workers.live(driver, schema, within=lease(settings.heartbeat)),
        {pause.queue: pause for pause in await workers.pauses(driver, schema)},
        await backlog.waiting(driver, schema),
        await budget_levels(driver, schema))


def _queues(stored: _Stored, app: App | None) -> list[str]:
    if app is not None:
        return list(app.queues)
    consumed = {name for worker in stored.alive for name in worker.info.queues}
    return sorted({*work_queues(stored.recorded), *consumed, *stored.pauses})


def _dependencies(app: App | None) -> set[str] | None:
    if app is None:
        return None
    return {dependency.name for handler in app.registrations
            for dependency in app.dependencies_of(handler)}


def _unroutable(stored: _Stored, app: App | None) -> list[str]:
    if app is not None:
        return [unroutable(app.prefix)]
    suffix = unroutable("")
    return [r.declared.name for r in stored.recorded
            if r.declared.kind == "queue" and r.declared.name.endswith(suffix)]


def _recorded_routes(recorded: Sequence[RecordedObject], names: Sequence[str]
                     ) -> dict[str, list[str]]:
    """The command types of each queue, by the bindings on record (`exchange -[type]-> queue`)."""
    routes: dict[str, list[str]] = {name: [] for name in names}
    for entry in recorded:
        source, _, rest = entry.declared.name.partition(" -[")
        command_type, _, queue = rest.rpartition("]-> ")
        if entry.declared.kind == "binding" and source.endswith(".commands") and queue in routes:
            routes[queue].append(command_type)
    return routes


def _queue(name: str, found: Mapping[str, Depth | None], stored: _Stored, types: Sequence[str]
           ) -> QueueState:
    live, replay, dead = found[name], found[replay_queue(name)], found[dead_queue(name)]
    uses = [use for worker in stored.alive for use in worker.info.queues.get(name, ())]
    mine = {(RowStatus.KEPT, name), (RowStatus.KEPT, replay_queue(name)),
            *((RowStatus.SCHEDULED, command_type) for command_type in types)}
    return QueueState(
        name, live.ready if live else None, replay.ready if replay else None,
        sum(use.in_flight for use in uses),
        sum(row.count for row in stored.waiting if (row.status, row.destination) in mine),
        dead.ready if dead else None, live.consumers if live else None,
        sum(name in worker.info.queues for worker in stored.alive), stored.pauses.get(name),
        resting(stored.alive, name))
