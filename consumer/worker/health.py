"""Health and metrics over HTTP, answered by a thread, so that a hung event loop cannot hide.

    GET /live      200 while the event loop beats, 503 once it has not for `hang_after`
    GET /ready     200 while every named condition holds, 503 with the reasons otherwise
    GET /metrics   200 with the metrics, 404 where there are none
"""

import json
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from typing import Any

import structlog

from consumer.core.redact import redact
from consumer.errors import ConfigurationError

_CLIENT_TIMEOUT_S = 5
_STOP_TIMEOUT_S = 5

log = structlog.get_logger("consumer.worker")


class Health:
    """How a worker process is. Every method may be called from any thread.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        hang_after: Without a beat for longer than this, the event loop counts as hung.
        clock: Monotonic time in seconds.
        metrics: Renders the metrics and says their content type; called in threads of its own.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, *,
        hang_after: timedelta = timedelta(seconds=30),
        clock: Callable[[], float] = time.monotonic,
        metrics: Callable[[], tuple[bytes, str]] | None = None,
    ) -> None:
        self._host, self._wanted_port, self._metrics = host, port, metrics
        self._hang_after_s, self._clock = hang_after.total_seconds(), clock
        self._last_beat = clock()
        self._conditions: dict[str, str | None] = {}
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that is listened on, or 0 before `start` and after `stop`."""
        return self._server.server_address[1] if self._server else 0

    def beat(self) -> None:
        """The event loop is alive now. To be called by it, about once a second."""
        self._last_beat = self._clock()

    def set_ready(self, name: str, reason: str | None) -> None:
        """The condition `name` holds if `reason` is None; otherwise `reason` says why it does not.

        Until the first call the process is not ready.
        """
        self._conditions = {**self._conditions, name: redact(reason) if reason else None}

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Whether the event loop beats, and the body that says so."""
        silent_s = max(0.0, self._clock() - self._last_beat)
        alive = silent_s <= self._hang_after_s
        return alive, {"live": alive, "seconds_since_beat": round(silent_s, 1)}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether work can be done, and the body that says why not."""
        conditions = self._conditions
        reasons = {name: reason for name, reason in conditions.items() if reason is not None}
        if not conditions:
            reasons["start"] = "starting"
        alive, seen = self.live()
        if not alive:
            reasons["event_loop"] = f"no beat for {seen['seconds_since_beat']} s"
        return not reasons, {"ready": not reasons, "reasons": reasons}

    def start(self) -> None:
        """Listening, and the port is logged as `health_listening`. Idempotent.

        Raises:
            ConfigurationError: The address cannot be listened on.
        """
        if self._server is not None:
            return
        try:
            server = _Server(self._host, self._wanted_port, self._answer)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"cannot listen on {self._host}:{self._wanted_port} for health checks: {error}",
                remedy="choose another --health-port, or 0 for a free one") from None
        self._last_beat = self._clock()
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="health", daemon=True)
        self._thread.start()
        log.info("health_listening", host=self._host, port=self.port)

    def stop(self) -> None:
        """No longer listening. Idempotent; blocks for a moment."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def _answer(self, path: str) -> "_Answer":
        if path == "/live":
            good, body = self.live()
        elif path == "/ready":
            good, body = self.ready()
        elif path == "/metrics" and self._metrics is not None:
            return _rendered(self._metrics)
        else:
            here = "/live and /ready" if self._metrics is None else "/live, /ready and /metrics"
            return _json(HTTPStatus.NOT_FOUND, {"error": f"only {here} are here"})
        return _json(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, body)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    content: bytes
    content_type: str


def _json(status: HTTPStatus, body: dict[str, Any]) -> _Answer:
    return _Answer(status, json.dumps(body).encode() + b"\n", "application/json")


def _rendered(metrics: Callable[[], tuple[bytes, str]]) -> _Answer:
    """The metrics; a failure is logged, and its details stay in the log."""
    try:
        content, content_type = metrics()
    except Exception:
        log.exception("metrics_failed")
        return _json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the metrics cannot be rendered"})
    return _Answer(HTTPStatus.OK, content, content_type)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, answer: Callable[[str], _Answer]) -> None:
        self.answer = answer
        if ":" in host:
            self.address_family = AF_INET6
        super().__init__((host, port), _Exchange)

    def server_bind(self) -> None:
        # HTTPServer would ask the DNS for the host's name, which can take very long.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no event."""


class _Exchange(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "consumer", ""
    timeout = _CLIENT_TIMEOUT_S

    def do_GET(self) -> None:
        """Answer, with a body unless the request is HEAD."""
        self._respond(self.server.answer(self.path.partition("?")[0]))

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None
                   ) -> None:
        """What the parser of requests refuses is answered in JSON, too."""
        self._respond(_json(HTTPStatus(code), {"error": message or HTTPStatus(code).phrase}))

    def _respond(self, answer: _Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds; they are not logged."""
