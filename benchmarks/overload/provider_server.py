"""The provider as a program: HTTP on the loopback interface, in as little code as keeps it fast.

    POST /charge      header `x-command`; 200 once the work is done
    PUT  /service     body: seconds that a call takes from now on; answers with the time
    GET  /load        calls queued and executing

What happened is written, as JSON lines, when it is told to end.
"""

import argparse
import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.overload.plan import HEALTHY_SECONDS, SLOTS, Variant
from benchmarks.overload.priority import prefer
from benchmarks.overload.provider import Provider, record

SAMPLE_SECONDS = 0.1


class _Connection(asyncio.Protocol):
    """One client, which sends its next request once it has the answer to the last."""

    def __init__(self, provider: Provider) -> None:
        self._provider, self._buffer = provider, b""
        self._hang_up: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._hang_up is not None:
            self._hang_up()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].decode("latin-1")
            first, *lines = head.split("\r\n")
            headers = {name.lower(): value.strip()
                       for name, _, value in (line.partition(":") for line in lines)}
            length = int(headers.get("content-length", 0))
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4:end + 4 + length]
            self._buffer = self._buffer[end + 4 + length:]
            self._request(first, headers, body)

    def _request(self, first: str, headers: dict[str, str], body: bytes) -> None:
        match first.split(" ")[:2]:
            case ["POST", "/charge"]:
                self._hang_up = self._provider.accept(
                    headers.get("x-command", ""), lambda: self._respond({"charged": True}))
            case ["PUT", "/service"]:
                self._provider.service_seconds = float(body)
                self._respond({"at": time.time()})
            case ["GET", "/load"]:
                self._respond(
                    {"queued": self._provider.queued, "executing": self._provider.executing})
            case _:
                self._respond({}, "404 Not Found")

    def _respond(self, answer: object, status: str = "200 OK") -> None:
        self._hang_up = None
        body = json.dumps(answer).encode()
        self._transport.write(
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode() + body)


async def _serve(port: int, variant: Variant, output: Path) -> None:
    loop = asyncio.get_running_loop()
    provider = Provider(SLOTS, HEALTHY_SECONDS, variant is Variant.HONOURS, time.time,
                        loop.call_later)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = await loop.create_server(lambda: _Connection(provider), "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - the starter reads it
    samples: list[tuple[float, int, int]] = []
    while not stopped.is_set():
        samples.append((time.time(), provider.queued, provider.executing))
        try:
            await asyncio.wait_for(stopped.wait(), SAMPLE_SECONDS)
        except TimeoutError:
            continue
    server.close()
    with output.open("w") as log:
        for call in provider.calls:
            log.write(json.dumps({"call": record(call)}) + "\n")
        for at, queued, executing in samples:
            log.write(json.dumps({"at": at, "queued": queued, "executing": executing}) + "\n")


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload.provider_server")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one and prints it")
    parser.add_argument("--variant", type=Variant, choices=list(Variant), default=Variant.HONOURS)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    prefer()
    asyncio.run(_serve(options.port, options.variant, options.output))


if __name__ == "__main__":
    main()
