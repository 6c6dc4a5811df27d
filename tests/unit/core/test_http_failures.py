"""What the exceptions of HTTP clients tell, the real ones and odd ones."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import pytest
import requests
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from consumer.core.http_failures import Hint, ancestry, http_failure, read

NOW = datetime(2026, 1, 1, tzinfo=UTC)
IN_A_MINUTE = "Thu, 01 Jan 2026 00:01:00 GMT"
REQUEST = httpx.Request("POST", "https://psp.example/charges")
Make = Callable[[int, dict[str, str]], BaseException]


def of_httpx(status: int, headers: dict[str, str]) -> BaseException:
    response = httpx.Response(status, headers=headers, request=REQUEST)
    return httpx.HTTPStatusError("refused", request=REQUEST, response=response)


def of_aiohttp(status: int, headers: dict[str, str]) -> BaseException:
    info = aiohttp.RequestInfo(URL("https://psp.example"), "POST", CIMultiDictProxy(CIMultiDict()))
    return aiohttp.ClientResponseError(info, (), status=status, headers=CIMultiDict(headers))


def of_requests(status: int, headers: dict[str, str]) -> BaseException:
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    try:
        response.raise_for_status()
    except requests.HTTPError as error:
        return error
    return requests.HTTPError("refused", response=response)


CLIENTS = pytest.mark.parametrize("make", [of_httpx, of_aiohttp, of_requests])


def tells(error: BaseException, now: datetime | None = NOW) -> Hint:
    hint = http_failure(error, now=now)
    assert hint is not None
    assert hint.reason
    return hint


@CLIENTS
@pytest.mark.parametrize(("status", "again"), [
    *((status, True) for status in (408, 425, 429, 502, 503, 504)),
    *((status, False) for status in (400, 405, 406, 410, 411, 413, 414, 415, 417, 422, 431, 501,
                                     505)),
    *((status, None) for status in (200, 301, 304, 401, 402, 403, 404, 407, 409, 412, 416, 418,
                                    421, 423, 424, 428, 451, 500, 506, 507, 508, 511, 520, 599)),
])
def test_the_status_tells(make: Make, status: int, again: bool | None) -> None:
    hint = tells(make(status, {}))
    assert (hint.again, hint.retry_after) == (again, timedelta(0))
    assert f"HTTP {status}" in hint.reason


@CLIENTS
@pytest.mark.parametrize("status", [408, 425, 429, 502, 503, 504, 500, 403, 301])
@pytest.mark.parametrize(("headers", "seconds"), [
    ({"Retry-After": "120"}, 120), ({"retry-after": "120"}, 120), ({"RETRY-AFTER": " 7 "}, 7),
    ({"Retry-After": IN_A_MINUTE}, 60),
    ({"Retry-After": IN_A_MINUTE, "Date": "Thu, 01 Jan 2026 00:00:50 GMT"}, 10),
    ({"Retry-After": "soon"}, 0), ({"Retry-After": "-5"}, 0), ({"X-Retry-After": "5"}, 0),
])
def test_a_response_that_says_when_is_taken_at_its_word(
    make: Make, status: int, headers: dict[str, str], seconds: int
) -> None:
    assert tells(make(status, headers)).retry_after == timedelta(seconds=seconds)


@CLIENTS
def test_a_success_that_says_when_asks_for_nothing(make: Make) -> None:
    assert tells(make(200, {"Retry-After": "120"})).retry_after == timedelta(0)


@CLIENTS
def test_content_too_large_is_temporary_if_it_says_until_when(make: Make) -> None:
    assert tells(make(413, {"Retry-After": "0"})).again is True
    hint = tells(make(413, {"Retry-After": "60"}))
    assert (hint.again, hint.retry_after) == (True, timedelta(minutes=1))
    assert tells(make(413, {"Retry-After": "soon"})).again is False


@CLIENTS
def test_without_a_clock_only_seconds_are_read(make: Make) -> None:
    assert tells(make(503, {"Retry-After": "5"}), now=None).retry_after == timedelta(seconds=5)
    assert tells(make(503, {"Retry-After": IN_A_MINUTE}), now=None).retry_after == timedelta(0)


@pytest.mark.parametrize("error", [
    httpx.TransportError("x"), httpx.ConnectError("x"), httpx.ReadError("x"), httpx.WriteError("x"),
    httpx.CloseError("x"), httpx.ConnectTimeout("x"), httpx.ReadTimeout("x"),
    httpx.WriteTimeout("x"), httpx.PoolTimeout("x"), httpx.RemoteProtocolError("x"),
    httpx.ProxyError("x"),
    aiohttp.ClientConnectionError(), aiohttp.ClientOSError(111, "x"), aiohttp.ServerTimeoutError(),
    aiohttp.ServerDisconnectedError(), aiohttp.SocketTimeoutError(),
    aiohttp.ConnectionTimeoutError(), aiohttp.ClientPayloadError(),
    aiohttp.ClientConnectionResetError(),
    requests.ConnectionError(), requests.Timeout(), requests.ConnectTimeout(),
    requests.ReadTimeout(), requests.exceptions.SSLError(), requests.exceptions.ProxyError(),
    requests.exceptions.ChunkedEncodingError(), requests.exceptions.RetryError(),
], ids=repr)
def test_connection_and_time_can_be_better_later(error: Exception) -> None:
    assert tells(error).again is True


@pytest.mark.parametrize("error", [
    httpx.InvalidURL("x"), httpx.UnsupportedProtocol("x"),
    aiohttp.InvalidURL("x"), aiohttp.InvalidUrlClientError("x"),
    aiohttp.NonHttpUrlClientError("x"),
    requests.exceptions.MissingSchema(), requests.exceptions.InvalidSchema(),
    requests.exceptions.InvalidURL(), requests.exceptions.InvalidProxyURL(),
    requests.exceptions.InvalidHeader(), requests.URLRequired(),
    requests.exceptions.InvalidJSONError(), requests.exceptions.StreamConsumedError(),
    requests.exceptions.UnrewindableBodyError(),
], ids=repr)
def test_a_request_that_cannot_be_sent_never_can(error: Exception) -> None:
    assert tells(error).again is False


@pytest.mark.parametrize("error", [
    httpx.DecodingError("x"), httpx.TooManyRedirects("x"),
    aiohttp.ClientError(), aiohttp.InvalidUrlRedirectClientError("x"),
    aiohttp.NonHttpUrlRedirectClientError("x"), aiohttp.RedirectClientError("x"),
    requests.RequestException(), requests.TooManyRedirects(),
    requests.exceptions.ContentDecodingError(), requests.JSONDecodeError("x", "", 0),
    requests.HTTPError(), requests.HTTPError(response=None),
], ids=repr)
def test_the_others_of_a_client_do_not_tell(error: Exception) -> None:
    assert tells(error).again is None


@pytest.mark.parametrize("error", [
    Exception(), OSError(), ConnectionError(), TimeoutError(), ValueError(), KeyError(),
    type("HTTPStatusError", (Exception,), {"__module__": "shop.httpx"})(),
    type("HTTPStatusError", (Exception,), {"__module__": "httpx2"})(),
    type("HTTPError", (Exception,), {"__module__": "urllib.error"})(),
], ids=repr)
def test_other_exceptions_are_none_of_them(error: Exception) -> None:
    assert http_failure(error, now=NOW) is None


def test_an_own_class_is_what_its_base_is() -> None:
    own = type("ChargeFailed", (httpx.HTTPStatusError,), {"__module__": "shop.psp"})
    error = own("x", request=REQUEST, response=httpx.Response(503, headers={"Retry-After": "5"}))
    assert tells(error) == Hint(True, "HTTP 503 can pass", timedelta(seconds=5))


# --- odd attributes -------------------------------------------------------------------------------


def odd(**attributes: Any) -> Exception:
    error = type("HTTPError", (Exception,), {"__module__": "requests.exceptions"})()
    vars(error).update(attributes)
    return error


def answer(status: Any, headers: Any = None) -> SimpleNamespace:
    return SimpleNamespace(status_code=status, headers=headers)


@pytest.mark.parametrize("status", [
    "503", " 503 ", b"503", ["503"], HTTPStatus.SERVICE_UNAVAILABLE])
def test_a_status_that_is_nearly_a_number_is_read(status: Any) -> None:
    assert tells(odd(response=answer(status))).again is True


@pytest.mark.parametrize("status", [
    None, "", "5O3", "\u0665\u0660\u0663", "5030", 503.0, object(), [], "503 Not Now"])
def test_a_status_that_is_none_tells_nothing(status: Any) -> None:
    hint = tells(odd(response=answer(status, {"Retry-After": "5"})))
    assert (hint.again, hint.retry_after) == (None, timedelta(0))


@pytest.mark.parametrize("headers", [
    {"Retry-After": "5"}, {b"Retry-After": b"5"}, {"retry-after": ["5", "9"]},
    {"Retry-After": (b"5",)}, [("Retry-After", "5")], [(b"retry-after", b"5")],
    {None: "x", 7: "y", "Retry-After": "5"}])
def test_headers_are_read_in_whatever_they_come(headers: Any) -> None:
    assert tells(odd(response=answer(503, headers))).retry_after == timedelta(seconds=5)


@pytest.mark.parametrize("headers", [
    None, {}, [], "Retry-After: 5", 7, object(), [1, 2], [("Retry-After",)], {"Retry-After": None},
    {"Retry-After": []}, {"Retry-After": 5}, {"Retry-After": b"\xff"}, {"Retry-After": {}},
    SimpleNamespace(items="no"), SimpleNamespace(items=lambda: 1 / 0)])
def test_headers_that_say_nothing_ask_for_nothing(headers: Any) -> None:
    hint = tells(odd(response=answer(503, headers)))
    assert (hint.again, hint.retry_after) == (True, timedelta(0))


class Hostile(Exception):
    """Every attribute of it raises."""

    @property
    def response(self) -> object:
        raise RuntimeError("no response was read")

    status = status_code = headers = sqlstate = pgcode = orig = response


Hostile.__module__, Hostile.__name__ = "httpx", "HTTPStatusError"


def test_properties_that_raise_tell_nothing() -> None:
    assert tells(Hostile()).again is None
    assert tells(odd(response=Hostile())).again is None
    assert read(Hostile(), "response") is None


def test_the_ancestry_is_told_by_package_most_specific_first() -> None:
    assert list(ancestry(httpx.ReadTimeout("x")))[:3] == [
        ("httpx", "ReadTimeout"), ("httpx", "TimeoutException"), ("httpx", "TransportError")]


def test_no_client_is_imported_to_recognise_its_exceptions() -> None:
    code = ("import sys, consumer.core.classify;"
            "sys.exit(bool({'httpx', 'aiohttp', 'requests'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
