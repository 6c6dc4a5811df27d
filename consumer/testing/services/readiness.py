"""Waiting until a started service can be used."""

import time
from collections.abc import Callable

from consumer.testing.services.errors import ServicesError
from consumer.testing.services.process import POLL_SECONDS

TIMEOUT_SECONDS = 90.0


def wait_ready(
    name: str,
    *probes: Callable[[], None],
    running: Callable[[], bool],
    log: Callable[[], str],
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> None:
    """Ask until every probe is content; blocks.

    Args:
        name: The service, for the error.
        probes: Raise ServicesError while the service is not ready.
        running: Whether it makes sense to go on asking.
        log: The end of the service's log, asked for when it is needed.
        timeout_seconds: For all probes together.

    Raises:
        ServicesError: The service ended or the time did; with the last answer and the log.
    """
    deadline = time.monotonic() + timeout_seconds
    for probe in probes:
        while (refusal := _refusal(probe)) is not None:
            if not running():
                raise ServicesError(f"{name} ended while it was starting:\n{log()}")
            if time.monotonic() >= deadline:
                raise ServicesError(
                    f"{name} was not ready after {timeout_seconds:.0f} s, {refusal}:\n{log()}"
                )
            time.sleep(POLL_SECONDS)


def is_ready(*probes: Callable[[], None]) -> bool:
    """Whether every probe is content right now."""
    return all(_refusal(probe) is None for probe in probes)


def _refusal(probe: Callable[[], None]) -> ServicesError | None:
    try:
        probe()
    except ServicesError as error:
        return error
    return None
