"""What an error of the database connection means: infrastructure, run again, or neither."""

import asyncio
from collections.abc import Iterator
from types import TracebackType

import asyncpg
from sqlalchemy import exc
from sqlalchemy.engine import ExceptionContext

from consumer.errors import (
    CommitFailed,
    InfrastructureError,
    SerializationConflict,
    StoreUnavailable,
)

RECORDER = "consumer_error_recorder"  # execution option of our connections
_INFRASTRUCTURE = ("08", "53", "57P", "58", "XX", "25006")
_RUN_AGAIN = ("40001", "40P01", "55P03")
_ABORTED = "25P02"
_LOST = ("connection is closed", "connection was closed", "connection has been",
         "underlying connection is closed")
_MAX_LINKS = 50

# Opening a connection failed: whatever Postgres says then, the message at hand is innocent.
CANNOT_CONNECT = (exc.DBAPIError, exc.TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError,
                  asyncpg.InternalClientError, OSError, TimeoutError)


# What the driver raises where a connection no longer does what it is told.
UNUSABLE = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError,
            TimeoutError)


def sqlstate(error: BaseException) -> str | None:
    """The five characters Postgres gave it, if it came from Postgres."""
    found = getattr(error, "sqlstate", None) or getattr(
        getattr(error, "orig", None), "sqlstate", None)
    return found if isinstance(found, str) else None


def is_lost(error: BaseException) -> bool:
    """Whether it says the connection is gone, without a word from Postgres."""
    if isinstance(error, exc.DBAPIError) and error.orig is not None:
        return error.connection_invalidated or is_lost(error.orig)
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return True
    if isinstance(error, asyncpg.InternalClientError):
        return True  # a connection ended while it was idle can say this before it is closed
    if sqlstate(error):
        return False
    if type(error).__name__ == "InterfaceError" or isinstance(error, asyncpg.InterfaceError):
        return any(words in str(error) for words in _LOST)
    return False


def meaning(error: BaseException) -> StoreUnavailable | SerializationConflict | None:
    """What an error of our connection means for the framework; None: nothing special."""
    state = sqlstate(error)
    if state and state.startswith(_RUN_AGAIN):
        return SerializationConflict(f"Postgres asks for the transaction to be run again ({state})")
    if state and state.startswith(_INFRASTRUCTURE):
        return StoreUnavailable(f"Postgres failed: {first_line(error)} ({state})")
    if is_lost(error):
        return StoreUnavailable(f"the connection to Postgres is lost: {first_line(error)}")
    return None


def unreachable(error: BaseException) -> StoreUnavailable:
    """Opening a connection failed with `error`."""
    return StoreUnavailable(f"cannot connect to Postgres: {first_line(error)}")


def is_aftermath(error: BaseException) -> bool:
    """Whether it only says that an earlier error had ended the transaction."""
    return sqlstate(error) == _ABORTED or isinstance(error, exc.PendingRollbackError)


def linked(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on; as a traceback would show it."""
    link: BaseException | None = error
    for _ in range(_MAX_LINKS):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


class ErrorLog:
    """Errors our own connection reported during one transaction."""

    __slots__ = ("_rolled_back", "_seen")

    def __init__(self) -> None:
        self._seen: list[BaseException] = []
        self._rolled_back: list[BaseException] = []

    def add(self, *errors: BaseException | None) -> None:
        """Note them as ours."""
        self._seen.extend(error for error in errors if error is not None)

    def mark(self) -> int:
        """For `rolled_back_to`."""
        return len(self._seen)

    def rolled_back_to(self, mark: int) -> None:
        """What was reported since happened in a savepoint: the transaction survived it."""
        self._rolled_back += self._seen[mark:]
        del self._seen[mark:]

    def translate(self, error: Exception) -> Exception:
        """StoreUnavailable or SerializationConflict, if `error` is ours and means that."""
        if isinstance(error, InfrastructureError | SerializationConflict):
            return error
        for link in linked(error):
            if any(link is ours for ours in (*self._seen, *self._rolled_back)):
                return self._meaning(link) or error
        # SQLAlchemy raises some of these without asking the connection.
        return (self._first_meaning() if is_aftermath(error) else None) or error

    def own(self, error: Exception) -> Exception:
        """What a failed statement of the framework itself is to be raised as."""
        if is_aftermath(error):
            return self.aborted("an error in it was swallowed")
        if is_lost(error) and self._cut_off():
            return CommitFailed("a statement of the handler was cut off, and its connection")
        if isinstance(error, TimeoutError):
            return StoreUnavailable("Postgres does not answer in time")
        return meaning(error) or error

    def aborted(self, why: str) -> Exception:
        """The transaction turned out to be rolled back already; `why` where nothing says more."""
        found = self._first_meaning()
        if found is None:
            found = CommitFailed(
                f"Postgres had rolled the transaction back: {why}",
                remedy="let database errors of a handler pass, or use session.begin_nested()")
            found.__cause__ = self._seen[-1] if self._seen else None
        return found

    def _meaning(self, error: BaseException) -> Exception | None:
        if is_aftermath(error):
            return self._first_meaning()
        return None if is_lost(error) and self._cut_off() else meaning(error)

    def _first_meaning(self) -> Exception | None:
        causes = (error for error in self._seen if not is_aftermath(error))
        return next(filter(None, map(self._meaning, causes)), None)

    def _cut_off(self) -> bool:
        """A statement was cancelled by the handler's own timeout, which costs the connection.

        That is not the server's doing: counted as an outage it would come again for ever.
        """
        return any(isinstance(error, asyncio.CancelledError) for error in self._seen)


class ErrorRecorder:
    """Passes the errors of one connection on to the log of its present transaction."""

    __slots__ = ("log",)

    def __init__(self) -> None:
        self.log = ErrorLog()


def record_error(context: ExceptionContext) -> None:
    """`handle_error` listener of SQLAlchemy; only connections with a recorder are ours."""
    if context.connection is not None:
        recorder = context.connection.get_execution_options().get(RECORDER)
        if isinstance(recorder, ErrorRecorder):
            recorder.log.add(context.original_exception, context.sqlalchemy_exception)


class OwnStatement:
    """Raises errors of the framework's own statements as what they mean."""

    __slots__ = ("_log",)

    def __init__(self, log: ErrorLog) -> None:
        self._log = log

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            raised = self._log.own(error)
            if raised is not error:
                raise raised from (raised.__cause__ or error)


def first_line(error: BaseException) -> str:
    """What went wrong, without the statement and its parameters, which may hold secrets."""
    cause = getattr(error, "orig", None) or error
    cause = cause.__cause__ if cause.__cause__ is not None else cause
    lines = str(cause).splitlines()
    return lines[0][:200] if lines else type(cause).__name__
