"""Logs: one event a line on stderr, with nothing secret and no payloads in it.

Records of structlog and of the standard library leave through one handler and one renderer, so a
library's record looks like one of ours and passes the same cleaning.
"""

import logging
import math
import os
import re
import sys
import threading
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from consumer.core.redact import redact

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["json", "console"]

_QUIET = {
    # Their errors are raised as well, and those that matter are logged by `consumer.broker`.
    "aio_pika": logging.CRITICAL, "aiormq": logging.CRITICAL,
    "asyncio": logging.WARNING, "httpcore": logging.WARNING, "httpx": logging.WARNING,
    "sqlalchemy": logging.WARNING,
}
_DEEPEST = 6
# What validation and database errors quote of the data they choked on.
_QUOTED_DATA = re.compile(r"(input_value=).*(?=, input_type=)|(\[parameters: ).*(?=\])")

log = structlog.get_logger("consumer.telemetry")


def configure(level: Level = "info", format: Format = "json", *, app: str | None = None) -> None:
    """From here on everything logged in this process goes to stderr, cleaned.

    Uncaught exceptions of threads and warnings are logged too. A second call replaces the first.

    Args:
        level: Lowest level that is written. Client libraries never write below WARNING.
        format: `json`, one object a line, or `console` for people.
        app: Name of the application, added to every line beside the pid.
    """
    lowest = logging.getLevelNamesMapping()[level.upper()]
    before = _before_rendering(app)
    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # a logger of before this call would keep the old ways
    )
    handler = _StderrHandler()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _cleaned,
            _renderer(format),
        ],
    ))
    _take_over(handler, lowest)


def _before_rendering(app: str | None) -> list[Processor]:
    fixed = {"app": app} if app else {}

    def where(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {**event, **fixed, "pid": os.getpid()}

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        where,
    ]


def _renderer(format: Format) -> Processor:
    if format == "console":
        # The plain formatter: rich tracebacks would print local variables, payloads among them.
        return structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    return structlog.processors.JSONRenderer(default=repr)


def _take_over(handler: logging.Handler, lowest: int) -> None:
    """The root logger writes with `handler`, and with what others than us had added to it."""
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _StderrHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(lowest)
    for name, least in _QUIET.items():
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, least))
    logging.captureWarnings(True)
    threading.excepthook = _thread_died


def _thread_died(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        log.error("thread_died", thread=args.thread.name if args.thread else None,
                  exc_info=args.exc_value)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever `sys.stderr` is at the time; never raises, never prints a record."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def handleError(self, record: logging.LogRecord) -> None:
        """The record cannot be written. The default would print its arguments, secrets and all."""
        if isinstance(record.msg, dict) and record.msg.get("event") == "log_record_failed":
            return  # stderr itself is broken
        log.error("log_record_failed", failed_logger=record.name, line=record.lineno,
                  error=type(sys.exc_info()[1]).__name__)


def _cleaned(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Every value is a number, a clean text, or a collection of these."""
    return {str(name): _clean(value, _DEEPEST) for name, value in event.items()}


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth and isinstance(value, dict):
        return {clean_text(str(k)): _clean(v, depth - 1) for k, v in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_clean(element, depth - 1) for element in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"  # a body, or part of one
    try:
        return clean_text(str(value))
    except Exception:
        return f"<{type(value).__name__} without text>"


def clean_text(text: str) -> str:
    """`text` without credentials, and without the data that errors quote."""
    if "input_value=" in text or "[parameters: " in text:
        text = _QUOTED_DATA.sub(lambda found: f"{found[1] or found[2]}…", text)
    return redact(text) if "=" in text or "://" in text else text
