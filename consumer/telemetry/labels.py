"""Words for the values of labels, where no enum elsewhere has them."""

from enum import StrEnum


class AttemptOutcome(StrEnum):
    """How one run of a handler ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


class RetryDecision(StrEnum):
    """What was decided about a retry: it began, or why it did not."""

    GRANTED = "granted"
    DENIED_BUDGET = "denied_budget"
    DENIED_DEADLINE = "denied_deadline"
    DENIED_ATTEMPTS = "denied_attempts"
    DENIED_PERMANENT = "denied_permanent"


class Met(StrEnum):
    """What a delivery met under its key."""

    NEW = "new"
    DUPLICATE = "duplicate"
    RETRY = "retry"
    IN_PROGRESS = "in_progress"
    CONFLICT = "conflict"
    TAKEOVER = "takeover"


class DeadlineResult(StrEnum):
    """Whether work that ended had a deadline left."""

    MET = "met"
    MISSED = "missed"
