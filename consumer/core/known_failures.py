"""What exceptions are known for: which can pass, and which the same command will meet again."""

from collections.abc import Iterator
from datetime import datetime

from consumer.core.http_failures import Hint, ancestry, http_failure, read
from consumer.errors import (
    ConfigurationError,
    DependencyUnavailable,
    InfrastructureError,
    SerializationConflict,
    UnsendableMessage,
)

# Mistakes in code or data: running the same code on the same data again gives the same.
_PROGRAMMING = (
    TypeError, KeyError, IndexError, AttributeError, AssertionError, NotImplementedError,
    NameError, UnsendableMessage, ConfigurationError,
)
_OURS = (InfrastructureError, SerializationConflict, DependencyUnavailable)
# Files say nothing about connections, although their errors share a base with those that do.
_FILES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError,
          PermissionError)
_BROKER_CLIENTS = frozenset({"aio_pika", "aiormq", "pamqp"})
# A connection lost before the server could give an SQLSTATE (PEP 249: OperationalError), and
# SQLAlchemy's wait for a connection of its pool.
_DATABASE_AWAY = frozenset({
    ("sqlalchemy", "OperationalError"), ("sqlalchemy", "TimeoutError"),
    ("psycopg", "OperationalError"), ("psycopg2", "OperationalError"),
})
_PERMANENT_SQLSTATES = ("22", "23")  # data exception, integrity constraint violation
_MOST_CAUSES = 8


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE that a driver attached to `error`, to what it wraps, or to a cause, or None."""
    return next((code for cause in causes(error) if (code := _sqlstate(cause))), None)


def hint_of(error: BaseException, now: datetime | None, *, outermost: bool) -> Hint | None:
    """What one exception tells. Clients come before built-in types, which theirs derive from.

    Whoever raises an error of their own from a programming error has met it on purpose, so only
    the outermost counts as a mistake.
    """
    name = type(error).__name__
    sqlstate = _sqlstate(error)
    if sqlstate is not None:
        return Hint(not sqlstate.startswith(_PERMANENT_SQLSTATES), f"SQLSTATE {sqlstate}")
    http = http_failure(error, now=now)
    if http is not None:
        return http
    for package, kind in ancestry(error):
        if package in _BROKER_CLIENTS or (package, kind) in _DATABASE_AWAY:
            return Hint(True, f"{name} of {package} is a failure of connection or time")
        if package.startswith("pydantic") and kind == "ValidationError" and outermost:
            return Hint(False, f"{name} is a mistake in code or data")
    if outermost and isinstance(error, _PROGRAMMING):
        return Hint(False, f"{name} is a mistake in code or data")
    if isinstance(error, _OURS) or (
            isinstance(error, OSError) and not isinstance(error, _FILES)):
        return Hint(True, f"{name} is a failure of connection or time")
    return None


def _sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of one exception, or of the driver's that it wraps."""
    for candidate in (error, read(error, "orig")):
        for attribute in ("sqlstate", "pgcode"):
            code = read(candidate, attribute)
            if isinstance(code, str) and len(code) == 5:
                return code
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on: a few at most, so that a circle ends."""
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__
