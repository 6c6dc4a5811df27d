"""Backoff arithmetic (B23): clamped before it can overflow, never negative, within its bounds."""

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from consumer import Options
from consumer.core.backoff import ceiling, full_jitter
from consumer.core.topology import UNIT, round_up_delay
from consumer.errors import RegistrationError

SECOND = timedelta(seconds=1)
CAP = timedelta(seconds=300)


@pytest.mark.parametrize(("attempt", "seconds"), [
    *enumerate([1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300], 1),
    (47, 300), (64, 300), (1024, 300), (1025, 300), (10_000, 300), (10**30, 300),
    (0, 1), (-1, 1), (-(10**30), 1),
])
def test_the_ceiling_doubles_up_to_the_cap(attempt: int, seconds: int) -> None:
    assert ceiling(attempt, SECOND, CAP) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("attempt", "seconds"), [
    (2.5, 2), (2.999, 2), (0.5, 1), (-1.5, 1), (11.0, 300), (1e308, 300), (float("inf"), 300),
    (float("-inf"), 1), (float("nan"), 1)])
def test_an_attempt_that_is_no_whole_number_does_not_break_it(
    attempt: float, seconds: int
) -> None:
    assert ceiling(attempt, SECOND, CAP) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("attempt", "milliseconds"), [
    (1, 100), (2, 200), (3, 400), (4, 800), (5, 1600), (6, 2000), (7, 2000)])
def test_ceilings_of_a_base_of_100_ms(attempt: int, milliseconds: int) -> None:
    found = ceiling(attempt, timedelta(milliseconds=100), timedelta(milliseconds=2000))
    assert found == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize("attempt", [-1, 0, 1, 2, 47, 1025])
@pytest.mark.parametrize("cap", [timedelta(0), CAP, timedelta(days=10)])
def test_a_base_of_nothing_never_waits(attempt: int, cap: timedelta) -> None:
    assert ceiling(attempt, timedelta(0), cap) == timedelta(0)


@pytest.mark.parametrize("attempt", [1, 2, 50, 10_000])
def test_a_cap_equal_to_the_base_is_a_constant(attempt: int) -> None:
    assert ceiling(attempt, SECOND, SECOND) == SECOND


@pytest.mark.parametrize(("attempt", "microseconds"), [(1, 400), (2, 800), (3, 1600)])
def test_a_base_below_a_millisecond_is_kept(attempt: int, microseconds: int) -> None:
    base = timedelta(seconds=0.0004)
    assert ceiling(attempt, base, CAP) == timedelta(microseconds=microseconds)


@pytest.mark.parametrize(("delay", "spent"), [
    (timedelta(0), timedelta(0)), (timedelta(seconds=0.0004), timedelta(0)),
    (UNIT - timedelta(microseconds=1), timedelta(0)), (UNIT, UNIT),
    (UNIT + timedelta(microseconds=1), 2 * UNIT), (timedelta.max, None)])
def test_what_reaches_the_broker_is_a_whole_number_of_units(
    delay: timedelta, spent: timedelta | None
) -> None:
    rounded = round_up_delay(delay)
    assert rounded % UNIT == timedelta(0)
    assert rounded == (spent if spent is not None else rounded) >= timedelta(0)


@pytest.mark.parametrize(("base", "cap"), [
    (timedelta.resolution, timedelta.max), (timedelta.max, timedelta.max),
    (timedelta(days=1), timedelta.max), (timedelta.min, timedelta.max), (SECOND, timedelta.min)])
@pytest.mark.parametrize("attempt", [0, 1, 62, 63, 64, 10**6])
def test_extremes_do_not_overflow(base: timedelta, cap: timedelta, attempt: int) -> None:
    assert timedelta(0) <= ceiling(attempt, base, cap) <= max(cap, timedelta(0))


def test_ten_thousand_draws_stay_in_their_bounds() -> None:
    chance = Random(7)
    draws = [full_jitter(5, SECOND, CAP, chance.random()) for _ in range(10_000)]
    assert timedelta(0) <= min(draws)
    assert max(draws) < 16 * SECOND
    mean = sum(draws, timedelta(0)) / len(draws)
    assert abs(mean - 8 * SECOND) < timedelta(seconds=0.2)


@pytest.mark.parametrize(("asked", "least"), [(60, 60), (0, 0), (-60, 0), (3600, 3600)])
@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999999])
def test_what_the_other_side_asked_for_is_a_minimum(asked: int, least: int, jitter: float) -> None:
    wait = full_jitter(3, SECOND, CAP, jitter, timedelta(seconds=asked))
    assert wait == timedelta(seconds=least) + 4 * SECOND * jitter


@pytest.mark.parametrize(("jitter", "counts_as"), [
    (-0.5, 0), (1.5, 1), (float("inf"), 1), (float("-inf"), 0), (float("nan"), 0)])
def test_chance_outside_of_its_range_counts_as_the_nearest_inside(
    jitter: float, counts_as: int
) -> None:
    assert full_jitter(3, SECOND, CAP, jitter) == 4 * SECOND * counts_as


def test_the_longest_wait_there_is_does_not_overflow() -> None:
    assert full_jitter(1, timedelta.max, timedelta.max, 0.5, timedelta.max) == timedelta.max


# Of the defaults: four waits of five minutes and an hour, five attempts of 30 s.
LONGEST_WAY_BACK = timedelta(hours=4, minutes=22, seconds=30)
BAD: list[tuple[str, dict[str, Any]]] = [
    ("backoff_cap", {"backoff_base": SECOND, "backoff_cap": timedelta(milliseconds=999)}),
    ("backoff_cap", {"backoff_cap": timedelta(days=11 * 365), "retention": timedelta(days=36_000)}),
    ("backoff_cap", {"backoff_cap": timedelta.max}),
    ("backoff_base", {"backoff_base": timedelta(microseconds=-1)}),
    ("backoff_base", {"backoff_base": 1}),
    ("backoff_cap", {"backoff_cap": 300.0}),
    ("retry_after_cap", {"retry_after_cap": timedelta(microseconds=-1)}),
    ("retry_after_cap", {"retry_after_cap": timedelta(days=10, microseconds=1)}),
    ("retry_after_cap", {"retry_after_cap": 3600}),
    ("min_attempt", {"min_attempt": timedelta(microseconds=-1)}),
    ("min_attempt", {"min_attempt": timedelta(seconds=30, microseconds=1)}),
    ("min_attempt", {"min_attempt": 1.0}),
    ("max_age", {"max_age": timedelta(0)}),
    ("max_age", {"max_age": timedelta(seconds=1), "min_attempt": timedelta(seconds=2)}),
    ("max_age", {"max_age": 60}),
    ("unknown_errors", {"unknown_errors": "ignore"}),
    ("attempt_timeout", {"attempt_timeout": timedelta(0)}),
    ("attempt_timeout", {"attempt_timeout": timedelta(seconds=-1)}),
    ("attempt_timeout", {"attempt_timeout": 30}),
    ("attempt_timeout", {"attempt_timeout": None}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": -1}),
    ("max_attempts", {"max_attempts": "3"}),
    ("max_attempts", {"max_attempts": 2.5}),
    ("max_attempts", {"max_attempts": True}),
    ("retention", {"max_attempts": 10**15}),
    ("group_size", {"group_size": 0}),
    ("group_size", {"group_size": 51}),
    ("group_size", {"group_size": "all"}),
    ("retention", {"retention": LONGEST_WAY_BACK}),
    ("retention", {"retention": timedelta(days=-1)}),
    ("retention", {"retention": timedelta.max}),
    ("retention", {"retention": 30}),
    ("fingerprint_exclude", {"fingerprint_exclude": "amount"}),
]


@pytest.mark.parametrize(("name", "options"), BAD)
def test_nonsense_is_refused_by_the_name_of_the_option(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(RegistrationError, match=name):
        Options(**options)


@pytest.mark.parametrize("options", [
    {}, {"max_attempts": 1}, {"backoff_base": timedelta(0), "backoff_cap": timedelta(0)},
    {"backoff_base": timedelta(seconds=0.0004)}, {"backoff_cap": timedelta(days=5)},
    {"min_attempt": timedelta(seconds=30)}, {"retry_after_cap": timedelta(0)},
    {"max_age": timedelta.resolution}, {"unknown_errors": "dead"},
    {"group_size": 1}, {"retention": LONGEST_WAY_BACK + timedelta.resolution},
    {"retention": timedelta(days=36_525)}])
def test_options_at_their_limits_are_accepted(options: dict[str, Any]) -> None:
    if "backoff_cap" in options and options["backoff_cap"] > timedelta(days=1):
        options = {**options, "retention": timedelta(days=60)}
    assert Options(**options).policy.max_attempts >= 1
