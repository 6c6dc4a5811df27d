"""What the broker holds, seen with pika, as any other program would."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pika  # type: ignore[import-untyped]
from pika.exceptions import ChannelClosedByBroker  # type: ignore[import-untyped]

from benchmarks.overload.records import Refusal


def consumers(amqp_url: str, queue: str) -> int:
    """Consumers of the queue; 0 if there is no such queue."""
    declared = _declared(amqp_url, queue)
    return int(declared.consumer_count) if declared else 0


def depth(amqp_url: str, queue: str) -> int:
    """Messages ready in the queue; 0 if there is no such queue."""
    declared = _declared(amqp_url, queue)
    return int(declared.message_count) if declared else 0


def _declared(amqp_url: str, queue: str) -> Any:
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        try:
            return connection.channel().queue_declare(queue, passive=True).method
        except ChannelClosedByBroker:
            return None


def keys(amqp_url: str, queues: Iterable[str]) -> frozenset[str]:
    """Keys of the commands in those queues. The messages stay there."""
    return frozenset(
        str((properties.headers or {}).get("idempotency-key") or properties.correlation_id)
        for queue in queues for properties, _ in _messages(amqp_url, queue))


def dead_letters(amqp_url: str, queue: str) -> list[Refusal]:
    """What was given up, by the headers of its dead letter (`docs/messages.md`)."""
    return [
        Refusal(json.loads(body)["card"], properties.headers["consumer-dead-reason"],
                properties.headers["consumer-dead-at-ms"] / 1000)
        for properties, body in _messages(amqp_url, f"{queue}.dead")
    ]


def _messages(amqp_url: str, queue: str) -> Iterator[tuple[Any, bytes]]:
    """All messages of a queue; they go back to it when the connection closes."""
    if not depth(amqp_url, queue):
        return
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get(queue)
            if method is None:
                return
            yield properties, body
