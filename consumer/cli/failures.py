"""Errors of commands: one line for people, an exit code for programs."""

import traceback

import typer

from consumer.core.redact import redact
from consumer.errors import (
    ConfigurationError,
    ConsumerError,
    InfrastructureError,
    SchemaError,
    SerializationConflict,
    TopologyError,
    UnsendableMessage,
)
from consumer.exit_codes import ExitCode

_CODES: tuple[tuple[type[ConsumerError], ExitCode], ...] = (
    (ConfigurationError, ExitCode.USAGE),
    (UnsendableMessage, ExitCode.USAGE),
    (SchemaError, ExitCode.SCHEMA),
    (TopologyError, ExitCode.TOPOLOGY),
    (InfrastructureError, ExitCode.UNAVAILABLE),
    (SerializationConflict, ExitCode.UNAVAILABLE),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code that an error which ended a command stands for."""
    if not isinstance(error, ConsumerError):
        return ExitCode.CRASHED
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


def failed(error: BaseException, *, with_traceback: bool) -> ExitCode:
    """A line about `error` is on stderr, without secrets; with its traceback if asked for.

    Returns:
        Its exit code.
    """
    if with_traceback:
        typer.echo(redact("".join(traceback.format_exception(error))), err=True, nl=False)
    typer.echo(redact(f"error: {_line(error)}"), err=True)
    return exit_code_of(error)


def _line(error: BaseException) -> str:
    if isinstance(error, ConsumerError):
        return " ".join(str(error).split())
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text} (unexpected; consumer --traceback … shows where)"


def warn(text: str) -> None:
    """A line about something that does not end the command is on stderr, without secrets."""
    typer.echo(redact(f"warning: {' '.join(text.split())}"), err=True)
