"""What kind of failure an exception is. First match wins: signals, SQLSTATE, types, the rest."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from consumer.errors import ConsumerError, Reject, Retry, UnsendableMessage
from consumer.outcome import DeadReason


class FailureKind(StrEnum):
    """Whether running again can help."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt, classified.

    Args:
        reason: Why it was classified so, for people.
        retry_after: Shortest wait the handler asked for.
        dead_reason: Why it dies, should it die of this failure.
    """

    kind: FailureKind
    reason: str
    retry_after: timedelta = timedelta(0)
    dead_reason: DeadReason = DeadReason.PERMANENT


# Mistakes in code or data: running the same code on the same data again gives the same.
_PROGRAMMING = (
    TypeError, KeyError, IndexError, AttributeError, AssertionError, NotImplementedError,
    NameError, UnsendableMessage,
)
_PERMANENT_SQLSTATES = ("22", "23")  # data exception, integrity constraint violation


def classify(error: BaseException) -> Failure:
    """The kind of failure that `error` is. Unknown ones are transient, bounded by attempts."""
    if isinstance(error, Retry):
        if error.after is not None and not isinstance(error.after, timedelta):
            return Failure(FailureKind.TRANSIENT, "the handler asked for a retry, with an after= "
                           "that is no timedelta and was ignored")
        return Failure(FailureKind.TRANSIENT, "the handler asked for a retry",
                       retry_after=error.after or timedelta(0))
    if isinstance(error, Reject):
        return Failure(FailureKind.PERMANENT, "the handler rejected it",
                       dead_reason=DeadReason.REJECTED)
    sqlstate = sqlstate_of(error)
    if sqlstate is not None:
        kind = (FailureKind.PERMANENT if sqlstate.startswith(_PERMANENT_SQLSTATES)
                else FailureKind.TRANSIENT)
        return Failure(kind, f"SQLSTATE {sqlstate}")
    name = type(error).__name__
    if isinstance(error, _PROGRAMMING) or _is_validation_error(error):
        return Failure(FailureKind.PERMANENT, f"{name} is a mistake in code or data")
    if isinstance(error, OSError | TimeoutError):
        return Failure(FailureKind.TRANSIENT, f"{name} is a failure of connection or time")
    return Failure(FailureKind.TRANSIENT, f"{name} is not known to be permanent")


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE a driver attached to `error` or to what it wraps, or None."""
    if isinstance(error, ConsumerError) and error.__cause__ is not None:
        error = error.__cause__
    for candidate in (error, getattr(error, "orig", None), error.__cause__):
        code = getattr(candidate, "sqlstate", None) or getattr(candidate, "pgcode", None)
        if isinstance(code, str) and len(code) == 5:
            return code
    return None


def _is_validation_error(error: BaseException) -> bool:
    """Whether pydantic says that data does not fit a model, without importing pydantic."""
    return any(
        kind.__name__ == "ValidationError" and kind.__module__.startswith("pydantic")
        for kind in type(error).__mro__
    )
