"""`Retry-After`, in all the forms that RFC 9110 knows and some that it does not."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from consumer.core.retry_after import LONGEST_WAIT, delta_seconds, retry_after

NOW = datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC)
IMF, RFC_850, ASCTIME = (
    "Sun, 06 Nov 1994 08:50:37 GMT", "Sunday, 06-Nov-94 08:50:37 GMT", "Sun Nov  6 08:50:37 1994")


# Values of linkerd's tests; its cap of 300 s is the policy's, and tested where that decides.
@pytest.mark.parametrize(("value", "seconds"), [
    ("120", 120), ("0", 0), ("3600", 3600), (None, None), ("not-a-number", None),
    (" 120", 120), ("120 ", 120),
    ("Sun, 06 Nov 1994 08:48:37 GMT", 0),       # past
    ("Sun, 06 Nov 1994 08:50:37 GMT", 60),      # future
    ("Sun, 06 Nov 1994 08:59:37 GMT", 600),
])
def test_the_values_of_linkerd(value: str | None, seconds: int | None) -> None:
    assert retry_after(value, now=NOW) == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize("value", [IMF, RFC_850, ASCTIME, f" {IMF}\t"])
def test_a_date_is_read_in_each_of_its_three_forms(value: str) -> None:
    assert retry_after(value, now=NOW) == timedelta(minutes=1)


@pytest.mark.parametrize("month", [
    (1, "Jan"), (2, "Feb"), (3, "Mar"), (4, "Apr"), (5, "May"), (6, "Jun"), (7, "Jul"), (8, "Aug"),
    (9, "Sep"), (10, "Oct"), (11, "Nov"), (12, "Dec")])
def test_each_month_has_its_name(month: tuple[int, str]) -> None:
    number, name = month
    wait = datetime(1995, number, 28, tzinfo=UTC) - NOW
    assert retry_after(f"Tue, 28 {name} 1995 00:00:00 GMT", now=NOW) == wait
    assert retry_after(f"Tuesday, 28-{name}-95 00:00:00 GMT", now=NOW) == wait
    assert retry_after(f"Tue {name} 28 00:00:00 1995", now=NOW) == wait


@pytest.mark.parametrize(("date", "seconds"), [
    ("Sun, 06 Nov 1994 08:50:27 GMT", 10),          # its clock is ahead of ours
    ("Sunday, 06-Nov-94 08:50:27 GMT", 10),
    ("Sun Nov  6 08:50:27 1994", 10),
    ("Sun, 06 Nov 1994 07:50:37 GMT", 3600),        # behind
    ("Sun, 06 Nov 1994 08:50:37 GMT", 0), ("Sun, 06 Nov 1994 08:50:38 GMT", 0),
    ("yesterday", 60), ("", 60), ("60", 60), (None, 60),
])
def test_a_date_is_compared_with_that_of_the_response_if_it_has_one(
    date: str | None, seconds: int
) -> None:
    assert retry_after(IMF, now=NOW, date=date) == timedelta(seconds=seconds)


def test_the_date_of_the_response_does_not_change_a_number_of_seconds() -> None:
    assert retry_after("7", now=NOW, date=IMF) == timedelta(seconds=7)


@pytest.mark.parametrize("value", [
    "", " ", "-1", "-120", "+5", "1.5", "5.0", "1e3", "0x10", "1_000", "5s", "5, 10", "\u0665", "²",
    "5\n", "\n5", "5\x00", "inf", "NaN", "Infinity",
    "Sun, 06 Nov 1994 08:50:37", "Sun, 06 Nov 1994 08:50:37 CET", "Sun, 6 Nov 1994 08:50:37 GMT",
    "sun, 06 nov 1994 08:50:37 gmt", "Son, 06 Nov 1994 08:50:37 GMT",
    "Sun, 31 Feb 1995 08:50:37 GMT", "Sun, 00 Nov 1994 08:50:37 GMT",
    "Sun, 06 Nov 1994 24:00:00 GMT", "Sun, 06 Nov 1994 08:60:00 GMT",
    "Sun, 06 Nov 1994 08:50:61 GMT", "Sun, 06 Nov 0000 08:50:37 GMT",
    "Sun, 06 Nov 94 08:50:37 GMT", "Sun, 06-Nov-94 08:50:37 GMT", "Sun Nov    08:50:37 1994",
    "1994-11-06T08:50:37Z", "Sun, 06 Nov \u0661\u0669\u0669\u0664 08:50:37 GMT",
])
def test_garbage_asks_for_nothing(value: str) -> None:
    assert retry_after(value, now=NOW) is None


@pytest.mark.parametrize("value", [b"120", ["120"], 120, 1.5, object(), {}])
def test_what_is_no_text_asks_for_nothing(value: Any) -> None:
    assert retry_after(value, now=NOW) is None
    assert retry_after(IMF, now=NOW, date=value) == timedelta(minutes=1)


@pytest.mark.parametrize(("value", "wait"), [
    ("3155759999", LONGEST_WAIT - timedelta(seconds=1)), ("3155760000", LONGEST_WAIT),
    ("3155760001", LONGEST_WAIT), ("9" * 10, LONGEST_WAIT), ("9" * 30, LONGEST_WAIT),
    ("9" * 10_000, LONGEST_WAIT), ("0" * 10_000, timedelta(0)),
    ("0" * 10_000 + "5", timedelta(seconds=5)), ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_WAIT),
])
def test_a_huge_wait_is_cut_to_the_longest(value: str, wait: timedelta) -> None:
    assert retry_after(value, now=NOW) == wait


def test_a_leap_second_is_the_start_of_the_next_minute() -> None:
    now = datetime(2016, 12, 31, 23, 59, 0, tzinfo=UTC)
    assert retry_after("Sat, 31 Dec 2016 23:59:60 GMT", now=now) == timedelta(minutes=1)
    assert retry_after("Fri, 31 Dec 9999 23:59:60 GMT", now=now) is None


# RFC 9110, section 5.6.7: what seems more than 50 years ahead is the last such year in the past.
@pytest.mark.parametrize(("year", "short", "meant"), [
    (1994, "94", 1994), (1994, "95", 1995), (1994, "43", 2043), (1994, "45", 1945),
    (2026, "75", 2075), (2026, "77", 1977), (2026, "26", 2026), (2099, "00", 2100)])
def test_two_digits_are_a_year_at_most_fifty_years_ahead(
    year: int, short: str, meant: int
) -> None:
    now = datetime(year, 1, 1, tzinfo=UTC)
    wait = retry_after(f"Monday, 01-Jun-{short} 00:00:00 GMT", now=now)
    assert wait == max(datetime(meant, 6, 1, tzinfo=UTC) - now, timedelta(0))


@pytest.mark.parametrize(("second", "future"), [(37, True), (38, False)])
def test_fifty_years_are_counted_to_the_second(second: int, future: bool) -> None:
    wait = retry_after(f"Sunday, 06-Nov-44 08:49:{second} GMT", now=NOW)
    assert (wait is not None and wait > timedelta(0)) is future


def test_a_clock_of_another_time_zone_tells_the_same_time() -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=-9)))
    for value in (IMF, RFC_850, ASCTIME):
        assert retry_after(value, now=elsewhere) == timedelta(minutes=1)
    new_year = datetime(1995, 1, 1, 8, 30, tzinfo=UTC)  # there it is still 1994
    in_fifty_years = retry_after("Sunday, 01-Jan-45 08:00:00 GMT", now=new_year.astimezone(
        elsewhere.tzinfo))
    assert in_fifty_years == datetime(2045, 1, 1, 8, tzinfo=UTC) - new_year


def test_without_a_clock_a_date_is_no_number_of_seconds() -> None:
    assert delta_seconds(IMF) is None
    assert delta_seconds("\t5 ") == timedelta(seconds=5)
