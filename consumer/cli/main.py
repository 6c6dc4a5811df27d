"""The command line: `consumer`."""

import os
import sys
from typing import Annotated

import typer

from consumer.cli.lazy import RootGroup

EXIT_CODES = """
Exit codes: 0 done · 1 the answer is no · 2 a setting or argument is wrong · 3 database or broker
cannot be reached · 4 the database schema does not fit · 5 the broker's topology does not fit ·
6 a drain was cut short · 70 a defect of this program. docs/exit-codes.md says more.
"""

app = typer.Typer(
    name="consumer", cls=RootGroup, no_args_is_help=True,
    help="Business commands over RabbitMQ take effect in Postgres exactly once.",
    epilog=" ".join(EXIT_CODES.split()),
)


@app.callback()
def root(
    traceback: Annotated[bool, typer.Option(
        "--traceback", help="When a command fails, show where.")] = False,
) -> None:
    """What is true of every command."""


def run() -> None:
    """Run the command line of this process; ends in SystemExit."""
    try:
        app(prog_name="consumer")
    finally:
        _let_go(sys.stdout)
        _let_go(sys.stderr)


def _let_go(stream: object) -> None:
    """What was printed is out, or nobody reads it any more: then Python shall not complain."""
    try:
        stream.flush()  # type: ignore[attr-defined]
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[attr-defined]
