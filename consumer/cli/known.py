"""Which work queues there are, where no app is given that says so."""

from consumer.core.topology import dead_queue, replay_queue
from consumer.settings import Settings, lease
from consumer.store import topology, workers
from consumer.store.sql import Driver, Schema
from consumer.store.topology import RecordedObject


async def known_queues(driver: Driver, schema: Schema, settings: Settings) -> list[str]:
    """The work queues on record and those that live workers consume, by name."""
    recorded = work_queues(await topology.read(driver, schema))
    alive = await workers.live(driver, schema, within=lease(settings.heartbeat))
    consumed = {name for worker in alive for name in worker.info.queues}
    return sorted({*recorded, *consumed})


def work_queues(recorded: list[RecordedObject]) -> list[str]:
    """The work queues of a record: those that have a replay lane and dead letters."""
    names = {r.declared.name for r in recorded if r.declared.kind == "queue"}
    return [name for name in sorted(names) if {replay_queue(name), dead_queue(name)} <= names]
