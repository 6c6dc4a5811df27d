"""What a delivery says it is: its command type, and the idempotency key the producer gave."""

from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from consumer import message as names
from consumer.message import Delivery, Message
from consumer.wire import WireError

MAX_KEY_BYTES = 255
"""Longest key, in bytes of UTF-8: what an AMQP `message_id` can hold, and well below the 2,704
bytes a B-tree entry of Postgres can. Longer keys die; they are never truncated."""


@dataclass(frozen=True, slots=True)
class BadKey:
    """A key was given, and no claim can be made under it."""

    detail: str


def command_type(delivery: Delivery) -> str:
    """The command type: the `type` property, else the key it was first routed by."""
    return delivery.message.properties.type or routed_by(delivery)


def routed_by(delivery: Delivery) -> str:
    """The routing key the producer published with; copies carry it in a header."""
    try:
        routed = delivery.message.properties.headers.get(names.ROUTING_KEY)
    except WireError:
        routed = None
    return routed if isinstance(routed, str) else delivery.routing_key


def stated_key(message: Message) -> str | BadKey | None:
    """The key the producer gave, compared exactly as it is: never trimmed, folded, normalised.

    An empty header or message id counts as absent; the numbers 0 and the word false do not. So
    does a message id that we made for a copy of a message without one.
    """
    try:
        header = message.properties.headers.get(names.IDEMPOTENCY_KEY)
    except WireError as error:
        return BadKey(f"header {names.IDEMPOTENCY_KEY}: {error}")
    if header not in (None, ""):
        return as_key(header, f"header {names.IDEMPOTENCY_KEY}")
    if message.properties.message_id and not has_own_id(message):
        return as_key(message.properties.message_id, "message_id")
    return None


def derived_id(identity: bytes, body: bytes) -> str:
    """An id for a message that has none: equal for equal arguments only."""
    return sha256(sha256(identity).digest() + body).hexdigest()[:32]


def has_own_id(message: Message) -> bool:
    """Whether the message id is one we made for a copy, and so no key.

    A producer that claims so gives its own key away, and nothing else.
    """
    try:
        return message.properties.headers.get(names.OWN_ID) is True
    except WireError:
        return False


def as_key(value: object, source: str) -> str | BadKey:
    """`value` as the text of a key.

    Text, integers, booleans, UUIDs and UTF-8 bytes can be keys.
    """
    if isinstance(value, bool):
        value = "true" if value else "false"
    elif isinstance(value, int | UUID):
        value = str(value)
    elif isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return BadKey(f"{source} is not UTF-8")
    if not isinstance(value, str):
        return BadKey(f"{source} is a {type(value).__name__}, which cannot be a key")
    if not value:
        return BadKey(f"{source} is empty")
    if "\0" in value:
        return BadKey(f"{source} holds a NUL character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return BadKey(f"{source} is not valid Unicode")
    if size > MAX_KEY_BYTES:
        return BadKey(f"{source} is {size} bytes long, more than {MAX_KEY_BYTES}")
    return value
