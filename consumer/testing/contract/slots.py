"""What every `SlotStore` promises. Subclass `SlotContract` and give it a fixture `database`."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol
from uuid import UUID

import pytest

from consumer.core.slots import SlotWish, shares
from consumer.ports import SlotStore

NAME = "psp"
LEASE = timedelta(seconds=60)
A, B, C, D = (UUID(int=n) for n in range(1, 5))


class SlotsUnderTest(Protocol):
    """A fresh database without shares, and a store on it."""

    def slots(self) -> SlotStore:
        """One more store, as another process has it."""

    async def held(self, dependency: str) -> dict[UUID, int]:
        """What each worker holds, expired leases included."""

    async def pass_time(self, by: timedelta) -> None:
        """To the database, time passes."""


class Fleet:
    """Workers, each with a store of its own, that renew their shares of one dependency."""

    def __init__(self, database: SlotsUnderTest, limit: int = 10) -> None:
        self._database, self.limit = database, limit
        self._stores: dict[UUID, SlotStore] = {}
        self.shares: dict[UUID, int] = {}

    def store(self, worker: UUID) -> SlotStore:
        """The worker's."""
        if worker not in self._stores:
            self._stores[worker] = self._database.slots()
        return self._stores[worker]

    async def renew(self, worker: UUID, in_flight: int = 0, lease: timedelta = LEASE) -> int:
        """The worker's share; all together hold no more than the limit."""
        wish = SlotWish(NAME, self.limit, in_flight, lease)
        [self.shares[worker]] = await self.store(worker).renew(worker, [wish])
        return self.shares[worker]

    async def settle(self, workers: Sequence[UUID]) -> dict[UUID, int]:
        """Renew with full use until nobody's share changes. Nothing held ever exceeds the limit."""
        for _ in range(4):
            for worker in workers:
                await self.renew(worker, in_flight=self.shares.get(worker, 0))
                assert sum((await self._database.held(NAME)).values()) <= self.limit
        return {worker: self.shares[worker] for worker in workers}

    def targets(self, workers: Sequence[UUID]) -> dict[UUID, int]:
        """What they should come to."""
        found = shares(NAME, self.limit, map(str, workers))
        return {worker: found[str(worker)] for worker in workers}


class SlotContract:
    """A worker's slots are its own until it has let go of them, or its lease is over."""

    async def test_one_alone_has_all(self, database: SlotsUnderTest) -> None:
        assert await Fleet(database).renew(A) == 10

    async def test_nothing_wished_is_nothing_done(self, database: SlotsUnderTest) -> None:
        assert await database.slots().renew(A, []) == []

    async def test_a_newcomer_waits_until_others_have_let_go(
        self, database: SlotsUnderTest
    ) -> None:
        fleet = Fleet(database)
        await fleet.renew(A)
        assert await fleet.renew(B) == 0
        assert await fleet.renew(A, in_flight=10) == 5
        assert await fleet.renew(B) == 0
        assert await fleet.renew(A, in_flight=8) == 5
        assert await fleet.renew(B) == 2
        assert await fleet.renew(A, in_flight=5) == 5
        assert await fleet.renew(B) == 5

    async def test_a_share_that_shrinks_is_held_until_its_worker_was_told(
        self, database: SlotsUnderTest
    ) -> None:
        """Calls can begin between the count of those in flight and the answer."""
        fleet = Fleet(database)
        await fleet.renew(A)
        await fleet.renew(B)
        assert await fleet.renew(A, in_flight=0) == 5
        assert await fleet.renew(B) == 0
        assert await fleet.renew(A, in_flight=0) == 5
        assert await fleet.renew(B) == 5

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 10, 101])
    async def test_shares_become_even_as_workers_come_and_go(
        self, database: SlotsUnderTest, limit: int
    ) -> None:
        fleet = Fleet(database, limit)
        for workers in ([A], [A, B], [A, B, C, D], [B, C, D], [D]):
            for gone in set(fleet.shares) - set(workers):
                await fleet.store(gone).leave(gone)
            assert await fleet.settle(workers) == fleet.targets(workers)
            assert sum(fleet.shares[worker] for worker in workers) == limit

    async def test_a_dead_workers_share_comes_back_after_its_lease(
        self, database: SlotsUnderTest
    ) -> None:
        fleet = Fleet(database)
        await fleet.settle([A, B])
        await database.pass_time(LEASE / 2)
        assert await fleet.renew(A, in_flight=5) == 5
        await database.pass_time(LEASE / 2 - timedelta(seconds=5))
        assert await fleet.renew(A, in_flight=5) == 5
        await database.pass_time(timedelta(seconds=5))
        assert await fleet.renew(A, in_flight=5) == 10
        assert set(await database.held(NAME)) == {A}

    async def test_leaving_frees_at_once(self, database: SlotsUnderTest) -> None:
        fleet = Fleet(database)
        await fleet.settle([A, B])
        await fleet.store(B).leave(B)
        await fleet.store(B).leave(B)
        assert await fleet.renew(A, in_flight=5) == 10

    async def test_who_comes_back_late_starts_anew(self, database: SlotsUnderTest) -> None:
        fleet = Fleet(database)
        await fleet.settle([A, B])
        await database.pass_time(LEASE)
        assert await fleet.renew(A) == 10
        assert await fleet.renew(B, in_flight=2) == 0
        assert await database.held(NAME) == {A: 10, B: 2}
        assert await fleet.renew(A, in_flight=10) == 5
        assert await fleet.renew(A, in_flight=5) == 5
        assert await fleet.settle([A, B]) == {A: 5, B: 5}

    async def test_the_last_share_of_an_expired_lease_counts_for_nothing(
        self, database: SlotsUnderTest
    ) -> None:
        fleet = Fleet(database)
        await fleet.renew(A)
        await database.pass_time(LEASE)
        await fleet.renew(A, in_flight=1)
        fleet.limit = 4
        await database.pass_time(LEASE)
        assert await fleet.renew(A, in_flight=1) == 4
        assert await database.held(NAME) == {A: 4}

    async def test_each_keeps_to_its_own_limit(self, database: SlotsUnderTest) -> None:
        """During a deploy that lowers it."""
        fleet = Fleet(database)
        await fleet.settle([A, B])
        fleet.limit = 4
        assert await fleet.renew(A, in_flight=5) == 0
        fleet.limit = 10
        assert await fleet.renew(B, in_flight=5) == 5

    @pytest.mark.parametrize("in_flight", [-1, -(10**12)])
    async def test_absurd_counts_are_clamped(
        self, database: SlotsUnderTest, in_flight: int
    ) -> None:
        fleet = Fleet(database)
        assert await fleet.renew(A, in_flight) == 10
        fleet.limit = -5
        assert await fleet.renew(B, in_flight) == 0
        assert await database.held(NAME) == {A: 10, B: 0}

    async def test_dependencies_have_slots_of_their_own(self, database: SlotsUnderTest) -> None:
        slots = database.slots()
        limits = {"z": 3, "a": 5, "ö": 1}
        wishes = [SlotWish(name, limit, 0, LEASE) for name, limit in limits.items()]
        assert await slots.renew(A, wishes) == [3, 5, 1]
        assert await database.slots().renew(B, wishes[:1]) == [0]
        await slots.leave(A)
        assert await database.held("a") == {}

    async def test_each_dependency_has_its_own_lease(self, database: SlotsUnderTest) -> None:
        slots = database.slots()
        await slots.renew(A, [SlotWish("short", 4, 0, LEASE), SlotWish("long", 4, 0, 3 * LEASE)])
        await database.pass_time(2 * LEASE)
        wishes = [SlotWish("short", 4, 0, LEASE), SlotWish("long", 4, 0, LEASE)]
        assert await database.slots().renew(B, wishes) == [4, 0]

    async def test_renewals_at_once_never_hold_more_than_the_limit(
        self, database: SlotsUnderTest
    ) -> None:
        fleet = Fleet(database)
        for _ in range(5):
            await asyncio.gather(*(fleet.renew(worker, fleet.shares.get(worker, 0))
                                   for worker in (A, B, C, D)))
            assert sum((await database.held(NAME)).values()) <= 10
        assert fleet.shares == fleet.targets([A, B, C, D])
