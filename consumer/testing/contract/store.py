# ruff: noqa: PT012 - a transaction is a block, and what raises is its end
"""What every `Store` promises. Subclass `StoreContract` and give it a fixture `database`."""

import pytest

from consumer.testing.contract.attempts import AttemptContract
from consumer.testing.contract.claims import ClaimContract
from consumer.testing.contract.database import (
    DatabaseUnderTest,
    HandlerFailed,
    claim_one,
    commit_claim,
)
from consumer.testing.contract.samples import request, row


class StoreContract(ClaimContract, AttemptContract):
    """Everything of the two, and that failures stay where they happened."""

    async def test_a_failed_savepoint_takes_only_its_own_with_it(
        self, database: DatabaseUnderTest
    ) -> None:
        store = database.store()
        async with store.transaction() as transaction:
            for key in ("a", "bad", "c"):
                try:
                    async with transaction.savepoint():
                        await claim_one(transaction, key)
                        await database.write(transaction.session, key)
                        await transaction.finish([], [row(f"m-{key}")])
                        if key == "bad":
                            raise HandlerFailed
                except HandlerFailed:
                    pass
        assert sorted(await database.effects()) == ["a", "c"]
        assert await database.outbox() == ["m-a", "m-c"]
        async with store.transaction() as transaction:
            met = await transaction.claim([request(key) for key in ("a", "bad", "c")])
        assert [meeting.created for meeting in met] == [False, True, False]

    async def test_a_rolled_back_savepoint_frees_its_keys(
        self, database: DatabaseUnderTest
    ) -> None:
        async with database.store().transaction() as transaction:
            with pytest.raises(HandlerFailed):
                async with transaction.savepoint():
                    await claim_one(transaction, "a")
                    raise HandlerFailed
            async with database.store().transaction() as other:
                assert (await claim_one(other, "a")).created

    async def test_a_store_is_usable_after_a_failure(self, database: DatabaseUnderTest) -> None:
        store = database.store()
        for _ in range(3):
            with pytest.raises(HandlerFailed):
                async with store.transaction() as transaction:
                    await claim_one(transaction, "a")
                    raise HandlerFailed
        await commit_claim(store, "a")

    async def test_errors_of_others_are_not_translated(self, database: DatabaseUnderTest) -> None:
        error = ConnectionResetError("the provider hung up")
        with pytest.raises(ConnectionResetError):
            async with database.store().transaction() as transaction:
                assert transaction.translate(error) is error
                raise error
