"""The arithmetic of retry budgets (B26), as tables.

T3, T4 and T5 are rows of the tests of Finagle's RetryBudget, tower's TpsBudget and botocore's retry
quota. Deposits expire there, and an account may begin with a reserve. Ours begins empty, is clamped
to its capacity and forgets nothing else; so their reserve a second is our floor a minute, an
initial balance is given as an account, and rows about expiry are left out.
(https://github.com/twitter/finagle/blob/develop/finagle-core/src/test/scala/com/twitter/finagle/service/RetryBudgetTest.scala,
https://github.com/tower-rs/tower/blob/master/tower/src/retry/budget/tps_budget.rs,
https://github.com/boto/botocore/blob/develop/tests/unit/retries/test_quota.py)
"""

from datetime import timedelta
from typing import Any

import pytest

from consumer.core.budget import MOST_COUNTED, Account, Budget, Wish, exchange
from consumer.errors import RegistrationError

PLAIN = Budget(ratio=0.1, capacity=20, floor_per_minute=0)
FLOORED = Budget(ratio=0.1, capacity=20, floor_per_minute=6)
NOW = 1_000_000.0


def after(account: Account, budget: Budget = PLAIN, now_s: float = NOW, **counts: int
          ) -> tuple[Account, int]:
    return exchange(account, Wish("psp", budget, **counts), now_s)


@pytest.mark.parametrize(("originals", "wanted", "granted", "left"), [
    (9, 1, 0, 9), (10, 1, 1, 0), (10, 2, 1, 0), (19, 2, 1, 9), (100, 100, 10, 0),
    (1000, 20, 20, 0), (1000, 21, 20, 0), (1000, 0, 0, 200), (0, 5, 0, 0)])
def test_originals_pay_for_retries(originals: int, wanted: int, granted: int, left: int) -> None:
    """T12."""
    account, number = after(Account(), originals=originals, wanted=wanted)
    assert (number, account.credits) == (granted, left)


def test_a_refusal_spends_nothing() -> None:
    """T12."""
    account, _ = after(Account(), originals=9)
    for _ in range(100):
        account, granted = after(account, wanted=7)
        assert granted == 0
    assert after(account, originals=1, wanted=1)[1] == 1


@pytest.mark.parametrize("ratio", [
    0.1, 0.5, 0.25, 0.75, 0.99, 0.999, 0.9999, 0.01, 0.001, 0.0001])
def test_the_ratio_is_kept_exactly_over_ten_thousand_originals(ratio: float) -> None:
    """T3: 10,000 times a deposit and a withdrawal; theirs may be off by one, ours is not."""
    budget, account, retries = Budget(ratio, 20, floor_per_minute=0), Account(), 0
    for _ in range(10_000):
        account, granted = after(account, budget, originals=1, wanted=1)
        retries += granted
    assert retries == round(10_000 * ratio)


@pytest.mark.parametrize(("per_minute", "minutes", "ratio"), [
    (10, 1, 0.0), (5, 2, 0.0), (10, 1, 0.1), (5, 2, 0.5)])
def test_the_floor_is_added_to_the_ratio(per_minute: int, minutes: int, ratio: float) -> None:
    """T3: their reserve of `min` a second is our floor a minute; 10,000 originals in that time."""
    budget, account, retries = Budget(ratio, 20, per_minute), Account(), 0
    for n in range(10_000):
        account, granted = after(account, budget, NOW + n * minutes * 60 / 10_000,
                                 originals=1, wanted=1)
        retries += granted
    expected = 10_000 * ratio + per_minute * minutes
    assert expected - 1 <= retries <= expected + 1


def test_a_ratio_above_one_earns_more_retries_than_originals() -> None:
    """T3: percent 2.0, 10,000 deposits, a balance of 20,000."""
    budget = Budget(2.0, capacity=100_000, floor_per_minute=0)
    assert after(Account(), budget, originals=10_000, wanted=10**6)[1] == 20_000


def test_what_was_paid_in_first_is_a_balance_and_nothing_is_none() -> None:
    """T3: the initial balance, and 0: the first withdrawal fails and leaves the balance at 0."""
    assert after(Account(30, cost=10), wanted=9)[1] == 3
    account, granted = after(Account(), wanted=1)
    assert (granted, account.credits) == (0, 0)


def test_a_ratio_of_one_pays_retry_for_original_and_starts_with_none() -> None:
    """T4: empty is denied; ratio 0.5 takes two deposits."""
    assert after(Account(), Budget(1, 20, 0), wanted=1)[1] == 0
    assert after(Account(), Budget(1, 20, 0), originals=1, wanted=1)[1] == 1
    assert after(Account(), Budget(0.5, 20, 0), originals=1, wanted=1)[1] == 0
    assert after(Account(), Budget(0.5, 20, 0), originals=2, wanted=1)[1] == 1


@pytest.mark.parametrize(("credits", "returned", "wanted", "left"), [
    (50, 0, 5, 0), (45, 1, 0, 50), (50, 1, 0, 50), (0, 1, 0, 10), (10, 0, 10, 0), (195, 2, 0, 200)])
def test_what_comes_back_is_clamped_to_the_capacity(
    credits: int, returned: int, wanted: int, left: int
) -> None:
    """T5 (AWS retry quota): a release never lifts it above its cap."""
    budget = Budget(0.1, 20 if credits > 50 else 5, 0)
    account = Account(credits, cost=10, outstanding=9)
    assert after(account, budget, returned=returned, wanted=wanted)[0].credits == left


def test_nothing_comes_back_that_was_not_granted() -> None:
    assert after(Account(), returned=5, wanted=5) == (Account(0, None, 10, 0), 0)
    account, granted = after(Account(0, cost=10, outstanding=2), returned=5)
    assert (account.credits, account.outstanding, granted) == (20, 0, 0)


NOTHING = [Budget(0, 20, 0), Budget(0.1, 0, 0), Budget(0, 0, 0)]


@pytest.mark.parametrize("budget", NOTHING)
@pytest.mark.parametrize("account", [
    Account(), Account(200, cost=10, outstanding=9), Account(20, cost=1, outstanding=9)])
def test_a_budget_of_nothing_never_grants(budget: Budget, account: Account) -> None:
    for _ in range(3):
        account, granted = after(account, budget, originals=1000, returned=3, wanted=10)
        assert (account.credits, granted) == (0, 0)


@pytest.mark.parametrize("budget", [Budget(0, 20, 6), Budget(0.1, 0, 6), Budget(0, 0, 6)])
def test_without_credits_the_floor_still_probes(budget: Budget) -> None:
    account, granted = after(Account(), budget, originals=1000, wanted=10)
    assert (granted, account.floor_at) == (1, NOW + 10)
    assert after(account, budget, NOW + 9.9, originals=1000, wanted=10)[1] == 0
    assert after(account, budget, NOW + 10, originals=1000, returned=1, wanted=10)[1] == 1


@pytest.mark.parametrize(("floor_at", "now_s", "granted", "next_at"), [
    (None, 5, 1, 15), (5, 4.9, 0, 5), (5, 5, 1, 15), (5, 3600, 1, 3610), (5, 5.1, 1, 15.1),
    (3605, 5, 0, 15)])
def test_the_floor_allows_one_an_interval(
    floor_at: float | None, now_s: float, granted: int, next_at: float
) -> None:
    """However long ago the last; and a clock that was set back costs one interval at most."""
    account, number = after(Account(floor_at=floor_at), FLOORED, now_s, wanted=7)
    assert (number, account.floor_at) == (granted, pytest.approx(next_at))


def test_the_floor_is_not_spent_while_credits_pay() -> None:
    account, granted = after(Account(), FLOORED, originals=50, wanted=5)
    assert (granted, account.floor_at) == (5, None)
    assert after(account, FLOORED)[0].floor_at is None


def test_a_budget_without_a_floor_leaves_it_to_others() -> None:
    """During a deploy that takes it away."""
    assert after(Account(floor_at=NOW - 5), PLAIN, wanted=3) == (Account(0, NOW - 5, 10, 0), 0)


@pytest.mark.parametrize(("saved", "cost", "budget", "retries"), [
    (50, 10, Budget(0.25, 20, 0), 5), (50_000, 10_000, PLAIN, 5), (19, 10, Budget(2, 20, 0), 1),
    (200, 10, Budget(0.1, 2, 0), 2), (5, 1, Budget(0.9999, 20, 0), 5)])
def test_savings_buy_as_much_under_another_cost(
    saved: int, cost: int, budget: Budget, retries: int
) -> None:
    assert after(Account(saved, cost=cost), budget, wanted=100)[1] == retries


@pytest.mark.parametrize("absurd", [-1, -(10**40)])
def test_negative_counts_are_none(absurd: int) -> None:
    start = Account(30, cost=10, outstanding=4)
    assert after(start, originals=absurd, returned=absurd, wanted=absurd) == (start, 0)


def test_enormous_counts_are_clamped() -> None:
    wish = Wish("psp", PLAIN, 10**40, 10**40, 10**40).clamped()
    assert (wish.originals, wish.returned, wish.wanted) == (MOST_COUNTED,) * 3
    assert after(Account(), originals=10**40, wanted=10**40)[1] == 20


@pytest.mark.parametrize(("ratio", "earned", "cost"), [
    (0.1, 1, 10), (0.25, 1, 4), (0.2, 1, 5), (1, 1, 1), (2.0, 2, 1), (0, 0, 1),
    (0.9999, 9999, 10_000), (0.0001, 1, 10_000), (0.00001, 0, 1), (100, 100, 1)])
def test_a_ratio_becomes_whole_numbers(ratio: float, earned: int, cost: int) -> None:
    budget = Budget(ratio)
    assert (budget.earned, budget.cost) == (earned, cost)
    assert budget.most_credits == (20 * cost if earned else 0)


@pytest.mark.parametrize(("per_minute", "interval"), [
    (0, None), (1, timedelta(minutes=1)), (6, timedelta(seconds=10)),
    (1_000_000, timedelta(microseconds=60))])
def test_a_floor_has_an_interval(per_minute: int, interval: timedelta | None) -> None:
    assert Budget(floor_per_minute=per_minute).floor_interval == interval


@pytest.mark.parametrize(("name", "options"), [
    ("ratio", {"ratio": -0.1}), ("ratio", {"ratio": 100.1}), ("ratio", {"ratio": float("nan")}),
    ("ratio", {"ratio": "0.1"}), ("ratio", {"ratio": True}), ("ratio", {"ratio": None}),
    ("capacity", {"capacity": -1}), ("capacity", {"capacity": 1_000_001}),
    ("capacity", {"capacity": 2.5}), ("capacity", {"capacity": True}),
    ("floor_per_minute", {"floor_per_minute": -1}), ("floor_per_minute", {"floor_per_minute": 0.5}),
    ("floor_per_minute", {"floor_per_minute": 1_000_001})])
def test_nonsense_is_refused_by_the_name_of_the_option(name: str, options: dict[str, Any]) -> None:
    """T3: negative percent and minimum are refused."""
    with pytest.raises(RegistrationError, match=name):
        Budget(**options)
