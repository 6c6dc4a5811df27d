# ruff: noqa: PT012 - a transaction is a block, and what raises is its end
"""What every store promises about claims."""

import asyncio

import pytest

from consumer.claim import ClaimState, Fingerprint, Meeting
from consumer.testing.contract.database import (
    NEVER_SECONDS,
    DatabaseUnderTest,
    HandlerFailed,
    claim_many,
    claim_one,
    commit_claim,
)
from consumer.testing.contract.samples import FINGERPRINT, SCOPE, request, row


class ClaimContract:
    """Claims, effects and outbox rows take effect together, or not at all."""

    async def test_a_new_key_is_created_as_done(self, database: DatabaseUnderTest) -> None:
        store = database.store()
        async with store.transaction() as transaction:
            meeting = await claim_one(transaction, "a")
        assert meeting == Meeting(locked=True, created=True)
        async with store.transaction() as transaction:
            meeting = await claim_one(transaction, "a")
        assert meeting.claim is not None
        assert meeting.claim.state is ClaimState.DONE
        assert (meeting.claim.attempts, meeting.claim.fingerprint) == (1, FINGERPRINT)

    async def test_a_rolled_back_claim_never_was(self, database: DatabaseUnderTest) -> None:
        store = database.store()
        with pytest.raises(HandlerFailed):
            async with store.transaction() as transaction:
                await claim_one(transaction, "a")
                await database.write(transaction.session, "effect")
                await transaction.finish([], [row("m")])
                raise HandlerFailed
        async with store.transaction() as transaction:
            assert (await claim_one(transaction, "a")).created
        assert await database.effects() == []
        assert await database.outbox() == []

    async def test_effects_and_rows_stand_with_the_claim(self, database: DatabaseUnderTest) -> None:
        async with database.store().transaction() as transaction:
            await claim_one(transaction, "a")
            await database.write(transaction.session, "effect")
            sent = await transaction.finish([], [row("m1"), row("m2")])
        assert [s.message.message_id for s in sent] == ["m1", "m2"]
        assert sent[0].id < sent[1].id
        assert await database.effects() == ["effect"]
        assert await database.outbox() == ["m1", "m2"]

    async def test_another_fingerprint_finds_the_claim_untouched(
        self, database: DatabaseUnderTest
    ) -> None:
        store = database.store()
        await commit_claim(store, "a")
        async with store.transaction() as transaction:
            meeting = await claim_one(transaction, "a", fingerprint=Fingerprint("other", b"2"))
        assert meeting.claim is not None
        assert meeting.claim.fingerprint == FINGERPRINT

    async def test_looking_makes_no_claim(self, database: DatabaseUnderTest) -> None:
        store = database.store()
        async with store.transaction() as transaction:
            meeting = await claim_one(transaction, "a", may_create=False)
        assert meeting == Meeting(locked=True)
        async with store.transaction() as transaction:
            assert (await claim_one(transaction, "a")).created

    async def test_meetings_come_in_the_order_of_requests(
        self, database: DatabaseUnderTest
    ) -> None:
        store, other = database.store(), database.store()
        await commit_claim(store, "m")
        async with other.transaction() as holder:
            await claim_one(holder, "z")
            async with store.transaction() as transaction:
                keys = ["z", "b", "m", "a"]
                met = await claim_many(transaction, [request(key) for key in keys])
        assert [meeting.locked for meeting in met] == [False, True, True, True]
        assert [meeting.created for meeting in met] == [False, True, False, True]
        assert met[2].claim is not None

    async def test_a_key_held_elsewhere_is_not_waited_for(
        self, database: DatabaseUnderTest
    ) -> None:
        async with database.store().transaction() as holder:
            await claim_one(holder, "a")
            # The holder commits only after this returns: had it waited, neither would end.
            async with database.store().transaction() as transaction:
                meeting = await claim_one(transaction, "a")
        assert meeting == Meeting(locked=False)

    async def test_scopes_are_apart(self, database: DatabaseUnderTest) -> None:
        async with database.store().transaction() as transaction:
            met = await transaction.claim([request("a", scope=s) for s in ("x", "y")])
        assert [meeting.created for meeting in met] == [True, True]

    async def test_keys_are_compared_exactly(self, database: DatabaseUnderTest) -> None:
        keys = ["order-1", "ORDER-1", "order-1 ", "\torder-1", "\u00e9", "e\u0301",
                "order\u200b-1", "1", "01", "'; DROP TABLE claim;--", "%s", "$1", ""]
        async with database.store().transaction() as transaction:
            met = await claim_many(transaction, [request(key) for key in keys])
        assert all(meeting.created for meeting in met)

    async def test_lock_waits_and_reads_what_was_committed(
        self, database: DatabaseUnderTest
    ) -> None:
        locked = asyncio.Event()

        async def wait_for_it() -> ClaimState | None:
            async with database.store().transaction() as transaction:
                claim = await transaction.lock(SCOPE, "a")
                locked.set()
                return None if claim is None else claim.state

        async with database.store().transaction() as holder:
            await claim_one(holder, "a")
            waiter = asyncio.create_task(wait_for_it())
            # Another transaction runs to its end in the meantime: time enough to lock wrongly.
            await commit_claim(database.store(), "b")
            assert not locked.is_set()
        async with asyncio.timeout(NEVER_SECONDS):
            assert await waiter is ClaimState.DONE
