"""Messages as a producer sends them and as an operator finds them, byte for byte."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from consumer.broker.address import parse_address
from consumer.broker.connection import ConnectionOptions, connect
from consumer.broker.frames import EncodedProperties, raw_properties
from consumer.core.topology import commands_exchange
from consumer.wire import Headers, HeaderValue, Properties


@dataclass(frozen=True)
class Post:
    """A message to publish, its properties encoded."""

    routing_key: str
    body: bytes
    properties: bytes
    exchange: str = commands_exchange("consumer")

    @property
    def key(self) -> HeaderValue:
        """The idempotency key in its header."""
        return Properties.from_wire(self.properties).headers.get("idempotency-key")

    def sent_to(self, exchange: str, routing_key: str | None = None) -> "Post":
        """The same message by another way."""
        return replace(self, exchange=exchange, routing_key=routing_key or self.routing_key)


def post(type_: str, body: object, key: str | None = None,
         headers: Mapping[str, HeaderValue] | None = None, **properties: Any) -> Post:
    """A command of that type. A body that is no bytes is written as JSON."""
    ours = {} if key is None else {"idempotency-key": key}
    encoded = Properties(type=type_, headers=Headers.of({**(headers or {}), **ours}), **properties)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Post(type_, content, encoded.to_wire())


@dataclass(frozen=True)
class Found:
    """A message taken out of a queue."""

    body: bytes
    raw: bytes
    redelivered: bool

    @property
    def properties(self) -> Properties:
        return Properties.from_wire(self.raw)

    @property
    def headers(self) -> dict[str, HeaderValue]:
        return self.properties.headers.decoded()

    @property
    def reason(self) -> HeaderValue:
        """Why it died, if it is a dead letter."""
        return self.properties.headers.get("consumer-dead-reason")


async def publish(amqp_url: str, posts: Sequence[Post]) -> None:
    """All are confirmed by the broker, and none came back."""
    session = await connect(parse_address(amqp_url), ConnectionOptions(name="test"))
    try:
        channel = await session.channel(confirms=True)
        for number, one in enumerate(posts):
            await channel.basic_publish(
                one.body, exchange=one.exchange, routing_key=one.routing_key, mandatory=True,
                properties=EncodedProperties(one.properties, f"post-{number}"))
    finally:
        await session.close()


async def take(amqp_url: str, queue: str) -> list[Found]:
    """All that is ready in that queue, taken out of it."""
    session = await connect(parse_address(amqp_url), ConnectionOptions(name="test"))
    found = []
    try:
        channel = await session.channel()
        while (message := await channel.basic_get(queue, no_ack=True)).delivery_tag:
            found.append(Found(message.body, raw_properties(message.header),
                               bool(message.redelivered)))
    finally:
        await session.close()
    return found
