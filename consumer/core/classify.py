"""What kind of failure an exception is. First match wins: signals, handler, app, defaults."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from consumer.core.http_failures import Hint, http_failure
from consumer.core.known_failures import causes, hint_of
from consumer.errors import Reject, Retry
from consumer.outcome import DeadReason


class FailureKind(StrEnum):
    """Whether running again can help."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt, classified.

    Args:
        reason: Who classified it so and why, for people. Never empty.
        retry_after: Shortest wait that was asked for, uncapped.
        own_wait: The application's own code asked for it, so that no policy caps it.
        dead_reason: Why it dies, should it die of this failure.
    """

    kind: FailureKind
    reason: str
    retry_after: timedelta = timedelta(0)
    own_wait: bool = False
    dead_reason: DeadReason = DeadReason.PERMANENT


@dataclass(frozen=True, slots=True)
class Transient:
    """Trying again can help.

    Args:
        reason: Why, for people.
        after: Shortest time until the next attempt; None leaves it to the error's `Retry-After`.
    """

    reason: str = ""
    after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Permanent:
    """Trying again cannot help. `reason` says why, for people."""

    reason: str = ""


Verdict = Transient | Permanent
Classifier = Callable[[Exception], Verdict | None]

_OWNERS = ("the handler's classifier", "the app's classifier")


def classify(
    error: BaseException, classifiers: Sequence[Classifier | None] = (), *,
    unknown: FailureKind = FailureKind.TRANSIENT, now: datetime | None = None,
) -> Failure:
    """The kind of failure that `error` is.

    `Retry` and `Reject` are the handler's own words and come first. Then the classifiers are asked
    in turn; one that raises, or answers with something else than a verdict, is passed over, and
    the reason says so. Then come the defaults: what `error` itself is known for, or else the
    nearest exception it was raised `from`.

    A `Retry` or a verdict that names no wait of its own keeps the `Retry-After` of the error.

    Args:
        classifiers: The handler's, then the app's; None for one that does not exist.
        unknown: The kind of what nobody knows.
        now: Wall clock, for a `Retry-After` that is a date; without it only seconds are read.
    """
    failure = _signal(error, now)
    if failure is not None:
        return failure
    notes: list[str] = []
    if isinstance(error, Exception):
        for number, classifier in enumerate(classifiers):
            if classifier is None:
                continue
            owner = _OWNERS[number] if number < len(_OWNERS) else f"classifier {number + 1}"
            failure, note = _ask(classifier, owner, error, now)
            notes += [note] if note else []
            if failure is not None:
                break
    if failure is None:
        failure = _by_default(error, unknown, now)
    return replace(failure, reason="; ".join((failure.reason, *notes)))


def _signal(error: BaseException, now: datetime | None) -> Failure | None:
    """What the handler said by raising it."""
    if isinstance(error, Reject):
        return Failure(FailureKind.PERMANENT, "the handler rejected it",
                       dead_reason=DeadReason.REJECTED)
    if isinstance(error, Retry):
        wait, note = _wait(error.after, error, now)
        return Failure(FailureKind.TRANSIENT, f"the handler asked for a retry{note}", wait,
                       isinstance(error.after, timedelta))
    return None


def _ask(
    classifier: Classifier, owner: str, error: Exception, now: datetime | None
) -> tuple[Failure | None, str]:
    """What a classifier says, if anything, and what is wrong with it."""
    try:
        verdict: object = classifier(error)
    except Exception as defect:
        return None, f"{owner} raised {type(defect).__name__}"
    if verdict is None:
        return None, ""
    if inspect.iscoroutine(verdict):
        verdict.close()
        return None, f"{owner} is async, which it must not be"
    if not isinstance(verdict, Transient | Permanent):
        return None, f"{owner} gave {type(verdict).__name__} instead of a verdict"
    reason = verdict.reason if isinstance(verdict.reason, str) else ""
    said = f"{owner}: {reason.strip() or type(error).__name__}"
    if isinstance(verdict, Permanent):
        return Failure(FailureKind.PERMANENT, said), ""
    wait, note = _wait(verdict.after, error, now)
    return Failure(FailureKind.TRANSIENT, said + note, wait,
                   isinstance(verdict.after, timedelta)), ""


def _wait(after: object, error: BaseException, now: datetime | None) -> tuple[timedelta, str]:
    """The shortest wait: as given, else as an HTTP error asks; and what was wrong with it."""
    if isinstance(after, timedelta):
        return max(after, timedelta(0)), ""
    asked = (found.retry_after for cause in causes(error)
             if (found := http_failure(cause, now=now)) is not None)
    note = "" if after is None else ", with an after= that is no timedelta and was ignored"
    return next(asked, timedelta(0)), note


def _by_default(error: BaseException, unknown: FailureKind, now: datetime | None) -> Failure:
    """What the first of `error` and its causes tells that tells anything."""
    vague: Hint | None = None
    for cause in causes(error):
        hint = hint_of(cause, now, outermost=cause is error)
        if hint is not None and hint.again is not None:
            kind = FailureKind.TRANSIENT if hint.again else FailureKind.PERMANENT
            behind = "" if cause is error else f", which caused {type(error).__name__}"
            return Failure(kind, hint.reason + behind, hint.retry_after)
        vague = vague or hint
    if vague is not None:
        return Failure(unknown, vague.reason, vague.retry_after)
    return Failure(unknown, f"{type(error).__name__} is not known to be "
                   + ("permanent" if unknown is FailureKind.TRANSIENT else "transient"))
