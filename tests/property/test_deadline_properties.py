"""Laws of deadlines: a producer can only shorten, nothing it sends raises, roundings go down."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from consumer.core.copies import parked_copy
from consumer.core.deadline import (
    deadline_of,
    epoch_ms,
    first_seen,
    grpc_timeout,
    stamps,
    timeout_headers,
)
from consumer.message import DEADLINE_MS, FIRST_SEEN_MS, TIMEOUT_MS, Delivery, Lane, Message
from consumer.wire import Headers, Properties

MILLISECOND = timedelta(milliseconds=1)
UNITS = {"H": timedelta(hours=1), "M": timedelta(minutes=1), "S": timedelta(seconds=1),
         "m": MILLISECOND, "u": timedelta(microseconds=1)}
NAMES = (DEADLINE_MS, TIMEOUT_MS, FIRST_SEEN_MS)

moments = st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1),  # noqa: DTZ001 - made aware here
                       timezones=st.just(UTC))
ages = st.none() | st.timedeltas(timedelta(microseconds=1), timedelta(days=36_525)) \
    | st.just(timedelta.max)
# Numbers near the present are rare among all numbers, and the interesting ones.
milliseconds = st.integers(0, 2**63 - 1) | st.integers(0, 10**6) \
    | moments.map(lambda moment: epoch_ms(moment))
values: st.SearchStrategy[Any] = milliseconds | milliseconds.map(str) | st.text(max_size=20).map(
    lambda t: t.encode("utf-8", "replace").decode()) | st.none() | st.booleans() | st.integers(
        -(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.binary(
            max_size=9) | st.lists(st.integers(0, 9), max_size=2)
headers = st.dictionaries(st.sampled_from(NAMES), values)
timestamps = st.none() | st.integers(0, 2**64 - 1) | moments.map(lambda m: int(m.timestamp()))
lanes = st.sampled_from(Lane)


def delivery(sent: dict[str, Any], timestamp: int | None, lane: Lane) -> Delivery:
    return Delivery(Message(b"{}", Properties(
        headers=Headers.of(sent), timestamp=timestamp)), "orders", lane)


@given(headers, timestamps, lanes, ages, moments)
def test_a_producer_can_never_lengthen(
    sent: dict[str, Any], timestamp: int | None, lane: Lane, max_age: timedelta | None,
    now: datetime,
) -> None:
    plain = deadline_of(delivery({}, None, lane), max_age, now)
    found = deadline_of(delivery(sent, timestamp, lane), max_age, now)
    assert plain is None or (found is not None and found <= plain)


@given(values, values, st.sampled_from([DEADLINE_MS, TIMEOUT_MS]), ages, moments)
def test_stating_both_is_never_longer_than_stating_one(
    time: Any, duration: Any, only: str, max_age: timedelta | None, now: datetime
) -> None:
    """As long as no timestamp tells that the producer's clock is ahead."""
    both = {DEADLINE_MS: time, TIMEOUT_MS: duration}
    before = deadline_of(delivery({only: both[only]}, None, Lane.LIVE), max_age, now)
    after = deadline_of(delivery(both, None, Lane.LIVE), max_age, now)
    assert before is None or (after is not None and after <= before)


@given(st.binary(max_size=60), st.sampled_from(NAMES), st.binary(max_size=20), timestamps, lanes,
       ages, moments)
@example(b"", DEADLINE_MS, b"S\x00\x00\x00\x01\xff", None, Lane.LIVE, None,
         datetime(2026, 1, 1, tzinfo=UTC))
@example(b"", FIRST_SEEN_MS, b"l\x7f" + b"\xff" * 7, 2**64 - 1, Lane.LIVE, timedelta.max,
         datetime(2026, 1, 1, tzinfo=UTC))
def test_no_bytes_in_the_headers_raise(
    junk: bytes, name: str, tagged: bytes, timestamp: int | None, lane: Lane,
    max_age: timedelta | None, now: datetime,
) -> None:
    table = bytes((len(name),)) + name.encode() + tagged + junk
    for raw in (junk, table):
        made = Properties(headers=Headers(raw), timestamp=timestamp)
        of = Delivery(Message(b"{}", made), "orders", lane)
        found = deadline_of(of, max_age, now)
        assert found is None or found.tzinfo is not None
        assert first_seen(of.message, now) <= now


@given(headers, moments)
def test_first_sight_is_never_after_now(sent: dict[str, Any], now: datetime) -> None:
    assert first_seen(delivery(sent, None, Lane.LIVE).message, now) <= now


@given(headers, timestamps, lanes, ages, moments, st.timedeltas(timedelta(0), timedelta(days=400)))
def test_a_copy_keeps_the_deadline_however_late_it_comes(
    sent: dict[str, Any], timestamp: int | None, lane: Lane, max_age: timedelta | None,
    now: datetime, later: timedelta,
) -> None:
    """To the millisecond that a header can tell."""
    now = now.replace(microsecond=now.microsecond // 1000 * 1000)
    original = delivery(sent, timestamp, lane)
    copy = parked_copy("shop", original, "k", timedelta(seconds=1), now,
                       first_seen(original.message, now))
    arrived = Delivery(Message(b"{}", Properties.from_wire(copy.properties)), "orders", lane)
    assert deadline_of(arrived, max_age, now + later) == deadline_of(original, max_age, now)


@given(st.timedeltas())
@example(timedelta.min)
@example(timedelta.max)
def test_a_grpc_timeout_is_no_longer_than_what_is_left_and_within_one_unit(left: timedelta) -> None:
    told = grpc_timeout(left)
    count, unit = told[:-1], told[-1]
    assert 1 <= len(count) <= 8
    assert int(count) >= 1
    if left <= timedelta(0):
        assert told == "1n"
        return
    assert int(count) * UNITS[unit] <= left
    assert left - int(count) * UNITS[unit] < UNITS[unit] or told == "99999999H"


@given(st.timedeltas(timedelta(days=-9), timedelta(days=36_525)), moments)
def test_timeout_headers_are_never_negative_and_never_promise_more(
    left: timedelta, now: datetime
) -> None:
    told = timeout_headers(left, now)
    assert set(told) == {"x-deadline-ms", "x-timeout-ms"}
    assert all(value.isascii() and value.isdigit() for value in told.values())
    assert int(told["x-timeout-ms"]) * MILLISECOND <= max(left, timedelta(0))
    assert int(told["x-deadline-ms"]) <= epoch_ms(now + max(left, timedelta(0)))


@given(moments, moments)
def test_a_deadline_we_state_is_the_deadline_that_is_read(deadline: datetime, now: datetime
                                                          ) -> None:
    """Or up to a millisecond earlier."""
    of = delivery({**stamps(deadline, now)}, int(now.timestamp()), Lane.LIVE)
    found = deadline_of(of, None, now)
    assert found is not None
    assert deadline - MILLISECOND < found <= deadline
