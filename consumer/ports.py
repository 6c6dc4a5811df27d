"""The seams between deciding and doing: small Protocols, each with an in-memory twin.

`consumer.store` and `consumer.broker` implement them on Postgres and RabbitMQ,
`consumer.testing.memory` in memory; `consumer.testing.contract` holds the suite both pass.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from consumer.claim import Claim, ClaimRequest, Completion, FailureRecord, Meeting
from consumer.core.budget import Wish
from consumer.core.slots import SlotWish
from consumer.message import Delivery, Lane, OutboxRow, Outgoing, SentRow


class Transaction(Protocol):
    """One open database transaction of a worker. Writers of a claim hold its key's lock."""

    @property
    def session(self) -> Any:
        """What handlers write with: a SQLAlchemy `AsyncSession`, made when first asked for."""

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Meeting]:
        """Lock the keys that are free and say what each request met. Never waits for a lock."""

    async def finish(
        self, completions: Sequence[Completion], rows: Sequence[OutboxRow]
    ) -> list[SentRow]:
        """Flush the session, mark retries done, write outbox rows; returns them with their ids."""

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """A savepoint: released at the end, rolled back when the block raises."""

    async def lock(self, scope: str, key: str) -> Claim | None:
        """Wait for the key's lock, then read its claim."""

    async def record(self, failure: FailureRecord) -> SentRow:
        """Write attempt, claim and next place; the claim's kept rows are deleted."""

    def translate(self, error: Exception) -> Exception:
        """StoreUnavailable or SerializationConflict where this transaction's own connection
        reported `error` and it means that; otherwise `error` itself.
        """


class Store(Protocol):
    """Opens transactions, one at a time: each executor has a store of its own.

    Every method raises StoreUnavailable when Postgres fails.
    """

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """BEGIN; COMMIT at the end of the block; ROLLBACK when it raises.

        Raises:
            SerializationConflict: Postgres asks for the transaction to be run again.
            CommitFailed: COMMIT was refused, by a deferred constraint, say.
        """


class Receipt(StrEnum):
    """How a publish ended."""

    CONFIRMED = "confirmed"
    UNROUTABLE = "unroutable"
    REFUSED = "refused"
    UNSENDABLE = "unsendable"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Published:
    """How one publish ended, and why where it was not confirmed.

    `UNSENDABLE` was not sent, for no broker would take it: too large, or a name too long.
    `UNKNOWN` may have reached the broker: a timeout, or a connection lost before the confirm.
    """

    receipt: Receipt
    detail: str = ""


class Publisher(Protocol):
    """Publishes with confirms and `mandatory`, pipelined."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """One answer per message, in order. Broker trouble is an answer, not an exception."""


class OutboxStore(Protocol):
    """What dispatch and relay do with outbox rows. Raises StoreUnavailable when Postgres fails."""

    async def due(self, limit: int) -> list[SentRow]:
        """Rows that should have been published by now, taken for a minute (`SKIP LOCKED`).

        Of rows with an ordering key, only the oldest of each key. Parked rows never.
        """

    async def confirmed(self, rows: Sequence[SentRow]) -> None:
        """Delete them; rows with an owner stay and come due again when overdue."""

    async def failed(self, row: SentRow, error: str, *, retry_in: timedelta | None) -> None:
        """Count a try; come due again after `retry_in`, or park where it is None."""


class BudgetStore(Protocol):
    """The fleet's retry budgets. Raises StoreUnavailable when Postgres fails."""

    async def exchange(self, wishes: Sequence[Wish]) -> list[int]:
        """Credits are paid in and retries granted, in one go; how many are granted, per wish.

        What was granted is paid for: a process that dies with it has lost it.
        """


class SlotStore(Protocol):
    """The shares of the fleet's slots. Raises StoreUnavailable when Postgres fails."""

    async def renew(self, worker: UUID, wishes: Sequence[SlotWish]) -> list[int]:
        """The worker's shares from now on, each held for its lease; per wish.

        All shares of a dependency together never exceed its limit.
        """

    async def leave(self, worker: UUID) -> None:
        """The worker holds no share any more. Nothing of it may be in flight. Idempotent."""


class Settlement(Protocol):
    """Ends one delivery, on the channel that delivered it."""

    @property
    def live(self) -> bool:
        """Whether that channel is still open; if not, the delivery comes again by itself."""

    async def ack(self) -> bool:
        """Tell the broker it is done. False: that channel is gone, it will be delivered again."""

    async def requeue(self) -> bool:
        """Give it back. False: that channel is gone, it comes back by itself."""


Sink = Callable[[Delivery, Settlement], None]


class Subscription(Protocol):
    """A consumer that outlives reconnects."""

    @property
    def active(self) -> bool:
        """Whether the broker delivers to it now."""

    async def cancel(self) -> None:
        """No further delivery arrives; those taken can still be settled. Idempotent."""


class Broker(Protocol):
    """The consuming side of RabbitMQ."""

    async def subscribe(self, queue: str, lane: Lane, prefetch: int, sink: Sink) -> Subscription:
        """Deliveries go to `sink`, which must not block; restored after each reconnect."""

    @property
    def connected(self) -> bool:
        """Whether the consuming connection is up."""


class Clock(Protocol):
    """Time and chance, so that `core` has neither."""

    def now(self) -> datetime:
        """Wall clock, aware, UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back, from some unknown hour."""

    def jitter(self) -> float:
        """Uniform in [0, 1)."""

    def token(self) -> UUID:
        """Unguessable and unique."""
