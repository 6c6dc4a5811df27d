"""Signals of a synchronous program, kept until it has time for them."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class PendingSignals:
    """Signals that came and were not taken yet.

    Attributes:
        wake: Readable when there are any.
    """

    def __init__(self) -> None:
        self.wake, self._alarm = socket.socketpair()
        self.wake.setblocking(False)
        self._alarm.setblocking(False)
        self._came: list[signal.Signals] = []

    def arrived(self, number: int, _: FrameType | None) -> None:
        """Remember it. A signal handler."""
        self._came.append(signal.Signals(number))
        with suppress(BlockingIOError):
            self._alarm.send(b"!")

    def take(self) -> list[signal.Signals]:
        """What came since the last call, in order."""
        with suppress(BlockingIOError):
            self.wake.recv(4096)
        came, self._came = self._came, []
        return came

    def close(self) -> None:
        """`wake` is closed. Idempotent."""
        self.wake.close()
        self._alarm.close()


@contextmanager
def kept_signals(*numbers: signal.Signals) -> Iterator[PendingSignals]:
    """Inside the block, signals of these numbers are kept instead of acted upon."""
    signals = PendingSignals()
    before = [signal.signal(number, signals.arrived) for number in numbers]
    try:
        yield signals
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        signals.close()
