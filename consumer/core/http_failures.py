"""What the exceptions of httpx, aiohttp and requests tell, without importing any of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from consumer.core.retry_after import delta_seconds, retry_after


@dataclass(frozen=True, slots=True)
class Hint:
    """What an exception tells by its type and attributes.

    Args:
        again: Whether trying again can help; None where it does not tell.
        reason: Why, for people.
        retry_after: Shortest wait that the response asked for.
    """

    again: bool | None
    reason: str
    retry_after: timedelta = timedelta(0)


class _Tells(Enum):
    """What a class of exception tells."""

    STATUS = auto()
    """It carries a response, whose status tells."""
    BROKEN = auto()
    """Connection, time, or a response that broke off."""
    UNSENDABLE = auto()
    """The request can never be sent as it is."""
    NOTHING = auto()


# By top-level package and class; the most specific class counts. Where a redirect leads is the
# server's doing, so a bad address there is not the request's fault.
_CLASSES: Mapping[str, Mapping[str, _Tells]] = {
    "httpx": {
        "HTTPStatusError": _Tells.STATUS, "TransportError": _Tells.BROKEN,
        "UnsupportedProtocol": _Tells.UNSENDABLE, "InvalidURL": _Tells.UNSENDABLE,
        "HTTPError": _Tells.NOTHING,
    },
    "aiohttp": {
        "ClientResponseError": _Tells.STATUS, "ClientConnectionError": _Tells.BROKEN,
        "ClientPayloadError": _Tells.BROKEN, "InvalidURL": _Tells.UNSENDABLE,
        "NonHttpUrlClientError": _Tells.UNSENDABLE,
        "InvalidUrlRedirectClientError": _Tells.NOTHING,
        "NonHttpUrlRedirectClientError": _Tells.NOTHING, "ClientError": _Tells.NOTHING,
    },
    "requests": {
        "HTTPError": _Tells.STATUS, "ConnectionError": _Tells.BROKEN, "Timeout": _Tells.BROKEN,
        "ChunkedEncodingError": _Tells.BROKEN, "RetryError": _Tells.BROKEN,
        "MissingSchema": _Tells.UNSENDABLE, "InvalidSchema": _Tells.UNSENDABLE,
        "InvalidURL": _Tells.UNSENDABLE, "InvalidHeader": _Tells.UNSENDABLE,
        "URLRequired": _Tells.UNSENDABLE, "InvalidJSONError": _Tells.UNSENDABLE,
        "StreamConsumedError": _Tells.UNSENDABLE, "UnrewindableBodyError": _Tells.UNSENDABLE,
        "JSONDecodeError": _Tells.NOTHING, "RequestException": _Tells.NOTHING,
    },
}

# RFC 9110, section 15; RFC 6585 for 429 and 431; RFC 8470 for 425.
_TRY_AGAIN = frozenset({408, 425, 429, 502, 503, 504})
_NEVER = frozenset({400, 405, 406, 410, 411, 413, 414, 415, 417, 422, 431, 501, 505})
_TEMPORARY_IF_IT_SAYS_WHEN = 413  # RFC 9110, section 15.5.14


def http_failure(error: BaseException, *, now: datetime | None) -> Hint | None:
    """What `error` itself tells, or None where it comes from none of the three clients.

    Attributes are read defensively: none may be missing or of another type and raise here.

    Args:
        now: Wall clock, for a `Retry-After` that is a date; without it only seconds are read.
    """
    for package, name in ancestry(error):
        tells = _CLASSES.get(package, {}).get(name)
        if tells is None:
            continue
        if tells is _Tells.STATUS:
            return _by_status(error, package, now)
        kind = type(error).__name__
        if tells is _Tells.BROKEN:
            return Hint(True, f"{kind} of {package} is a failure of connection or time")
        if tells is _Tells.UNSENDABLE:
            return Hint(False, f"{kind} of {package} is a request that cannot be sent")
        return Hint(None, f"{kind} of {package} does not tell whether it will pass")
    return None


def ancestry(error: BaseException) -> Iterator[tuple[str, str]]:
    """Top-level package and name of the error's class and of those it derives from, in order."""
    for kind in type(error).__mro__:
        yield str(kind.__module__).partition(".")[0], kind.__name__


def read(owner: object, name: str) -> object:
    """An attribute of something unknown; None where it is missing or raises."""
    try:
        return getattr(owner, name, None)
    except Exception:
        return None


def _by_status(error: BaseException, package: str, now: datetime | None) -> Hint:
    response = read(error, "response")
    source = error if response is None else response  # a response of requests can be false
    status = _status(source)
    if status is None:
        return Hint(None, f"{type(error).__name__} of {package} has no status")
    asked = _asked(source, status, now)
    wait = asked or timedelta(0)
    what = f"HTTP {status}"
    if status in _TRY_AGAIN or (status == _TEMPORARY_IF_IT_SAYS_WHEN and asked is not None):
        return Hint(True, f"{what} can pass", wait)
    if status in _NEVER:
        return Hint(False, f"{what} means that this request can never succeed")
    return Hint(None, f"{what} does not tell whether it will pass", wait)


def _status(source: object) -> int | None:
    for name in ("status_code", "status"):
        status = read(source, name)
        if isinstance(status, int):
            return int(status)
        text = (_text(status) or "").strip()
        if len(text) == 3 and text.isascii() and text.isdigit():
            return int(text)
    return None


def _asked(source: object, status: int, now: datetime | None) -> timedelta | None:
    """The wait that a response asks for; one that reports a success asks for none."""
    if status < 300:
        return None
    headers = read(source, "headers")
    value = _header(headers, "retry-after")
    if now is None:
        return delta_seconds(value)
    return retry_after(value, now=now, date=_header(headers, "date"))


def _header(headers: object, name: str) -> str | None:
    """The first field of that name in a mapping or in a list of pairs, whatever its case."""
    items = read(headers, "items")
    try:
        pairs: Any = items() if callable(items) else headers
        for key, value in pairs:
            if (_text(key) or "").lower() == name:
                return _text(value)
    except Exception:
        return None
    return None


def _text(value: object) -> str | None:
    """Text, given as such, as bytes, or as the first of a list of either."""
    if isinstance(value, list | tuple) and value:
        value = value[0]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else None
