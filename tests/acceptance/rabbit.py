"""The broker as any other program sees it, through pika."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pika  # type: ignore[import-untyped]

EXCHANGE = "consumer.commands"


@dataclass(frozen=True)
class Publication:
    """A message to publish to the exchange of commands."""

    type: str
    body: bytes
    message_id: str | None = None
    headers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DeadLetter:
    """A message found in a queue of dead letters."""

    reason: str
    error: str
    attempts: int
    message_id: str
    body: bytes


def publish(amqp_url: str, publications: Iterable[Publication]) -> int:
    """All are confirmed by the broker, and none came back. Returns how many."""
    confirmed = 0
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for message in publications:
            channel.basic_publish(EXCHANGE, message.type, message.body, pika.BasicProperties(
                content_type="application/json", delivery_mode=2, type=message.type,
                message_id=message.message_id, headers=message.headers), mandatory=True)
            confirmed += 1
    return confirmed


def depths(amqp_url: str, queues: Sequence[str]) -> dict[str, int]:
    """Messages that are ready, of those queues that hold any."""
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        channel = connection.channel()
        found = {name: channel.queue_declare(name, passive=True).method.message_count
                 for name in queues}
    return {name: depth for name, depth in found.items() if depth}


def lanes(queue: str) -> list[str]:
    """All queues a message for `queue` can be in."""
    delays = [f"consumer.delay.{level:02}" for level in range(24)]
    return [queue, f"{queue}.replay", *delays, "consumer.unroutable"]


def dead_letters(amqp_url: str, queue: str) -> list[DeadLetter]:
    """The dead letters of `queue`, which are left there."""
    letters: list[DeadLetter] = []
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get(f"{queue}.dead")
            if method is None:
                return letters
            headers = properties.headers
            letters.append(DeadLetter(
                headers["consumer-dead-reason"], headers["consumer-dead-error"],
                headers["consumer-dead-attempts"], properties.message_id, body))
