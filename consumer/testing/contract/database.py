"""What the suites need of the database they test, and steps they share."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from consumer.claim import ClaimRequest, Meeting
from consumer.message import SentRow
from consumer.ports import Store, Transaction
from consumer.testing.contract.samples import SCOPE, request, retry

NEVER_SECONDS = 30


class DatabaseUnderTest(Protocol):
    """A fresh, empty database, and stores on it."""

    def store(self) -> Store:
        """One more store; each has its own connection."""

    async def write(self, session: Any, effect: str) -> None:
        """What a handler does: write an effect with its session."""

    async def effects(self) -> list[str]:
        """The committed effects, in any order."""

    async def failures(self) -> list[tuple[str, int, str]]:
        """(key, number, error) of each recorded failed attempt, oldest first."""

    async def outbox(self) -> list[str]:
        """Message ids of the committed outbox rows, in the order of row ids."""


class HandlerFailed(Exception):
    """A handler raised."""


async def claim_one(transaction: Transaction, key: str, **options: Any) -> Meeting:
    """What a single request meets."""
    [meeting] = await claim_many(transaction, [request(key, **options)])
    return meeting


async def claim_many(transaction: Transaction, requests: Sequence[ClaimRequest]) -> list[Meeting]:
    """What the requests meet. Fails where the store waits for a lock, instead of hanging."""
    async with asyncio.timeout(NEVER_SECONDS):
        return await transaction.claim(requests)


async def commit_claim(store: Store, key: str) -> None:
    """The command of that key is done."""
    async with store.transaction() as transaction:
        assert (await claim_one(transaction, key)).created


async def commit_retry(store: Store, key: str, attempts: int = 1) -> SentRow:
    """The command of that key failed and will be tried again."""
    async with store.transaction() as transaction:
        await transaction.lock(SCOPE, key)
        return await transaction.record(retry(key, attempts=attempts))
