"""The record of what `topology apply` declared. AMQP itself never tells arguments."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from consumer.store.sql import Driver, Schema


@dataclass(frozen=True, slots=True)
class DeclaredObject:
    """A broker object.

    Args:
        kind: `exchange`, `queue` or `binding`.
        arguments: Whatever it was declared with, as JSON holds it.
    """

    kind: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedObject:
    """A broker object as it was declared, on which broker version and when."""

    declared: DeclaredObject
    broker_version: str
    applied_at: datetime


_RECORD = """
INSERT INTO {schema}.topology (kind, name, arguments, broker_version, applied_at)
SELECT kind, name, arguments::jsonb, $4, clock_timestamp()
FROM unnest($1::text[], $2::text[], $3::text[]) AS r (kind, name, arguments) ORDER BY kind, name
ON CONFLICT (kind, name) DO UPDATE
SET arguments = excluded.arguments, broker_version = excluded.broker_version,
    applied_at = excluded.applied_at
"""

_FORGET = """
DELETE FROM {schema}.topology t USING unnest($1::text[], $2::text[]) AS r (kind, name)
WHERE t.kind = r.kind AND t.name = r.name
"""

_READ = """
SELECT kind, name, arguments::text AS arguments, broker_version, applied_at
FROM {schema}.topology ORDER BY kind, name
"""


async def record(
    driver: Driver, schema: Schema, objects: Sequence[DeclaredObject], *, broker_version: str
) -> None:
    """The objects are recorded as declared now; a second time replaces the first. One statement.

    Args:
        objects: Of distinct kind and name.
    """
    await driver.execute(
        schema.sql(_RECORD), [o.kind for o in objects], [o.name for o in objects],
        [json.dumps(dict(o.arguments)) for o in objects], broker_version)


async def forget(
    driver: Driver, schema: Schema, objects: Sequence[tuple[str, str]]
) -> None:
    """The objects, by kind and name, were deleted from the broker. Idempotent."""
    await driver.execute(schema.sql(_FORGET), [kind for kind, _ in objects],
                         [name for _, name in objects])


async def read(driver: Driver, schema: Schema) -> list[RecordedObject]:
    """All objects on record, by kind and name."""
    return [
        RecordedObject(
            DeclaredObject(row["kind"], row["name"], json.loads(row["arguments"])),
            row["broker_version"], row["applied_at"])
        for row in await driver.fetch(schema.sql(_READ))
    ]
