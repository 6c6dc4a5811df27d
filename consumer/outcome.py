"""What `process` decides for a delivery. `settle` acts on it and decides nothing."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from consumer.message import Outgoing, SentRow


class AckReason(StrEnum):
    """Why nothing more has to happen to a delivery."""

    DONE = "done"
    DUPLICATE = "duplicate"
    SUPERSEDED = "superseded"
    DEAD = "dead"
    RETRYING = "retrying"
    DIED = "died"
    REPLAY_CLOSED = "replay_closed"


class ParkReason(StrEnum):
    """Why a delivery is postponed without an attempt."""

    CLAIMED_ELSEWHERE = "claimed_elsewhere"
    UNKNOWN_TYPE = "unknown_type"
    INVALID = "invalid"
    DEFECT = "defect"
    BUDGET = "budget"
    BREAKER = "breaker"
    NO_SLOT = "no_slot"


class DeadReason(StrEnum):
    """Why a message is given up."""

    MALFORMED = "malformed"
    UNKNOWN_TYPE = "unknown_type"
    INVALID = "invalid"
    NO_KEY = "no_key"
    KEY_CONFLICT = "key_conflict"
    KEY_EXPIRED = "key_expired"
    NO_REPLAY_ITEM = "no_replay_item"
    REJECTED = "rejected"
    PERMANENT = "permanent"
    ATTEMPTS = "attempts"
    DEADLINE = "deadline"


class RequeueReason(StrEnum):
    """Why a delivery is given back untouched."""

    DRAIN = "drain"
    PAUSE = "pause"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True, slots=True)
class Ack:
    """The next place of the message is durable: a committed row, or none is needed.

    Args:
        why: What became of it.
        rows: Outbox rows committed with it, which this worker publishes at once.
        attempt: Number of the attempt that ended so; 0 where none was made.
        dead: Why the command was given up, where it was.
        reply: What a waiting requester is told.
    """

    why: AckReason
    rows: tuple[SentRow, ...] = ()
    attempt: int = 0
    dead: DeadReason | None = None
    reply: Outgoing | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """Publish `copy` into the delay ladder with confirm, then ack."""

    why: ParkReason
    delay: timedelta
    copy: Outgoing


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Publish `letter` to the queue's dead letters with confirm, then ack.

    Only for a delivery that owns no claim: a claim that dies writes its letter in its transaction.
    """

    why: DeadReason
    error: str
    letter: Outgoing
    reply: Outgoing | None = None


@dataclass(frozen=True, slots=True)
class Requeue:
    """Give the delivery back to the broker. Only drain, pause and infrastructure faults do."""

    why: RequeueReason


Outcome = Ack | Delay | DeadLetter | Requeue
