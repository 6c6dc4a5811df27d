"""The version of our tables: upgrading them, and refusing to work with the wrong one.

Alembic keeps its version table inside our schema, so the history of the host application, which
may use Alembic in the same database, is neither read nor written.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

import consumer
from consumer.errors import SchemaError
from consumer.store.connection import transaction
from consumer.store.engine import create_engine
from consumer.store.failures import CANNOT_CONNECT, first_line, meaning, sqlstate, unreachable
from consumer.store.sql import DEFAULT_SCHEMA, UPGRADE_LOCK, Driver, Schema

REVISION = "0002"
"""The revision this code was written for."""

_UPGRADE = "run: consumer db upgrade"
_NO_RIGHT = "42501"
_EXISTS = "SELECT to_regclass($1) IS NOT NULL"
_STATE = "SELECT revision, oldest_code FROM {schema}.schema_info"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """What a database holds.

    Args:
        revision: Of its tables; None where there are none.
        oldest_code: The oldest revision whose code works with them.
    """

    revision: str | None
    oldest_code: str | None = None


async def upgrade(url: str, schema: str = DEFAULT_SCHEMA) -> SchemaState:
    """The tables are at `REVISION` or newer; each revision is a transaction of its own.

    Idempotent. Several at once wait for each other, on an advisory lock.

    A newer schema is left as it is.

    Raises:
        StoreUnavailable: Postgres fails.
        SchemaError: Postgres refuses a statement, for want of a right, say.
    """
    name = Schema(schema)
    engine = _engine(url, "upgrade")
    try:
        # The lock lives in a transaction beside the revisions', which commit one by one.
        async with transaction(engine) as driver:
            await driver.fetchval("SELECT pg_advisory_xact_lock($1)", UPGRADE_LOCK)
            if await _newer_than_code(driver, name):
                return await state_of(driver, name)
            await _run(engine, name, lambda config: command.upgrade(config, "head"))
        async with transaction(engine) as driver:
            return await state_of(driver, name)
    finally:
        await engine.dispose()


async def downgrade(url: str, revision: str, schema: str = DEFAULT_SCHEMA) -> None:
    """Take the tables back to a revision, `base` for none. What they held is lost."""
    name = Schema(schema)
    engine = _engine(url, "downgrade")
    try:
        async with transaction(engine) as driver:
            await driver.fetchval("SELECT pg_advisory_xact_lock($1)", UPGRADE_LOCK)
            await _run(engine, name, lambda config: command.downgrade(config, revision))
    finally:
        await engine.dispose()


async def current(url: str, schema: str = DEFAULT_SCHEMA) -> SchemaState:
    """What the database holds. Changes nothing. Raises StoreUnavailable."""
    engine = _engine(url, "current")
    try:
        async with transaction(engine) as driver:
            return await state_of(driver, Schema(schema))
    finally:
        await engine.dispose()


async def check(url: str, schema: str = DEFAULT_SCHEMA) -> SchemaState:
    """What the database holds, if this code can work with it. Raises SchemaError otherwise."""
    engine = _engine(url, "check")
    try:
        async with transaction(engine) as driver:
            return await verify(driver, Schema(schema))
    finally:
        await engine.dispose()


def sql(start: str = "base", end: str = "head", schema: str = DEFAULT_SCHEMA) -> str:
    """The SQL that takes a database from one revision to another, for people who run it by hand.

    Raises:
        SchemaError: There is no such revision.
    """
    output = io.StringIO()
    config = _config(Schema(schema), output=output)
    span = end if start == "base" else f"{start}:{end}"
    _with_readable_errors(lambda: command.upgrade(config, span, sql=True))
    if start != "base":
        return output.getvalue()
    return f"CREATE SCHEMA IF NOT EXISTS {Schema(schema).quoted};\n\n{output.getvalue()}"


async def state_of(driver: Driver, schema: Schema) -> SchemaState:
    """What the database holds, by the `schema_info` row."""
    if not await driver.fetchval(_EXISTS, f"{schema.quoted}.schema_info"):
        return SchemaState(None)
    row = await driver.fetchrow(schema.sql(_STATE))
    return SchemaState(row["revision"], row["oldest_code"]) if row else SchemaState(None)


async def verify(driver: Driver, schema: Schema, code: str = REVISION) -> SchemaState:
    """The tables are there, and this code can work with them.

    Raises:
        SchemaError: They are missing, older than this code, or so new that they exclude it.
    """
    found = await state_of(driver, schema)
    if found.revision is None or found.oldest_code is None:
        raise SchemaError(f"schema {schema.name!r} holds no tables of this framework; this code "
                          f"needs revision {code}", remedy=_UPGRADE)
    if found.revision < code:
        raise SchemaError(f"schema {schema.name!r} is at revision {found.revision}, this code "
                          f"needs {code}", remedy=_UPGRADE)
    if code < found.oldest_code:
        raise SchemaError(
            f"schema {schema.name!r} is at revision {found.revision} and works with code from "
            f"{found.oldest_code} on; this code is of {code}", remedy="deploy a newer release")
    return found


async def _newer_than_code(driver: Driver, schema: Schema) -> bool:
    """Whether an upgrade has nothing to do because a newer release has run its own already."""
    revision = (await state_of(driver, schema)).revision
    return revision is not None and revision > REVISION


def _engine(url: str, purpose: str) -> AsyncEngine:
    """As if a pooler stood in front: whether one does makes no difference here."""
    return create_engine(url, pooler="transaction", pool_size=2,
                         application_name=f"consumer db {purpose}")


async def _run(engine: AsyncEngine, schema: Schema, action: Callable[[Config], None]) -> None:
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_migrate, schema, action)
    except CANNOT_CONNECT as error:
        if meaning(error) is None and isinstance(error, DBAPIError) and error.statement:
            raise SchemaError(
                f"Postgres refuses to migrate schema {schema.name!r}: {first_line(error)}",
                remedy="run it as a role that may create and own its tables"
                if sqlstate(error) == _NO_RIGHT else None) from error
        raise unreachable(error) from error


def _migrate(connection: Connection, schema: Schema, action: Callable[[Config], None]) -> None:
    # Asked first: IF NOT EXISTS wants the right to create schemas even where it exists.
    if not connection.exec_driver_sql(
        "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", (schema.name,)
    ).scalar():
        connection.exec_driver_sql(f"CREATE SCHEMA {schema.quoted}")
    connection.commit()
    _with_readable_errors(lambda: action(_config(schema, connection=connection)))
    connection.commit()


def _with_readable_errors(action: Callable[[], None]) -> None:
    try:
        action()
    except CommandError as error:
        raise SchemaError(f"cannot migrate: {error}") from error


def _config(schema: Schema, **attributes: Any) -> Config:
    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.attributes.update(schema=schema.name, **attributes)
    return config


def script_location() -> Path:
    """Where the migrations are: in the installed package, or beside it in a source tree."""
    package = Path(consumer.__file__).parent
    packaged = package / "_migrations"
    return packaged if packaged.is_dir() else package.parent / "migrations"
