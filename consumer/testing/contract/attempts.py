# ruff: noqa: PT012 - a transaction is a block, and what raises is its end
"""What every store promises about failed attempts and what follows from them."""

from uuid import uuid4

import pytest

from consumer.claim import ClaimState
from consumer.testing.contract.database import (
    DatabaseUnderTest,
    HandlerFailed,
    claim_one,
    commit_retry,
)
from consumer.testing.contract.samples import SCOPE, completion, death, request, retry, row


class AttemptContract:
    """Attempt, claim and next place are one record; whoever writes a claim ends its copies."""

    async def test_a_failure_leaves_a_retrying_claim_and_the_next_copy(
        self, database: DatabaseUnderTest
    ) -> None:
        store, ticket = database.store(), uuid4()
        async with store.transaction() as transaction:
            assert await transaction.lock(SCOPE, "a") is None
            sent = await transaction.record(retry("a", ticket=ticket, error="away"))
        assert sent.kept
        assert sent.due_at is not None
        async with store.transaction() as transaction:
            claim = (await claim_one(transaction, "a")).claim
        assert claim is not None
        assert (claim.state, claim.ticket, claim.attempts) == (ClaimState.RETRYING, ticket, 1)
        assert claim.overdue_seconds is not None
        assert -3600 <= claim.overdue_seconds < 0
        assert await database.failures() == [("a", 1, "away")]
        assert await database.outbox() == ["a-copy-1"]

    async def test_a_rolled_back_failure_leaves_nothing(self, database: DatabaseUnderTest) -> None:
        store = database.store()
        with pytest.raises(HandlerFailed):
            async with store.transaction() as transaction:
                await transaction.lock(SCOPE, "a")
                await transaction.record(retry("a"))
                raise HandlerFailed
        assert await database.failures() == []
        assert await database.outbox() == []
        async with store.transaction() as transaction:
            assert await transaction.lock(SCOPE, "a") is None

    async def test_whoever_writes_the_claim_deletes_its_kept_rows(
        self, database: DatabaseUnderTest
    ) -> None:
        store = database.store()
        await commit_retry(store, "a")
        await commit_retry(store, "other")
        await commit_retry(store, "a", attempts=2)
        assert await database.outbox() == ["other-copy-1", "a-copy-2"]
        async with store.transaction() as transaction:
            await claim_one(transaction, "a")
            await transaction.finish([completion("a", attempts=3)], [row("m")])
        assert await database.outbox() == ["other-copy-1", "m"]

    async def test_a_completed_retry_is_done(self, database: DatabaseUnderTest) -> None:
        store = database.store()
        await commit_retry(store, "a")
        await commit_retry(store, "b")
        async with store.transaction() as transaction:
            await transaction.claim([request("a"), request("b")])
            await transaction.finish([completion("b", 2), completion("a", 5)], [])
        async with store.transaction() as transaction:
            met = await transaction.claim([request("a"), request("b")])
        claims = [meeting.claim for meeting in met if meeting.claim is not None]
        assert [(c.state, c.attempts, c.ticket) for c in claims] == [
            (ClaimState.DONE, 5, None), (ClaimState.DONE, 2, None)]

    async def test_a_death_leaves_a_dead_claim_and_a_letter(
        self, database: DatabaseUnderTest
    ) -> None:
        store = database.store()
        await commit_retry(store, "a")
        async with store.transaction() as transaction:
            await transaction.lock(SCOPE, "a")
            sent = await transaction.record(death("a", attempts=2))
        assert not sent.kept
        assert sent.due_at is None
        async with store.transaction() as transaction:
            claim = await transaction.lock(SCOPE, "a")
        assert claim is not None
        assert (claim.state, claim.ticket, claim.overdue_seconds) == (ClaimState.DEAD, None, None)
        assert await database.outbox() == ["a-letter"]
