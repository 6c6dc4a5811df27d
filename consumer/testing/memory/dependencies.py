"""Retry budgets and slots in memory, shared by all who hold the same object."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from consumer.core.budget import Account, Wish, exchange
from consumer.core.slots import SlotWish, renewed, shares
from consumer.testing.memory.database import MemoryDatabase


class MemoryBudgets:
    """`BudgetStore` by the clock of a MemoryDatabase.

    Attributes:
        accounts: By dependency.
    """

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self.accounts: dict[str, Account] = {}

    async def exchange(self, wishes: Sequence[Wish]) -> list[int]:
        await self._database.step("exchange")
        assert len({wish.dependency for wish in wishes}) == len(wishes), "must be distinct"
        now_s = self._database.clock.now().timestamp()
        granted = []
        for wish in wishes:
            account = self.accounts.get(wish.dependency, Account())
            self.accounts[wish.dependency], number = exchange(account, wish, now_s)
            granted.append(number)
        return granted


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """What a worker holds of one dependency's slots, and the share it was told."""

    held: int
    told: int
    lease_until: datetime


class MemorySlots:
    """`SlotStore` by the clock of a MemoryDatabase.

    Attributes:
        members: The workers of each dependency, those with an expired lease included.
    """

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self.members: dict[str, dict[UUID, MemoryShare]] = {}

    async def renew(self, worker: UUID, wishes: Sequence[SlotWish]) -> list[int]:
        await self._database.step("renew slots")
        assert len({wish.dependency for wish in wishes}) == len(wishes), "must be distinct"
        return [self._renew(worker, wish) for wish in wishes]

    def _renew(self, worker: UUID, wish: SlotWish) -> int:
        now = self._database.clock.now()
        members = self.members.setdefault(wish.dependency, {})
        for member in [m for m, share in members.items() if share.lease_until <= now]:
            del members[member]
        mine = members.pop(worker, None)
        others_held = sum(share.held for share in members.values())
        everyone = [str(member) for member in (*members, worker)]
        target = shares(wish.dependency, wish.limit, everyone)[str(worker)]
        share = renewed(wish.limit, target, others_held, 0)
        most_in_flight = max(wish.in_flight, mine.told if mine else 0)
        held = renewed(wish.limit, target, others_held, most_in_flight)
        members[worker] = MemoryShare(held, share, now + wish.lease)
        return share

    async def leave(self, worker: UUID) -> None:
        await self._database.step("leave slots")
        for members in self.members.values():
            members.pop(worker, None)
