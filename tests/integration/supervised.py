"""Programs for the tests of the supervisor: one that supervises, and children of all kinds."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 60.0

SUPERVISOR = """
import sys
from datetime import timedelta
from consumer.telemetry import logs
from consumer.worker.supervisor import Watch, supervise

script, grace_s, hang_s, base_s, *kinds = sys.argv[1:]
logs.configure()
grace, hang_after, base = (timedelta(seconds=float(s)) for s in (grace_s, hang_s, base_s))
watch = Watch(hang_after=hang_after, backoff_base=base, kill_margin=timedelta(0))
sys.exit(supervise(len(kinds), lambda i: [sys.executable, script, kinds[i]], grace, watch))
"""

CHILD = """
import asyncio, os, pathlib, signal, sys, time
from consumer.worker.supervisor import child_link

here, (kind, _, argument) = pathlib.Path(__file__).parent, sys.argv[1].partition("=")

def note(what):
    (here / f"{what}-{os.getpid()}").touch()

def first_time():
    mark = here / f"once-{argument}"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

async def obey(slowly=False):
    link, told, told_again = child_link(), asyncio.Event(), asyncio.Event()
    def signalled():
        (told_again if told.is_set() else told).set()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled)
    link.on_parent_gone(told.set)
    async def beats():
        while True:
            link.beat()
            await asyncio.sleep(0.05)
    beating = asyncio.create_task(beats())
    note("up")
    await told.wait()
    note("draining")
    if slowly:
        await told_again.wait()
    beating.cancel()
    note("drained")
    sys.exit(6 if slowly else 0)

def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child_link().beat()
    note("up")
    while True:
        time.sleep(60)

if kind == "exit":
    sys.exit(int(argument))
elif kind == "hang" or (kind == "hang-once" and first_time()):
    hang()
elif kind == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    link = child_link()
    note("up")
    while True:
        link.beat()
        time.sleep(0.05)
else:
    asyncio.run(obey(slowly=kind == "slow"))
"""


class Supervised:
    """A supervisor and its children in a folder of their own. None outlives the `with` block."""

    def __init__(self, folder: Path, *kinds: str, grace_s: float = PATIENCE_S,
                 hang_s: float = PATIENCE_S, base_s: float = 0.01) -> None:
        self.folder = folder
        script = folder / "child.py"
        script.write_text(CHILD)
        numbers = [str(number) for number in (grace_s, hang_s, base_s)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, str(script), *numbers, *kinds],
            stderr=subprocess.PIPE, text=True)
        self.events: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._collect()
        for pid in {event["child_pid"] for event in self.events if "child_pid" in event}:
            if self.is_child(pid):
                os.kill(pid, signal.SIGKILL)
        self._reader.join(PATIENCE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def is_child(self, pid: int) -> bool:
        """Whether that process runs, and is a child of ours and not a later stranger."""
        try:
            return str(self.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    def _collect(self) -> None:
        while not self._lines.empty():
            line = self._lines.get()
            self.events.append(json.loads(line) if line.startswith("{") else {"text": line})

    def seen(self, name: str) -> list[dict[str, Any]]:
        """The events of that name so far."""
        self._collect()
        return [event for event in self.events if event.get("event") == name]

    def await_events(self, name: str, count: int) -> list[dict[str, Any]]:
        """The events of that name, once there are so many."""
        self.wait_until(lambda: len(self.seen(name)) >= count, f"{count} times {name}")
        return self.seen(name)

    def notes(self, what: str) -> set[int]:
        """The pids of the children that noted it."""
        return {int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"{what}-*")}

    def await_notes(self, what: str, count: int) -> set[int]:
        """The same, once there are so many."""
        self.wait_until(lambda: len(self.notes(what)) >= count, f"{count} times {what}")
        return self.notes(what)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Return once it holds; fail if it does not in a minute."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not seen; {self.events}"
            time.sleep(0.02)

    def ended(self) -> int:
        """The exit code, once it has ended."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self._collect()
        return code
