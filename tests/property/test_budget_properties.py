"""Over any history, retries stay within what originals earned, the capacity and the floor."""

from fractions import Fraction
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from consumer.core.budget import Account, Budget, Wish, exchange

budgets = st.builds(
    Budget, ratio=st.sampled_from([0, 0.0001, 0.1, 0.25, 1 / 3, 0.9999, 1, 2.5, 100]),
    capacity=st.sampled_from([0, 1, 3, 20]), floor_per_minute=st.sampled_from([0, 1, 6, 60]))
counts = st.one_of(st.integers(0, 30), st.integers(-5, 2_000))
steps = st.tuples(st.sampled_from([0.0, 0.25, 1.0, 7.0, 60.0]), counts, counts, counts)
histories = st.lists(steps, min_size=1, max_size=30)


@given(budgets, histories)
def test_retries_of_every_window_stay_within_the_bound(
    budget: Budget, history: list[tuple[float, int, int, int]]
) -> None:
    """Every grant that comes back is one that was given, so windows count them off."""
    account, now_s = Account(), 0.0
    times, paid_in, net = list[float](), [0], [0]
    for passed, originals, returned, wanted in history:
        now_s += passed
        real = min(max(returned, 0), account.outstanding)
        account, granted = exchange(
            account, Wish("psp", budget, originals, returned, wanted), now_s)
        assert 0 <= granted <= max(wanted, 0)
        assert 0 <= account.credits <= budget.most_credits
        assert account.outstanding >= 0
        times.append(now_s)
        paid_in.append(max(originals, 0))
        net.append(granted - real)
    earned, spent = list(accumulate(paid_in)), list(accumulate(net))
    ratio = Fraction(budget.earned, budget.cost)
    for start, begin_s in enumerate(times):
        for end in range(start, len(times)):
            bound = ratio * (earned[end + 1] - earned[start]) + budget.capacity
            if budget.floor_interval is not None:
                bound += 1 + int((times[end] - begin_s) / budget.floor_interval.total_seconds())
            assert spent[end + 1] - spent[start] <= bound


@given(budgets, histories)
def test_nothing_that_comes_back_ever_adds_to_the_total(
    budget: Budget, history: list[tuple[float, int, int, int]]
) -> None:
    account, now_s, paid_in, spent, by_floor = Account(), 0.0, 0, 0, 0
    for passed, originals, returned, wanted in history:
        now_s += passed
        before = account
        account, granted = exchange(
            account, Wish("psp", budget, originals, returned, wanted), now_s)
        paid_in += max(originals, 0)
        spent += account.outstanding - before.outstanding
        by_floor += granted > 0 and account.floor_at not in (None, before.floor_at)
        assert spent * budget.cost + account.credits <= (
            paid_in * budget.earned + by_floor * budget.cost)


@given(st.lists(st.tuples(budgets, steps), min_size=1, max_size=20))
def test_budgets_that_differ_in_a_deploy_grant_no_more_than_the_largest_capacity_at_once(
    history: list[tuple[Budget, tuple[float, int, int, int]]]
) -> None:
    """Each original earns by the ratio of the process that paid it in."""
    account, now_s, spent, allowed = Account(), 0.0, 0, Fraction(0)
    for budget, (passed, originals, returned, wanted) in history:
        now_s += passed
        before = account
        account, granted = exchange(
            account, Wish("psp", budget, originals, returned, wanted), now_s)
        assert 0 <= account.credits <= budget.most_credits
        assert granted <= budget.capacity + (budget.floor_interval is not None)
        spent += account.outstanding - before.outstanding
        allowed += Fraction(max(originals, 0) * budget.earned, budget.cost)
        allowed += granted > 0 and account.floor_at not in (None, before.floor_at)
        assert spent <= allowed


@given(budgets, histories, st.integers(1, 5))
def test_splitting_what_is_paid_in_earns_the_same(
    budget: Budget, history: list[tuple[float, int, int, int]], parts: int
) -> None:
    """So it does not matter how many processes a fleet has."""
    whole, split = Account(), Account()
    for _, originals, _, _ in history:
        whole, _ = exchange(whole, Wish("psp", budget, originals * parts), 0.0)
        for _ in range(parts):
            split, _ = exchange(split, Wish("psp", budget, originals), 0.0)
        assert whole == split
