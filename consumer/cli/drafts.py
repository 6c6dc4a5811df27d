"""From what an operator types to a message: checked, with its body as it was given."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pydantic import ValidationError, create_model

from consumer.app import App
from consumer.command import Command, to_outgoing
from consumer.core.decode import Malformed, parse
from consumer.core.identity import BadKey, as_key
from consumer.errors import ConfigurationError, UnsendableMessage
from consumer.handler import Registration
from consumer.message import Outgoing


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to be sent, and the idempotency key it carries."""

    message: Outgoing
    key: str


class Drafter:
    """Makes messages of one command type.

    Args:
        command_type: The command type.
        prefix: Of the application that handles it.
        app: Checks bodies against its command models; None checks only that they are objects.

    Raises:
        ConfigurationError: The app has no handler of that type.
        RegistrationError: It cannot be a command type.
    """

    def __init__(self, command_type: str, prefix: str, app: App | None) -> None:
        # A command of that type without fields: only its body is replaced.
        self._command = create_model(
            "Sent", __base__=Command, __cls_kwargs__={"type": command_type})()
        self._prefix = prefix
        self._handlers = _handlers(app, command_type) if app else []

    def draft(self, body: bytes, key: str | None, headers: dict[str, str],
              deadline: datetime | None = None) -> Draft:
        """The message that carries `body`.

        Args:
            body: The body, sent byte for byte.
            key: Idempotency key; None is the handler's own for that command, or the message id.
            headers: Further headers.
            deadline: When it is too late, aware; None is never.

        Raises:
            UnsendableMessage: It is not a JSON object, not a command of the app, or too large; or
                its headers state a deadline too.
        """
        payload = parse(body)
        if isinstance(payload, Malformed):
            raise UnsendableMessage(payload.detail)
        derived = [_checked(handler, payload) for handler in self._handlers]
        key = key or next((found for found in derived if found is not None), None)
        message = to_outgoing(self._command, prefix=self._prefix, key=key, headers=headers,
                              deadline=deadline)
        return Draft(replace(message, body=body), key or message.message_id)


def _handlers(app: App, command_type: str) -> list[Registration]:
    found = [r for r in app.registrations if r.command.command_type == command_type]
    if not found:
        types = sorted({r.command.command_type for r in app.registrations})
        raise ConfigurationError(f"app {app.name!r} has no handler of {command_type!r}",
                                 remedy=f"it has {', '.join(types) or 'none'}")
    return found


def _checked(handler: Registration, payload: dict[str, object]) -> str | None:
    """The handler's own key for the command, if it derives one."""
    try:
        command = handler.command.model_validate(payload)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)
        raise UnsendableMessage(
            f"{handler.command.command_type}: not valid for {handler.scope}: "
            + "; ".join(f"{'.'.join(map(str, f['loc'])) or 'command'}: {f['msg']}" for f in faults)
        ) from None
    own = handler.handler.key(command)
    if own is None:
        return None
    key = as_key(own, f"the key of {handler.scope}")
    if isinstance(key, BadKey):
        raise UnsendableMessage(key.detail)
    return key


def header_pairs(texts: Sequence[str]) -> dict[str, str]:
    """Headers written as NAME=VALUE.

    Raises:
        ConfigurationError: One is not, or a name comes twice.
    """
    headers: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigurationError(f"--header {text!r} is not NAME=VALUE")
        if name in headers:
            raise ConfigurationError(f"--header {name!r} is given twice")
        headers[name] = value
    return headers


def deadline_in(seconds: float, now: datetime) -> datetime:
    """The time so many seconds after `now`.

    Raises:
        ConfigurationError: That is not a number, or no calendar reaches so far.
    """
    try:
        return now + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"--deadline {seconds} is no time in seconds from now") from None
