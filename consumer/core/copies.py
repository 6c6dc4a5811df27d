"""The messages we publish again: the next copy, the parked copy, the dead letter.

Properties come from a fixed list of ours. What the producer sent beyond that travels as data and
steers neither routing, expiry, priority nor identity of our copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from uuid import UUID

from consumer import message as names
from consumer.core.deadline import epoch_ms
from consumer.core.identity import derived_id, has_own_id, routed_by
from consumer.core.topology import dead_queue, deliver_exchange, replay_queue, route_delay
from consumer.message import Delivery, Lane, Message, Outgoing, is_carried
from consumer.outcome import DeadReason
from consumer.wire import Headers, HeaderValue, Properties, WireError

PERSISTENT = 2
MAX_PROPERTIES_BYTES = 131_072 - 20
"""What one frame of RabbitMQ's default size holds, in which properties and headers must fit."""
MAX_HEADER_FRAME_BYTES = 131_072 - 1280
"""The most a message may have that we send or run: its copies carry up to 1,243 bytes of ours."""
MAX_DIAGNOSTIC_BYTES = 16 * 1024
_CUT = " […cut]"


@dataclass(frozen=True, slots=True)
class Death:
    """Why a message died, as its dead letter tells it.

    Args:
        attempts: Failed attempts of this life of the command.
        traceback: Where the last one failed; empty if none ran.
    """

    why: DeadReason
    error: str
    at: datetime
    attempts: int = 0
    traceback: str = ""
    handler: str = ""
    replay_item: int | None = None
    fingerprints: Mapping[str, bytes] = field(default_factory=dict)


def cut(text: str, limit_bytes: int) -> str:
    """`text` in at most `limit_bytes` of UTF-8, cut on a character boundary, with a mark."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit_bytes:
        return encoded.decode()
    room = max(0, limit_bytes - len(_CUT.encode()))
    return encoded[:room].decode("utf-8", "ignore") + _CUT if room else ""


def logical_id(delivery: Delivery, key: str | None) -> str:
    """The stable id of the message: its own, or one derived from key and body."""
    own = delivery.message.properties.message_id
    if own and own.isprintable():
        return own
    identity = key.encode() if key is not None else _sent_properties(delivery.message)
    return derived_id(delivery.queue.encode() + b"\0" + identity, delivery.message.body)


def _sent_properties(message: Message) -> bytes:
    """The properties without what the broker adds to a redelivery, `x-delivery-count` for one."""
    if message.defect is not None:
        return message.raw_properties
    sent = message.properties.headers.keep(lambda n: is_carried(n) or n == names.IDEMPOTENCY_KEY)
    return message.properties.with_headers(sent).to_wire()


def sent_bytes(message: Message) -> int:
    """What the properties took when the producer sent them: of a copy, without what is ours or the
    broker's, which is bounded.
    """
    if ticket_of(message) is None and not parks(message):
        return len(message.raw_properties)
    theirs = replace(message.properties, headers=_carried(message), message_id=None, type=None)
    return len(theirs.to_wire())


def _carried(message: Message) -> Headers:
    return message.properties.headers.keep(is_carried)


def _properties(message: Message, headers: Headers, message_id: str, type_: str | None
                ) -> Properties:
    sent = message.properties
    # The broker replaces this name when a requester publishes, and closes the channel of anybody
    # else who publishes it (https://www.rabbitmq.com/docs/direct-reply-to).
    reply_to = None if sent.reply_to == names.DIRECT_REPLY_TO else sent.reply_to
    return Properties(
        content_type=sent.content_type, content_encoding=sent.content_encoding, headers=headers,
        delivery_mode=PERSISTENT, correlation_id=sent.correlation_id, reply_to=reply_to,
        message_id=message_id, timestamp=sent.timestamp, type=type_, app_id=sent.app_id,
    )


def next_copy(
    prefix: str, delivery: Delivery, key: str, type_: str, ticket: UUID, replay_item: int | None,
    seen: datetime,
) -> Outgoing:
    """The one copy that may run next. It returns to the lane of the delivery.

    Its exchange and routing key name where it arrives; the delay is added when it is published.

    Args:
        seen: First sight of the command (`first_seen`), from which its age counts.
    """
    ours: dict[str, HeaderValue] = {
        names.IDEMPOTENCY_KEY: key, names.TICKET: str(ticket),
        names.ROUTING_KEY: routed_by(delivery), names.FIRST_SEEN_MS: epoch_ms(seen),
    }
    if replay_item is not None:
        ours[names.REPLAY_ITEM] = replay_item
    message_id = logical_id(delivery, key)
    properties = _properties(
        delivery.message, _carried(delivery.message).plus(ours), message_id, type_)
    return Outgoing(deliver_exchange(prefix), lane_queue(delivery.queue, delivery.lane),
                    delivery.message.body, properties.to_wire(), message_id)


def parked_copy(
    prefix: str, delivery: Delivery, key: str | None, delay: timedelta, since: datetime,
    seen: datetime,
) -> Outgoing:
    """A copy that changes nothing but the hour: same ticket, same replay item, same deadline.

    Args:
        since: When it was first parked without a claim; it dies when `deploy_grace` is over.
        seen: First sight of the command (`first_seen`), from which its age counts.
    """
    sent, message_id = delivery.message.properties, logical_id(delivery, key)
    ours: dict[str, HeaderValue] = {
        names.FIRST_SEEN_MS: epoch_ms(seen), names.PARKED_SINCE_MS: epoch_ms(since),
        names.PARKS: parks(delivery.message) + 1, names.ROUTING_KEY: routed_by(delivery),
    }
    if not sent.message_id or has_own_id(delivery.message):
        ours[names.OWN_ID] = True
    # Byte for byte: what a producer put there need not have an encoding of ours.
    kept = {names.TICKET, names.REPLAY_ITEM}
    if key is not None:
        ours[names.IDEMPOTENCY_KEY] = key
    elif sent.headers.get(names.IDEMPOTENCY_KEY) not in (None, ""):
        kept.add(names.IDEMPOTENCY_KEY)
    elif sent.message_id and sent.message_id != message_id:
        ours[names.IDEMPOTENCY_KEY] = sent.message_id  # it would be the key, could it be an id
    headers = sent.headers.keep(lambda name: is_carried(name) or name in kept).plus(ours)
    properties = _properties(delivery.message, headers, message_id, sent.type)
    route = route_delay(prefix, delay, lane_queue(delivery.queue, delivery.lane))
    return Outgoing(route.exchange, route.routing_key, delivery.message.body,
                    properties.to_wire(), message_id)


def dead_letter(prefix: str, delivery: Delivery, key: str | None, death: Death) -> Outgoing:
    """The dead letter of a delivery: its body, its headers with their types, and why it died.

    Headers that strict clients cannot decode travel inside one header, so that any tool can read
    the queue. Ours shrink, down to nothing, before those of the producer are left behind, and that
    is only where they fill the frame to its last bytes.
    """
    message, message_id = delivery.message, logical_id(delivery, key)
    readable = message.defect is None
    # Where no key was read, the one the producer stated stays: a replay will need it.
    carried = message.properties.headers.keep(
        lambda n: is_carried(n) or (key is None and n == names.IDEMPOTENCY_KEY)
    ) if readable else Headers()
    original = replace(message.properties, headers=Headers()).to_wire() if readable \
        else message.raw_properties
    properties = _properties(message, carried, message_id, message.properties.type) if readable \
        else Properties(delivery_mode=PERSISTENT, message_id=message_id)
    route = route_delay(prefix, timedelta(0), dead_queue(delivery.queue))
    for scale in (1.0, 0.25, 0.05, 0.0):
        ours = _diagnosis(delivery, key, death, original, scale)
        wire = properties.with_headers(carried.plus(ours)).to_wire()
        if len(wire) <= MAX_PROPERTIES_BYTES:
            break
    else:
        wire = properties.to_wire() if readable else wire
    if len(wire) > MAX_PROPERTIES_BYTES:
        ours = _diagnosis(delivery, key, death, b"", 1.0)
        wire = properties.with_headers(Headers.of(ours)).to_wire()
    return Outgoing(route.exchange, route.routing_key, message.body, wire, message_id)


def dead_id(queue: str, message: Message, message_id: str, replay_item: int | None,
            why: DeadReason) -> str:
    """Equal for doubled copies of a letter, different for a second death after a replay.

    Different also where one message id arrived in two queues, or with two bodies.
    """
    identity = "\0".join((queue, message_id, str(replay_item or ""), why))
    return sha256(identity.encode("utf-8", "surrogateescape")
                  + sha256(message.body).digest()).hexdigest()[:32]


def _diagnosis(
    delivery: Delivery, key: str | None, death: Death, original: bytes, scale: float
) -> dict[str, HeaderValue]:
    """Our headers of a dead letter; `scale` in [0, 1] shrinks the long texts."""
    limit = int(MAX_DIAGNOSTIC_BYTES * scale)
    message_id = logical_id(delivery, key)
    ours: dict[str, HeaderValue] = {
        names.DEAD_ID: dead_id(
            delivery.queue, delivery.message, message_id, death.replay_item, death.why),
        names.DEAD_REASON: str(death.why), names.DEAD_QUEUE: delivery.queue,
        names.DEAD_ATTEMPTS: death.attempts, names.DEAD_AT_MS: int(death.at.timestamp() * 1000),
        names.DEAD_ERROR: cut(death.error, limit // 4),
    }
    if key is not None:
        ours[names.IDEMPOTENCY_KEY] = key
    if death.handler:
        ours[names.DEAD_HANDLER] = death.handler
    if death.replay_item is not None:
        ours[names.REPLAY_ITEM] = death.replay_item
    if scale:
        ours[names.ORIGINAL_PROPERTIES] = original
        ours[names.ROUTING_KEY] = routed_by(delivery)
        ours[names.DEAD_TRACEBACK] = cut(death.traceback, limit)
        for name, digest in death.fingerprints.items():
            ours[f"consumer-{name}"] = digest.hex()
    elif delivery.message.defect is not None:
        ours[names.ORIGINAL_PROPERTIES] = original
    return ours


def lane_queue(queue: str, lane: Lane) -> str:
    """The broker's queue of that lane."""
    return queue if lane is Lane.LIVE else replay_queue(queue)


def parks(message: Message) -> int:
    """How often this copy was parked in a row, as far as its header can be believed.

    A producer that sets it only makes its own message wait longer.
    """
    return _counted(message, names.PARKS, 1000)


def parked_since(message: Message, now: datetime) -> datetime:
    """When this copy was first parked; `now` if it was not. Never in the future."""
    since = _counted(message, names.PARKED_SINCE_MS, int(now.timestamp() * 1000))
    return datetime.fromtimestamp(since / 1000, now.tzinfo) if since else now


def ticket_of(message: Message) -> UUID | None:
    """The ticket the copy carries, or None if it carries none that could be one of ours."""
    try:
        value = message.properties.headers.get(names.TICKET)
        return UUID(value) if isinstance(value, str) else None
    except (WireError, ValueError):
        return None


def _counted(message: Message, header: str, most: int) -> int:
    """A number in a header of ours; 0 for anything else a producer may have put there."""
    try:
        value = message.properties.headers.get(header)
    except WireError:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return min(value, most) if value > 0 else 0
