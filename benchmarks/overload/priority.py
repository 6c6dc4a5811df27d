"""Precedence for the programs that stand for other machines."""

import os
from contextlib import suppress

_STEPS = -10


def prefer() -> None:
    """This process comes before the workers on the processor, where the system permits that.

    Generator and provider would not share the workers' processors in production; a busy worker
    must not slow them down.
    """
    with suppress(PermissionError):
        os.nice(_STEPS)
