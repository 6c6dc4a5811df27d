"""Sends messages with pika, as any AMQP client would."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pika  # type: ignore[import-untyped]

from examples.payments.demo.plan import CAPTURE, Sending

PRODUCERS = 4
EXCHANGE = "consumer.commands"


def publish_all(
    amqp_url: str, sendings: Sequence[Sending], sent: Callable[[], None]
) -> None:
    """Every message is confirmed by the broker. Blocks.

    Args:
        sent: Called after each confirm, from several threads.
    """
    with ThreadPoolExecutor(PRODUCERS) as pool:
        shares = [sendings[producer::PRODUCERS] for producer in range(PRODUCERS)]
        for producer in [pool.submit(_publish, amqp_url, share, sent) for share in shares]:
            producer.result()


def _publish(amqp_url: str, sendings: Sequence[Sending], sent: Callable[[], None]) -> None:
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for sending in sendings:
            # Everything is routed to the queue of captures, whatever its type says.
            channel.basic_publish(EXCHANGE, CAPTURE, sending.body, _properties(sending),
                                  mandatory=True)
            sent()


def _properties(sending: Sending) -> pika.BasicProperties:
    return pika.BasicProperties(
        content_type="application/json", delivery_mode=2, type=sending.type,
        message_id=sending.message_id, headers=dict(sending.headers),
        timestamp=sending.timestamp)
