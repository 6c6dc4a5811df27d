"""Commands: what a message asks for, as a pydantic model with a type name."""

import json
import math
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from consumer import message as names
from consumer.core.copies import MAX_HEADER_FRAME_BYTES, PERSISTENT
from consumer.core.deadline import stamps
from consumer.core.decode import MAX_BODY_BYTES
from consumer.core.identity import BadKey, as_key
from consumer.core.names import check_command_type
from consumer.core.topology import commands_exchange
from consumer.errors import UnsendableMessage
from consumer.message import OutboxRow, Outgoing
from consumer.wire import Headers, HeaderValue, Properties, WireError


class Command(BaseModel):
    """Base of all commands.

        class CapturePayment(Command, type="payments.capture"):
            order_id: str
            amount_cents: int

    Args:
        type: Name of the command on the wire: `type` property and routing key. It survives
            renames of the class. A subclass without one is a mere base of others.
    """

    # Otherwise pydantic writes NaN and Infinity as null in fields of type Any.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    command_type: ClassVar[str] = ""

    def __init_subclass__(cls, type: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if type:
            check_command_type(type)
            cls.command_type = type


C = TypeVar("C", bound=Command)


def new_message_id() -> str:
    """A fresh time-ordered UUID (version 7, RFC 9562 section 5.7): index pages fill in order."""
    stamp = time.time_ns() // 1_000_000
    value = stamp << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62
    return str(UUID(int=value))


def body_of(command: Command) -> bytes:
    """The command as JSON.

    Raises:
        UnsendableMessage: A field holds NaN, Infinity or a lone surrogate; the message names it.
    """
    try:
        data = command.model_dump(mode="json", by_alias=True)
    except ValueError as error:  # what pydantic raises is one, and so is UnicodeEncodeError
        raise UnsendableMessage(f"{command.command_type}: {error}") from None
    try:
        body = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:  # UnicodeEncodeError is one
        raise UnsendableMessage(
            f"{command.command_type}: {_unsendable_field(data)} cannot be written as JSON"
        ) from None
    if len(body) > MAX_BODY_BYTES:
        raise UnsendableMessage(
            f"{command.command_type}: the body has {len(body)} bytes, more than {MAX_BODY_BYTES}",
            remedy="store large data elsewhere and send a reference",
        )
    return body


def _unsendable_field(value: Any, path: str = "$") -> str:
    """Path of the first value JSON cannot hold, for the error."""
    if isinstance(value, dict):
        members = [(f"{path}.{name}", member) for name, member in value.items()]
    elif isinstance(value, list):
        members = [(f"{path}[{index}]", element) for index, element in enumerate(value)]
    else:
        unsendable = (isinstance(value, float) and not math.isfinite(value)) or (
            isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value))
        return path if unsendable else ""
    return next(filter(None, (_unsendable_field(member, where) for where, member in members)), "")


def to_row(  # noqa: PLR0913 - one for each thing a sender can say
    command: Command, *, prefix: str, key: str | None = None, at: datetime | None = None,
    ordering_key: str | None = None, headers: Mapping[str, HeaderValue] | None = None,
    message_id: str | None = None, deadline: datetime | None = None, now: datetime | None = None,
) -> OutboxRow:
    """The outbox row that sends `command` to the handlers bound to its type.

    Args:
        prefix: The application's prefix, which names its exchange.
        key: Idempotency key; None uses the message id, so that the copies of this one send count
            once.
        at: Not before this time, which must know its zone.
        ordering_key: Commands sent under one ordering key are published in commit order.
        headers: Further headers. Names beginning with `consumer-` are ours and refused.
        deadline: When it is too late, which must know its zone: handlers do not begin it any more.
        now: When it is written; None asks the clock.

    Raises:
        UnsendableMessage: It cannot be a message; nothing was written.
    """
    _check_zones(at=at, deadline=deadline)
    if at is not None and deadline is not None and at >= deadline:
        raise UnsendableMessage(f"{command.command_type}: at= ({at}) is not before the deadline "
                                f"({deadline})", remedy="it could only be dead-lettered")
    if at is not None and ordering_key is not None:
        raise UnsendableMessage("at= and ordering_key= exclude each other",
                                remedy="a scheduled message would hold up its whole key")
    if ordering_key is not None:
        ordered_by = as_key(ordering_key, "ordering_key")
        if isinstance(ordered_by, BadKey):
            raise UnsendableMessage(f"{command.command_type}: {ordered_by.detail}")
    outgoing = to_outgoing(command, prefix=prefix, key=key, headers=headers, message_id=message_id,
                           dated=at or now, deadline=deadline)
    return OutboxRow(outgoing, command.command_type, ordering_key=ordering_key, available_at=at)


def to_outgoing(
    command: Command, *, prefix: str, key: str | None = None,
    headers: Mapping[str, HeaderValue] | None = None, message_id: str | None = None,
    dated: datetime | None = None, deadline: datetime | None = None,
) -> Outgoing:
    """The message that carries `command`; arguments and errors as for `to_row`.

    Args:
        dated: Its timestamp, from which its age and its time left count; None is now.
        deadline: Sent as `x-deadline-ms`, and what is left of it as `x-timeout-ms`.
    """
    _check_zones(deadline=deadline)
    sent = dated or datetime.now(UTC)
    extra: dict[str, HeaderValue] = {**(headers or {})}
    if deadline is not None:
        extra.update(_deadline_headers(command.command_type, extra, deadline, sent))
    if not command.command_type:
        raise UnsendableMessage(f"{type(command).__name__} has no command type",
                                remedy='declare it: class X(Command, type="…")')
    message_id = message_id or new_message_id()
    checked = as_key(message_id if key is None else key, "key")
    if isinstance(checked, BadKey):
        raise UnsendableMessage(f"{command.command_type}: {checked.detail}")
    body = body_of(command)
    return Outgoing(commands_exchange(prefix), command.command_type, body,
                    _properties(command.command_type, checked, message_id, extra,
                                int(sent.timestamp())),
                    message_id)


def _check_zones(**moments: datetime | None) -> None:
    for name, moment in moments.items():
        if moment is not None and moment.tzinfo is None:
            raise UnsendableMessage(f"{name}= has no time zone", remedy="use an aware datetime")


def _deadline_headers(
    type_: str, headers: Mapping[str, HeaderValue], deadline: datetime, sent: datetime
) -> dict[str, int]:
    told = stamps(deadline, sent)
    for name in told.keys() & headers.keys():
        raise UnsendableMessage(f"{type_}: header {name!r} and a deadline exclude each other",
                                remedy="leave one of them out")
    return told


def _properties(
    type_: str, key: str, message_id: str, headers: Mapping[str, HeaderValue], timestamp: int
) -> bytes:
    for name in headers:
        if not names.is_carried(name):
            raise UnsendableMessage(f"{type_}: header {name!r} is reserved")
    try:
        wire = Properties(
            content_type="application/json", delivery_mode=PERSISTENT, message_id=message_id,
            type=type_, timestamp=timestamp,
            headers=Headers.of({**headers, names.IDEMPOTENCY_KEY: key}),
        ).to_wire()
    except WireError as error:
        raise UnsendableMessage(f"{type_}: {error}") from None
    if len(wire) > MAX_HEADER_FRAME_BYTES:
        raise UnsendableMessage(
            f"{type_}: headers take {len(wire)} bytes, more than {MAX_HEADER_FRAME_BYTES}")
    return wire
