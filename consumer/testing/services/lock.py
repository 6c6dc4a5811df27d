"""One command at a time works on a services folder."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from consumer.testing.services.errors import ServicesError
from consumer.testing.services.process import wait_until

TIMEOUT_SECONDS = 300.0


@contextmanager
def exclusive(directory: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's lock; the kernel gives it back if the process dies.

    Args:
        directory: A services folder that exists.
        progress: Told once if another command has to be waited for.

    Raises:
        ServicesError: Another command held the lock for five minutes.
    """
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _try_lock(descriptor):
            progress(f"waiting for another command that works on {directory}")
            if not wait_until(lambda: _try_lock(descriptor), timeout_seconds=TIMEOUT_SECONDS):
                raise ServicesError(f"another command keeps {directory} locked")
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
