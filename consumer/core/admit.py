"""What a delivery meets (DESIGN, "The path of one message"): may it run, and if not, what then."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import assert_never
from uuid import UUID

from consumer.claim import Claim, ClaimState, Meeting
from consumer.message import Lane
from consumer.outcome import AckReason, DeadReason, ParkReason

TAKEOVER_GRACE = timedelta(minutes=10)
"""How long past its due time a retry may stay away before any other copy takes its place."""


@dataclass(frozen=True, slots=True)
class Run:
    """The handler may run.

    Args:
        attempt: Number of the attempt, from 1.
        retry: The claim stands already and turns done by an update.
        costs: It is a retry that the budget must pay for; a replay's first run is not.
        takeover: It takes the place of a copy that stayed away too long.
    """

    attempt: int
    retry: bool
    costs: bool = False
    takeover: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """Nothing is left to do: ack."""

    why: AckReason


@dataclass(frozen=True, slots=True)
class Park:
    """Not now: postpone without an attempt."""

    why: ParkReason


@dataclass(frozen=True, slots=True)
class Refuse:
    """Never: dead-letter the delivery, which owns no claim."""

    why: DeadReason
    detail: str


@dataclass(frozen=True, slots=True)
class Expire:
    """Never: its deadline has come, and it owns the claim, which dies with it."""


Admission = Run | Drop | Park | Refuse | Expire


class Barrier(StrEnum):
    """What stands before a run, if everything else allows it."""

    DEADLINE = "deadline"
    BREAKER = "breaker"
    NO_SLOT = "no_slot"


def admit(meeting: Meeting, *, same: bool, ticket: UUID | None, lane: Lane,
          barrier: Barrier | None = None, too_old: bool = False) -> Admission:
    """What becomes of a delivery, by what its claim request met.

    Args:
        same: The standing claim, if there is one, is of a payload that means the same.
        ticket: The ticket the delivery carries, if any.
        lane: The lane it came in.
        barrier: What stands before a run. The claim was then requested without creating it.
        too_old: It is older than the retention of keys, so a missing claim says nothing.
    """
    if not meeting.locked:
        return Park(ParkReason.CLAIMED_ELSEWHERE)
    if meeting.created:
        return Run(attempt=1, retry=False)
    claim = meeting.claim
    if claim is None:
        if lane is Lane.REPLAY:
            return Refuse(DeadReason.NO_REPLAY_ITEM, "no replay asked for this message")
        if barrier is None or too_old:
            return Refuse(DeadReason.KEY_EXPIRED, "older than the retention of keys")
        if barrier is Barrier.DEADLINE:
            return Refuse(DeadReason.DEADLINE, "its deadline passed before it could begin")
        return Park(ParkReason(barrier))
    if not same:
        return Refuse(DeadReason.KEY_CONFLICT, "the key was used with another payload")
    admission = _meet(claim, ticket, lane)
    if barrier is None or not isinstance(admission, Run):
        return admission
    return Expire() if barrier is Barrier.DEADLINE else Park(ParkReason(barrier))


def _meet(claim: Claim, ticket: UUID | None, lane: Lane) -> Admission:
    """What a delivery with the claim's own payload meets in each of its states."""
    match claim.state:
        case ClaimState.DONE:
            return Drop(AckReason.DUPLICATE)
        case ClaimState.RETRYING:
            overdue = claim.overdue_seconds
            late = overdue is not None and overdue > TAKEOVER_GRACE.total_seconds()
            own = ticket is not None and ticket == claim.ticket
            if late or own:
                return Run(claim.attempts + 1, retry=True, costs=True, takeover=not own)
            return Drop(AckReason.SUPERSEDED)
        case ClaimState.DEAD:
            if lane is Lane.LIVE:
                return Drop(AckReason.DEAD)
            if claim.replay_item is None:
                return Refuse(DeadReason.NO_REPLAY_ITEM, "no replay asked for this message")
            if claim.replay_open:
                return Run(attempt=1, retry=True)
            return Drop(AckReason.REPLAY_CLOSED)
        case ClaimState.RUNNING:
            return Park(ParkReason.CLAIMED_ELSEWHERE)
    assert_never(claim.state)


def counts(claim: Claim | None, *, same: bool, lane: Lane) -> bool:
    """Whether a failed attempt may still be recorded, now that its rollback freed the key.

    It may where no claim stands, and where one is `retrying` with the same payload, whoever wrote
    it. Otherwise somebody else ended or took the command meanwhile, and `admit` decides anew.
    """
    if claim is None:
        return True
    if claim.state is ClaimState.DEAD:
        return same and lane is Lane.REPLAY and claim.replay_open
    return same and claim.state is ClaimState.RETRYING
