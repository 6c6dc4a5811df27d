"""The line between a worker process and its supervisor: beats go up, and its end means orphaned.

It is one socket pair. The child writes a byte per beat; the supervisor never writes, so the only
thing a child can read is the end of the file, which comes when the supervisor is gone, however it
died.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Self

LINK_FD = "CONSUMER_SUPERVISOR_FD"
"""Names the child's end of the line, in its environment."""


class ChildLink:
    """A worker's end of the line. To be used from the event loop's thread."""

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._line = line
        self._loop: asyncio.AbstractEventLoop | None = None

    def fileno(self) -> int:
        """Its file descriptor."""
        return self._line.fileno()

    def beat(self) -> None:
        """The supervisor will see that the event loop is alive. Never blocks, never raises."""
        # A full line means that the supervisor has beats enough to read; a broken one is
        # reported by `on_parent_gone`.
        with suppress(OSError):
            self._line.send(b".")

    def on_parent_gone(self, callback: Callable[[], None]) -> None:
        """`callback` is called once, in the running event loop, when the supervisor is gone."""
        self._loop = loop = asyncio.get_running_loop()

        def readable() -> None:
            with suppress(BlockingIOError):
                with suppress(ConnectionError):
                    if self._line.recv(64):
                        return
                self._stop_watching()
                callback()

        loop.add_reader(self._line.fileno(), readable)

    def close(self) -> None:
        """Nothing is watched any more. Idempotent."""
        self._stop_watching()
        self._line.close()

    def _stop_watching(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._line.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def child_link() -> ChildLink | None:
    """This process's line to its supervisor; None if no supervisor has started it.

    The line is taken: it is not inherited by processes that are started later, and a second call
    returns None.
    """
    text = os.environ.pop(LINK_FD, "")
    if not text.isdecimal():
        return None
    try:
        if not stat.S_ISSOCK(os.fstat(int(text)).st_mode):
            return None
        line = socket.socket(fileno=int(text))
    except OSError:
        return None  # a leftover of some other environment
    line.set_inheritable(False)
    return ChildLink(line)
