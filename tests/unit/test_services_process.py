"""Processes are told apart by more than their number."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from consumer.testing.services.process import (
    ProcessRecord,
    any_titled,
    find,
    identify,
    is_running,
    stop,
    wait_until,
)

MARKER = "consumer-unit-test-marker"
SLEEPER = "import sys; print('up', flush=True); sys.stdin.read()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"


def start(code: str, marker: str = MARKER) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", code, marker]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = start(SLEEPER)
    yield process
    end(process)


def record_of(process: "subprocess.Popen[bytes]") -> ProcessRecord:
    record = identify(process.pid, MARKER)
    assert record is not None
    return record


def test_a_process_is_recognised_again(sleeper: "subprocess.Popen[bytes]") -> None:
    """The record of a live process names it for as long as it lives, and it can be found."""
    record = record_of(sleeper)
    assert is_running(record)
    assert find(MARKER) == [record]
    assert any_titled(sys.executable)


def test_a_process_with_other_arguments_is_not_ours(sleeper: "subprocess.Popen[bytes]") -> None:
    """A pid alone proves nothing: an argument has to be the marker, whole."""
    assert identify(sleeper.pid, "another-marker") is None
    assert identify(sleeper.pid, MARKER[:-1]) is None


def test_a_recycled_pid_is_never_signalled(sleeper: "subprocess.Popen[bytes]") -> None:
    """A record with another start time is of a process that is gone, whatever has its pid now."""
    stale = record_of(sleeper).model_copy(update={"started": "another boot:1"})
    assert not is_running(stale)
    stop(stale, polite=signal.SIGKILL, patience_seconds=1)
    assert sleeper.poll() is None


def test_a_zombie_does_not_run() -> None:
    """A process that has ended but was not collected by its parent counts as gone."""
    process = start(SLEEPER)
    record = record_of(process)
    process.kill()
    assert wait_until(lambda: not is_running(record), timeout_seconds=5)
    assert process.returncode is None  # nobody has collected it yet
    end(process)


def test_a_process_that_ignores_the_polite_signal_is_killed() -> None:
    """`stop` returns when the process is gone, one way or the other."""
    process = start(STUBBORN)
    record = record_of(process)
    stop(record, polite=signal.SIGTERM, patience_seconds=0.3)
    assert not is_running(record)
    assert process.wait() == -signal.SIGKILL
    end(process)


def test_stopping_what_is_gone_does_nothing() -> None:
    """`stop` can be repeated."""
    process = start(SLEEPER)
    record = record_of(process)
    end(process)
    stop(record, polite=signal.SIGTERM, patience_seconds=1)
    assert not is_running(record)
