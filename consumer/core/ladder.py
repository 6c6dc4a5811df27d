"""How a delay finds its way through the ladder of delay queues.

The ladder has an exchange and a queue per bit of a delay counted in units of 100 ms. A routing key
is the 24 bits, highest first, then the name of the destination. At level n a 1 waits in that
level's queue for 100 ms · 2ⁿ, a 0 goes on to level n-1; below level 0 is `deliver`.
"""

from dataclasses import dataclass
from datetime import timedelta

LEVELS = 24
UNIT = timedelta(milliseconds=100)
SIGNIFICANT_BITS = 5
LONGEST_DELAY = UNIT * ((1 << LEVELS) - 1)
"""19 days, 10 hours and 2 minutes: all bits set."""
LONGEST_ROUNDED_DELAY = UNIT * (((1 << SIGNIFICANT_BITS) - 1) << (LEVELS - SIGNIFICANT_BITS))
"""18 days, 19 hours: the longest delay of five significant bits. Longer ones are cut to it."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where to publish."""

    exchange: str
    routing_key: str


def deliver_exchange(prefix: str) -> str:
    """The exchange where delays end."""
    return f"{prefix}.delay.deliver"


def delay_level(prefix: str, level: int) -> str:
    """Name of the exchange and the queue of one level of the ladder."""
    return f"{prefix}.delay.{level:02}"


def round_up_delay(delay: timedelta) -> timedelta:
    """The delay a message of that delay spends in the ladder.

    Nothing below 100 ms. From there the next 100 ms, of which five significant bits are kept,
    rounding up: less than 1/16 more, and at most five queues to cross. At most
    `LONGEST_ROUNDED_DELAY`.
    """
    return UNIT * _rounded_units(delay)


def route_delay(
    prefix: str, delay: timedelta, destination: str, *, exact: bool = False
) -> Route:
    """Where to publish so that a message reaches the queue `destination` after `delay`.

    Args:
        prefix: Name of the application at the broker.
        delay: How long to wait; see `round_up_delay`.
        destination: One of the queues of the plan.
        exact: Keep all bits, so that only the next 100 ms are rounded up to.

    Raises:
        ValueError: An exact delay is longer than `LONGEST_DELAY`.
    """
    if exact and delay > LONGEST_DELAY:
        raise ValueError(f"an exact delay is at most {LONGEST_DELAY}, not {delay}")
    units = _units(delay) if exact else _rounded_units(delay)
    bits = ".".join(f"{units:0{LEVELS}b}")
    exchange = delay_level(prefix, units.bit_length() - 1) if units else deliver_exchange(prefix)
    return Route(exchange, f"{bits}.{destination}")


def _units(delay: timedelta) -> int:
    return 0 if delay < UNIT else -(-delay // UNIT)


def _rounded_units(delay: timedelta) -> int:
    if delay >= LONGEST_ROUNDED_DELAY:
        return LONGEST_ROUNDED_DELAY // UNIT
    units = _units(delay)
    step = 1 << max(0, units.bit_length() - SIGNIFICANT_BITS)
    return -(-units // step) * step
