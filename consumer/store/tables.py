"""The tables of the framework. `migrations/` creates them; a test compares the two."""

from functools import lru_cache

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Uuid,
    event,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from consumer.store.sql import DEFAULT_SCHEMA, Schema

# Key text is compared byte by byte: no locale folds, orders or normalises it.
EXACT = Text(collation="C")
TIME = DateTime(timezone=True)
# Room on each page, so that updates of a claim stay on it and touch no index (HOT).
CLAIM_FILLFACTOR = 70


@lru_cache(maxsize=16)
def metadata_for(schema: str = DEFAULT_SCHEMA) -> MetaData:
    """All our tables, in `schema`."""
    metadata = MetaData(schema=Schema(schema).name)
    for add in (_claim, _attempt, _outbox, _worker, _topology, _queue_pause, _audit_log,
                _schema_info, _retry_budget, _slot_share):
        add(metadata)
    return metadata


def table(name: str, schema: str = DEFAULT_SCHEMA) -> Table:
    """One of our tables, in `schema`."""
    return metadata_for(schema).tables[f"{schema}.{name}"]


def _claim(metadata: MetaData) -> None:
    """One (scope, key). No index beside the key: one on state or lease would end HOT updates."""
    claim = Table(
        "claim", metadata,
        Column("scope", EXACT, primary_key=True),
        Column("key", EXACT, primary_key=True),
        Column("state", Text, nullable=False),
        Column("fingerprint_algorithm", Text, nullable=False),
        Column("fingerprint", LargeBinary, nullable=False),
        Column("ticket", Uuid),
        Column("attempts", Integer, nullable=False),
        Column("parks", Integer, nullable=False, server_default=text("0")),
        Column("token", BigInteger, nullable=False, server_default=text("0")),
        Column("lease_until", TIME),
        Column("replay_item", BigInteger),
        Column("result", LargeBinary),
        Column("due_at", TIME),
        Column("created_at", TIME, nullable=False),
        Column("finished_at", TIME),
        Column("worker", Text, nullable=False),
        Column("lane", Text, nullable=False),
        Column("message_id", Text, nullable=False),
        Column("expires_at", TIME, nullable=False),
        CheckConstraint("state IN ('running', 'retrying', 'done', 'dead')", name="claim_state"),
    )
    # SQLAlchemy has no table option for it.
    event.listen(claim, "after_create",
                 DDL(f"ALTER TABLE %(fullname)s SET (fillfactor = {CLAIM_FILLFACTOR})"))  # type: ignore[no-untyped-call]


def _attempt(metadata: MetaData) -> None:
    """One failed attempt. (A success leaves its mark in `claim`.)"""
    Table(
        "attempt", metadata,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        Column("scope", EXACT, nullable=False),
        Column("key", EXACT, nullable=False),
        Column("number", Integer, nullable=False),
        Column("worker", Text, nullable=False),
        Column("started_at", TIME, nullable=False),
        Column("ended_at", TIME, nullable=False),
        Column("outcome", Text, nullable=False),
        Column("decision", Text, nullable=False),
        Column("error", Text, nullable=False),
        Index("attempt_claim", "scope", "key"),
    )


def _outbox(metadata: MetaData) -> None:
    """One message to send. `owner_*`: the claim whose next copy it is."""
    Table(
        "outbox", metadata,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        Column("exchange", Text, nullable=False),
        Column("routing_key", Text, nullable=False),
        Column("body", LargeBinary, nullable=False),
        Column("properties", LargeBinary, nullable=False),
        Column("message_id", Text, nullable=False),
        Column("type", Text, nullable=False),
        Column("ordering_key", EXACT),
        Column("scheduled", Boolean, nullable=False, server_default=text("false")),
        Column("available_at", TIME, nullable=False),
        Column("created_at", TIME, nullable=False),
        Column("due_at", TIME),
        Column("tries", Integer, nullable=False, server_default=text("0")),
        Column("publishes", Integer, nullable=False, server_default=text("0")),
        Column("last_error", Text),
        Column("parked_at", TIME),
        Column("owner_scope", EXACT),
        Column("owner_key", EXACT),
        Column("published_at", TIME),
        Index("outbox_due", "available_at", "id",
              postgresql_where=text("parked_at IS NULL AND ordering_key IS NULL")),
        Index("outbox_ordered", "ordering_key", "id",
              postgresql_where=text("ordering_key IS NOT NULL")),
        Index("outbox_owner", "owner_scope", "owner_key",
              postgresql_where=text("owner_key IS NOT NULL")),
        Index("outbox_scheduled", "message_id", postgresql_where=text("scheduled")),
        Index("outbox_parked", "id", postgresql_where=text("parked_at IS NOT NULL")),
    )


def _worker(metadata: MetaData) -> None:
    """One live process. `dependencies`: what it sees of those its handlers call."""
    Table(
        "worker", metadata,
        Column("id", Uuid, primary_key=True),
        Column("host", Text, nullable=False),
        Column("pid", Integer, nullable=False),
        Column("started_at", TIME, nullable=False),
        Column("heartbeat_at", TIME, nullable=False),
        Column("queues", JSONB, nullable=False),
        Column("version", Text, nullable=False),
        Column("dependencies", JSONB, nullable=False, server_default=text("'{}'")),
    )


def _topology(metadata: MetaData) -> None:
    """One broker object, as `topology apply` declared it."""
    Table(
        "topology", metadata,
        Column("kind", EXACT, primary_key=True),
        Column("name", EXACT, primary_key=True),
        Column("arguments", JSONB, nullable=False),
        Column("broker_version", Text, nullable=False),
        Column("applied_at", TIME, nullable=False),
    )


def _queue_pause(metadata: MetaData) -> None:
    """One queue nobody should consume for now."""
    Table(
        "queue_pause", metadata,
        Column("queue", EXACT, primary_key=True),
        Column("actor", Text, nullable=False),
        Column("reason", Text, nullable=False),
        Column("paused_at", TIME, nullable=False),
    )


def _audit_log(metadata: MetaData) -> None:
    """One action of an operator."""
    Table(
        "audit_log", metadata,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        Column("at", TIME, nullable=False),
        Column("actor", Text, nullable=False),
        Column("action", Text, nullable=False),
        Column("subject", Text, nullable=False),
        Column("reason", Text, nullable=False),
        Column("detail", JSONB, nullable=False),
    )


def _schema_info(metadata: MetaData) -> None:
    """The one row that says which code this schema works with."""
    Table(
        "schema_info", metadata,
        Column("only_row", Boolean, primary_key=True, server_default=text("true")),
        Column("revision", Text, nullable=False),
        Column("oldest_code", Text, nullable=False),
        Column("updated_at", TIME, nullable=False),
        CheckConstraint("only_row", name="schema_info_only_row"),
    )


def _retry_budget(metadata: MetaData) -> None:
    """The account of one dependency, and sums over its life.

    `earned` to `floor_interval` are as the last exchange had them; `cost` says what `credits` are
    worth. `granted` counts those of the floor too.
    """
    Table(
        "retry_budget", metadata,
        Column("dependency", EXACT, primary_key=True),
        Column("credits", BigInteger, nullable=False, server_default=text("0")),
        Column("floor_at", TIME),
        Column("originals", BigInteger, nullable=False, server_default=text("0")),
        Column("granted", BigInteger, nullable=False, server_default=text("0")),
        Column("granted_by_floor", BigInteger, nullable=False, server_default=text("0")),
        Column("returned", BigInteger, nullable=False, server_default=text("0")),
        Column("denied", BigInteger, nullable=False, server_default=text("0")),
        Column("earned", BigInteger, nullable=False, server_default=text("0")),
        Column("cost", BigInteger, nullable=False, server_default=text("1")),
        Column("most_credits", BigInteger, nullable=False, server_default=text("0")),
        Column("floor_interval", Interval),
        Column("updated_at", TIME, nullable=False),
        CheckConstraint("credits >= 0", name="retry_budget_credits"),
        CheckConstraint("cost >= 1", name="retry_budget_cost"),
    )


def _slot_share(metadata: MetaData) -> None:
    """The slots of a dependency that one worker may have in use, until its lease ends."""
    Table(
        "slot_share", metadata,
        Column("dependency", EXACT, primary_key=True),
        Column("worker", Uuid, primary_key=True),
        Column("held", Integer, nullable=False),
        Column("lease_until", TIME, nullable=False),
        CheckConstraint("held >= 0", name="slot_share_held"),
    )
