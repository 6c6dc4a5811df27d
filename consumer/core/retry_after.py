"""The field `Retry-After` of an HTTP response as a wait (RFC 9110, section 10.2.3)."""

import re
from datetime import UTC, datetime, timedelta

LONGEST_WAIT = timedelta(days=36_525)
"""A hundred years: longer waits are cut to it, numbers that no timedelta can hold included."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY, _FULL_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)", "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"

# RFC 9110, section 5.6.7: the form to write, and the two obsolete ones that must still be read.
# `strptime` would read the names of the process's locale.
_FORMS = (
    re.compile(f"{_DAY}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    re.compile(f"{_FULL_DAY}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    re.compile(f"{_DAY} {_MONTH} (?P<day>[ 0-9][0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)


def retry_after(
    value: str | None, *, now: datetime, date: str | None = None
) -> timedelta | None:
    """The wait that a value of `Retry-After` asks for, from 0 to `LONGEST_WAIT`.

    A date is a wait from the response's own `Date`, so that a clock that is wrong on either side
    changes nothing; where there is none, or none that can be read, it is a wait from `now`. What
    lies in the past is no wait.

    Args:
        value: The field, or None where the response has none.
        now: Wall clock, with a time zone.
        date: The field `Date` of the same response.

    Returns:
        None where `value` is neither a number of seconds nor a date. Never raises.
    """
    seconds = delta_seconds(value)
    if seconds is not None:
        return seconds
    until = _http_date(value, now)
    if until is None:
        return None
    return min(max(until - (_http_date(date, now) or now), timedelta(0)), LONGEST_WAIT)


def delta_seconds(value: str | None) -> timedelta | None:
    """The wait of a value that is a number of seconds, or None. At most `LONGEST_WAIT`."""
    if not isinstance(value, str):
        return None
    digits = value.strip(" \t")
    if not re.fullmatch("[0-9]+", digits):
        return None
    significant = digits.lstrip("0") or "0"
    if len(significant) > len("3155760000"):  # int() refuses thousands of digits
        return LONGEST_WAIT
    return min(timedelta(seconds=int(significant)), LONGEST_WAIT)


def _http_date(value: str | None, now: datetime) -> datetime | None:
    """The time that an HTTP-date names, or None. Its day of the week is not checked."""
    if not isinstance(value, str):
        return None
    for form in _FORMS:
        match = form.fullmatch(value.strip(" \t"))
        if match is not None:
            return _time(match, now)
    return None


def _time(match: re.Match[str], now: datetime) -> datetime | None:
    month = _MONTHS.index(match["month"]) + 1
    day, hour, minute, second = (int(match[name]) for name in ("day", "hour", "minute", "second"))
    year = int(match["year"])
    if len(match["year"]) == 2:
        year = _full_year(year, (month, day, hour, minute, second), now.astimezone(UTC))
    leap = timedelta(seconds=1 if second == 60 else 0)  # datetime knows no leap seconds
    try:
        return datetime(year, month, day, hour, minute, second - leap.seconds, tzinfo=UTC) + leap
    except (ValueError, OverflowError):
        return None


def _full_year(short: int, rest: tuple[int, int, int, int, int], now: datetime) -> int:
    """The latest year of those two digits that makes a time at most 50 years after `now`."""
    latest = (now.year + 50, now.month, now.day, now.hour, now.minute, now.second)
    year = (now.year // 100 + 1) * 100 + short
    while (year, *rest) > latest:
        year -= 100
    return year
