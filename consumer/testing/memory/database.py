"""Claims, outbox and attempts in memory, with transactions and locks as Postgres has them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from consumer.claim import (
    Claim,
    ClaimRequest,
    ClaimState,
    Completion,
    FailureRecord,
    Fingerprint,
    Meeting,
)
from consumer.errors import StoreUnavailable
from consumer.message import OutboxRow, SentRow
from consumer.ports import Clock

DISPATCH_LEAD = timedelta(seconds=5)
"""The writing worker publishes its rows itself; the relay leaves them alone for so long."""
OVERDUE_GRACE = timedelta(minutes=10)
TAKEN_FOR = timedelta(minutes=1)

ScopedKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim as stored."""

    state: ClaimState
    fingerprint: Fingerprint
    attempts: int
    ticket: UUID | None = None
    due_at: datetime | None = None
    replay_item: int | None = None


@dataclass(frozen=True, slots=True)
class StoredRow:
    """An outbox row as stored."""

    row: OutboxRow
    available_at: datetime
    due_at: datetime | None
    tries: int = 0
    error: str = ""
    parked: bool = False
    publishes: int = 0
    scheduled: bool = False


@dataclass(slots=True)
class Tables:
    """Everything a transaction can change."""

    claims: dict[ScopedKey, ClaimRow] = field(default_factory=dict)
    outbox: dict[int, StoredRow] = field(default_factory=dict)
    attempts: list[FailureRecord] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)


async def _go_on(point: str) -> None:
    """The default of `MemoryDatabase.at`: nothing happens between two steps."""


class MemoryDatabase:
    """The committed state.

    Attributes:
        down: Every statement raises StoreUnavailable while it is set.
        at: Awaited before each step with the step's name; tests crash, fail or interleave there.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.tables, self.down = clock, Tables(), False
        self.at: Callable[[str], Awaitable[None]] = _go_on
        self.locks: dict[ScopedKey, object] = {}
        self.unlocked = asyncio.Condition()
        self.next_id = 1

    async def step(self, name: str) -> None:
        """A statement begins."""
        await self.at(name)
        if self.down:
            raise StoreUnavailable("the database is down")


class MemorySession:
    """What handlers write with: effects that stand once the transaction commits."""

    def __init__(self, effects: list[Any]) -> None:
        self._effects = effects

    def add(self, effect: Any) -> None:
        self._effects.append(effect)


class MemoryTransaction:
    """One open transaction: a private copy of the tables, merged at commit."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self._held: set[ScopedKey] = set()
        self._claims: dict[ScopedKey, ClaimRow] = {}
        self._rows: dict[int, StoredRow] = {}
        self._gone: set[ScopedKey] = set()
        self._attempts: list[FailureRecord] = []
        self._effects: list[Any] = []

    @property
    def session(self) -> MemorySession:
        return MemorySession(self._effects)

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Meeting]:
        await self._database.step("claim")
        return [self._claim(request) for request in requests]

    def _claim(self, request: ClaimRequest) -> Meeting:
        key = (request.scope, request.key)
        if self._database.locks.setdefault(key, self) is not self:
            return Meeting(locked=False)
        self._held.add(key)
        found = self._read(key)
        if found is not None:
            return Meeting(locked=True, claim=found)
        if request.may_create:
            self._claims[key] = ClaimRow(ClaimState.DONE, request.fingerprint, attempts=1)
        return Meeting(locked=True, created=request.may_create)

    def _read(self, key: ScopedKey) -> Claim | None:
        row = self._claims.get(key) or self._database.tables.claims.get(key)
        if row is None:
            return None
        overdue = None
        if row.due_at is not None:
            overdue = (self._database.clock.now() - row.due_at).total_seconds()
        return Claim(
            *key, row.state, row.fingerprint, row.attempts, row.ticket, overdue, row.replay_item
        )

    async def finish(
        self, completions: Sequence[Completion], rows: Sequence[OutboxRow]
    ) -> list[SentRow]:
        await self._database.step("finish")
        for done in completions:
            key = (done.scope, done.key)
            old = self._claims.get(key) or self._database.tables.claims[key]
            self._claims[key] = replace(
                old, state=ClaimState.DONE, attempts=done.attempts, ticket=None, due_at=None
            )
            self._gone.add(key)
        return [self._insert(row) for row in rows]

    def _insert(self, row: OutboxRow) -> SentRow:
        now, id_ = self._database.clock.now(), self._database.next_id
        self._database.next_id += 1
        due_at = None if row.delay is None else now + row.delay
        at_once = now if row.ordering_key is not None else now + DISPATCH_LEAD
        scheduled = row.available_at is not None and row.available_at > now
        stored = StoredRow(row, row.available_at or at_once, due_at, scheduled=scheduled)
        self._rows[id_] = stored
        return _sent(id_, stored)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        await self._database.step("savepoint")
        held, claims, rows = set(self._held), dict(self._claims), dict(self._rows)
        gone, attempts, effects = set(self._gone), list(self._attempts), list(self._effects)
        try:
            yield
            await self._database.step("release savepoint")
        except BaseException:
            await self._unlock(self._held - held)
            self._held, self._claims, self._rows, self._gone = held, claims, rows, gone
            self._attempts[:], self._effects[:] = attempts, effects
            raise

    async def lock(self, scope: str, key: str) -> Claim | None:
        await self._database.step("lock")
        async with self._database.unlocked:
            while self._database.locks.setdefault((scope, key), self) is not self:
                await self._database.unlocked.wait()
        self._held.add((scope, key))
        return self._read((scope, key))

    async def record(self, failure: FailureRecord) -> SentRow:
        await self._database.step("record")
        request, key = failure.request, (failure.request.scope, failure.request.key)
        due_at = None if failure.delay is None else self._database.clock.now() + failure.delay
        old = self._claims.get(key) or self._database.tables.claims.get(key)
        self._claims[key] = ClaimRow(
            failure.state,
            old.fingerprint if old else request.fingerprint,
            failure.attempts,
            failure.ticket,
            due_at,
            failure.replay_item,
        )
        self._attempts.append(failure)
        self._gone.add(key)
        return self._insert(failure.row)

    def translate(self, error: Exception) -> Exception:
        return error

    async def commit(self) -> None:
        """What was written stands; the locks are free."""
        await self._database.step("commit")
        tables = self._database.tables
        for id_ in [i for i, stored in tables.outbox.items() if stored.row.owner in self._gone]:
            del tables.outbox[id_]
        tables.claims.update(self._claims)
        tables.outbox.update(self._rows)
        tables.attempts.extend(self._attempts)
        tables.effects.extend(deepcopy(self._effects))

    async def release(self) -> None:
        """The transaction is over, however it ended."""
        await self._unlock(self._held)

    async def _unlock(self, keys: set[ScopedKey]) -> None:
        for key in keys:
            self._database.locks.pop(key, None)
        async with self._database.unlocked:
            self._database.unlocked.notify_all()


class MemoryStore:
    """`Store` on a MemoryDatabase."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        await self._database.step("begin")
        transaction = MemoryTransaction(self._database)
        try:
            yield transaction
            await transaction.commit()
        finally:
            await transaction.release()


class MemoryOutbox:
    """`OutboxStore` on a MemoryDatabase."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def due(self, limit: int) -> list[SentRow]:
        await self._database.step("due")
        now, outbox = self._database.clock.now(), self._database.tables.outbox
        taken, keys = list[SentRow](), set[str]()
        for id_ in sorted(outbox):
            stored, ordering_key = outbox[id_], outbox[id_].row.ordering_key
            first = ordering_key is None or ordering_key not in keys
            if ordering_key is not None:
                keys.add(ordering_key)
            if first and not stored.parked and stored.available_at <= now and len(taken) < limit:
                outbox[id_] = replace(stored, available_at=now + TAKEN_FOR)
                taken.append(_sent(id_, stored))
        return taken

    async def confirmed(self, rows: Sequence[SentRow]) -> None:
        await self._database.step("confirmed")
        now, outbox = self._database.clock.now(), self._database.tables.outbox
        for row in rows:
            stored = outbox.get(row.id)
            if stored is None:
                continue
            if stored.row.owner is None:
                del outbox[row.id]
                continue
            wait = min(OVERDUE_GRACE * 2 ** min(stored.publishes, 20), timedelta(days=1))
            outbox[row.id] = replace(
                stored,
                available_at=max(stored.due_at or now, now) + wait,
                publishes=stored.publishes + 1,
                tries=0,
                error="",
            )

    async def failed(self, row: SentRow, error: str, *, retry_in: timedelta | None) -> None:
        await self._database.step("failed")
        stored = self._database.tables.outbox.get(row.id)
        if stored is not None:
            now = self._database.clock.now()
            self._database.tables.outbox[row.id] = replace(
                stored,
                tries=stored.tries + 1,
                error=error,
                parked=retry_in is None,
                available_at=now + (retry_in or timedelta(0)),
            )


def _sent(id_: int, stored: StoredRow) -> SentRow:
    return SentRow(
        id_,
        stored.row.message,
        stored.due_at,
        stored.row.owner is not None,
        stored.row.ordering_key is not None or stored.scheduled,
        stored.tries,
    )
