"""What follows from a failed attempt. The only place that decides between retry and dead letter."""

from dataclasses import dataclass
from datetime import timedelta

from consumer.core.backoff import full_jitter
from consumer.core.classify import Failure, FailureKind
from consumer.core.topology import LONGEST_ROUNDED_DELAY
from consumer.outcome import DeadReason


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently a handler is retried.

    Args:
        max_attempts: Attempts in all, the first included.
        backoff_base: Ceiling of the wait after the first failure.
        backoff_cap: Highest ceiling.
    """

    max_attempts: int
    backoff_base: timedelta
    backoff_cap: timedelta


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Run again after `delay`."""

    delay: timedelta
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Dead-letter it."""

    why: DeadReason
    reason: str


Decision = RetryIn | GiveUp


def decide(failure: Failure, attempts: int, policy: RetryPolicy, jitter: float) -> Decision:
    """What follows from `failure`.

    Args:
        attempts: Failed attempts, this one included.
        jitter: Uniform in [0, 1).
    """
    if failure.kind is FailureKind.PERMANENT:
        return GiveUp(failure.dead_reason, failure.reason)
    if attempts >= policy.max_attempts:
        return GiveUp(DeadReason.ATTEMPTS,
                      f"attempt {attempts} of {policy.max_attempts} failed: {failure.reason}")
    delay = full_jitter(attempts, policy.backoff_base, policy.backoff_cap, jitter,
                        min(failure.retry_after, LONGEST_ROUNDED_DELAY))
    return RetryIn(delay, f"attempt {attempts} of {policy.max_attempts}: {failure.reason}")
