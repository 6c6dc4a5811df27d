"""Who sends a command and waits for its reply, over RabbitMQ's direct reply-to.

Its consumer and its publishes share one channel, as
https://www.rabbitmq.com/docs/direct-reply-to asks for.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiormq
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from consumer.core.topology import commands_exchange

DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"


@dataclass(frozen=True)
class Reply:
    """One reply."""

    correlation_id: str | None
    type: str | None
    refused: object
    """The header with the reason."""
    content: dict[str, Any]
    redelivered: bool

    @property
    def error(self) -> dict[str, Any]:
        """Why the command was refused."""
        return dict(self.content["error"])


class Requester:
    """Sends commands with its address for replies, and collects these."""

    def __init__(self, channel: aiormq.abc.AbstractChannel, exchange: str) -> None:
        self._channel, self._exchange = channel, exchange
        self._replies: asyncio.Queue[Reply] = asyncio.Queue()

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, amqp_url: str, exchange: str = commands_exchange("consumer")
    ) -> AsyncIterator["Requester"]:
        """It listens until the end of the block."""
        connection = await aiormq.connect(amqp_url)
        try:
            requester = cls(await connection.channel(), exchange)
            await requester._channel.basic_consume(
                DIRECT_REPLY_TO, requester._received, no_ack=True)
            yield requester
        finally:
            await connection.close()

    async def ask(self, type_: str, body: object, key: str, correlation_id: str, *,
                  reply_to: str = DIRECT_REPLY_TO, **headers: Any) -> None:
        """A command has been sent. A body that is no bytes is written as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self._channel.basic_publish(
            content, exchange=self._exchange, routing_key=type_, properties=Basic.Properties(
                headers={"idempotency-key": key, **headers}, message_type=type_,
                correlation_id=correlation_id, reply_to=reply_to))

    async def declare(self, queue: str) -> None:
        """A queue of its own for replies."""
        await self._channel.queue_declare(queue, durable=True)

    async def answer(self) -> Reply:
        """The next reply; fails if none comes."""
        async with asyncio.timeout(20):
            return await self._replies.get()

    def silent(self) -> bool:
        """Whether no reply has come beside those that were taken."""
        return self._replies.empty()

    async def _received(self, message: DeliveredMessage) -> None:
        properties = message.header.properties
        self._replies.put_nowait(Reply(
            properties.correlation_id, properties.message_type,
            (properties.headers or {}).get("consumer-refused"), json.loads(message.body),
            bool(message.redelivered)))
