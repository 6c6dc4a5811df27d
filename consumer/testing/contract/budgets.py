"""What every `BudgetStore` promises. Subclass `BudgetContract`; give it a fixture `database`."""

import asyncio
from datetime import timedelta
from typing import Protocol

import pytest

from consumer.core.budget import Account, Budget, Wish
from consumer.ports import BudgetStore

PLAIN = Budget(ratio=0.1, capacity=20, floor_per_minute=0)
FLOORED = Budget(ratio=0.1, capacity=20, floor_per_minute=6)
NAME = "psp"


class BudgetsUnderTest(Protocol):
    """A fresh database without accounts, and stores on it."""

    def budgets(self) -> BudgetStore:
        """One more store, as another process has it."""

    async def account(self, dependency: str) -> Account:
        """The account of a dependency that has one."""

    async def forget(self, dependency: str) -> None:
        """Its account is deleted behind the back of all stores."""

    async def pass_time(self, by: timedelta) -> None:
        """To the database, time passes; a negative value is its clock set back."""


def wish(budget: Budget = PLAIN, name: str = NAME, *, originals: int = 0, returned: int = 0,
         wanted: int = 0) -> Wish:
    """Of one dependency."""
    return Wish(name, budget, originals, returned, wanted)


class BudgetContract:
    """Originals pay for retries, over the whole fleet; nothing else does."""

    async def test_an_account_starts_empty(self, database: BudgetsUnderTest) -> None:
        assert await database.budgets().exchange([wish(wanted=3)]) == [0]
        assert (await database.account(NAME)).credits == 0

    async def test_nothing_wanted_is_nothing_done(self, database: BudgetsUnderTest) -> None:
        assert await database.budgets().exchange([]) == []

    async def test_ten_originals_buy_one_retry(self, database: BudgetsUnderTest) -> None:
        assert await database.budgets().exchange([wish(originals=9, wanted=1)]) == [0]
        assert await database.budgets().exchange([wish(originals=1, wanted=1)]) == [1]
        assert await database.budgets().exchange([wish(wanted=1)]) == [0]

    async def test_no_more_is_granted_than_wanted(self, database: BudgetsUnderTest) -> None:
        assert await database.budgets().exchange([wish(originals=100, wanted=3)]) == [3]
        assert (await database.account(NAME)).credits == 70

    async def test_what_exceeds_the_capacity_is_lost(self, database: BudgetsUnderTest) -> None:
        budgets = database.budgets()
        await budgets.exchange([wish(originals=1000)])
        assert (await database.account(NAME)).credits == 200
        assert await budgets.exchange([wish(wanted=21)]) == [20]

    async def test_a_refused_withdrawal_spends_nothing(self, database: BudgetsUnderTest) -> None:
        budgets = database.budgets()
        await budgets.exchange([wish(originals=9)])
        assert [await budgets.exchange([wish(wanted=5)]) for _ in range(3)] == [[0]] * 3
        assert (await database.account(NAME)).credits == 9

    async def test_a_returned_grant_can_be_granted_again(self, database: BudgetsUnderTest) -> None:
        budgets = database.budgets()
        assert await budgets.exchange([wish(originals=10, wanted=1)]) == [1]
        assert await budgets.exchange([wish(returned=1)]) == [0]
        assert await budgets.exchange([wish(wanted=2)]) == [1]

    async def test_no_more_comes_back_than_was_granted(self, database: BudgetsUnderTest) -> None:
        budgets = database.budgets()
        assert await budgets.exchange([wish(originals=10, wanted=1)]) == [1]
        assert await budgets.exchange([wish(returned=50, wanted=9)]) == [1]
        assert await budgets.exchange([wish(returned=50)]) == [0]
        assert await budgets.exchange([wish(returned=50)]) == [0]
        assert await budgets.exchange([wish(returned=50, wanted=9)]) == [1]

    @pytest.mark.parametrize("absurd", [-1, -(10**12), -(10**30)])
    async def test_negative_counts_are_none(self, database: BudgetsUnderTest, absurd: int) -> None:
        budgets = database.budgets()
        await budgets.exchange([wish(originals=10)])
        counts = wish(originals=absurd, returned=absurd, wanted=absurd)
        assert await budgets.exchange([counts]) == [0]
        assert (await database.account(NAME)).credits == 10

    async def test_absurdly_large_counts_fill_the_account(self, database: BudgetsUnderTest) -> None:
        budget = Budget(ratio=100, capacity=1_000_000, floor_per_minute=0)
        counts = wish(budget, originals=10**30, returned=10**30, wanted=10**30)
        assert await database.budgets().exchange([counts]) == [1_000_000]

    @pytest.mark.parametrize("budget", [
        Budget(ratio=0, capacity=20, floor_per_minute=0),
        Budget(ratio=0.1, capacity=0, floor_per_minute=0),
        Budget(ratio=0, capacity=0, floor_per_minute=0)])
    async def test_a_budget_of_nothing_grants_nothing(
        self, database: BudgetsUnderTest, budget: Budget
    ) -> None:
        budgets = database.budgets()
        assert await budgets.exchange([wish(originals=1000, wanted=5)]) == [5]
        assert await budgets.exchange([wish(budget, originals=1000, wanted=5)]) == [0]
        assert await budgets.exchange([wish(budget, returned=5, wanted=5)]) == [0]

    async def test_the_floor_allows_one_retry_an_interval(self, database: BudgetsUnderTest) -> None:
        budgets = database.budgets()
        assert await budgets.exchange([wish(FLOORED, wanted=5)]) == [1]
        assert await budgets.exchange([wish(FLOORED, wanted=5)]) == [0]
        await database.pass_time(timedelta(seconds=10))
        assert await budgets.exchange([wish(FLOORED, wanted=5)]) == [1]
        assert await database.budgets().exchange([wish(FLOORED, wanted=5)]) == [0]

    async def test_the_floor_saves_nothing_up(self, database: BudgetsUnderTest) -> None:
        budgets = database.budgets()
        await budgets.exchange([wish(FLOORED, wanted=1)])
        await database.pass_time(timedelta(hours=1))
        assert [await budgets.exchange([wish(FLOORED, wanted=5)]) for _ in range(3)] == [
            [1], [0], [0]]

    async def test_the_floor_comes_on_top_of_what_is_paid(self, database: BudgetsUnderTest) -> None:
        budgets = database.budgets()
        assert await budgets.exchange([wish(FLOORED, originals=10, wanted=1)]) == [1]
        assert await budgets.exchange([wish(FLOORED, originals=10, wanted=5)]) == [2]
        assert (await database.account(NAME)).credits == 0

    async def test_a_clock_set_back_stops_the_floor_for_one_interval(
        self, database: BudgetsUnderTest
    ) -> None:
        budgets = database.budgets()
        await budgets.exchange([wish(FLOORED, wanted=1)])
        await database.pass_time(timedelta(hours=-1))
        assert await budgets.exchange([wish(FLOORED, wanted=1)]) == [0]
        await database.pass_time(timedelta(seconds=10))
        assert await budgets.exchange([wish(FLOORED, wanted=1)]) == [1]

    async def test_several_dependencies_are_served_at_once(
        self, database: BudgetsUnderTest
    ) -> None:
        budgets = database.budgets()
        names = ["z", "a", "Ä", "m"]
        counts = [wish(name=name, originals=10 * n, wanted=9) for n, name in enumerate(names)]
        assert await budgets.exchange(counts) == [0, 1, 2, 3]
        assert await budgets.exchange([wish(name="new", originals=20, wanted=9), *counts[:2]]) == [
            2, 0, 1]

    async def test_a_deleted_account_begins_empty(self, database: BudgetsUnderTest) -> None:
        budgets = database.budgets()
        await budgets.exchange([wish(originals=100, wanted=2), wish(name="other", originals=10)])
        await database.forget(NAME)
        counts = [wish(originals=10, returned=2, wanted=9), wish(name="other", wanted=9)]
        assert await budgets.exchange(counts) == [1, 1]

    @pytest.mark.parametrize(("before", "after", "granted"), [
        (Budget(0.1, 20, 0), Budget(0.25, 20, 0), 5), (Budget(0.9999, 20, 0), PLAIN, 5),
        (PLAIN, Budget(3, 20, 0), 5), (PLAIN, Budget(0.1, 2, 0), 2)])
    async def test_credits_buy_as_many_retries_after_a_deploy(
        self, database: BudgetsUnderTest, before: Budget, after: Budget, granted: int
    ) -> None:
        budgets = database.budgets()
        await budgets.exchange([wish(before, originals=1000)])
        assert await budgets.exchange([wish(before, wanted=15)]) == [15]
        assert await budgets.exchange([wish(after, wanted=20)]) == [granted]

    async def test_exchanges_at_once_never_grant_more_than_there_is(
        self, database: BudgetsUnderTest
    ) -> None:
        stores = [database.budgets() for _ in range(4)]
        await stores[0].exchange([wish(originals=100), wish(name="other", originals=70)])

        async def ask(store: BudgetStore, turned: bool) -> list[int]:
            taken = [0, 0]
            for _ in range(10):
                counts = [wish(wanted=2), wish(name="other", wanted=2)]
                granted = await store.exchange(counts[::-1] if turned else counts)
                for place, number in enumerate(granted[::-1] if turned else granted):
                    taken[place] += number
            return taken

        taken = await asyncio.gather(*(ask(s, n % 2 == 0) for n, s in enumerate(stores)))
        assert [sum(column) for column in zip(*taken, strict=True)] == [10, 7]
