"""`consumer db`: the tables of the framework."""

import asyncio
from typing import Annotated

import typer

from consumer.errors import ConfigurationError
from consumer.store import schema as tables
from consumer.store.sql import DEFAULT_SCHEMA

app = typer.Typer(no_args_is_help=True, help="Create and upgrade the framework's tables.")

DatabaseUrl = Annotated[str, typer.Option(
    "--database-url", envvar="CONSUMER_DATABASE_URL", show_envvar=True, show_default=False,
    help="Postgres, postgresql://user:password@host:port/database.")]
SchemaName = Annotated[str, typer.Option(
    "--schema", envvar="CONSUMER_SCHEMA", show_envvar=True, help="Schema of the tables.")]


def _given(url: str) -> str:
    if not url.strip():
        raise ConfigurationError("no database URL",
                                 remedy="set CONSUMER_DATABASE_URL or pass --database-url")
    return url


@app.command()
def upgrade(database_url: DatabaseUrl = "", schema: SchemaName = DEFAULT_SCHEMA) -> None:
    """Bring the tables up to this release. Safe while workers run, and to run twice."""
    state = asyncio.run(tables.upgrade(_given(database_url), schema))
    typer.echo(f"schema {schema}: revision {state.revision}")


@app.command()
def current(database_url: DatabaseUrl = "", schema: SchemaName = DEFAULT_SCHEMA) -> None:
    """Show which revision the tables are at."""
    state = asyncio.run(tables.current(_given(database_url), schema))
    if state.revision is None:
        typer.echo(f"schema {schema}: no tables; this release needs {tables.REVISION}")
    else:
        typer.echo(f"schema {schema}: revision {state.revision}, works with code from "
                   f"{state.oldest_code} on; this release needs {tables.REVISION}")


@app.command()
def check(database_url: DatabaseUrl = "", schema: SchemaName = DEFAULT_SCHEMA) -> None:
    """Fail unless workers of this release could start on the tables."""
    state = asyncio.run(tables.check(_given(database_url), schema))
    typer.echo(f"schema {schema}: revision {state.revision} is fine for this release")


@app.command()
def sql(
    start: Annotated[str, typer.Option("--from", help="Revision to start from.")] = "base",
    end: Annotated[str, typer.Option("--to", help="Revision to end at.")] = "head",
    schema: SchemaName = DEFAULT_SCHEMA,
) -> None:
    """Print the SQL of an upgrade instead of running it."""
    typer.echo(tables.sql(start, end, schema))
