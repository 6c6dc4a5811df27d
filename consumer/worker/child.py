"""One worker process as its supervisor sees it."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence

import structlog

from consumer.exit_codes import ExitCode
from consumer.worker.link import LINK_FD

_BY_SIGNAL = (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)

log = structlog.get_logger("consumer.supervisor")


class Child:
    """A running worker process.

    Attributes:
        index: Which of the workers it is, from 0.
        started: When it was started, on `clock`.
        line: Our end of its line; readable when it beats, or has ended.
    """

    def __init__(
        self, index: int, argv: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.index, self._clock = index, clock
        self.started = self._last_seen = clock()
        self.beaten, self.killed = False, False
        self._kill_at: float | None = None
        self.line, theirs = socket.socketpair()
        self.line.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                list(argv), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                env={**os.environ, LINK_FD: str(theirs.fileno())},
                # Ctrl-C goes to a whole process group. It shall reach us alone: we forward it,
                # and a child that got it twice would cut its drain short.
                process_group=0,
            )
        log.info("child_started", child=index, child_pid=self.pid)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def exit_code(self) -> ExitCode | None:
        """How it ended, or None while it runs. Codes that are not ours count as a crash."""
        code = self._process.poll()
        if code is None:
            return None
        if self.killed:
            return ExitCode.GRACE_EXCEEDED
        if self.ending and not self.beaten and code in _BY_SIGNAL:
            return ExitCode.OK  # it had not begun: its signal handlers were not there yet
        try:
            return ExitCode(code)
        except ValueError:
            return ExitCode.CRASHED

    @property
    def raw_code(self) -> int | None:
        """Its exit status; negative is the signal that ended it."""
        return self._process.returncode

    def lived_s(self) -> float:
        """Seconds since it was started."""
        return self._clock() - self.started

    def read_beats(self) -> bool:
        """Take note of the beats that have come. False: the line has ended, none will come."""
        try:
            while self.line.recv(4096):
                self.beaten, self._last_seen = True, self._clock()
        except BlockingIOError:
            return True
        except ConnectionError:
            pass
        return False

    def forgive(self) -> None:
        """Count its silence from now on."""
        self._last_seen = self._clock()

    def silent_s(self) -> float:
        """Seconds without a beat."""
        return self._clock() - self._last_seen

    def end(self, number: signal.Signals, grace_s: float) -> None:
        """Ask it to end, if it runs still.

        Args:
            number: The signal that asks.
            grace_s: After so many seconds `kill_if_due` will kill it; the first call counts.
        """
        if self._kill_at is None:
            self._kill_at = self._clock() + grace_s
        self._process.send_signal(number)

    @property
    def ending(self) -> bool:
        """Whether it was asked to end."""
        return self._kill_at is not None

    def kill_if_due(self) -> None:
        """Kill it if its grace is over."""
        if self._kill_at is not None and self._clock() >= self._kill_at and not self.killed:
            log.error("child_killed", child=self.index, child_pid=self.pid)
            self.killed = True
            self._process.kill()

    def close(self) -> None:
        """Its end of the line is closed: if it still runs, it will drain."""
        self.line.close()
