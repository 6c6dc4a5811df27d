"""Health checks answer over HTTP, whatever the event loop does."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import structlog

from consumer.errors import ConfigurationError
from consumer.telemetry.metrics import Metrics
from consumer.worker.health import Health


class Clock:
    """Monotonic time that moves when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Iterator[Health]:
    health = Health(hang_after=timedelta(seconds=30), clock=clock)
    health.start()
    yield health
    health.stop()


def ask(health: Health, path: str, method: str = "GET") -> tuple[int, Any, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", health.port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if body else None, answer.headers
    finally:
        connection.close()


def test_live_until_the_last_beat_is_too_old(health: Health, clock: Clock) -> None:
    clock.now_s += 30
    assert ask(health, "/live")[0] == 200
    clock.now_s += 0.5
    status, body, _ = ask(health, "/live")
    assert (status, body) == (503, {"live": False, "seconds_since_beat": 30.5})
    health.beat()
    assert ask(health, "/live")[:2] == (200, {"live": True, "seconds_since_beat": 0.0})


def test_not_ready_before_anything_was_said(health: Health) -> None:
    assert ask(health, "/ready")[:2] == (503, {"ready": False, "reasons": {"start": "starting"}})


def test_ready_when_every_named_condition_holds(health: Health) -> None:
    health.set_ready("database", None)
    assert ask(health, "/ready")[:2] == (200, {"ready": True, "reasons": {}})
    health.set_ready("broker", "not connected")
    health.set_ready("consumers", "not consuming payments")
    assert ask(health, "/ready")[:2] == (503, {"ready": False, "reasons": {
        "broker": "not connected", "consumers": "not consuming payments"}})
    health.set_ready("broker", None)
    assert ask(health, "/ready")[0] == 503
    health.set_ready("consumers", None)
    assert ask(health, "/ready")[0] == 200


def test_a_hung_event_loop_is_not_ready(health: Health, clock: Clock) -> None:
    health.set_ready("database", None)
    clock.now_s += 31
    status, body, _ = ask(health, "/ready")
    assert (status, body["reasons"]) == (503, {"event_loop": "no beat for 31.0 s"})


async def test_a_blocked_event_loop_does_not_keep_the_answer(health: Health) -> None:
    """This very coroutine blocks the loop until the answer is there."""
    assert ask(health, "/live")[0] == 200


def test_head_has_the_status_without_the_body(health: Health) -> None:
    status, body, headers = ask(health, "/ready?verbose=1", "HEAD")
    assert (status, body) == (503, None)
    assert int(headers["Content-Length"]) > 0


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/", 404), ("HEAD", "/metrics", 404), ("GET", "/live/x", 404), ("POST", "/live", 501)])
def test_anything_else_is_refused_in_json(
    health: Health, method: str, path: str, status: int
) -> None:
    found, body, headers = ask(health, path, method)
    assert found == status
    assert headers["Content-Type"] == "application/json"
    assert body is None or list(body) == ["error"]


def scrape(health: Health, method: str = "GET") -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", health.port, timeout=10)
    try:
        connection.request(method, "/metrics")
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def measured(metrics: Metrics) -> Iterator[Health]:
    health = Health(metrics=metrics.render)
    health.start()
    yield health
    health.stop()


def test_metrics_are_answered_as_they_are_now(measured: Health, metrics: Metrics) -> None:
    for n in (1, 2):
        metrics.original("pay")
        status, body, headers = scrape(measured)
        assert (status, headers["Content-Type"]) == (200, metrics.render()[1])
        assert f'consumer_originals_total{{handler="pay"}} {n}.0\n'.encode() in body
        assert int(headers["Content-Length"]) == len(body)


def test_head_of_metrics_has_no_body(measured: Health, metrics: Metrics) -> None:
    status, body, headers = scrape(measured, "HEAD")
    assert (status, body, headers["Content-Type"]) == (200, b"", metrics.render()[1])
    assert int(headers["Content-Length"]) > 0


def test_where_there_are_metrics_a_wrong_path_is_told_of_them(measured: Health) -> None:
    assert ask(measured, "/metric")[:2] == (
        404, {"error": "only /live, /ready and /metrics are here"})
    assert ask(measured, "/live")[0] == 200


async def test_metrics_are_answered_while_the_event_loop_is_blocked(measured: Health) -> None:
    """This very coroutine blocks the loop until the answer is there."""
    assert scrape(measured)[0] == 200


def test_metrics_that_fail_are_logged_and_tell_the_client_nothing() -> None:
    def broken() -> tuple[bytes, str]:
        raise ValueError("s3cret")

    health = Health(metrics=broken)
    health.start()
    try:
        with structlog.testing.capture_logs() as events:
            status, body, headers = ask(health, "/metrics")
            assert ask(health, "/live")[0] == 200
    finally:
        health.stop()
    assert (status, body) == (500, {"error": "the metrics cannot be rendered"})
    assert headers["Content-Type"] == "application/json"
    assert [(event["event"], event["log_level"]) for event in events] == [
        ("metrics_failed", "error")]


def test_metrics_are_scraped_while_they_are_recorded(measured: Health, metrics: Metrics) -> None:
    ended = threading.Event()

    def record() -> None:
        number = 0
        while not ended.is_set():
            metrics.original(f"h{number % 500}")
            number += 1

    writer = threading.Thread(target=record)
    writer.start()
    try:
        assert {scrape(measured)[0] for _ in range(10)} == {200}
    finally:
        ended.set()
        writer.join()


def test_reasons_hold_no_secrets(health: Health) -> None:
    health.set_ready("broker", "cannot reach amqp://app:s3cret@rabbit/")
    assert "s3cret" not in json.dumps(ask(health, "/ready")[1])


def test_requests_are_not_logged(health: Health, capfd: pytest.CaptureFixture[str]) -> None:
    ask(health, "/live")
    ask(health, "/nothing")
    assert capfd.readouterr() == ("", "")


def test_the_port_is_logged() -> None:
    health = Health()
    assert health.port == 0
    with structlog.testing.capture_logs() as events:
        health.start()
    port = health.port
    health.stop()
    assert port > 0
    assert events == [{"event": "health_listening", "host": "127.0.0.1", "port": port,
                       "log_level": "info"}]


def test_starting_and_stopping_twice_is_as_once() -> None:
    health = Health()
    health.stop()
    health.start()
    port = health.port
    health.start()
    assert health.port == port
    health.stop()
    health.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10)


def test_a_port_that_is_taken_is_a_wrong_setting(health: Health) -> None:
    with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{health.port} .*--health-port"):
        Health(port=health.port).start()


def test_a_client_that_says_nothing_keeps_no_other_waiting(health: Health) -> None:
    with socket.create_connection(("127.0.0.1", health.port), timeout=10):
        assert ask(health, "/live")[0] == 200


def test_ipv6_is_listened_on() -> None:
    health = Health("::1")
    try:
        health.start()
    except ConfigurationError:
        pytest.skip("this machine has no IPv6")
    try:
        with socket.create_connection(("::1", health.port), timeout=10):
            pass
    finally:
        health.stop()
