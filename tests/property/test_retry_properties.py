"""Properties of classifying and deciding: always an answer, within the documented bounds."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from consumer.core.backoff import ceiling, full_jitter
from consumer.core.classify import Classifier, Failure, FailureKind, Permanent, Transient, classify
from consumer.core.decide import Decision, GiveUp, RetryIn, RetryPolicy, decide, fits
from consumer.core.http_failures import http_failure
from consumer.core.retry_after import LONGEST_WAIT, retry_after
from consumer.core.topology import LONGEST_ROUNDED_DELAY, round_up_delay
from consumer.errors import Reject, Retry
from consumer.outcome import DeadReason

NOTHING = timedelta(0)
attempts = st.integers() | st.floats() | st.sampled_from([0, -1, 2.5, 64, 1025, 10**400])
chances = st.floats(0, 1, exclude_max=True)
waits = st.timedeltas(NOTHING, timedelta(days=10))
times = st.builds(datetime.fromtimestamp, st.integers(-62_000_000_000, 253_000_000_000),
                  st.timezones() | st.just(UTC))  # the years 5 to 9987


# --- backoff --------------------------------------------------------------------------------------


@given(attempts, st.timedeltas(), st.timedeltas(), st.floats(), st.timedeltas())
@example(float("nan"), timedelta.max, timedelta.max, float("nan"), timedelta.max)
@example(float("inf"), timedelta.resolution, timedelta.max, float("inf"), timedelta.min)
def test_a_delay_is_never_negative_and_never_an_exception(
    attempt: float, base: timedelta, cap: timedelta, jitter: float, at_least: timedelta
) -> None:
    top, least = ceiling(attempt, base, cap), max(NOTHING, at_least)
    assert NOTHING <= top <= max(cap, NOTHING)
    delay = full_jitter(attempt, base, cap, jitter, at_least)
    assert least <= delay
    assert delay - least <= top


@given(attempts, attempts, st.timedeltas(), st.timedeltas())
def test_ceilings_never_fall_with_attempts(
    one: float, other: float, base: timedelta, cap: timedelta
) -> None:
    assume(one <= other)
    assert ceiling(one, base, cap) <= ceiling(other, base, cap)


@given(attempts, waits, waits, chances, chances, waits)
def test_a_later_draw_is_never_the_shorter_wait(
    attempt: float, base: timedelta, cap: timedelta, one: float, other: float, least: timedelta
) -> None:
    assume(one <= other)
    assert full_jitter(attempt, base, cap, one, least) <= full_jitter(
        attempt, base, cap, other, least)


# --- decide ---------------------------------------------------------------------------------------

failures = st.builds(Failure, st.sampled_from(FailureKind), st.text(max_size=5), st.timedeltas(),
                     st.booleans(), st.sampled_from(DeadReason))
policies = st.builds(RetryPolicy, st.integers(1, 20), waits, waits, waits, waits)
everything = st.builds(RetryPolicy, st.integers(), st.timedeltas(), st.timedeltas(),
                       st.timedeltas(), st.timedeltas())
lefts = st.none() | st.timedeltas() | st.timedeltas(timedelta(seconds=-1), timedelta(days=3))


@given(failures, st.integers(), policies | everything, chances, lefts)
@example(Failure(FailureKind.TRANSIENT, "", timedelta.max), -1,
         RetryPolicy(1, timedelta.max, timedelta.max, timedelta.max, timedelta.max), 0.99,
         timedelta.max)
@example(Failure(FailureKind.TRANSIENT, "", timedelta.min), 0,
         RetryPolicy(1, timedelta.min, timedelta.min, timedelta.min, timedelta.min), 0.0,
         timedelta.min)
def test_there_is_always_the_same_decision_with_a_reason(
    failure: Failure, attempt: int, policy: RetryPolicy, jitter: float, left: timedelta | None
) -> None:
    decision = decide(failure, attempt, policy, jitter, left)
    assert decision == decide(failure, attempt, policy, jitter, left)
    assert failure.reason in decision.reason


def _dies_of(decision: Decision) -> DeadReason | None:
    return decision.why if isinstance(decision, GiveUp) else None


@given(failures, st.integers(-2, 22), policies, chances, lefts)
def test_a_retry_keeps_every_condition(
    failure: Failure, attempt: int, policy: RetryPolicy, jitter: float, left: timedelta | None
) -> None:
    decision = decide(failure, attempt, policy, jitter, left)
    if not isinstance(decision, RetryIn):
        return
    assert failure.kind is FailureKind.TRANSIENT
    assert attempt < policy.max_attempts
    cap = LONGEST_ROUNDED_DELAY if failure.own_wait else policy.retry_after_cap
    asked = min(max(failure.retry_after, NOTHING), cap, LONGEST_ROUNDED_DELAY)
    assert asked <= decision.delay <= asked + ceiling(
        attempt, policy.backoff_base, policy.backoff_cap)
    if left is not None:
        kept = round_up_delay(decision.delay)
        assert left > max(kept, failure.retry_after)
        assert left - kept >= policy.min_attempt


@given(failures, st.integers(-2, 22), policies, chances, st.timedeltas())
def test_a_deadline_only_takes_retries_away(
    failure: Failure, attempt: int, policy: RetryPolicy, jitter: float, left: timedelta
) -> None:
    free = decide(failure, attempt, policy, jitter)
    bound = decide(failure, attempt, policy, jitter, left)
    assert _dies_of(free) is not DeadReason.DEADLINE or failure.kind is FailureKind.PERMANENT
    assert bound == free or _dies_of(bound) is DeadReason.DEADLINE


@given(failures, st.integers(-2, 22), policies, chances, lefts, waits)
def test_more_time_never_takes_a_retry_away(
    failure: Failure, attempt: int, policy: RetryPolicy, jitter: float, left: timedelta | None,
    more: timedelta,
) -> None:
    assume(left is None or left < timedelta.max - more)
    if isinstance(decide(failure, attempt, policy, jitter, left), RetryIn):
        later = None if left is None else left + more
        assert isinstance(decide(failure, attempt, policy, jitter, later), RetryIn)


@given(st.timedeltas(), st.timedeltas(), waits)
def test_what_fits_leaves_the_minimum(
    left: timedelta, wait: timedelta, min_attempt: timedelta
) -> None:
    if fits(left, wait, min_attempt):
        assert left > wait
        assert left - max(wait, NOTHING) >= min_attempt


# --- Retry-After ----------------------------------------------------------------------------------

fields = st.none() | st.text(max_size=40) | st.from_regex("[0-9 .:+e-]{0,30}") | st.from_regex(
    "(Mon|Friday|Xyz),? ?[0-9 ]{0,2}[ -]?(Jan|Feb|Dec|Abc)[ -][0-9]{2,4} "
    "[0-9]{2}:[0-9]{2}:[0-9]{2}( GMT)?( [0-9]{4})?", fullmatch=True)


@given(fields, times, fields)
@example("Monday, 29-Feb-00 00:00:00 GMT", datetime(2060, 1, 1, tzinfo=UTC), None)
@example("Friday, 31-Dec-00 23:59:60 GMT", datetime(1, 1, 3, tzinfo=UTC), None)
@example("Friday, 31-Dec-49 23:59:60 GMT", datetime(9999, 1, 1, tzinfo=UTC), None)
def test_whatever_a_server_writes_is_a_wait_within_bounds_or_none(
    value: str | None, now: datetime, date: str | None
) -> None:
    wait = retry_after(value, now=now, date=date)
    assert wait is None or NOTHING <= wait <= LONGEST_WAIT


@given(st.integers(0, 10**12))
def test_seconds_are_read_exactly_up_to_the_longest_wait(seconds: int) -> None:
    wait = retry_after(str(seconds), now=datetime(2026, 1, 1, tzinfo=UTC))
    assert wait == (timedelta(seconds=seconds) if seconds < LONGEST_WAIT.total_seconds()
                    else LONGEST_WAIT)


@given(st.integers(0, 4 * 10**9), st.integers(0, 10**6))
def test_a_date_in_each_form_is_the_same_wait(epoch: int, seconds: int) -> None:
    now = datetime.fromtimestamp(epoch, UTC)
    until = now + timedelta(seconds=seconds)
    day, month = until.strftime("%A"), until.strftime("%b")
    for written in (f"{day[:3]}, {until:%d} {month} {until:%Y %H:%M:%S} GMT",
                    f"{day}, {until:%d}-{month}-{until:%y %H:%M:%S} GMT",
                    f"{day[:3]} {month} {until.day:2} {until:%H:%M:%S %Y}"):
        assert retry_after(written, now=now) == timedelta(seconds=seconds)


# --- classify -------------------------------------------------------------------------------------

odd: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.binary(max_size=8) | st.sampled_from(["retry-after", b"Retry-After", "503", 429, "23505"]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(
        st.text(max_size=4) | st.just("Retry-After"), inner, max_size=2),
    max_leaves=6)
responses = odd | st.builds(SimpleNamespace, status_code=odd, status=odd, headers=odd)
classes = st.sampled_from([
    ("httpx", "HTTPStatusError"), ("httpx", "ReadTimeout"), ("httpx", "TransportError"),
    ("aiohttp.client_exceptions", "ClientResponseError"), ("requests.exceptions", "HTTPError"),
    ("requests", "RequestException"), ("aiormq.exceptions", "AMQPError"), ("shop", "Own"),
    ("pydantic_core", "ValidationError"), ("sqlalchemy.exc", "OperationalError")])


def _raised(kind: tuple[str, str], base: type[Exception], attributes: dict[str, Any]) -> Exception:
    error = type(kind[1], (base,), {"__module__": kind[0]})()
    error.__cause__ = attributes.pop("cause", None)
    vars(error).update(attributes)
    return error


errors: st.SearchStrategy[Exception] = st.builds(
    _raised, classes, st.sampled_from([Exception, OSError, ValueError, TypeError]),
    st.fixed_dictionaries({}, optional={
        "response": responses, "status": odd, "status_code": odd, "headers": odd, "sqlstate": odd,
        "pgcode": odd, "orig": responses, "cause": st.just(ConnectionError())})) \
    | st.builds(Retry, st.text(max_size=5), after=odd | st.timedeltas()) \
    | st.builds(Reject, st.text(max_size=5)) \
    | st.sampled_from([KeyError(), RuntimeError(), TimeoutError()])
verdicts = odd | st.builds(Transient, odd, odd | st.timedeltas()) | st.builds(Permanent, odd)
classifiers = st.lists(st.none() | verdicts.map(lambda verdict: lambda error: verdict), max_size=3)


@given(errors, classifiers, st.sampled_from(FailureKind), st.none() | times)
def test_every_error_is_a_failure_with_a_reason(
    error: Exception, asked: Sequence[Classifier | None], unknown: FailureKind,
    now: datetime | None,
) -> None:
    failure = classify(error, asked, unknown=unknown, now=now)
    assert failure.kind in FailureKind
    assert failure.reason.strip()
    assert failure.retry_after >= NOTHING
    decide(failure, 1, RetryPolicy(3, NOTHING, NOTHING), 0.5, timedelta(seconds=10))


@given(errors, times)
def test_a_hint_has_a_reason_and_a_wait_within_bounds(error: Exception, now: datetime) -> None:
    hint = http_failure(error, now=now)
    assert hint is None or (hint.reason and NOTHING <= hint.retry_after <= LONGEST_WAIT)
