"""Alembic's environment. `consumer.store.schema` runs it; there is no alembic.ini.

It is given through `config.attributes`: `schema`, the schema's name, and `connection`, which is
absent when SQL is written instead of run.
"""

from typing import Any

from alembic import context
from sqlalchemy import Connection

from consumer.store.tables import metadata_for

SCHEMA: str = context.config.attributes["schema"]


def is_ours(_: Any, name: str | None, kind: str, parents: dict[str, Any]) -> bool:
    """Whether autogenerate may look at it: only what is in our schema."""
    return name == SCHEMA if kind == "schema" else parents.get("schema_name") == SCHEMA


def run(connection: Connection | None) -> None:
    """Run, or write, the migrations asked for; each in a transaction of its own."""
    context.configure(
        connection=connection,
        dialect_name=None if connection else "postgresql",
        target_metadata=metadata_for(SCHEMA),
        version_table="schema_version",
        version_table_schema=SCHEMA,
        include_schemas=True,
        include_name=lambda name, kind, parents: is_ours(None, name, kind, dict(parents)),
        transaction_per_migration=True,
        literal_binds=connection is None,
        dialect_opts={"paramstyle": "named"},
        output_buffer=context.config.attributes.get("output"),
    )
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes.get("connection"))
