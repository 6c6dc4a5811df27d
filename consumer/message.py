"""A command as it travels: body bytes, properties and headers, and where a delivery came from."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from consumer.wire import Properties

# Headers for producers. A deadline travels on copies as it came.
IDEMPOTENCY_KEY = "idempotency-key"
DEADLINE_MS = "x-deadline-ms"  # a time: milliseconds since the epoch
TIMEOUT_MS = "x-timeout-ms"  # a duration: milliseconds from the publish

# Headers of ours, written on copies and dead letters. A producer gains nothing by setting them.
TICKET = "consumer-ticket"
REPLAY_ITEM = "consumer-replay-item"
FIRST_SEEN_MS = "consumer-first-seen-ms"
PARKED_SINCE_MS = "consumer-parked-since-ms"
PARKS = "consumer-parks"
OWN_ID = "consumer-own-id"
ROUTING_KEY = "consumer-routing-key"
ORIGINAL_PROPERTIES = "consumer-original-properties"
DEAD_ID = "consumer-dead-id"
DEAD_REASON = "consumer-dead-reason"
DEAD_ERROR = "consumer-dead-error"
DEAD_TRACEBACK = "consumer-dead-traceback"
DEAD_ATTEMPTS = "consumer-dead-attempts"
DEAD_QUEUE = "consumer-dead-queue"
DEAD_HANDLER = "consumer-dead-handler"
DEAD_AT_MS = "consumer-dead-at-ms"

DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
"""What a requester that wants direct replies names; the broker puts a dot and a token behind it."""

_OURS = "consumer-"
_BROKERS = (
    "x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count",
    "CC", "BCC",
)


def is_carried(header: str) -> bool:
    """Whether a header of a delivery goes on to the copies made of it.

    Ours are written anew for each copy. What the broker wrote, or would act upon, stays behind:
    a copied `x-death` makes RabbitMQ before 4.0 drop the copy as a dead-letter cycle.
    """
    return not header.startswith(_OURS) and header != IDEMPOTENCY_KEY and not (
        header in _BROKERS or header.startswith(("x-first-death-", "x-last-death-"))
    )


class Lane(StrEnum):
    """Which of a queue's two lanes a message travels in."""

    LIVE = "live"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Message:
    """What a producer sent, exactly.

    Args:
        body: The body, byte for byte.
        properties: Its properties. Empty where they cannot be read at all.
        raw_properties: The encoding they came in.
        defect: Why the properties cannot be trusted, or None.
    """

    body: bytes
    properties: Properties = field(default_factory=Properties)
    raw_properties: bytes = b""
    defect: str | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """One arrival of a message at this worker.

    Args:
        message: What arrived.
        queue: The work queue, without the suffix of its lane.
        lane: The lane it arrived in.
        routing_key: The key it was routed by.
        redelivered: The broker's hint that it was delivered before.
    """

    message: Message
    queue: str
    lane: Lane = Lane.LIVE
    routing_key: str = ""
    redelivered: bool = False


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message ready to be published.

    Args:
        exchange: Where to; empty is the default exchange.
        routing_key: By which key.
        body: The body.
        properties: Encoded properties (`Properties.to_wire`).
        message_id: The same message id as in the properties, to tell copies apart.
    """

    exchange: str
    routing_key: str
    body: bytes
    properties: bytes
    message_id: str


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message to publish once the transaction it is written in has committed.

    Args:
        message: What to publish.
        type: Command type, for people.
        ordering_key: Rows of one key are published in the order of their commits.
        available_at: Not before; None is at once.
        delay: Time to spend in the delay ladder, counted from the write.
        owner: The (scope, key) of the claim whose next copy this is. Such a row stays after it is
            published, until its claim is written again, and is published again when overdue.
    """

    message: Outgoing
    type: str
    ordering_key: str | None = None
    available_at: datetime | None = None
    delay: timedelta | None = None
    owner: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SentRow:
    """An outbox row that was written, and what publishing it takes.

    Args:
        id: Its id in the outbox.
        message: What to publish.
        due_at: End of its stay in the delay ladder; None goes straight to its destination.
        kept: It stays after its confirm, until its claim is written again.
        relay_only: It has an ordering key or is scheduled: the writer must not publish it.
        tries: Publishes that failed so far.
    """

    id: int
    message: Outgoing
    due_at: datetime | None = None
    kept: bool = False
    relay_only: bool = False
    tries: int = 0
