"""What is refused without being sent: messages that no attempt could get through."""

from pamqp import constants

from consumer.broker.frames import return_id
from consumer.message import Outgoing
from consumer.wire import MAX_SHORT_STRING_BYTES

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""RabbitMQ's own limit from 4.0 on."""
FRAME_MAX = 131_072
"""RabbitMQ's default, in bytes."""
_MAX_EXCHANGE = 127
_FRAME_OVERHEAD = 8 + 12  # frame header and end mark; class, weight and size of the body


def refusal(message: Outgoing, *, max_message_bytes: int, frame_max: int) -> str | None:
    """Why `message` cannot be sent at all, or None if it can be tried."""
    if len(message.body) > max_message_bytes:
        return f"the body has {len(message.body)} bytes; at most {max_message_bytes} are allowed"
    header_bytes = len(message.properties) + _FRAME_OVERHEAD
    if frame_max and header_bytes > frame_max:
        return f"properties and headers need {header_bytes} bytes; a frame has {frame_max}"
    try:
        if return_id(message.properties) is None:
            return "it has no message id"
    except ValueError as error:
        return str(error)
    return _bad_exchange(message.exchange) or _bad_routing_key(message.routing_key)


def _bad_exchange(name: str) -> str | None:
    if len(name) > _MAX_EXCHANGE:
        return f"the exchange name has {len(name)} characters; at most {_MAX_EXCHANGE} are allowed"
    if not constants.DOMAIN_REGEX["exchange-name"].fullmatch(name):
        return "the exchange name holds a character that AMQP 0-9-1 does not allow"
    return None


def _bad_routing_key(key: str) -> str | None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "the routing key is not UTF-8"
    if size > MAX_SHORT_STRING_BYTES:
        return f"the routing key has {size} bytes; at most {MAX_SHORT_STRING_BYTES} are allowed"
    return None
