"""The durable row of one (scope, key), and what is asked of it and written to it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from consumer.message import Lane, OutboxRow


class ClaimState(StrEnum):
    """What became of a (scope, key)."""

    RUNNING = "running"
    RETRYING = "retrying"
    DONE = "done"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hash of a payload's meaning. Hashes of different algorithms cannot be compared."""

    algorithm: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """The durable row of a (scope, key), as read.

    Args:
        attempts: Failed attempts so far, plus the successful one once done.
        ticket: Token of the one copy that may run next, while `retrying`.
        overdue_seconds: Database clock minus `due_at`; negative before it; None without `due_at`.
        replay_item: The replay this life of the command belongs to, if any.
        replay_open: Whether that replay still waits for its outcome.
    """

    scope: str
    key: str
    state: ClaimState
    fingerprint: Fingerprint
    attempts: int = 0
    ticket: UUID | None = None
    overdue_seconds: float | None = None
    replay_item: int | None = None
    replay_open: bool = False


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One delivery's wish to run.

    Args:
        may_create: False only looks: a missing claim stays missing.
        retention: How long the claim outlives its end.
    """

    scope: str
    key: str
    fingerprint: Fingerprint
    worker: str
    lane: Lane
    message_id: str
    retention: timedelta
    may_create: bool = True


@dataclass(frozen=True, slots=True)
class Meeting:
    """What a request met. Exactly one of these is the case:

    * `not locked`: another transaction that is still open holds the key.
    * `created`: there was no claim; ours is written, as done, and stands if we commit.
    * `claim`: what stood there.
    * none of them: there is no claim, and none was to be made.
    """

    locked: bool
    created: bool = False
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A retry that succeeded: its claim turns done. (An original is done as it is created.)"""

    scope: str
    key: str
    attempts: int
    retention: timedelta
    worker: str


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """A failed attempt and what follows from it, written in one go.

    Args:
        attempts: Failed attempts, this one included.
        ticket: Of the next copy; None when the command is dead.
        delay: Until the next attempt.
        decision: The decision and its reason, for people.
        row: The next copy, or the dead letter.
        outcome: `failed`, or `not_run` where the command died without another attempt.
    """

    request: ClaimRequest
    attempts: int
    state: ClaimState
    ticket: UUID | None
    delay: timedelta | None
    started_at: datetime
    ended_at: datetime
    error: str
    decision: str
    replay_item: int | None
    row: OutboxRow
    outcome: str = "failed"
