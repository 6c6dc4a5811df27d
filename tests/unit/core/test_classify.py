"""What kind of failure an exception is, and who says so."""

import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise, permutations
from typing import Any

import aio_pika.exceptions
import aiormq.exceptions
import asyncpg
import httpx
import pamqp.exceptions
import pytest
import requests
import sqlalchemy.exc
from pydantic import BaseModel, ValidationError

from consumer import Permanent, Reject, Retry, Transient
from consumer.core.classify import Failure, FailureKind, classify
from consumer.core.known_failures import sqlstate_of
from consumer.errors import (
    CommitFailed,
    HandlerAborted,
    SerializationConflict,
    StoreUnavailable,
    UnsendableMessage,
)
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


def chain(*errors: Exception) -> Exception:
    """The first, raised from the second, and so on."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def named(value: object) -> str:
    return type(value).__name__ if isinstance(value, Exception) else str(value)


def foreign(package: str, name: str) -> Exception:
    """An exception of a package that is not installed here."""
    error: Exception = type(name, (Exception,), {"__module__": f"{package}.errors"})()
    return error


def refused(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "https://psp.example")
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.HTTPStatusError("refused", request=request,
                                 response=httpx.Response(status, headers=fields))


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
def test_what_is_no_sqlstate_is_not_read(state: Any) -> None:
    assert "SQLSTATE" not in classify(DriverError(state)).reason
    assert sqlstate_of(DriverError(state)) is None


@pytest.mark.parametrize("attribute", ["sqlstate", "pgcode"])
def test_an_sqlstate_is_found_where_drivers_put_it(attribute: str) -> None:
    error = Exception()
    setattr(error, attribute, "23505")
    assert classify(error) == Failure(PERMANENT, "SQLSTATE 23505")
    wrapped = WrappedError(None)
    wrapped.orig = error  # type: ignore[assignment]
    assert classify(wrapped) == Failure(PERMANENT, "SQLSTATE 23505")
    assert sqlstate_of(error) == sqlstate_of(wrapped) == "23505"
    assert sqlstate_of(chain(RuntimeError(), KeyError(), error)) == "23505"


# --- defaults -------------------------------------------------------------------------------------

KNOWN_TRANSIENT = [
    ConnectionError(), TimeoutError(), ConnectionResetError(), OSError("x"), OSError(28, "full"),
    StoreUnavailable("x"), SerializationConflict("x"),
    refused(503), httpx.ReadTimeout("x"), requests.ConnectionError(), requests.Timeout(),
    aio_pika.exceptions.AMQPError(), aio_pika.exceptions.MessageProcessError(),
    aio_pika.exceptions.ChannelInvalidStateError(), aio_pika.exceptions.DeliveryError(None, None),
    aiormq.exceptions.AMQPConnectionError(), aiormq.exceptions.ChannelPreconditionFailed(),
    pamqp.exceptions.AMQPNotFound(), pamqp.exceptions.UnmarshalingException("x", "y"),
    asyncpg.DeadlockDetectedError(), asyncpg.TooManyConnectionsError(),
    asyncpg.QueryCanceledError(), DriverError("57014"), WrappedError("40001"),
    sqlalchemy.exc.DBAPIError("SELECT", {}, asyncpg.SerializationError()),
    sqlalchemy.exc.OperationalError("SELECT", {}, Exception("server closed the connection")),
    sqlalchemy.exc.TimeoutError(), foreign("psycopg", "OperationalError"),
    foreign("psycopg2", "OperationalError"),
]
KNOWN_PERMANENT = [
    TypeError(), KeyError("k"), IndexError(), AttributeError(), AssertionError(),
    NotImplementedError(), NameError(), UnsendableMessage("x"), invalid(),
    refused(422), httpx.InvalidURL("x"), requests.exceptions.MissingSchema(),
    asyncpg.UniqueViolationError(), asyncpg.NumericValueOutOfRangeError(),
    sqlalchemy.exc.IntegrityError("INSERT", {}, asyncpg.ForeignKeyViolationError()),
    DriverError("22001"), WrappedError("23503"), caused(CommitFailed("x"), WrappedError("23505")),
]
UNKNOWN = [
    Exception(), RuntimeError(), ValueError(), UnicodeError(),
    UnicodeDecodeError("a", b"", 0, 1, "x"), ZeroDivisionError(), LookupError(),
    ArithmeticError(), RecursionError(), MemoryError(),
    FileNotFoundError(), FileExistsError(), IsADirectoryError(), NotADirectoryError(),
    PermissionError(), HandlerAborted("x"), CommitFailed("x"), refused(404), refused(500),
    requests.RequestException(), requests.TooManyRedirects(), asyncpg.InterfaceError("x"),
    sqlalchemy.exc.InvalidRequestError("x"), foreign("psycopg", "InterfaceError"),
    foreign("shop.aio_pika", "AMQPError"), ExceptionGroup("several", [TypeError()]),
]


@pytest.mark.parametrize("unknown", [TRANSIENT, PERMANENT])
@pytest.mark.parametrize(("error", "kind"), [
    *((error, TRANSIENT) for error in KNOWN_TRANSIENT),
    *((error, PERMANENT) for error in KNOWN_PERMANENT), *((error, None) for error in UNKNOWN),
], ids=named)
def test_only_what_nobody_knows_is_what_the_options_say(
    error: Exception, kind: FailureKind | None, unknown: FailureKind
) -> None:
    failure = classify(error, unknown=unknown)
    assert failure.kind is (kind or unknown)
    assert failure.dead_reason is DeadReason.PERMANENT
    assert failure.reason


def test_an_unknown_error_keeps_the_wait_its_response_asks_for() -> None:
    failure = classify(refused(500, retry_after="60"))
    assert (failure.kind, failure.retry_after) == (TRANSIENT, timedelta(minutes=1))


def test_a_date_is_a_wait_from_the_given_time() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    error = refused(503, retry_after="Thu, 01 Jan 2026 00:02:00 GMT")
    assert classify(error, now=now).retry_after == timedelta(minutes=2)
    assert classify(error).retry_after == timedelta(0)


def test_the_wait_asked_for_is_not_capped_here() -> None:
    assert classify(refused(429, retry_after="864000")).retry_after == timedelta(days=10)


# --- causes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "kind"), [
    (chain(RuntimeError(), refused(503)), TRANSIENT),
    (chain(RuntimeError(), refused(422)), PERMANENT),
    (chain(RuntimeError(), ValueError(), Exception(), refused(422)), PERMANENT),
    (chain(RuntimeError(), httpx.InvalidURL("x")), PERMANENT),
    (chain(RuntimeError(), ConnectionError()), TRANSIENT),
    (chain(RuntimeError(), aio_pika.exceptions.AMQPError()), TRANSIENT),
    (chain(refused(500), refused(422)), PERMANENT),
    (chain(KeyError(), refused(503)), PERMANENT),         # what is known itself is known
    (chain(ConnectionError(), refused(422)), TRANSIENT),
    (chain(RuntimeError(), refused(503), refused(422)), TRANSIENT),
    (chain(RuntimeError(), KeyError()), None),            # met on purpose
    (chain(RuntimeError(), invalid()), None),
    (chain(RuntimeError(), KeyError(), refused(422)), PERMANENT),
    (chain(*(RuntimeError() for _ in range(7)), refused(422)), PERMANENT),
    (chain(*(RuntimeError() for _ in range(8)), refused(422)), None),
], ids=named)
@pytest.mark.parametrize("unknown", [TRANSIENT, PERMANENT])
def test_an_unknown_error_is_what_the_nearest_known_cause_is(
    error: Exception, kind: FailureKind | None, unknown: FailureKind
) -> None:
    assert classify(error, unknown=unknown).kind is (kind or unknown)


def test_the_reason_names_the_error_and_its_cause() -> None:
    failure = classify(chain(RuntimeError(), refused(503, retry_after="9")))
    assert failure == Failure(
        TRANSIENT, "HTTP 503 can pass, which caused RuntimeError", timedelta(seconds=9))


def test_of_errors_that_tell_nothing_the_outermost_says_how_long_to_wait() -> None:
    error = chain(refused(500, retry_after="60"), refused(404, retry_after="5"))
    assert classify(error) == Failure(
        TRANSIENT, "HTTP 500 does not tell whether it will pass", timedelta(minutes=1))


def test_what_only_happened_before_is_no_cause() -> None:
    error = RuntimeError()
    error.__context__ = refused(422)
    assert classify(error).kind is TRANSIENT


@pytest.mark.parametrize("length", [1, 2, 3])
def test_causes_that_go_round_in_a_circle_end(length: int) -> None:
    errors = [RuntimeError(number) for number in range(length)]
    assert classify(chain(*errors, errors[0]), unknown=PERMANENT).kind is PERMANENT


# --- classifiers ----------------------------------------------------------------------------------


def says(verdict: Any) -> Callable[[Exception], Any]:
    return lambda error: verdict


def breaks(error: Exception) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize("error", [RuntimeError(), KeyError(), refused(503), DriverError("23505")])
def test_the_handler_speaks_before_the_app_and_the_app_before_the_defaults(
    error: Exception
) -> None:
    here, there = Permanent("declined"), Transient("busy", timedelta(seconds=5))
    for first, second in permutations((here, there)):
        assert classify(error, [says(first), says(second)]) == classify(error, [says(first)])
        assert classify(error, [says(None), says(second)]) == classify(error, [None, says(second)])
    assert classify(error, [says(None), says(None)]) == classify(error)
    assert classify(error, [says(here)]) == Failure(
        PERMANENT, "the handler's classifier: declined")
    assert classify(error, [None, says(there)]) == Failure(
        TRANSIENT, "the app's classifier: busy", timedelta(seconds=5), own_wait=True)
    assert classify(error, [None, None, says(here)]).reason == "classifier 3: declined"


NO_TEXT: Any = 7


@pytest.mark.parametrize("verdict", [
    Transient(), Permanent(""), Transient("  "), Transient(NO_TEXT), Permanent(NO_TEXT)])
def test_a_verdict_without_a_reason_names_the_error(verdict: Any) -> None:
    assert classify(RuntimeError(), [says(verdict)]).reason == \
        "the handler's classifier: RuntimeError"


@pytest.mark.parametrize(("bad", "note"), [
    (breaks, "the handler's classifier raised ZeroDivisionError"),
    (says("transient"), "the handler's classifier gave str instead of a verdict"),
    (says(True), "the handler's classifier gave bool instead of a verdict"),
    (says(Transient), "the handler's classifier gave type instead of a verdict"),
    (says(FailureKind.PERMANENT), "the handler's classifier gave FailureKind instead of a verdict"),
])
def test_a_classifier_that_does_not_answer_is_passed_over_and_named(
    bad: Callable[[Exception], Any], note: str
) -> None:
    assert classify(RuntimeError(), [bad]) == Failure(
        TRANSIENT, f"RuntimeError is not known to be permanent; {note}")
    assert classify(KeyError(), [bad, says(Transient("busy"))]) == Failure(
        TRANSIENT, f"the app's classifier: busy; {note}")


def test_several_that_do_not_answer_are_all_named() -> None:
    reason = classify(RuntimeError(), [breaks, breaks]).reason
    assert "the handler's classifier raised" in reason
    assert "the app's classifier raised" in reason


def test_an_async_classifier_is_passed_over_without_a_warning() -> None:
    async def verdict(error: Exception) -> Permanent:
        return Permanent()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        failure = classify(RuntimeError(), [verdict])  # type: ignore[list-item]
    assert failure.kind is TRANSIENT
    assert "is async" in failure.reason


@pytest.mark.parametrize("signal", [Retry("x", after=timedelta(seconds=3)), Reject("x")])
def test_no_classifier_is_asked_about_the_handlers_own_words(signal: Exception) -> None:
    assert classify(signal, [breaks, says(Permanent())]) == classify(signal)


@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt(), GeneratorExit()])
def test_no_classifier_is_asked_about_what_ends_the_process(error: BaseException) -> None:
    assert classify(error, [says(Permanent())]).kind is TRANSIENT


@pytest.mark.parametrize(("after", "seconds"), [
    (None, 60), (timedelta(0), 0), (timedelta(seconds=5), 5), (timedelta(seconds=-5), 0)])
@pytest.mark.parametrize("direct", [True, False])
def test_a_wait_that_is_named_replaces_that_of_the_response(
    after: timedelta | None, seconds: int, direct: bool
) -> None:
    error: Exception = refused(503, retry_after="60")
    if not direct:
        error = chain(RuntimeError(), error)
    wait = timedelta(seconds=seconds)
    assert classify(error, [says(Transient("busy", after))]).retry_after == wait
    assert classify(chain(Retry("x", after=after), error)).retry_after == wait


@pytest.mark.parametrize("after", [5, 5.0, "5", b"x"])
def test_an_after_of_a_verdict_that_is_no_timedelta_is_ignored_aloud(after: Any) -> None:
    failure = classify(RuntimeError(), [says(Transient("busy", after))])
    assert (failure.kind, failure.retry_after) == (TRANSIENT, timedelta(0))
    assert failure.reason.startswith("the handler's classifier: busy")
    assert "no timedelta" in failure.reason


def test_attributes_that_raise_are_not_read() -> None:
    class Hostile(Exception):
        @property
        def sqlstate(self) -> str:
            raise RuntimeError

        pgcode = orig = response = sqlstate

    assert classify(Hostile()).kind is TRANSIENT
