"""What a worker checks before it consumes anything: schema, database settings, topology."""

from collections.abc import Sequence
from contextlib import suppress

import structlog

from consumer.app import App, Queue
from consumer.broker import declare
from consumer.core.topology import Topology, plan
from consumer.errors import BrokerUnavailable, TopologyError
from consumer.settings import Settings
from consumer.store import probe, schema, topology
from consumer.store.sql import Schema
from consumer.store.statements import Statements

log = structlog.get_logger("consumer.worker")

_REMEDY = "run: consumer topology apply MODULE:APP"


async def check_database(statements: Statements, settings: Settings) -> None:
    """The schema fits this version; settings that can lose commits were warned about.

    Raises:
        SchemaError: It is missing, too old or too new.
        StoreUnavailable: Postgres does not answer.
    """
    async with statements.driver() as driver:
        ours = Schema(settings.schema_name)
        await schema.verify(driver, ours)
        for warning in await probe.warnings(driver, ours):
            log.warning("database_setting", warning=warning)


async def check_topology(app: App, queues: Sequence[Queue], settings: Settings,
                         statements: Statements) -> None:
    """The broker holds what the queues need, with the arguments this version would declare.

    AMQP tells existence only, so arguments are compared with what `topology apply` recorded.

    Raises:
        TopologyError: Something is missing or different.
        BrokerUnavailable: No broker answers.
    """
    bindings = app.bindings()
    wanted = plan(app.prefix, {queue.name: bindings[queue.name] for queue in queues})
    absent = await _missing(settings.amqp_urls(), wanted)
    if absent:
        kind, name = absent[0]
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise TopologyError(f"{kind} {name!r}{more} does not exist", remedy=_REMEDY)
    async with statements.driver() as driver:
        recorded = await topology.read(driver, Schema(settings.schema_name))
    held = {(r.declared.kind, r.declared.name): r.declared.arguments for r in recorded}
    for queue in wanted.queues:
        arguments = held.get(("queue", queue.name))
        if arguments is None:
            log.warning("topology_not_recorded", queue=queue.name, remedy=_REMEDY)
            continue
        for argument in sorted({*queue.arguments, *arguments}):
            expected, actual = queue.arguments.get(argument), arguments.get(argument)
            if expected != actual:
                raise TopologyError(
                    f"queue {queue.name!r} was declared with {argument} {actual!r}, this version "
                    f"needs {expected!r}",
                    remedy="drain and delete the queue, then run: consumer topology apply")


async def _missing(urls: Sequence[str], wanted: Topology) -> list[tuple[str, str]]:
    """What the first broker that answers lacks."""
    for url in urls[:-1]:
        with suppress(BrokerUnavailable):
            return await declare.missing(url, wanted)
    return await declare.missing(urls[-1], wanted)
