"""Migrations: what they make, that they can run at any time, and that they touch nothing else."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Connection, Integer, MetaData, Table, text
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner

from consumer.cli.db import app
from consumer.errors import ConfigurationError, ConsumerError, SchemaError, StoreUnavailable
from consumer.store import schema
from consumer.store.connection import transaction
from consumer.store.engine import create_engine
from consumer.store.schema import REVISION, SchemaState
from consumer.store.sql import Schema
from consumer.store.tables import metadata_for

pytestmark = pytest.mark.integration

CURRENT = SchemaState(REVISION, "0001")

# Everything Postgres knows about a schema's tables, in words without the schema's name.
CATALOG = """
SELECT c.relname, c.relkind::text, c.reloptions::text, a.attname, a.attnotnull, a.attidentity::text,
       format_type(a.atttypid, a.atttypmod), l.collname, pg_get_expr(d.adbin, d.adrelid)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
LEFT JOIN pg_collation l ON l.oid = a.attcollation
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = to_regnamespace('{0}') AND c.relkind = 'r' AND c.relname <> 'schema_version'
UNION ALL
SELECT tablename, 'i', replace(indexdef, ' {0}.', ' '), NULL, NULL, NULL, NULL, NULL, NULL
FROM pg_indexes WHERE schemaname = '{0}' AND tablename <> 'schema_version'
UNION ALL
SELECT conrelid::regclass::text, 'c', conname || pg_get_constraintdef(oid), NULL, NULL, NULL, NULL,
       NULL, NULL
FROM pg_constraint WHERE connamespace = to_regnamespace('{0}')
  AND conrelid IS DISTINCT FROM to_regclass('{0}.schema_version')
"""


class Database:
    """An empty database."""

    def __init__(self, url: str, engine: AsyncEngine) -> None:
        self.url, self.engine = url, engine

    async def read(self, statement: str) -> list[Any]:
        async with self.engine.connect() as connection:
            return list((await connection.execute(text(statement))).all())

    async def run(self, *statements: str) -> None:
        async with self.engine.begin() as connection:
            for statement in statements:
                await connection.exec_driver_sql(statement)

    async def catalog(self, name: str) -> list[Any]:
        rows = await self.read(CATALOG.format(name))
        return sorted([str(row).replace(f"{name}.", "") for row in rows])

    async def verify(self, code: str = REVISION) -> SchemaState:
        async with transaction(self.engine) as driver:
            return await schema.verify(driver, Schema(), code)


@pytest.fixture
async def database(consumer_empty_database: Any) -> AsyncIterator[Database]:
    engine = create_engine(consumer_empty_database.url)
    yield Database(consumer_empty_database.url, engine)
    await engine.dispose()


async def test_an_upgrade_makes_what_the_code_declares(database: Database) -> None:
    def differences(connection: Connection) -> Any:
        options = {
            "include_schemas": True, "compare_type": True, "compare_server_default": True,
            "version_table": "schema_version", "version_table_schema": "consumer",
            "include_name": lambda name, kind, parents: kind != "schema" or name == "consumer",
        }
        return compare_metadata(MigrationContext.configure(connection, opts=options),
                                metadata_for())

    assert await schema.upgrade(database.url) == CURRENT
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []
        await connection.execute(text("CREATE SCHEMA declared"))
        await connection.run_sync(metadata_for("declared").create_all)
        await connection.commit()
    assert await database.catalog("consumer") == await database.catalog("declared")


async def test_up_down_up(database: Database) -> None:
    await schema.upgrade(database.url)
    before = await database.catalog("consumer")
    await schema.downgrade(database.url, "base")
    assert await database.catalog("consumer") == []
    assert await schema.current(database.url) == SchemaState(None)
    assert await schema.upgrade(database.url) == CURRENT
    assert await database.catalog("consumer") == before


async def test_a_second_upgrade_changes_nothing(database: Database) -> None:
    await schema.upgrade(database.url)
    rows = "SELECT xmin::text, ctid::text, * FROM consumer.schema_info"
    before = await database.read(rows), await database.catalog("consumer")
    await schema.upgrade(database.url)
    assert (await database.read(rows), await database.catalog("consumer")) == before


async def test_upgrades_at_once_wait_for_each_other(database: Database) -> None:
    program = ("import asyncio, sys; from consumer.store.schema import upgrade;"
               " print(asyncio.run(upgrade(sys.argv[1])).revision)")
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, database.url,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        for _ in range(3)
    ]
    ends = [await process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], ends
    assert {out for out, _ in ends} == {REVISION.encode() + b"\n"}
    assert await database.read("SELECT version_num FROM consumer.schema_version") == [(REVISION,)]


async def test_the_host_applications_history_and_tables_are_left_alone(database: Database) -> None:
    """Two heads in its version table, a search_path of its own, and autogenerate."""
    name = database.url.rsplit("/", 1)[1]
    await database.run(
        "CREATE SCHEMA app", "CREATE TABLE app.claim (id int)",
        "CREATE TABLE public.outbox (id int)",
        "CREATE TABLE public.alembic_version (version_num varchar(32) PRIMARY KEY)",
        "INSERT INTO public.alembic_version VALUES ('aaa'), ('bbb')",
        f'ALTER DATABASE "{name}" SET search_path = app, public')
    await database.engine.dispose()
    await schema.upgrade(database.url)
    assert await database.read("SELECT version_num FROM public.alembic_version ORDER BY 1") == [
        ("aaa",), ("bbb",)]
    assert await database.read("SELECT table_schema || '.' || table_name FROM"
                               " information_schema.tables WHERE table_schema IN ('app', 'public')"
                               " ORDER BY 1") == [
        ("app.claim",), ("public.alembic_version",), ("public.outbox",)]

    host = MetaData()
    for name in ("claim", "outbox"):
        Table(name, host, Column("id", Integer))

    def proposals(connection: Connection) -> Any:
        return compare_metadata(MigrationContext.configure(connection), host)

    async with database.engine.connect() as connection:
        assert await connection.run_sync(proposals) == []


async def test_the_schema_may_have_any_name(database: Database) -> None:
    for name in ("Other", 'we"ird $1 %s {schema}; --'):
        assert await schema.upgrade(database.url, name) == CURRENT
        assert await schema.check(database.url, name) == CURRENT
    assert await schema.current(database.url) == SchemaState(None)


async def test_the_written_sql_makes_the_same(database: Database) -> None:
    await schema.upgrade(database.url, "other")
    async with transaction(database.engine) as driver:
        await driver.execute("COMMIT")
        await driver.execute(schema.sql())
        await driver.execute("BEGIN")
    assert await database.catalog("consumer") == await database.catalog("other")
    assert await schema.check(database.url) == CURRENT
    assert await schema.upgrade(database.url) == CURRENT
    assert "CREATE TABLE" not in schema.sql(REVISION, "head")
    with pytest.raises(SchemaError):
        schema.sql("base", "9999")


async def test_a_worker_refuses_a_schema_it_cannot_work_with(database: Database) -> None:
    with pytest.raises(SchemaError, match=r"no tables .* consumer db upgrade"):
        await database.verify()
    await schema.upgrade(database.url)
    assert await database.verify() == CURRENT
    with pytest.raises(SchemaError, match=r"at revision 0002, this code needs 0003 .*db upgrade"):
        await database.verify("0003")
    await database.run("UPDATE consumer.schema_info SET revision = '0007', oldest_code = '0001'")
    assert await database.verify() == SchemaState("0007", "0001")
    assert await schema.upgrade(database.url) == SchemaState("0007", "0001")
    await database.run("UPDATE consumer.schema_info SET oldest_code = '0005'")
    with pytest.raises(SchemaError, match=r"revision 0007 .* from 0005 on; this code is of 0002"):
        await database.verify()


async def test_workers_of_the_first_release_work_on_after_the_upgrade(database: Database) -> None:
    insert = ("INSERT INTO consumer.worker"
              " (id, host, pid, started_at, heartbeat_at, queues, version) VALUES"
              " (gen_random_uuid(), '{}', 1, now(), now(), '{{}}', '0.1')")
    await schema.upgrade(database.url)
    await schema.downgrade(database.url, "0001")
    assert await schema.current(database.url) == SchemaState("0001", "0001")
    await database.run(insert.format("before"))
    assert await schema.upgrade(database.url) == CURRENT
    await database.run(insert.format("after"))
    assert await database.read("SELECT host, dependencies::text FROM consumer.worker ORDER BY 1") \
        == [("after", "{}"), ("before", "{}")]
    assert await database.verify("0001") == CURRENT


async def test_an_upgrade_gives_way_to_a_long_reader_and_can_be_run_again(
    database: Database,
) -> None:
    await schema.upgrade(database.url)
    await schema.downgrade(database.url, "0001")
    async with database.engine.connect() as reader:
        await reader.execute(text("SELECT * FROM consumer.worker"))
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            await schema.upgrade(database.url)
    assert await schema.current(database.url) == SchemaState("0001", "0001")
    assert await schema.upgrade(database.url) == CURRENT


async def test_a_role_without_the_right_gets_one_clear_error(database: Database) -> None:
    name = database.url.rsplit("/", 1)[1]
    role = f"role_{name}"
    await database.run(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    place = database.url.rpartition("@")[2]
    url = f"postgresql://{role}:pw@{place}"
    try:
        with pytest.raises(SchemaError, match="permission denied"):
            await schema.upgrade(url)
        await database.run(f"CREATE SCHEMA consumer AUTHORIZATION {role}")
        assert await schema.upgrade(url) == CURRENT
    finally:
        await database.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_the_code_is_of_the_newest_revision() -> None:
    config = Config()
    config.set_main_option("script_location", str(schema.script_location()))
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [REVISION]
    notes = (schema.script_location() / "NOTES.md").read_text()
    for script in scripts.walk_revisions():
        assert f"\n## {script.revision} " in notes


def test_the_commands_say_where_the_tables_are(consumer_empty_database: Any) -> None:
    environment = {"CONSUMER_DATABASE_URL": consumer_empty_database.url, "CONSUMER_SCHEMA": "ours"}

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    assert "no tables" in run("current")
    with pytest.raises(SchemaError):
        run("check")
    assert run("upgrade") == f"schema ours: revision {REVISION}\n"
    assert run("upgrade") == f"schema ours: revision {REVISION}\n"
    assert f"revision {REVISION}, works with" in run("current")
    assert "is fine" in run("check")
    assert "CREATE TABLE ours.claim" in run("sql")
    assert "CREATE TABLE mine.claim" in run("sql", "--schema", "mine")
    assert "no tables" in run("current", "--schema", "mine")


@pytest.mark.parametrize(("url", "kind"), [
    ("", ConfigurationError), ("postgresql://u:p@ss@h/db", ConfigurationError),
    ("postgresql://u:secret@127.0.0.1:1/db", StoreUnavailable)])
def test_commands_fail_with_a_line_and_no_secret(url: str, kind: type[ConsumerError]) -> None:
    for command in ("upgrade", "current", "check"):
        with pytest.raises(kind) as raised:
            CliRunner().invoke(app, [command, "--database-url", url], catch_exceptions=False,
                               env={"CONSUMER_DATABASE_URL": ""})
        assert "secret" not in str(raised.value)
