"""What follows from a failed attempt: again, and after how long, or never again."""

from datetime import timedelta
from itertools import product

import pytest

from consumer.core.classify import Failure, FailureKind
from consumer.core.decide import GiveUp, RetryIn, RetryPolicy, decide, fits
from consumer.core.topology import LONGEST_ROUNDED_DELAY
from consumer.outcome import DeadReason

TRANSIENT, PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT
POLICY = RetryPolicy(3, timedelta(seconds=1), timedelta(seconds=10))


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@pytest.mark.parametrize(("attempts", "jitter", "delay"), [
    (1, 0.0, 0.0), (1, 0.5, 0.5), (2, 0.5, 1.0), (0, 0.5, 0.5), (-7, 0.5, 0.5)])
def test_a_transient_failure_is_retried_while_attempts_are_left(
    attempts: int, jitter: float, delay: float
) -> None:
    decision = decide(Failure(TRANSIENT, "why"), attempts, POLICY, jitter)
    assert decision == RetryIn(seconds(delay), f"attempt {attempts} of 3: why")


@pytest.mark.parametrize("attempts", [3, 4, 10**6])
def test_the_last_attempt_is_the_last(attempts: int) -> None:
    decision = decide(Failure(TRANSIENT, "why", seconds(3600)), attempts, POLICY, 0.5)
    assert decision == GiveUp(DeadReason.ATTEMPTS, f"attempt {attempts} of 3 failed: why")


@pytest.mark.parametrize(("attempts", "reason", "left"), list(product(
    [1, 2, 3, 4], [DeadReason.PERMANENT, DeadReason.REJECTED], [None, seconds(-1), seconds(99)])))
def test_a_permanent_failure_is_given_up_at_once(
    attempts: int, reason: DeadReason, left: timedelta | None
) -> None:
    failure = Failure(PERMANENT, "why", dead_reason=reason)
    assert decide(failure, attempts, POLICY, 0.5, left) == GiveUp(reason, "why")


# --- Retry-After ----------------------------------------------------------------------------------


# The cap of 300 s and the values of linkerd's tests; how the field is read is tested with it.
@pytest.mark.parametrize(("asked", "waits"), [
    (120, 120), (0, 0), (299.9, 299.9), (300, 300), (3600, 300), (999_999, 300)])
def test_the_other_side_can_ask_for_a_wait_up_to_the_cap(asked: float, waits: float) -> None:
    policy = RetryPolicy(3, seconds(1), seconds(10), retry_after_cap=seconds(300))
    decision = decide(Failure(TRANSIENT, "why", seconds(asked)), 1, policy, 0.0)
    assert isinstance(decision, RetryIn)
    assert decision.delay == seconds(waits)


@pytest.mark.parametrize("jitter", [0.0, 0.25, 0.999])
def test_jitter_only_adds_to_what_was_asked_for(jitter: float) -> None:
    decision = decide(Failure(TRANSIENT, "why", seconds(120)), 2, POLICY, jitter)
    assert isinstance(decision, RetryIn)
    assert decision.delay == seconds(120) + seconds(2) * jitter


@pytest.mark.parametrize("after", [timedelta.max, timedelta(days=20), LONGEST_ROUNDED_DELAY])
def test_no_wait_is_longer_than_the_delay_queues_hold(after: timedelta) -> None:
    policy = RetryPolicy(3, seconds(1), seconds(10), retry_after_cap=timedelta.max)
    decision = decide(Failure(TRANSIENT, "why", after), 1, policy, 0.0)
    assert isinstance(decision, RetryIn)
    assert decision.delay == LONGEST_ROUNDED_DELAY


# --- deadlines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "wait", "least", "answer"), [
    (10.0, 10.0, 0.0, False),               # nothing would be left
    (10.0, 10.1, 0.0, False),
    (10.0, 9.999999, 0.0, True),
    (10.0, 8.0, 2.0, True),                 # exactly the minimum
    (10.0, 8.0, 2.000001, False),
    (10.0, 8.000001, 2.0, False),
    (0.0, 0.0, 0.0, False), (-1.0, 0.0, 0.0, False), (-1.0, -5.0, 0.0, False),
    (1.0, -5.0, 2.0, False),                # a negative wait is none, and lends no time
    (1.0, 0.0, 1.0, True), (None, 1e9, 1e9, True),
])
def test_an_attempt_fits_if_its_minimum_is_left_after_the_wait(
    left: float | None, wait: float, least: float, answer: bool
) -> None:
    room = None if left is None else seconds(left)
    assert fits(room, seconds(wait), seconds(least)) is answer


@pytest.mark.parametrize("wait", [timedelta.min, timedelta(0), timedelta.max])
@pytest.mark.parametrize("left", [timedelta.min, timedelta(0), timedelta.max])
def test_fits_does_not_overflow(left: timedelta, wait: timedelta) -> None:
    assert fits(left, wait, timedelta(0)) is (left == timedelta.max and wait < left)


# All hold in the first row, each fails alone in one of the others. The rule has two conditions
# more: that running again is safe, which every handler is by its claim and so cannot fail here, and
# a budget that allows it, which is asked when the retry starts.
PLAN = [
    (TRANSIENT, 1, 0.0, 10.0, 2.0, None),
    (PERMANENT, 1, 0.0, 10.0, 2.0, DeadReason.PERMANENT),           # it is transient
    (TRANSIENT, 3, 0.0, 10.0, 2.0, DeadReason.ATTEMPTS),            # attempts are left
    (TRANSIENT, 1, 10.0, 10.0, 0.0, DeadReason.DEADLINE),           # more is left than the wait
    (TRANSIENT, 1, 8.0, 10.0, 2.1, DeadReason.DEADLINE),            # the rest is enough
    (TRANSIENT, 1, 8.0, 10.0, 2.0, None),                           # the rest is just enough
    (TRANSIENT, 1, 9.9, 10.0, 0.0, DeadReason.DEADLINE),            # the queues keep it for 10 s
]


@pytest.mark.parametrize(("kind", "attempts", "asked", "left", "least", "dies"), PLAN)
def test_each_condition_alone_forbids_a_retry(
    kind: FailureKind, attempts: int, asked: float, left: float, least: float,
    dies: DeadReason | None,
) -> None:
    policy = RetryPolicy(3, timedelta(0), timedelta(0), min_attempt=seconds(least))
    decision = decide(Failure(kind, "why", seconds(asked)), attempts, policy, 0.5, seconds(left))
    assert (decision.why if isinstance(decision, GiveUp) else None) is dies


def test_what_counts_against_the_deadline_is_the_delay_as_the_queues_keep_it() -> None:
    policy = RetryPolicy(3, seconds(9.0), seconds(9.0))
    drawn = [decide(Failure(TRANSIENT, "why"), 1, policy, 8.3 / 9, seconds(left))
             for left in (8.4, 8.41)]  # 8.3 s is 83 units, kept for 84
    assert [type(decision) for decision in drawn] == [GiveUp, RetryIn]


def test_a_wait_is_not_shortened_by_the_cap_to_meet_a_deadline() -> None:
    policy = RetryPolicy(3, timedelta(0), timedelta(0), retry_after_cap=seconds(300))
    failure = Failure(TRANSIENT, "why", seconds(3600))
    assert isinstance(decide(failure, 1, policy, 0.5, None), RetryIn)
    decision = decide(failure, 1, policy, 0.5, seconds(1800))
    assert decision == GiveUp(
        DeadReason.DEADLINE, "the wait that was asked for, 3600.000 s, does not fit into the "
        "1800.000 s before the deadline: why")


def test_the_draw_counts_even_where_a_shorter_one_would_have_fitted() -> None:
    policy = RetryPolicy(3, seconds(10), seconds(10), min_attempt=seconds(2))
    decisions = [decide(Failure(TRANSIENT, "why"), 1, policy, jitter, seconds(5))
                 for jitter in (0.1, 0.9)]
    assert isinstance(decisions[0], RetryIn)
    assert decisions[1] == GiveUp(
        DeadReason.DEADLINE, "the wait, 9.200 s and 2.000 s for an attempt, does not fit into the "
        "5.000 s before the deadline: why")


@pytest.mark.parametrize("left", [0.0, -3.0])
def test_nothing_is_retried_after_its_deadline(left: float) -> None:
    decision = decide(Failure(TRANSIENT, "why"), 1, POLICY, 0.0, seconds(left))
    assert decision == GiveUp(DeadReason.DEADLINE, "the deadline has passed: why")


# --- attempts, as gRPC counts them ----------------------------------------------------------------

# grpc-go, test/retry_test.go, TestRetryUnary: four attempts; the server answers its calls, counted
# from 0, with OK, with an error that is not to be retried, or else with one that is.
OK, FATAL = frozenset({0, 2, 5}), frozenset({6, 8, 11})
CALLS = [("ok", 0), ("ok", 2), ("ok", 5), ("internal", 6), ("internal", 8), ("internal", 11),
         ("already exists", 15)]


def test_attempts_end_where_those_of_grpc_end() -> None:
    policy = RetryPolicy(4, timedelta(0), timedelta(0))
    index, found = -1, []
    for _ in CALLS:
        for attempt in range(1, 100):
            index += 1
            if index in OK:
                found.append(("ok", index))
                break
            failure = Failure(PERMANENT, "internal") if index in FATAL \
                else Failure(TRANSIENT, "already exists")
            decision = decide(failure, attempt, policy, 0.5)
            if isinstance(decision, GiveUp):
                found.append((decision.reason.rpartition(": ")[2], index))
                break
    assert found == CALLS


@pytest.mark.parametrize(("own", "least_s"), [(False, 60), (True, 600)])
def test_the_policy_caps_what_a_dependency_asks_for_and_not_what_our_own_code_does(
    own: bool, least_s: int
) -> None:
    policy = RetryPolicy(5, timedelta(0), timedelta(0), retry_after_cap=timedelta(seconds=60))
    failure = Failure(FailureKind.TRANSIENT, "busy", timedelta(seconds=600), own)
    decision = decide(failure, 1, policy, 0.5)
    assert isinstance(decision, RetryIn)
    assert decision.delay == timedelta(seconds=least_s)
