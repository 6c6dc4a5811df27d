"""What follows from a failed attempt. The only place that decides between retry and dead letter."""

from dataclasses import dataclass
from datetime import timedelta

from consumer.core.backoff import full_jitter
from consumer.core.classify import Failure, FailureKind
from consumer.core.topology import LONGEST_ROUNDED_DELAY, round_up_delay
from consumer.outcome import DeadReason


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently a handler is retried.

    Args:
        max_attempts: Attempts in all, the first included.
        backoff_base: Ceiling of the wait after the first failure.
        backoff_cap: Highest ceiling.
        retry_after_cap: Longest wait that the other side can ask for.
        min_attempt: No attempt begins with less time left before the deadline.
    """

    max_attempts: int
    backoff_base: timedelta
    backoff_cap: timedelta
    retry_after_cap: timedelta = timedelta(hours=1)
    min_attempt: timedelta = timedelta(0)


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


def decide(
    failure: Failure, attempts: int, policy: RetryPolicy, jitter: float,
    left: timedelta | None = None,
) -> Decision:
    """What follows from `failure`.

    A wait is never shortened to meet a deadline. What the other side asked for has to fit in full,
    even beyond `retry_after_cap`, since coming back earlier is in vain; so does the delay as drawn
    and as the delay queues will keep it, even where another draw would have fitted.

    Args:
        attempts: Failed attempts, this one included.
        jitter: Uniform in [0, 1).
        left: Time until the message's deadline; None where it has none.
    """
    if failure.kind is FailureKind.PERMANENT:
        return GiveUp(failure.dead_reason, failure.reason)
    if attempts >= policy.max_attempts:
        return GiveUp(DeadReason.ATTEMPTS,
                      f"attempt {attempts} of {policy.max_attempts} failed: {failure.reason}")
    if not fits(left, failure.retry_after, policy.min_attempt):
        return _too_late(left, "the wait that was asked for", failure.retry_after, policy, failure)
    cap = LONGEST_ROUNDED_DELAY if failure.own_wait \
        else min(policy.retry_after_cap, LONGEST_ROUNDED_DELAY)
    delay = full_jitter(attempts, policy.backoff_base, policy.backoff_cap, jitter,
                        min(failure.retry_after, cap))
    kept = round_up_delay(delay)
    if not fits(left, kept, policy.min_attempt):
        return _too_late(left, "the wait", kept, policy, failure)
    return RetryIn(delay, f"attempt {attempts} of {policy.max_attempts}: {failure.reason}")


def fits(left: timedelta | None, wait: timedelta, min_attempt: timedelta) -> bool:
    """Whether, after `wait`, time is left before the deadline, and `min_attempt` of it at least.

    Args:
        left: Time until the deadline; None where there is none, and everything fits.
    """
    if left is None:
        return True
    wait = max(wait, timedelta(0))
    return left > wait and left - wait >= min_attempt


def _too_late(
    left: timedelta | None, what: str, wait: timedelta, policy: RetryPolicy, failure: Failure
) -> GiveUp:
    seconds = left.total_seconds() if left is not None else 0.0
    if seconds <= 0:
        return GiveUp(DeadReason.DEADLINE, f"the deadline has passed: {failure.reason}")
    attempt = f" and {policy.min_attempt.total_seconds():.3f} s for an attempt" \
        if policy.min_attempt > timedelta(0) else ""
    return GiveUp(DeadReason.DEADLINE,
                  f"{what}, {wait.total_seconds():.3f} s{attempt}, does not fit into the "
                  f"{seconds:.3f} s before the deadline: {failure.reason}")
