"""Deadlines: what a producer can state, what is believed of it, and what is told on (B13)."""

import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

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

NOW = datetime(2026, 5, 1, 12, 0, 0, 250_000, tzinfo=UTC)
HOUR = timedelta(hours=1)
YEAR_9999 = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def delivery(headers: dict[str, Any] | None = None, timestamp: datetime | int | None = None,
             lane: Lane = Lane.LIVE, raw: bytes = b"") -> Delivery:
    if isinstance(timestamp, datetime):
        timestamp = int(timestamp.timestamp())
    table = Headers(Headers.of(headers or {}).table + raw)
    return Delivery(Message(b"{}", Properties(headers=table, timestamp=timestamp)), "orders", lane)


def stated(deadline: timedelta | None = None, timeout: timedelta | None = None) -> dict[str, Any]:
    """The producer's headers, its deadline counted from NOW."""
    headers: dict[str, Any] = {}
    if deadline is not None:
        headers[DEADLINE_MS] = epoch_ms(NOW + deadline)
    if timeout is not None:
        headers[TIMEOUT_MS] = timeout // timedelta(milliseconds=1)
    return headers


# --- values ---------------------------------------------------------------------------------------


MALFORMED: list[Any] = [
    True, False, -1, -(2**63), 1.0, 1777636830000.0, Decimal(5), None, "", "-1", "+1", " 1", "1 ",
    "1.0", "1e3", "1_000", "5s", "0x10", "abc", "\u0661\u0662\u0663", "\u00b2", "1" * 17,
    "2026-05-01T12:00:30Z", "1970-01-01", "9999-12-31T23:59:59Z", "0" * 16 + "7", b"5", b"\xff",
    [5], {"ms": 5}, datetime(1970, 1, 1, tzinfo=UTC), 2**63 - 1, 10**16, "9" * 16,
    253_402_300_800_000,
]


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_deadline_is_ignored(value: Any) -> None:
    assert deadline_of(delivery({DEADLINE_MS: value}), None, NOW) is None
    assert deadline_of(delivery({DEADLINE_MS: value}), HOUR, NOW) == NOW + HOUR
    both = delivery({DEADLINE_MS: value, **stated(timeout=seconds(30))})
    assert deadline_of(both, None, NOW) == NOW + seconds(30)


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_timeout_is_ignored(value: Any) -> None:
    assert deadline_of(delivery({TIMEOUT_MS: value}), None, NOW) is None
    assert deadline_of(delivery({TIMEOUT_MS: value}), HOUR, NOW) == NOW + HOUR
    both = delivery({TIMEOUT_MS: value, **stated(seconds(30))})
    assert deadline_of(both, None, NOW) == NOW + seconds(30)


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_first_sight_is_now(value: Any) -> None:
    assert first_seen(delivery({FIRST_SEEN_MS: value}).message, NOW) == NOW


@pytest.mark.parametrize("tagged", [
    b"b\x07", b"B\x07", b"s\x00\x07", b"u\x00\x07", b"i\x00\x00\x00\x07", b"I\x00\x00\x00\x07",
    b"l" + struct.pack(">q", 7), b"S\x00\x00\x00\x017", b"S\x00\x00\x00\x0f" + b"0" * 14 + b"7"])
def test_integers_of_every_width_and_digits_are_milliseconds(tagged: bytes) -> None:
    raw = bytes((len(DEADLINE_MS),)) + DEADLINE_MS.encode() + tagged
    late = datetime(1970, 1, 1, 0, 0, 0, 7000, tzinfo=UTC)
    assert deadline_of(delivery(raw=raw), None, NOW) == late


@pytest.mark.parametrize("raw", [b"\xff", b"\x0dx-deadline-ms", b"\x0dx-deadline-ms?",
                                 b"\x0dx-deadline-msS\x00\x00\x00\x01\xff",
                                 b"\x0dx-deadline-msS\xff\xff\xff\xff1"])
def test_headers_that_cannot_be_read_state_no_deadline(raw: bytes) -> None:
    assert deadline_of(delivery(raw=raw), None, NOW) is None


@pytest.mark.parametrize(("value", "wanted"), [
    (0, datetime(1970, 1, 1, tzinfo=UTC)), ("0", datetime(1970, 1, 1, tzinfo=UTC)),
    (253_402_300_799_000, YEAR_9999), ("253402300799000", YEAR_9999)])
def test_a_spoofed_deadline_shortens_and_never_lengthens(value: Any, wanted: datetime) -> None:
    of = delivery({DEADLINE_MS: value})
    assert deadline_of(of, None, NOW) == wanted
    assert deadline_of(of, HOUR, NOW) == min(wanted, NOW + HOUR)


@pytest.mark.parametrize(("value", "seen"), [
    (epoch_ms(datetime(2099, 1, 1, tzinfo=UTC)), NOW), (epoch_ms(NOW) + 1, NOW),
    (epoch_ms(NOW), NOW), (epoch_ms(NOW) - 60_000, NOW - seconds(60)),
    (0, datetime(1970, 1, 1, tzinfo=UTC))])
def test_first_sight_is_never_in_the_future(value: int, seen: datetime) -> None:
    of = delivery({FIRST_SEEN_MS: value})
    assert first_seen(of.message, NOW) == seen
    assert deadline_of(of, HOUR, NOW) == seen + HOUR


# --- which limit counts -----------------------------------------------------------------------


def test_without_any_limit_nothing_is_too_late() -> None:
    assert deadline_of(delivery(timestamp=0), None, NOW) is None


@pytest.mark.parametrize(("left", "max_age", "wanted"), [
    (10, 20, 10), (20, 10, 10), (10, 10, 10), (-5, 10, -5), (10, None, 10)])
def test_the_shorter_of_deadline_and_max_age_wins(
    left: float, max_age: float | None, wanted: float
) -> None:
    age = None if max_age is None else seconds(max_age)
    assert deadline_of(delivery(stated(seconds(left))), age, NOW) == NOW + seconds(wanted)


@pytest.mark.parametrize(("sent", "seen", "born"), [
    (-100.25, -50, -100.25), (-50.25, -100, -100), (None, -50, -50), (-50.25, None, -50.25),
    (None, None, 0), (3600, None, 0), (3600, -50, -50)])
def test_max_age_counts_from_the_earlier_of_timestamp_and_first_sight(
    sent: float | None, seen: float | None, born: float
) -> None:
    headers = {} if seen is None else {FIRST_SEEN_MS: epoch_ms(NOW + seconds(seen))}
    of = delivery(headers, None if sent is None else NOW + seconds(sent))
    assert deadline_of(of, HOUR, NOW) == NOW + seconds(born) + HOUR


def test_a_max_age_beyond_the_calendar_is_no_limit() -> None:
    assert deadline_of(delivery(), timedelta.max, NOW) is None


@pytest.mark.parametrize(("headers", "sent", "wanted"), [
    (stated(timeout=seconds(30)), None, 30),
    (stated(timeout=seconds(30)), -10.25, 20.75),  # the end of the timestamp's second
    (stated(timeout=seconds(0.5)), -0.25, 0.5),  # of this very second: not over before it began
    (stated(timeout=seconds(0.5)), -1.25, 0.25),
    (stated(timeout=seconds(30)), -100.25, -69.25),
    (stated(timeout=seconds(30)), 45, 30),
    (stated(timeout=seconds(0)), None, 0),
])
def test_a_timeout_alone_counts_from_the_earlier_of_timestamp_and_first_sight(
    headers: dict[str, Any], sent: float | None, wanted: float
) -> None:
    of = delivery(headers, None if sent is None else NOW + seconds(sent))
    assert deadline_of(of, None, NOW) == NOW + seconds(wanted)


@pytest.mark.parametrize(("deadline", "timeout", "wanted"), [
    (20, 30, 20),  # it waited ten seconds, or the producer's clock is behind: the shorter wins
    (-600, 30, -600),
    (30, 30, 30),
    (60, 30, 30),  # no publish comes after its first sight
    (90.001, 30, 30), (3600, 30, 30), (10**9, 30, 30),
])
def test_the_shorter_of_deadline_and_timeout_wins(
    deadline: float, timeout: float, wanted: float
) -> None:
    of = delivery(stated(seconds(deadline), seconds(timeout)))
    assert deadline_of(of, None, NOW) == NOW + seconds(wanted)


# --- clocks that disagree -------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead", "headers", "wanted"), [
    (59.75, stated(seconds(89.75)), 89.75),  # up to a minute is believed
    (60.75, stated(seconds(90.75)), 30),
    (600.75, stated(seconds(630.75)), 30),
    (600.75, stated(seconds(630.75), seconds(20)), 20),  # a duration needs no clock
    (600.75, stated(seconds(-5), seconds(20)), 20),
    (600.75, stated(timeout=seconds(20)), 20),
    (600.75, stated(seconds(590.75)), -10),
])
def test_a_producer_ahead_by_over_a_minute_is_not_believed_its_times(
    ahead: float, headers: dict[str, Any], wanted: float
) -> None:
    assert deadline_of(delivery(headers, NOW + seconds(ahead)), None, NOW) == NOW + seconds(wanted)


def test_skew_is_measured_at_first_sight_and_not_at_each_copy() -> None:
    """Else a copy that comes when the producer's hour has struck would have another deadline."""
    sent = NOW + seconds(600.75)
    first = delivery(stated(seconds(630.75)), sent)
    copy = delivery({**stated(seconds(630.75)), FIRST_SEEN_MS: epoch_ms(NOW)}, sent)
    assert deadline_of(first, None, NOW) == NOW + seconds(30)
    assert deadline_of(copy, None, NOW + seconds(620)) == NOW + seconds(30)


@pytest.mark.parametrize("timestamp", [
    253_402_300_799, 253_402_300_799_000, 2**62, 2**64 - 1, 253_402_300_800])
def test_a_timestamp_of_any_size_leaves_a_deadline_that_is_no_later(timestamp: int) -> None:
    found = deadline_of(delivery(stated(seconds(30)), timestamp), HOUR, NOW)
    assert found is not None
    assert found <= NOW + seconds(30)


def test_a_timestamp_in_milliseconds_is_read_as_one() -> None:
    of = delivery(stated(timeout=seconds(30)), epoch_ms(NOW - seconds(20)))
    assert deadline_of(of, None, NOW) == NOW + seconds(11)


# --- replays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [
    stated(seconds(-600)), stated(seconds(5), seconds(5)), stated(timeout=seconds(1)), {}])
@pytest.mark.parametrize("timestamp", [None, NOW - 100 * HOUR, NOW + HOUR])
def test_a_replay_drops_the_producers_deadline_and_restarts_max_age(
    headers: dict[str, Any], timestamp: datetime | None
) -> None:
    of = delivery(headers, timestamp, Lane.REPLAY)
    assert deadline_of(of, None, NOW) is None
    assert deadline_of(of, HOUR, NOW) == NOW + HOUR


def test_a_copy_in_the_replay_lane_counts_from_the_first_sight_there() -> None:
    of = delivery({FIRST_SEEN_MS: epoch_ms(NOW - seconds(90))}, NOW - 100 * HOUR, Lane.REPLAY)
    assert deadline_of(of, HOUR, NOW) == NOW - seconds(90) + HOUR


# --- what is told on ------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "milliseconds"), [
    (seconds(1.5), 1500), (timedelta(microseconds=1999), 1), (timedelta(microseconds=999), 0),
    (timedelta(0), 0), (seconds(-1), 0), (timedelta(days=36_525), 36_525 * 86_400_000)])
def test_timeout_headers_round_down_and_are_never_negative(
    left: timedelta, milliseconds: int
) -> None:
    assert timeout_headers(left, NOW) == {
        "x-deadline-ms": str(epoch_ms(NOW) + milliseconds), "x-timeout-ms": str(milliseconds)}


def test_timeout_headers_are_read_back_as_no_later_than_what_was_left() -> None:
    told = delivery(dict(timeout_headers(seconds(1.5), NOW)), NOW)
    assert deadline_of(told, None, NOW) == NOW + seconds(1.5)


@pytest.mark.parametrize(("deadline", "headers"), [
    (NOW + seconds(2), {DEADLINE_MS: 1_777_636_802_250, TIMEOUT_MS: 2000}),
    (NOW - seconds(2), {DEADLINE_MS: 1_777_636_798_250, TIMEOUT_MS: 0}),
    (datetime(1969, 7, 20, tzinfo=UTC), {DEADLINE_MS: 0, TIMEOUT_MS: 0}),
    (NOW + timedelta(microseconds=2_000_999), {DEADLINE_MS: 1_777_636_802_250, TIMEOUT_MS: 2000})])
def test_a_deadline_is_stated_as_time_and_duration(
    deadline: datetime, headers: dict[str, int]
) -> None:
    assert stamps(deadline, NOW) == headers


@pytest.mark.parametrize(("left", "wanted"), [
    (timedelta(0), "1n"), (seconds(-1), "1n"), (timedelta.min, "1n"),
    (timedelta(microseconds=1), "1u"), (seconds(1), "1000000u"), (seconds(99.999999), "99999999u"),
    (seconds(100), "100000m"), (seconds(100) + timedelta(microseconds=999), "100000m"),
    (timedelta(milliseconds=99_999_999), "99999999m"),
    (timedelta(milliseconds=100_000_000), "100000S"), (seconds(99_999_999), "99999999S"),
    (seconds(100_000_000), "1666666M"), (timedelta(minutes=99_999_999), "99999999M"),
    (timedelta(minutes=100_000_000), "1666666H"), (timedelta.max, "99999999H")])
def test_a_grpc_timeout_has_eight_digits_at_most_and_rounds_down(
    left: timedelta, wanted: str
) -> None:
    assert grpc_timeout(left) == wanted
