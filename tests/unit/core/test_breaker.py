"""The circuit breaker: when it opens, how it probes, and what late calls can do to it: nothing.

The numbers of the tables are those of Resilience4j's own tests (CircuitBreakerStateMachineTest,
CircuitBreakerMetricsTest, FixedSizeSlidingWindowMetricsTest, SlidingTimeWindowMetricsTest;
https://github.com/resilience4j/resilience4j, Apache-2.0).
"""

from datetime import timedelta
from typing import Any

import pytest

from consumer.core.breaker import Breaker, CallOutcome, Circuit, Permit, State
from consumer.core.call_window import BUCKETS, CountWindow, TimeWindow

SECOND = timedelta(seconds=1)
OUTCOMES = {"S": CallOutcome.SUCCESS, "E": CallOutcome.FAILURE, "I": CallOutcome.IGNORED}
START = 1000.0


def breaker(**options: Any) -> Breaker:
    """As Resilience4j's test of its state machine has it, apart from `options`."""
    return Breaker(**{
        "failure_rate": 0.5, "slow_rate": 0.5, "slow_after": 4 * SECOND, "window": 20 * SECOND,
        "minimum_calls": 5, "open_for": 5 * SECOND, "probes": 4, **options})


def circuit(**options: Any) -> Circuit:
    return Circuit(breaker(**options), 10 * SECOND)


def enter(circuit: Circuit, now: float) -> Permit:
    permit = circuit.try_enter(now)
    assert permit is not None
    return permit


def calls(
    circuit: Circuit, outcomes: str, now: float = START, *, took: float = 0.1, apart: float = 0.0
) -> None:
    """Calls one after the other, each ending as its letter says."""
    for number, outcome in enumerate(outcomes):
        at = now + number * apart
        circuit.leave(enter(circuit, at), at, OUTCOMES[outcome], took)


def half_open(**options: Any) -> Circuit:
    """One that turned half-open at START."""
    made = circuit(**options)
    calls(made, "EEEEE", START - 5)
    assert made.state(START) is State.HALF_OPEN
    return made


# --- what opens it ---------------------------------------------------------------------------

@pytest.mark.parametrize(("outcomes", "state", "why"), [
    ("EEESS", State.OPEN, "3 of 5 calls failed (60 %)"),
    ("SSSEE", State.CLOSED, ""),
    ("SSSEEE", State.OPEN, "3 of 6 calls failed (50 %)"),
    ("EEEE", State.CLOSED, ""),
    ("EEEEIIII", State.CLOSED, ""),
    ("EEEEE", State.OPEN, "5 of 5 calls failed (100 %)"),
])
def test_the_failure_rate_opens_it_once_there_are_enough_calls(
    outcomes: str, state: State, why: str
) -> None:
    watched = circuit()
    calls(watched, outcomes, apart=1.0)
    now = START + len(outcomes)
    assert (watched.state(now), watched.why(now)) == (state, why)


def test_slow_calls_open_it_though_they_succeed() -> None:
    watched = circuit(slow_rate=0.6)
    for took in (5, 5, 0.1, 0.1):
        calls(watched, "S", took=took)
    assert watched.state(START) is State.CLOSED
    calls(watched, "S", took=5)
    assert watched.why(START) == "3 of 5 calls took 4 s or longer (60 %)"


@pytest.mark.parametrize(("took", "state"), [(3.999, State.CLOSED), (4.0, State.OPEN)])
def test_a_call_is_slow_from_the_very_limit_on(took: float, state: State) -> None:
    watched = circuit()
    calls(watched, "SSSSS", took=took)
    assert watched.state(START) is state


def test_slow_calls_do_not_matter_without_a_slow_rate() -> None:
    watched = circuit(slow_rate=None)
    calls(watched, "S" * 50, took=3600)
    assert watched.state(START) is State.CLOSED


@pytest.mark.parametrize(("took", "state"), [(9.9, State.CLOSED), (10.0, State.OPEN)])
def test_where_the_breaker_does_not_say_what_is_slow_the_timeout_does(
    took: float, state: State
) -> None:
    watched = circuit(slow_after=None)
    calls(watched, "SSSSS", took=took)
    assert watched.state(START) is state


@pytest.mark.parametrize(("failed", "of"), [(1, 3), (3, 5), (7, 10), (29, 50), (57, 100), (1, 1)])
def test_a_rate_at_its_threshold_opens_it_and_one_below_does_not(failed: int, of: int) -> None:
    at, below = (circuit(failure_rate=float(f"{failed / of}"), minimum_calls=of) for _ in "ab")
    calls(at, "E" * failed + "S" * (of - failed))
    calls(below, "E" * (failed - 1) + "S" * (of - failed + 1))
    assert (at.state(START), below.state(START)) == (State.OPEN, State.CLOSED)


def test_failures_that_have_left_the_window_do_not_open_it() -> None:
    watched = circuit()
    calls(watched, "EEEE", START)
    calls(watched, "SSSSE", START + 21)
    assert watched.state(START + 21) is State.CLOSED


def test_failures_older_than_the_last_calls_of_a_count_window_do_not_open_it() -> None:
    watched = circuit(window=10, minimum_calls=10)
    calls(watched, "EEEESSSSS" + "S" * 4 + "EEEE")  # never 5 within 10
    assert watched.state(START) is State.CLOSED
    calls(watched, "E")
    assert watched.why(START) == "5 of 10 calls failed (50 %)"


def test_it_works_where_nothing_has_ever_succeeded() -> None:
    watched = circuit(probes=1)
    calls(watched, "EEEEE")
    for outage in range(1, 100):
        now = START + 5 * outage
        assert watched.state(now - 0.1) is State.OPEN
        assert watched.try_enter(now - 0.1) is None
        calls(watched, "E", now)
        assert watched.try_enter(now) is None
    calls(watched, "S", START + 500)
    assert watched.state(START + 500) is State.CLOSED


# --- how it probes ---------------------------------------------------------------------------

def test_nothing_passes_until_open_for_is_over() -> None:
    watched = circuit()
    calls(watched, "EEEEE")
    assert watched.try_enter(START + 3) is None
    assert watched.until_probe_s(START + 3) == 2.0
    assert watched.state(START + 3) is State.OPEN
    assert watched.try_enter(START + 6) is not None
    assert watched.until_probe_s(START + 6) == 0.0
    assert watched.state(START + 6) is State.HALF_OPEN


@pytest.mark.parametrize(("outcomes", "took", "state", "why"), [
    ("EES", 0.1, State.HALF_OPEN, "5 of 5 calls failed (100 %)"),
    ("EESE", 0.1, State.OPEN, "3 of 4 probes failed (75 %)"),
    ("ESES", 0.1, State.OPEN, "2 of 4 probes failed (50 %)"),
    ("SSSS", 4.0, State.OPEN, "4 of 4 probes took 4 s or longer (100 %)"),
    ("ESSS", 0.1, State.CLOSED, ""),
    ("IESIIISS", 0.1, State.CLOSED, ""),
])
def test_the_same_thresholds_decide_when_all_probes_have_ended(
    outcomes: str, took: float, state: State, why: str
) -> None:
    watched = half_open()
    calls(watched, outcomes, took=took)
    assert (watched.state(START), watched.why(START)) == (state, why)


def test_once_closed_again_it_counts_from_nothing() -> None:
    watched = half_open()
    calls(watched, "ESSS")
    calls(watched, "EEEE")
    assert watched.state(START) is State.CLOSED
    calls(watched, "E")
    assert watched.why(START) == "5 of 5 calls failed (100 %)"


def test_no_more_than_so_many_probes_are_under_way() -> None:
    watched = half_open()
    permits = [enter(watched, START) for _ in range(4)]
    assert watched.try_enter(START) is None
    watched.leave(permits[0], START, CallOutcome.SUCCESS, 0.1)
    assert watched.try_enter(START) is None, "an ended probe makes no room for a fifth"
    watched.leave(permits[1], START, CallOutcome.IGNORED, 0.1)
    assert watched.try_enter(START) is not None
    assert watched.try_enter(START) is None
    assert watched.state(START) is State.HALF_OPEN


def test_a_probe_that_is_never_heard_of_again_blocks_no_longer_than_open_for() -> None:
    watched = half_open(probes=2)
    enter(watched, START)
    enter(watched, START + 1)
    assert watched.until_probe_s(START + 2) == 3.0
    assert watched.try_enter(START + 4.9) is None
    assert watched.until_probe_s(START + 5) == 0.0
    calls(watched, "S", START + 5)
    assert watched.try_enter(START + 5.9) is None
    calls(watched, "S", START + 6)
    assert watched.state(START + 6) is State.CLOSED


def test_a_probe_given_up_for_lost_counts_if_it_ends_after_all() -> None:
    """A call may take longer than open_for: then nothing but such calls would ever end."""
    watched = half_open(probes=1)
    first = enter(watched, START)
    second = enter(watched, START + 5)
    watched.leave(first, START + 8, CallOutcome.FAILURE, 8.0)
    assert watched.why(START + 8) == "1 of 1 probes failed (100 %)"
    watched.leave(second, START + 9, CallOutcome.SUCCESS, 4.0)
    assert watched.state(START + 9) is State.OPEN


def test_when_the_next_may_begin_is_known_though_a_lost_probe_has_ended_after_all() -> None:
    watched = half_open(probes=2)
    late = enter(watched, START)
    enter(watched, START + 1)
    enter(watched, START + 5)
    enter(watched, START + 7)
    watched.leave(late, START + 8, CallOutcome.SUCCESS, 0.1)
    assert watched.until_probe_s(START + 8) == 4.0
    assert watched.try_enter(START + 11.9) is None
    assert watched.try_enter(START + 12) is not None


@pytest.mark.parametrize("outcome", CallOutcome)
@pytest.mark.parametrize("turns", [1, 2, 3, 4])
def test_a_call_that_began_in_another_state_counts_for_nothing(
    outcome: CallOutcome, turns: int
) -> None:
    watched = circuit(probes=1, minimum_calls=1, window=1)
    late = [enter(watched, START) for _ in range(3)]
    now = START
    for turn, state in enumerate([State.OPEN, State.HALF_OPEN, State.CLOSED, State.OPEN][:turns]):
        if state is State.HALF_OPEN:
            now += 5
        else:
            calls(watched, "S" if state is State.CLOSED else "E", now)
        assert watched.state(now) is state, turn
    told = (watched.state(now), watched.why(now), watched.until_probe_s(now), watched.opened_at)
    for permit in late:
        watched.leave(permit, now, outcome, 60.0)
    assert told == (
        watched.state(now), watched.why(now), watched.until_probe_s(now), watched.opened_at)


def test_a_late_probe_of_an_earlier_round_takes_no_permit_of_this_one() -> None:
    watched = half_open(probes=2)
    late = enter(watched, START)
    enter(watched, START)
    calls(watched, "EE", START + 5)
    enter(watched, START + 10)
    watched.leave(late, START + 10, CallOutcome.SUCCESS, 10.0)
    enter(watched, START + 10)
    assert watched.try_enter(START + 10) is None


# --- what it tells ---------------------------------------------------------------------------

def test_each_change_is_told_once_and_when_it_is_done() -> None:
    told: list[tuple[State, State]] = []
    watched = Circuit(breaker(probes=1), 10 * SECOND,
                      lambda state: told.append((state, watched.state(now))))
    now = START
    calls(watched, "EEEEE", now)
    now += 5
    watched.state(now)
    watched.state(now)
    calls(watched, "E", now)
    now += 5
    calls(watched, "S", now)
    assert [state for state, _ in told] == [
        State.OPEN, State.HALF_OPEN, State.OPEN, State.HALF_OPEN, State.CLOSED]
    assert all(state is seen for state, seen in told)


def test_opened_at_is_when_the_outage_began() -> None:
    watched = circuit(probes=1)
    assert watched.opened_at is None
    calls(watched, "EEEEE", START)
    calls(watched, "E", START + 5)
    assert watched.opened_at == START
    calls(watched, "S", START + 10)
    assert watched.opened_at is None


# --- the windows -----------------------------------------------------------------------------

def test_a_count_window_of_4_after_each_call() -> None:
    window = CountWindow(4)
    rates = []
    for bad in (True, False, False, False, False):
        tally = window.record(START, failed=bad, slow=bad)
        assert tally.failure_rate == tally.slow_rate
        rates.append(tally.failure_rate * 100)
    assert rates == pytest.approx([100, 50, 33.333332, 25, 0])


def test_a_count_window_of_10_holds_the_last_ten() -> None:
    window = CountWindow(10)
    seen = []
    for outcomes in ("SSEE", "EEEESSSS", "SSS"):
        for outcome in outcomes:
            window.record(START, failed=outcome == "E", slow=False)
        seen.append((window.tally.calls, window.tally.failed))
    assert seen == [(4, 2), (10, 6), (10, 3)]


@pytest.mark.parametrize("window", [CountWindow(5), TimeWindow(5 * SECOND)])
def test_two_slow_calls_of_five_are_40_percent(window: CountWindow | TimeWindow) -> None:
    for slow in (False, True, False, True, False):
        window.record(START, failed=False, slow=slow)
    assert (window.tally.slow_rate, window.tally.failure_rate) == (0.4, 0.0)


@pytest.mark.parametrize(("age_s", "counts"), [(0, 1), (19.9, 1), (20, 0), (1e6, 0)])
def test_a_time_window_holds_no_call_older_than_itself(age_s: float, counts: int) -> None:
    window = TimeWindow(20 * SECOND)
    window.record(START, failed=True, slow=True)
    tally = window.record(START + age_s, failed=False, slow=False)
    assert (tally.calls, tally.failed, tally.slow) == (1 + counts, counts, counts)


def test_a_time_window_takes_a_clock_that_steps_back_for_one_that_stands() -> None:
    window = TimeWindow(20 * SECOND)
    window.record(START, failed=True, slow=False)
    assert window.record(START - 500, failed=True, slow=False).calls == 2
    assert window.record(START + 25, failed=True, slow=False).calls == 1
    for number in range(1000):
        window.record(START + number % 2, failed=True, slow=False)
    assert len(window._buckets) == 1


def test_a_time_window_needs_the_same_memory_whatever_the_rate() -> None:
    window = TimeWindow(20 * SECOND)
    for number in range(50_000):
        window.record(START + number / 500, failed=True, slow=True)
    assert len(window._buckets) <= BUCKETS
    assert window.tally.calls == pytest.approx(10_000, rel=0.04)
