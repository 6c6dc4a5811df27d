"""Programs run as subprocesses: worker processes above all, and what they log."""

import json
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
SCRIPTS = sysconfig.get_path("scripts")


def environment(amqp_url: str, database_url: str, **more: str) -> dict[str, str]:
    """What leads a program to that virtual host and that database, with our scripts on its path."""
    return {
        **os.environ, "CONSUMER_AMQP_URL": amqp_url, "CONSUMER_DATABASE_URL": database_url,
        "PATH": os.pathsep.join((SCRIPTS, os.environ["PATH"])),
        "CONSUMER_LOG_LEVEL": "debug", **more,  # at which every delivery leaves a line
    }


def run(command: Sequence[str], env: Mapping[str, str], timeout_seconds: float = 120) -> str:
    """The standard output of a program that ended with 0."""
    done = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True,
                          timeout=timeout_seconds, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def wait_until(condition: Callable[[], object], what: str, timeout_seconds: float = 60) -> None:
    """Return once `condition` holds; fail if it does not in time."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_seconds:g} s"
        time.sleep(0.1)


@dataclass
class Fleet:
    """Processes of one test, each a group of its own. None outlives the `with` block."""

    env: Mapping[str, str]
    logs: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """That program runs."""
        log = self.logs / f"{len(list(self.logs.glob('*.log'))):03}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=PROJECT, env=self.env, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        self.running.append(process)
        return process

    def worker(self, app: str, *options: str) -> subprocess.Popen[bytes]:
        """A worker of that app runs."""
        return self.start("consumer", "worker", app, *options)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """It is dead without having had a chance to do anything about it."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.running.remove(process)

    def stop(self, process: subprocess.Popen[bytes], timeout_seconds: float = 60) -> int:
        """It was told to end and has; the exit code."""
        process.terminate()
        self.running.remove(process)
        return process.wait(timeout_seconds)

    def all_alive(self) -> bool:
        """Whether none of the processes ended by itself."""
        return all(process.poll() is None for process in self.running)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The JSON lines all of them have logged."""
        for log in sorted(self.logs.glob("*.log")):
            written, _, _ = log.read_text("utf-8").rpartition("\n")  # the last may be unfinished
            yield from (json.loads(line) for line in written.splitlines() if line[:1] == "{")

    def settled(self, queue: str) -> int:
        """How many deliveries of a queue have come to an end."""
        return sum(line["event"] == "settled" and line["queue"] == queue for line in self.lines())
