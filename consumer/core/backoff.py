"""How long to wait before the next attempt: exponential with full jitter.

Full jitter draws uniformly below the exponential ceiling, which spreads a herd best
(https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).

Nothing here raises, so that an error path cannot fail in its arithmetic: what lies outside the
documented range counts as the nearest value inside.
"""

from datetime import timedelta

LONGEST_PARK = timedelta(minutes=5)
"""Longest time a message waits when it is parked once, for want of budget."""
_MAX_EXPONENT = 62  # base is at least a microsecond: 2**62 of them is beyond any cap


def ceiling(attempt: float, base: timedelta, cap: timedelta) -> timedelta:
    """The longest wait after failed attempt number `attempt` (the first is 1).

    It is `base * 2**(attempt - 1)`, clamped to `cap` before it can overflow. Attempts below 1, and
    NaN, count as 1; a fraction of an attempt does not count.
    """
    exponent = int(min(max(1, attempt) - 1, _MAX_EXPONENT))
    if base <= timedelta(0) or base >= cap:
        return max(timedelta(0), min(base, cap))
    factor: int = 2**exponent
    return cap if cap // base < factor else min(cap, base * factor)


def full_jitter(
    attempt: float, base: timedelta, cap: timedelta, jitter: float,
    at_least: timedelta = timedelta(0),
) -> timedelta:
    """A wait in `[at_least, at_least + ceiling]`, `timedelta.max` at most.

    Args:
        attempt: Number of the attempt that failed, from 1.
        base: Ceiling after the first failure.
        cap: Highest ceiling.
        jitter: Uniform in [0, 1).
        at_least: What the other side asked for (`Retry-After`): a minimum, jitter only adds.
    """
    least = max(at_least, timedelta(0))
    wait: timedelta = ceiling(attempt, base, cap) * min(max(0.0, jitter), 1.0)
    return least + min(wait, timedelta.max - least)
