"""Server processes: found, identified and stopped without ever hitting a stranger."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

POLL_SECONDS = 0.05


class ProcessRecord(BaseModel):
    """One process, told apart from any later one that gets the same number.

    `started` is the kernel's start time, which does not move when the clock is set; `marker`
    is an argument of the process that nobody else's has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pid: int
    started: str
    marker: str


def identify(pid: int, marker: str) -> ProcessRecord | None:
    """The record of a process that runs now, or None when it is gone or not ours."""
    seen = _look(pid)
    if seen is None or marker not in seen[1]:
        return None
    return ProcessRecord(pid=pid, started=seen[0], marker=marker)


def is_running(record: ProcessRecord | None) -> bool:
    """Whether that very process still runs; a zombie does not."""
    return record is not None and identify(record.pid, record.marker) == record


def find(marker: str) -> list[ProcessRecord]:
    """All running processes that have exactly this marker among their arguments."""
    found = (identify(pid, marker) for pid in _pids())
    return [record for record in found if record is not None]


def any_titled(prefix: str) -> bool:
    """Whether a process runs whose title, which is its first argument, begins like that."""
    seen = (_look(pid) for pid in _pids())
    return any(process is not None and process[1][0].startswith(prefix) for process in seen)


def stop(record: ProcessRecord, *, polite: signal.Signals, patience_seconds: float) -> None:
    """Stop that very process, if it still runs; blocks until it is gone.

    Args:
        record: What to stop. If its pid belongs to another process by now, nothing is done.
        polite: The signal that asks the server to shut down in order.
        patience_seconds: How long to wait before SIGKILL.
    """
    _signal(record, polite)
    if not wait_until(lambda: not is_running(record), timeout_seconds=patience_seconds):
        _signal(record, signal.SIGKILL)
        wait_until(lambda: not is_running(record), timeout_seconds=patience_seconds)


def wait_until(condition: Callable[[], bool], *, timeout_seconds: float) -> bool:
    """Poll a condition; True as soon as it holds, False when the time is over."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def tail(log: Path, *, lines: int = 15) -> str:
    """The last lines of a server's log, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"


def _signal(record: ProcessRecord, number: signal.Signals) -> None:
    if sys.platform != "linux":
        if is_running(record):
            os.kill(record.pid, number)
        return
    # The file descriptor pins the process: it is opened first, then the identity is checked,
    # so the pid cannot pass to another process between check and signal.
    try:
        descriptor = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return
    try:
        if is_running(record):
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        pass  # it ended by itself in between
    finally:
        os.close(descriptor)


def _pids() -> list[int]:
    if sys.platform == "linux":
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    listing = subprocess.run(
        ["/bin/ps", "-axo", "pid="], capture_output=True, text=True, check=True
    )
    return [int(word) for word in listing.stdout.split()]


def _look(pid: int) -> tuple[str, list[str]] | None:
    return _linux(pid) if sys.platform == "linux" else _posix(pid)


def _linux(pid: int) -> tuple[str, list[str]] | None:
    """Start time and arguments of a live process, from /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        arguments = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    state, start_ticks = fields[0], fields[19]
    return None if state in "ZX" else (f"{boot}:{start_ticks}", arguments)


def _posix(pid: int) -> tuple[str, list[str]] | None:
    """Start time and arguments of a live process, from `ps` where there is no /proc."""
    command = ["/bin/ps", "-ww", "-o", "stat=,lstart=,command=", "-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    words = done.stdout.split()
    if len(words) < 7 or words[0].startswith("Z"):
        return None
    return " ".join(words[1:6]), [" ".join(words[6:]), *words[6:]]
