"""Errors as bounded text without credentials."""

import traceback

from consumer.core import copies
from consumer.core.redact import redact

_MAX_ERROR_BYTES = 4096


def describe(error: BaseException) -> str:
    """Type and message of an error in one bounded text without credentials; never raises."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = f"{type(error).__name__}: (its text cannot be made)"
    return copies.cut(redact(text), _MAX_ERROR_BYTES)


def where(error: BaseException) -> str:
    """Where it failed, innermost frames last, bounded, without credentials."""
    frames, ours = error.__traceback__, ("consumer.worker.", "tenacity", "contextlib", "asyncio")
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith(ours):
        frames = frames.tb_next
    trace = traceback.TracebackException(type(error), error, frames or error.__traceback__,
                                         limit=-20, compact=True)
    return copies.cut(redact("".join(trace.format())), copies.MAX_DIAGNOSTIC_BYTES)
