"""Rules of the protocol, broken one by one, to see that a search for violations finds them.

Each function changes code under test by `monkeypatch`.
"""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from consumer.claim import Claim, ClaimState, FailureRecord, Meeting
from consumer.core.admit import Admission, Drop, Run, admit
from consumer.message import Lane, Outgoing, SentRow
from consumer.outcome import AckReason, Outcome
from consumer.testing.memory.database import MemoryOutbox, MemoryTransaction, StoredRow
from consumer.worker import failures, process
from consumer.worker.executor import Executor
from consumer.worker.intake import Item
from consumer.worker.settle import Settler
from simulation.process import GatedSettlement

Mutation = Callable[[pytest.MonkeyPatch], None]


def _admit(patch: pytest.MonkeyPatch, rule: Callable[..., Admission]) -> None:
    patch.setattr(process, "admit", rule)


def no_ticket(patch: pytest.MonkeyPatch) -> None:
    """Any copy of a retrying key runs at once."""

    def rule(meeting: Meeting, *, same: bool, ticket: UUID | None, lane: Lane) -> Admission:
        current = meeting.claim.ticket if meeting.claim else ticket
        return admit(meeting, same=same, ticket=current, lane=lane)

    _admit(patch, rule)


def ack_uncommitted(patch: pytest.MonkeyPatch) -> None:
    """A copy is acked while an uncommitted transaction holds the key."""

    def rule(meeting: Meeting, *, same: bool, ticket: UUID | None, lane: Lane) -> Admission:
        if not meeting.locked:
            return Drop(AckReason.DUPLICATE)
        return admit(meeting, same=same, ticket=ticket, lane=lane)

    _admit(patch, rule)


def dead_runs_again(patch: pytest.MonkeyPatch) -> None:
    """A duplicate of a dead command runs."""

    def rule(meeting: Meeting, *, same: bool, ticket: UUID | None, lane: Lane) -> Admission:
        if meeting.claim is not None and meeting.claim.state is ClaimState.DEAD:
            return Run(attempt=1, retry=True)
        return admit(meeting, same=same, ticket=ticket, lane=lane)

    _admit(patch, rule)


def payload_ignored(patch: pytest.MonkeyPatch) -> None:
    """Another payload under the same key counts as a duplicate."""

    def rule(meeting: Meeting, *, same: bool, ticket: UUID | None, lane: Lane) -> Admission:
        return admit(meeting, same=True, ticket=ticket, lane=lane)

    _admit(patch, rule)


def ack_before_commit(patch: pytest.MonkeyPatch) -> None:
    """A delivery is acked before its transaction commits."""
    outcomes = Executor._outcomes

    async def early(self: Executor, batch: list[Item]) -> list[Outcome]:
        for item in batch:
            assert isinstance(item.settlement, GatedSettlement)
            await item.settlement.inner.ack()
        return await outcomes(self, batch)

    patch.setattr(Executor, "_outcomes", early)


def blind_failure(patch: pytest.MonkeyPatch) -> None:
    """The failure record does not heed the claim as it stands after the rollback."""

    def rule(claim: Claim | None, *, same: bool, lane: Lane) -> bool:
        return True

    patch.setattr(failures, "counts", rule)


def two_step_failure(patch: pytest.MonkeyPatch) -> None:
    """The failure commits without its outbox row, which only this process knows of."""
    record = MemoryTransaction.record

    async def without_row(self: MemoryTransaction, failure: FailureRecord) -> SentRow:
        sent = await record(self, failure)
        del self._rows[sent.id]
        return sent

    patch.setattr(MemoryTransaction, "record", without_row)


def dead_acked_first(patch: pytest.MonkeyPatch) -> None:
    """A dead letter or parked copy is published after the ack."""

    settle = Settler.settle

    async def later(self: Settler, outcome: Any, settlement: GatedSettlement) -> bool:
        message: Outgoing | None = getattr(outcome, "letter", getattr(outcome, "copy", None))
        if message is None:
            return await settle(self, outcome, settlement)
        await settlement.ack()
        await self._place(message, outcome.why)
        return True

    patch.setattr(Settler, "settle", later)


def row_not_kept(patch: pytest.MonkeyPatch) -> None:
    """The outbox row of a next copy is deleted when its publish is confirmed."""

    async def confirmed(self: MemoryOutbox, rows: Sequence[SentRow]) -> None:
        await self._database.step("confirmed")
        for row in rows:
            self._database.tables.outbox.pop(row.id, None)

    patch.setattr(MemoryOutbox, "confirmed", confirmed)


def old_rows_stay(patch: pytest.MonkeyPatch) -> None:
    """Old copies' rows survive the next write of their claim."""
    commit = MemoryTransaction.commit

    async def keep(self: MemoryTransaction) -> None:
        kept: dict[int, StoredRow] = dict(self._database.tables.outbox)
        await commit(self)
        for id_, stored in kept.items():
            self._database.tables.outbox.setdefault(id_, stored)

    patch.setattr(MemoryTransaction, "commit", keep)


ALL: tuple[Mutation, ...] = (
    ack_before_commit, ack_uncommitted, blind_failure, dead_acked_first, dead_runs_again, no_ticket,
    old_rows_stay, payload_ignored, row_not_kept, two_step_failure,
)
