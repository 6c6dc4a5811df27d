"""When a command is too late: by the producer's deadline, or by the `max_age` of its handler.

A producer can state a time, a duration from its publish, or both. A duration does not count what
a message waited before we saw it; a time is only as good as the clock it was read from. The rule
for clocks that disagree, threshold included, is userver's, with our first sight in place of the
moment a request arrives
(https://userver.tech, USERVER_DEADLINE_PROPAGATION_CLOCK_SKEW_THRESHOLD_MS).

All of it counts from the first sight, which copies keep: a copy has the deadline of its original.
"""

from datetime import UTC, datetime, timedelta

from consumer.message import DEADLINE_MS, FIRST_SEEN_MS, TIMEOUT_MS, Delivery, Lane, Message
from consumer.wire import WireError

MAX_CLOCK_SKEW = timedelta(seconds=60)
"""How far a producer's clock may be ahead of ours before the times it states are not believed."""
_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SECOND = timedelta(seconds=1)
_MAX_DIGITS = 16
_GRPC_UNITS = (
    ("u", timedelta(microseconds=1)), ("m", _MILLISECOND), ("S", _SECOND),
    ("M", timedelta(minutes=1)), ("H", timedelta(hours=1)),
)
_GRPC_MOST = 99_999_999


def first_seen(message: Message, now: datetime) -> datetime:
    """When this command first reached a worker: what a copy tells, else `now`.

    Never in the future. What cannot be read is `now`; a producer that sets the header only makes
    its own command older.
    """
    told = _after(_EPOCH, _milliseconds(message, FIRST_SEEN_MS))
    return now if told is None else min(told, now)


def deadline_of(delivery: Delivery, max_age: timedelta | None, now: datetime) -> datetime | None:
    """When the command is too late, or None for never. It may lie in the past.

    The earlier of what the producer stated, and `max_age` after timestamp or first sight, whichever
    is earlier: a producer can only shorten. In the replay lane `max_age` alone counts, from the
    first sight there, for a replay begins anew.

    Args:
        max_age: Of the handler; None is no limit.
        now: Aware.
    """
    seen = first_seen(delivery.message, now)
    if delivery.lane is Lane.REPLAY:
        return _after(seen, max_age)
    sent = _sent_at(delivery.message)
    born = seen if sent is None else min(sent, seen)
    limits = (_stated(delivery.message, sent, seen), _after(born, max_age))
    return min((limit for limit in limits if limit is not None), default=None)


def _stated(message: Message, sent: datetime | None, seen: datetime) -> datetime | None:
    """The deadline the producer stated, as far as its clock can be believed."""
    timeout = _milliseconds(message, TIMEOUT_MS)
    absolute = _after(_EPOCH, _milliseconds(message, DEADLINE_MS))
    by_timeout = _after(seen, timeout)
    if absolute is None:
        # A timestamp has whole seconds: a timeout below one must not be over before it began.
        waited = sent is not None and sent < seen - _SECOND
        return _after(sent + _SECOND, timeout) if sent is not None and waited else by_timeout
    if sent is not None and sent - seen > MAX_CLOCK_SKEW:
        return by_timeout or _EPOCH + max(timedelta(0), absolute - _EPOCH - (sent - seen))
    # No clock is needed to know that a publish came before its first sight.
    return absolute if by_timeout is None else min(absolute, by_timeout)


def _sent_at(message: Message) -> datetime | None:
    """The AMQP timestamp: seconds; one too large for that is read as milliseconds."""
    count = message.properties.timestamp
    if count is None:
        return None
    return _after(_EPOCH, _times(count, _SECOND)) or _after(_EPOCH, _times(count, _MILLISECOND))


def _milliseconds(message: Message, header: str) -> timedelta | None:
    """A header that holds milliseconds, as an integer or as ASCII digits; None for all else."""
    try:
        value = message.properties.headers.get(header)
    except WireError:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() \
            and len(value) <= _MAX_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return _times(value, _MILLISECOND)


def _times(count: int, unit: timedelta) -> timedelta | None:
    try:
        return unit * count
    except OverflowError:
        return None


def _after(moment: datetime, length: timedelta | None) -> datetime | None:
    """`moment` plus `length`; None where there is no length, or no calendar reaches that far."""
    try:
        return None if length is None else moment + length
    except OverflowError:
        return None


def epoch_ms(moment: datetime) -> int:
    """Milliseconds since the epoch, rounded down; 0 before it."""
    return max(0, (moment - _EPOCH) // _MILLISECOND)


def stamps(deadline: datetime, now: datetime) -> dict[str, int]:
    """The headers by which a producer states `deadline`, of a message it publishes at `now`."""
    left = max(timedelta(0), deadline - now)
    return {DEADLINE_MS: epoch_ms(deadline), TIMEOUT_MS: left // _MILLISECOND}


def timeout_headers(left: timedelta, now: datetime) -> dict[str, str]:
    """The headers that tell an HTTP service how much time its caller has.

    Returns:
        `x-deadline-ms` and `x-timeout-ms`, rounded down; with nothing left, now and 0.
    """
    told = stamps(now + max(timedelta(0), left), now)
    return {name: str(value) for name, value in told.items()}


def grpc_timeout(left: timedelta) -> str:
    """`left` as the value of `grpc-timeout`: at most 8 digits in the finest unit that holds it.

    Rounded down, so that the service never believes to have longer than its caller. The grammar
    has no zero: with nothing left it is `1n`, a nanosecond
    (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, "Timeout").
    """
    if left <= timedelta(0):
        return "1n"
    for unit, length in _GRPC_UNITS:
        if left // length <= _GRPC_MOST:
            return f"{left // length}{unit}"
    return f"{_GRPC_MOST}H"
