"""`consumer send`: publishes commands, each confirmed by the broker."""

import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from consumer.app import load
from consumer.cli.drafts import Draft, Drafter, deadline_in, header_pairs
from consumer.cli.failures import warn
from consumer.cli.posting import Posting, post
from consumer.core.topology import unroutable
from consumer.errors import (
    BrokerUnavailable,
    ConfigurationError,
    ConsumerError,
    TopologyError,
    UnsendableMessage,
)
from consumer.ports import Published, Receipt
from consumer.settings import read_settings
from consumer.telemetry import logs

app = typer.Typer()

_APPLY = "run: consumer topology apply MODULE:APP"


class Output(StrEnum):
    """Who reads the output."""

    text = "text"
    json = "json"


@app.command()
def send(  # noqa: PLR0913 - one for each option
    command_type: Annotated[str, typer.Argument(
        metavar="TYPE", show_default=False, help="Command type, for example payments.capture.")],
    *,
    text: Annotated[str | None, typer.Option(
        "--json", metavar="TEXT", show_default=False, help="The body, a JSON object.")] = None,
    file: Annotated[Path | None, typer.Option(
        "--file", "-f", metavar="PATH", show_default=False, exists=True, dir_okay=False,
        allow_dash=True,
        help="Read the body from a file, byte for byte; without it, from standard input.")] = None,
    lines: Annotated[bool, typer.Option(
        "--lines", help="One command a line. All are checked before the first is sent.")] = False,
    key: Annotated[str | None, typer.Option(
        show_default=False, help="Idempotency key; otherwise the handler's own, with --app, or "
        "one that is new each time.")] = None,
    header: Annotated[list[str] | None, typer.Option(
        "--header", "-H", metavar="NAME=VALUE", show_default=False,
        help="A further header; may be repeated.")] = None,
    deadline: Annotated[float | None, typer.Option(
        min=0, metavar="SECONDS", show_default=False,
        help="From now; no attempt begins after it.")] = None,
    path: Annotated[str | None, typer.Option(
        "--app", metavar="MODULE:APP", show_default=False,
        help="Check bodies against this app's commands, and take its prefix.")] = None,
    prefix: Annotated[str | None, typer.Option(
        show_default=False, help="Prefix of the application.  [default: consumer]")] = None,
    output: Annotated[Output, typer.Option(help="json: one object a line.")] = Output.text,
) -> None:
    """Publish a command to PREFIX.commands and wait until the broker has it.

    Prints the message id and the idempotency key. What no queue takes is kept in PREFIX.unroutable,
    which is looked at before and after: if it has grown, there is a warning.
    """
    logs.configure("error", "console")
    if text is not None and file is not None:
        raise ConfigurationError("--json and --file exclude each other")
    if key is not None and lines:
        raise ConfigurationError("--key and --lines exclude each other",
                                 remedy="one key is one command; let the app derive keys")
    application = load(path) if path else None
    prefix = prefix or (application.prefix if application else "consumer")
    drafter, headers = Drafter(command_type, prefix, application), header_pairs(header or ())
    too_late = None if deadline is None else deadline_in(deadline, datetime.now(UTC))
    body = text.encode("utf-8", "surrogateescape") if text is not None else _read(file)
    drafts = [_draft(drafter, number, line, key, headers, too_late)
              for number, line in (_split(body) if lines else [(0, body)])]
    result = asyncio.run(post(read_settings(), prefix, drafts))
    _show(command_type, drafts, result.answers, output)
    _judge(command_type, prefix, drafts, result)


def _read(file: Path | None) -> bytes:
    if file is not None and str(file) != "-":
        return file.read_bytes()
    if sys.stdin is not None and sys.stdin.isatty():
        typer.echo("reading from the terminal; end with Ctrl-D", err=True)
    return typer.get_binary_stream("stdin").read()


def _split(body: bytes) -> list[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers."""
    return [(number, line) for number, line in enumerate(body.splitlines(), 1) if line.strip()]


def _draft(
    drafter: Drafter, number: int, body: bytes, key: str | None, headers: dict[str, str],
    deadline: datetime | None,
) -> Draft:
    try:
        return drafter.draft(body, key, headers, deadline)
    except UnsendableMessage as error:
        if not number:
            raise
        raise UnsendableMessage(f"line {number}: {error}; nothing was sent") from None


def _show(command_type: str, drafts: Sequence[Draft], answers: Sequence[Published],
          output: Output) -> None:
    for draft, answer in zip(drafts, answers, strict=True):
        if output is Output.json:
            typer.echo(json.dumps({
                "message_id": draft.message.message_id, "key": draft.key, "type": command_type,
                "exchange": draft.message.exchange, "receipt": answer.receipt.value}))
        elif answer.receipt is Receipt.CONFIRMED:
            typer.echo(f"sent {draft.message.message_id} key {draft.key}")
        else:
            typer.echo(f"{answer.receipt.value} {draft.message.message_id} key {draft.key}")


def _judge(command_type: str, prefix: str, drafts: Sequence[Draft], result: Posting) -> None:
    """Warn of what is likely wrong, raise what is."""
    if result.strays:
        warn(f"{unroutable(prefix)} has grown by {result.strays} meanwhile: probably no queue "
             f"takes {command_type!r} ({_APPLY})")
    missed = [answer for answer in result.answers if answer.receipt is not Receipt.CONFIRMED]
    if missed:
        raise _error(f"{len(missed)} of {len(drafts)} not sent: {missed[0].detail}",
                     missed[0].receipt)


def _error(message: str, receipt: Receipt) -> ConsumerError:
    if receipt is Receipt.UNKNOWN:
        return BrokerUnavailable(message, remedy="it may have arrived all the same: send it "
                                 "again under the same --key")
    if receipt is Receipt.UNROUTABLE:
        return TopologyError(message, remedy=_APPLY)
    return UnsendableMessage(message)
