"""Which errors of a connection mean what, and whose errors they are."""

import asyncio
from itertools import pairwise

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from consumer.errors import CommitFailed, SerializationConflict, StoreUnavailable
from consumer.store.failures import ErrorLog, linked, meaning


def reported(state: str) -> Exception:
    error = asyncpg.PostgresError("reported")
    error.sqlstate = state  # type: ignore[misc]
    return error


LOST = asyncpg.InterfaceError("connection is closed")


def chain(*errors: Exception, implicit: bool = False) -> Exception:
    for cause, error in pairwise(errors):
        if implicit:
            error.__context__ = cause
        else:
            error.__cause__ = cause
    return errors[-1]


@pytest.mark.parametrize(("error", "kind"), [
    (reported("08006"), StoreUnavailable), (reported("57P03"), StoreUnavailable),
    (reported("53100"), StoreUnavailable), (reported("40P01"), SerializationConflict),
    (reported("57014"), None), (reported("23505"), None), (LOST, StoreUnavailable),
    (ConnectionResetError(), StoreUnavailable), (TimeoutError(), None), (ValueError(), None),
    (asyncpg.InterfaceError("another operation is in progress"), None),
    (asyncpg.InternalClientError("cannot switch to state 15"), StoreUnavailable),
    (asyncpg.ConnectionDoesNotExistError("closed in the middle"), StoreUnavailable),
])
def test_meanings(error: Exception, kind: type[Exception] | None) -> None:
    assert type(meaning(error)) is (kind or type(None))


def test_only_recorded_errors_are_translated() -> None:
    ours, theirs = reported("40001"), reported("40001")
    log = ErrorLog()
    log.add(ours)
    assert isinstance(log.translate(ours), SerializationConflict)
    assert log.translate(theirs) is theirs


@pytest.mark.parametrize("implicit", [False, True])
def test_what_was_raised_from_ours_means_the_same(implicit: bool) -> None:
    ours = reported("08006")
    log = ErrorLog()
    log.add(ours)
    error = chain(ours, ValueError(), KeyError(), implicit=implicit)
    assert isinstance(log.translate(error), StoreUnavailable)


def test_raising_from_none_cuts_the_chain() -> None:
    ours, error = reported("08006"), ValueError()
    error.__context__, error.__suppress_context__ = ours, True
    log = ErrorLog()
    log.add(ours)
    assert log.translate(error) is error


def test_a_chain_that_goes_round_ends() -> None:
    one, other = ValueError(), KeyError()
    one.__context__, other.__context__ = other, one
    assert len(list(linked(one))) <= 50
    assert ErrorLog().translate(one) is one


def test_the_aftermath_means_what_its_cause_means() -> None:
    log = ErrorLog()
    log.add(reported("40001"))
    pending = PendingRollbackError("inactive")
    assert isinstance(log.translate(pending), SerializationConflict)
    assert isinstance(log.own(reported("25P02")), SerializationConflict)
    assert ErrorLog().translate(pending) is pending
    assert isinstance(ErrorLog().own(reported("25P02")), CommitFailed)


def test_a_connection_the_handler_cut_off_is_no_outage() -> None:
    log = ErrorLog()
    log.add(asyncio.CancelledError())
    log.add(LOST)
    assert log.translate(LOST) is LOST
    assert isinstance(log.own(LOST), CommitFailed)


def test_an_error_in_a_rolled_back_savepoint_is_ours_and_past() -> None:
    ours = reported("40001")
    log = ErrorLog()
    mark = log.mark()
    log.add(ours)
    log.rolled_back_to(mark)
    assert isinstance(log.translate(ours), SerializationConflict)
    assert isinstance(log.aborted("later"), CommitFailed)


def test_meanings_repeat_no_parameters() -> None:
    error = DBAPIError.instance("INSERT", {"card": "4111"}, reported("08006"),
                                asyncpg.PostgresError)
    assert "4111" not in str(meaning(error))
    assert "INSERT" not in str(meaning(error))
