"""The window counts the last five minutes, whatever the clock does, in bounded memory."""

import sys

import pytest

from consumer.telemetry.window import COUNTS, STEP_S, STEPS, Window

NOTHING = dict.fromkeys(COUNTS, 0)


def test_an_unused_window_counts_nothing() -> None:
    assert Window().totals(0.0) == NOTHING


def test_each_name_is_counted_apart() -> None:
    window = Window()
    for n, name in enumerate(COUNTS, 1):
        window.add(name, n, now=100.0)
    window.add("attempts", now=100.0)
    assert window.totals(100.0) == {
        "originals": 1, "attempts": 3, "succeeded": 3, "failed": 4, "retries_granted": 5,
        "retries_denied": 6}


@pytest.mark.parametrize(("later_s", "counted"), [
    (0, 1), (9, 1), (10, 1), (299, 1), (300, 1), (309.9, 1), (310, 0), (311, 0), (10**9, 0)])
def test_what_happened_counts_for_five_minutes(later_s: float, counted: int) -> None:
    window = Window()
    window.add("attempts", now=1000.0)
    assert window.totals(1000.0 + later_s)["attempts"] == counted


@pytest.mark.parametrize("began", [0.0, 3.0, 9.99, 12345.6])
def test_nothing_of_the_last_five_minutes_is_missing(began: float) -> None:
    window = Window()
    for second in range(1000):
        now = began + second
        window.add("originals", now=now)
        assert min(second + 1, 300) <= window.totals(now)["originals"] <= 310


def test_after_a_rest_the_old_is_not_counted_again() -> None:
    window = Window()
    window.add("failed", 5, now=0.0)
    window.add("failed", 1, now=400.0)
    assert window.totals(400.0)["failed"] == 1


@pytest.mark.parametrize(("back_s", "counted"), [
    (1, 2), (10, 2), (299, 2), (300, 2), (311, 1), (10_000, 1)])
def test_a_clock_that_jumps_back_loses_at_most_what_was_before(
    back_s: float, counted: int
) -> None:
    window = Window()
    window.add("attempts", now=1000.0)
    assert window.totals(1000.0 - back_s)["attempts"] in (0, 1)
    window.add("attempts", now=1000.0 - back_s)
    assert window.totals(1000.0 - back_s)["attempts"] == counted


def test_after_a_long_jump_back_the_window_rolls_on() -> None:
    window = Window()
    window.add("attempts", now=100_000.0)
    for second in range(1000):
        window.add("attempts", now=float(second))
    assert 300 <= window.totals(999.0)["attempts"] <= 310


def test_memory_does_not_grow() -> None:
    window = Window()
    for step in range(10 * STEPS):
        window.add("attempts", now=float(step * STEP_S))
    assert len(window._steps) == STEPS + 1
    for _ in range(1000):
        window.add("attempts", now=float(10 * STEPS * STEP_S))
    size = sum(sys.getsizeof(counts) for _, counts in window._steps)
    assert len(window._steps) == STEPS + 1
    assert size < 20_000
