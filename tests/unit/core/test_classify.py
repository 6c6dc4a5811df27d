"""What kind of failure an exception is, and what follows from it."""

from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from consumer import Reject, Retry
from consumer.core.classify import Failure, FailureKind, classify, sqlstate_of
from consumer.core.decide import GiveUp, RetryIn, RetryPolicy, decide
from consumer.core.topology import LONGEST_ROUNDED_DELAY
from consumer.errors import CommitFailed, HandlerAborted, SerializationConflict, UnsendableMessage
from consumer.outcome import DeadReason

TRANSIENT, PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT


class DriverError(Exception):
    """As drivers raise them."""

    def __init__(self, sqlstate: Any) -> None:
        super().__init__("from the driver")
        self.sqlstate = sqlstate


class WrappedError(Exception):
    """As SQLAlchemy wraps them."""

    def __init__(self, sqlstate: Any) -> None:
        super().__init__("wrapped")
        self.orig = DriverError(sqlstate)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def invalid() -> ValidationError:
    class Model(BaseModel):
        amount: int

    try:
        Model.model_validate({})
    except ValidationError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("error", [
    TypeError(), KeyError("k"), IndexError(), AttributeError(), AssertionError(),
    NotImplementedError(), NameError(), UnboundLocalError(), UnsendableMessage("x"), invalid(),
    Reject("x"), DriverError("22001"), DriverError("23505"), WrappedError("23503"),
    caused(RuntimeError(), DriverError("23505")), caused(CommitFailed("x"), WrappedError("23505")),
    WrappedError("22P02"),
], ids=repr)
def test_permanent(error: Exception) -> None:
    assert classify(error).kind is PERMANENT


@pytest.mark.parametrize("error", [
    ConnectionError(), TimeoutError(), ConnectionResetError(), OSError("x"), Retry(),
    RuntimeError("unknown"), ValueError(), ZeroDivisionError(), Exception(), LookupError(),
    HandlerAborted("x"), DriverError("57014"), WrappedError("40001"), WrappedError("08006"),
    SerializationConflict("x"), CommitFailed("x"), caused(CommitFailed("x"), ValueError()),
    caused(Retry("x"), DriverError("23505")),
    ExceptionGroup("several", [TypeError()]),
], ids=repr)
def test_transient(error: Exception) -> None:
    assert classify(error).kind is TRANSIENT


@pytest.mark.parametrize("base", [RuntimeError, ConnectionError])
def test_an_own_type_is_what_its_base_is(base: type[Exception]) -> None:
    class Own(base):  # type: ignore[misc, valid-type]
        pass

    assert classify(Own()).kind is TRANSIENT
    assert classify(type("Own", (KeyError,), {})()).kind is PERMANENT


def test_a_signal_says_more_than_what_caused_it() -> None:
    assert classify(caused(Reject("x"), ConnectionError())).dead_reason is DeadReason.REJECTED
    asked = classify(caused(Retry("x", after=timedelta(seconds=7)), KeyError()))
    assert (asked.kind, asked.retry_after) == (TRANSIENT, timedelta(seconds=7))


@pytest.mark.parametrize("after", [5, 5.0, "5", b"x"])
def test_an_after_that_is_no_timedelta_is_ignored_aloud(after: Any) -> None:
    failure = classify(Retry("x", after=after))
    assert (failure.kind, failure.retry_after) == (TRANSIENT, timedelta(0))
    assert "no timedelta" in failure.reason


@pytest.mark.parametrize("state", [None, 23505, "", "2350", "235050", b"23505"])
def test_what_is_no_sqlstate_is_none(state: Any) -> None:
    assert sqlstate_of(DriverError(state)) is None


def test_an_sqlstate_is_found_where_drivers_put_it() -> None:
    error = Exception()
    error.pgcode = "23505"  # type: ignore[attr-defined]
    assert sqlstate_of(error) == "23505"
    assert sqlstate_of(DriverError("40001")) == sqlstate_of(WrappedError("40001")) == "40001"


POLICY = RetryPolicy(3, timedelta(seconds=1), timedelta(seconds=10))


@pytest.mark.parametrize(("attempts", "jitter", "delay"), [
    (1, 0.0, 0.0), (1, 0.5, 0.5), (2, 0.5, 1.0)])
def test_a_transient_failure_is_retried_while_attempts_are_left(
    attempts: int, jitter: float, delay: float
) -> None:
    decision = decide(Failure(TRANSIENT, "why"), attempts, POLICY, jitter)
    assert decision == RetryIn(timedelta(seconds=delay), f"attempt {attempts} of 3: why")


@pytest.mark.parametrize("attempts", [3, 4, 10**6])
def test_the_last_attempt_is_the_last(attempts: int) -> None:
    decision = decide(Failure(TRANSIENT, "why", timedelta(hours=1)), attempts, POLICY, 0.5)
    assert isinstance(decision, GiveUp)
    assert decision.why is DeadReason.ATTEMPTS


@pytest.mark.parametrize(("attempts", "reason"), list(product(
    [1, 2, 3, 4], [DeadReason.PERMANENT, DeadReason.REJECTED])))
def test_a_permanent_failure_is_given_up_at_once(attempts: int, reason: DeadReason) -> None:
    failure = Failure(PERMANENT, "why", dead_reason=reason)
    assert decide(failure, attempts, POLICY, 0.5) == GiveUp(reason, "why")


@pytest.mark.parametrize("after", [timedelta.max, timedelta(days=20), LONGEST_ROUNDED_DELAY])
def test_no_wait_is_longer_than_the_delay_queues_hold(after: timedelta) -> None:
    decision = decide(Failure(TRANSIENT, "why", after), 1, POLICY, 0.0)
    assert isinstance(decision, RetryIn)
    assert decision.delay == LONGEST_ROUNDED_DELAY
