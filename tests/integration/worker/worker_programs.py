"""Workers as programs of their own: `consumer worker`, its signals, its log, its exit code."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Site


@dataclass(frozen=True)
class Program:
    """A worker process."""

    process: asyncio.subprocess.Process
    log: Path

    def logged(self, event: str, **wanted: object) -> list[dict[str, Any]]:
        """The lines of that event with those values; a line that is being written is left out."""
        complete = [line for line in self.log.read_text("utf-8").splitlines(keepends=True)
                    if line.startswith("{") and line.endswith("\n")]
        return [line for line in map(json.loads, complete)
                if line["event"] == event and wanted.items() <= line.items()]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, seconds: float = 30) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(seconds):
            return await self.process.wait()


class Programs:
    """Starts workers of apps below a folder; each has a log of its own in another."""

    def __init__(self, site: Site, apps: Path, logs: Path) -> None:
        self._site, self._apps, self._logs = site, apps, logs
        self._started: list[Program] = []

    async def worker(self, app: str, *options: str, **variables: str) -> Program:
        """`consumer worker APP OPTIONS` is being started."""
        log = self._logs / f"worker-{len(self._started)}.log"
        settings = {
            "CONSUMER_AMQP_URL": self._site.amqp_url, "CONSUMER_HEARTBEAT": "0.2",
            "CONSUMER_DATABASE_URL": self._site.database_url, "CONSUMER_RELAY_INTERVAL": "0.1",
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "consumer", "worker", app, *options, stdout=output,
                stderr=output, cwd=self._apps, env={**os.environ, **settings, **variables})
        program = Program(process, log)
        self._started.append(program)
        return program

    async def kill_all(self) -> None:
        """None of them runs any more."""
        for program in self._started:
            if program.process.returncode is None:
                program.process.kill()
            await program.process.wait()


@asynccontextmanager
async def programs(site: Site, apps: Path, logs: Path) -> AsyncIterator[Programs]:
    """What was started inside of the block has ended after it."""
    started = Programs(site, apps, logs)
    try:
        yield started
    finally:
        await started.kill_all()
