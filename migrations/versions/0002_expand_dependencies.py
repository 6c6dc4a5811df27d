"""expand: retry budgets, slots, and what workers see of dependencies

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

EXACT = sa.Text(collation="C")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    create_retry_budget(schema)
    create_slot_share(schema)
    # Heartbeats would queue up behind this statement while it waits for a long reader.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column(
        "worker",
        sa.Column("dependencies", JSONB, nullable=False, server_default=sa.text("'{}'")),
        schema=schema,
    )
    note_revision(schema, "0002")


def downgrade() -> None:
    schema = context.config.attributes["schema"]
    op.drop_table("slot_share", schema=schema)
    op.drop_table("retry_budget", schema=schema)
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("worker", "dependencies", schema=schema)
    note_revision(schema, "0001")


def create_retry_budget(schema: str) -> None:
    def counter(name: str, default: int = 0) -> sa.Column[int]:
        return sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text(str(default)))

    op.create_table(
        "retry_budget",
        sa.Column("dependency", EXACT, primary_key=True),
        counter("credits"),
        sa.Column("floor_at", TIME),
        counter("originals"),
        counter("granted"),
        counter("granted_by_floor"),
        counter("returned"),
        counter("denied"),
        counter("earned"),
        counter("cost", default=1),
        counter("most_credits"),
        sa.Column("floor_interval", sa.Interval),
        sa.Column("updated_at", TIME, nullable=False),
        sa.CheckConstraint("credits >= 0", name="retry_budget_credits"),
        sa.CheckConstraint("cost >= 1", name="retry_budget_cost"),
        schema=schema,
    )


def create_slot_share(schema: str) -> None:
    op.create_table(
        "slot_share",
        sa.Column("dependency", EXACT, nullable=False),
        sa.Column("worker", sa.Uuid, nullable=False),
        sa.Column("held", sa.Integer, nullable=False),
        sa.Column("lease_until", TIME, nullable=False),
        sa.PrimaryKeyConstraint("dependency", "worker"),
        sa.CheckConstraint("held >= 0", name="slot_share_held"),
        schema=schema,
    )


def note_revision(schema: str, number: str) -> None:
    """`oldest_code` stays: code of 0001 works with the tables of 0002."""
    info = sa.table("schema_info", sa.column("revision", sa.Text), sa.column("updated_at", TIME),
                    schema=schema)
    op.execute(info.update().values(revision=number, updated_at=sa.func.now()))
