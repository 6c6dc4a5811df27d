"""expand: the first tables

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# The oldest revision whose code still works with this schema. Raise it only in a contract step.
OLDEST_CODE = "0001"

EXACT = sa.Text(collation="C")
TIME = sa.DateTime(timezone=True)
TABLES = ("claim", "attempt", "outbox", "worker", "topology", "queue_pause", "audit_log",
          "schema_info")


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    create_claim(schema)
    create_attempt(schema)
    create_outbox(schema)
    create_operations(schema)
    info = create_schema_info(schema)
    op.execute(info.insert().values(
        only_row=True, revision=revision, oldest_code=OLDEST_CODE, updated_at=sa.func.now()))


def downgrade() -> None:
    schema = context.config.attributes["schema"]
    for table in reversed(TABLES):
        op.drop_table(table, schema=schema)


def create_claim(schema: str) -> None:
    op.create_table(
        "claim",
        sa.Column("scope", EXACT, nullable=False),
        sa.Column("key", EXACT, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("fingerprint_algorithm", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.LargeBinary, nullable=False),
        sa.Column("ticket", sa.Uuid),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("parks", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("token", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("lease_until", TIME),
        sa.Column("replay_item", sa.BigInteger),
        sa.Column("result", sa.LargeBinary),
        sa.Column("due_at", TIME),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("finished_at", TIME),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("message_id", sa.Text, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("scope", "key"),
        sa.CheckConstraint("state IN ('running', 'retrying', 'done', 'dead')", name="claim_state"),
        schema=schema,
    )
    table = op.get_context().dialect.identifier_preparer.quote(schema) + ".claim"
    op.execute(sa.DDL(f"ALTER TABLE {table.replace('%', '%%')} SET (fillfactor = 70)"))


def create_attempt(schema: str) -> None:
    op.create_table(
        "attempt",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("scope", EXACT, nullable=False),
        sa.Column("key", EXACT, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        schema=schema,
    )
    op.create_index("attempt_claim", "attempt", ["scope", "key"], schema=schema)


def create_outbox(schema: str) -> None:
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("exchange", sa.Text, nullable=False),
        sa.Column("routing_key", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("properties", sa.LargeBinary, nullable=False),
        sa.Column("message_id", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("ordering_key", EXACT),
        sa.Column("scheduled", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("available_at", TIME, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("due_at", TIME),
        sa.Column("tries", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("publishes", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("last_error", sa.Text),
        sa.Column("parked_at", TIME),
        sa.Column("owner_scope", EXACT),
        sa.Column("owner_key", EXACT),
        sa.Column("published_at", TIME),
        schema=schema,
    )
    for name, columns, where in (
        ("outbox_due", ["available_at", "id"], "parked_at IS NULL AND ordering_key IS NULL"),
        ("outbox_ordered", ["ordering_key", "id"], "ordering_key IS NOT NULL"),
        ("outbox_owner", ["owner_scope", "owner_key"], "owner_key IS NOT NULL"),
        ("outbox_scheduled", ["message_id"], "scheduled"),
        ("outbox_parked", ["id"], "parked_at IS NOT NULL"),
    ):
        op.create_index(name, "outbox", columns, schema=schema, postgresql_where=sa.text(where))


def create_operations(schema: str) -> None:
    """What operators see and do: workers, topology, pauses, the audit log."""
    op.create_table(
        "worker",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("heartbeat_at", TIME, nullable=False),
        sa.Column("queues", JSONB, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        schema=schema,
    )
    op.create_table(
        "topology",
        sa.Column("kind", EXACT, nullable=False),
        sa.Column("name", EXACT, nullable=False),
        sa.Column("arguments", JSONB, nullable=False),
        sa.Column("broker_version", sa.Text, nullable=False),
        sa.Column("applied_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("kind", "name"),
        schema=schema,
    )
    op.create_table(
        "queue_pause",
        sa.Column("queue", EXACT, primary_key=True),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("paused_at", TIME, nullable=False),
        schema=schema,
    )
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("at", TIME, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("detail", JSONB, nullable=False),
        schema=schema,
    )


def create_schema_info(schema: str) -> sa.Table:
    return op.create_table(
        "schema_info",
        sa.Column("only_row", sa.Boolean, primary_key=True, server_default=sa.text("true")),
        sa.Column("revision", sa.Text, nullable=False),
        sa.Column("oldest_code", sa.Text, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.CheckConstraint("only_row", name="schema_info_only_row"),
        schema=schema,
    )
