"""What a delivery meets: every state of the claim, ticket, lane and payload."""

from itertools import product
from typing import Any
from uuid import UUID

import pytest

from consumer.claim import Claim, ClaimState, Fingerprint, Meeting
from consumer.core.admit import (
    TAKEOVER_GRACE,
    Admission,
    Barrier,
    Drop,
    Expire,
    Park,
    Refuse,
    Run,
    admit,
    counts,
)
from consumer.message import Lane
from consumer.outcome import AckReason, DeadReason, ParkReason

OURS, OTHER = UUID(int=1), UUID(int=2)
GRACE = TAKEOVER_GRACE.total_seconds()
TICKETS = [None, OURS, OTHER]
LATENESS = [None, -5.0, 0.0, GRACE, GRACE + 0.001, 10 * GRACE]
ALL = list(product([True, False], TICKETS, Lane))


def claim(state: ClaimState, overdue: float | None = None, *, replay_open: bool = False,
          attempts: int = 2, replay_item: int | None = None) -> Claim:
    ticket = OURS if state is ClaimState.RETRYING else None
    return Claim("s", "k", state, Fingerprint("a", b""), attempts, ticket, overdue,
                 7 if replay_open else replay_item, replay_open)


def refused(admission: Admission) -> DeadReason | None:
    return admission.why if isinstance(admission, Refuse) else None


@pytest.mark.parametrize(("same", "ticket", "lane"), ALL)
def test_a_key_that_is_locked_elsewhere_parks(same: bool, ticket: UUID | None, lane: Lane) -> None:
    admission = admit(Meeting(locked=False), same=same, ticket=ticket, lane=lane)
    assert admission == Park(ParkReason.CLAIMED_ELSEWHERE)


@pytest.mark.parametrize(("same", "ticket", "lane"), ALL)
def test_a_claim_just_made_runs(same: bool, ticket: UUID | None, lane: Lane) -> None:
    admission = admit(Meeting(True, created=True), same=same, ticket=ticket, lane=lane)
    assert admission == Run(attempt=1, retry=False)


@pytest.mark.parametrize(("same", "ticket", "lane"), ALL)
def test_no_claim_and_none_to_be_made(same: bool, ticket: UUID | None, lane: Lane) -> None:
    wanted = DeadReason.NO_REPLAY_ITEM if lane is Lane.REPLAY else DeadReason.KEY_EXPIRED
    assert refused(admit(Meeting(True), same=same, ticket=ticket, lane=lane)) is wanted


@pytest.mark.parametrize("state", ClaimState)
@pytest.mark.parametrize("ticket", TICKETS)
@pytest.mark.parametrize("lane", Lane)
@pytest.mark.parametrize("overdue", LATENESS)
@pytest.mark.parametrize("replay_open", [True, False])
def test_another_payload_is_a_conflict_whatever_else(
    state: ClaimState, ticket: UUID | None, lane: Lane, overdue: float | None, replay_open: bool
) -> None:
    meeting = Meeting(True, claim=claim(state, overdue, replay_open=replay_open))
    assert refused(admit(meeting, same=False, ticket=ticket, lane=lane)) is DeadReason.KEY_CONFLICT


@pytest.mark.parametrize("ticket", TICKETS)
@pytest.mark.parametrize("lane", Lane)
@pytest.mark.parametrize("replay_open", [True, False])
def test_done_is_a_duplicate(ticket: UUID | None, lane: Lane, replay_open: bool) -> None:
    meeting = Meeting(True, claim=claim(ClaimState.DONE, replay_open=replay_open))
    assert admit(meeting, same=True, ticket=ticket, lane=lane) == Drop(AckReason.DUPLICATE)


@pytest.mark.parametrize(("ticket", "overdue", "lane"), list(product(TICKETS, LATENESS, Lane)))
def test_retrying_runs_with_its_ticket_or_when_overdue(
    ticket: UUID | None, overdue: float | None, lane: Lane
) -> None:
    runs = ticket == OURS or (overdue is not None and overdue > GRACE)
    meeting = Meeting(True, claim=claim(ClaimState.RETRYING, overdue))
    assert admit(meeting, same=True, ticket=ticket, lane=lane) == (
        Run(3, retry=True, costs=True, takeover=ticket != OURS) if runs
        else Drop(AckReason.SUPERSEDED))


def test_no_ticket_is_no_match_for_no_ticket() -> None:
    """A retrying claim without a ticket is run by nobody who brings none."""
    bare = Claim("s", "k", ClaimState.RETRYING, Fingerprint("a", b""), 1, None, 0.0)
    admission = admit(Meeting(True, claim=bare), same=True, ticket=None, lane=Lane.LIVE)
    assert admission == Drop(AckReason.SUPERSEDED)


@pytest.mark.parametrize("ticket", TICKETS)
@pytest.mark.parametrize(("lane", "replay_open", "wanted"), [
    (Lane.LIVE, False, Drop(AckReason.DEAD)),
    (Lane.LIVE, True, Drop(AckReason.DEAD)),
    (Lane.REPLAY, False, Drop(AckReason.REPLAY_CLOSED)),
    (Lane.REPLAY, True, Run(attempt=1, retry=True)),
])
def test_dead_is_run_by_an_open_replay_only(
    ticket: UUID | None, lane: Lane, replay_open: bool, wanted: Admission
) -> None:
    dead = claim(ClaimState.DEAD, replay_open=replay_open, replay_item=7)
    assert admit(Meeting(True, claim=dead), same=True, ticket=ticket, lane=lane) == wanted


def test_a_replay_nobody_asked_for_is_refused() -> None:
    """A producer that publishes to the replay lane does not bring a dead command back."""
    meeting = Meeting(True, claim=claim(ClaimState.DEAD))
    admission = admit(meeting, same=True, ticket=None, lane=Lane.REPLAY)
    assert refused(admission) is DeadReason.NO_REPLAY_ITEM


@pytest.mark.parametrize(("ticket", "lane"), list(product(TICKETS, Lane)))
def test_running_parks(ticket: UUID | None, lane: Lane) -> None:
    meeting = Meeting(True, claim=claim(ClaimState.RUNNING))
    assert admit(meeting, same=True, ticket=ticket, lane=lane) == Park(
        ParkReason.CLAIMED_ELSEWHERE)


@pytest.mark.parametrize(("same", "lane"), list(product([True, False], Lane)))
def test_a_failure_counts_where_no_claim_stands(same: bool, lane: Lane) -> None:
    assert counts(None, same=same, lane=lane)


@pytest.mark.parametrize(("state", "same", "lane", "replay_open"), list(product(
    ClaimState, [True, False], Lane, [True, False])))
def test_a_failure_counts_while_this_life_of_the_command_goes_on(
    state: ClaimState, same: bool, lane: Lane, replay_open: bool
) -> None:
    wanted = same and (
        state is ClaimState.RETRYING
        or (state is ClaimState.DEAD and lane is Lane.REPLAY and replay_open))
    assert counts(claim(state, replay_open=replay_open), same=same, lane=lane) is wanted


@pytest.mark.parametrize("barrier", Barrier)
def test_a_barrier_stands_only_before_what_would_run(barrier: Barrier) -> None:
    def met(claim: Claim | None, **more: Any) -> Admission:
        return admit(Meeting(True, claim=claim), ticket=OURS, lane=Lane.LIVE, barrier=barrier,
                     **{"same": True, **more})

    assert met(claim(ClaimState.DONE)) == Drop(AckReason.DUPLICATE)
    assert met(claim(ClaimState.DEAD)) == Drop(AckReason.DEAD)
    assert met(claim(ClaimState.RUNNING)) == Park(ParkReason.CLAIMED_ELSEWHERE)
    assert refused(met(claim(ClaimState.DONE), same=False)) is DeadReason.KEY_CONFLICT
    assert refused(met(None, too_old=True)) is DeadReason.KEY_EXPIRED


def test_a_passed_deadline_kills_what_would_run() -> None:
    new = admit(Meeting(True), same=False, ticket=None, lane=Lane.LIVE, barrier=Barrier.DEADLINE)
    assert refused(new) is DeadReason.DEADLINE
    waiting = Meeting(True, claim=claim(ClaimState.RETRYING))
    assert admit(waiting, same=True, ticket=OURS, lane=Lane.LIVE,
                 barrier=Barrier.DEADLINE) == Expire()


@pytest.mark.parametrize("barrier", [Barrier.BREAKER, Barrier.NO_SLOT])
def test_a_closed_door_parks_what_would_run(barrier: Barrier) -> None:
    for meeting in (Meeting(True), Meeting(True, claim=claim(ClaimState.RETRYING))):
        assert admit(meeting, same=True, ticket=OURS, lane=Lane.LIVE,
                     barrier=barrier) == Park(ParkReason(barrier))
