"""One consumer on one channel, from basic.consume to the end of either."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from uuid import uuid4

import structlog
from aiormq import Channel
from aiormq.abc import DeliveredMessage
from pamqp import commands

from consumer.broker.calls import CLIENT_ERRORS, Consume, call
from consumer.broker.connection import Session
from consumer.broker.frames import raw_properties, raw_routing_key
from consumer.message import Delivery, Lane, Message
from consumer.ports import Sink
from consumer.wire import Properties, WireError

log = structlog.get_logger("consumer.broker")

_TIMEOUT_S = 10.0


class RabbitSettlement:
    """Ends one delivery, on the channel that delivered it."""

    __slots__ = ("_generation", "_tag")

    def __init__(self, generation: "Generation", tag: int) -> None:
        self._generation, self._tag = generation, tag

    @property
    def live(self) -> bool:
        """Whether that channel is still open; if not, the delivery comes again by itself."""
        return not self._generation.over.is_set()

    async def ack(self) -> bool:
        """The broker is told that it is done. False: it was settled, or its channel is gone."""
        tag, self._tag = self._tag, 0
        return await self._generation.settle(tag, self._generation.ack)

    async def requeue(self) -> bool:
        """The broker is told to deliver it again. False as for `ack`."""
        tag, self._tag = self._tag, 0
        return await self._generation.settle(tag, self._generation.requeue)


class Generation:
    """A consumer and its channel. Once `over` is set, nothing can be settled on it."""

    def __init__(
        self, session: Session, channel: Channel, queue: str, lane: Lane, sink: Sink
    ) -> None:
        self._session, self._channel, self._sink = session, channel, sink
        self.queue, self.lane = queue, lane
        self._consumer_tag = uuid4().hex
        self._unsettled = 0
        self._stopped = False
        self._closing: asyncio.Task[None] | None = None
        self.over = asyncio.Event()
        self.error = ""
        channel.closing.add_done_callback(self._on_closed)
        channel.on_consumer_cancel_callbacks.add(self._on_cancelled)

    async def consume(self, queue_name: str, prefetch: int) -> None:
        """Deliveries of `queue_name` go to the sink. It is never declared here.

        Raises:
            Exception: One of `CLIENT_ERRORS`; the channel is closed.
        """
        try:
            # Not `basic_consume`: it would wrap the callback, and every delivery would wait for
            # a task of the library's, which is cancelled when the channel closes.
            self._channel.consumers[self._consumer_tag] = self._on_message
            with self._session.within(_TIMEOUT_S):
                await call(self._channel.basic_qos(prefetch_count=prefetch))
                frame = Consume(queue=queue_name, consumer_tag=self._consumer_tag)
                await call(self._channel.rpc(frame))
        except BaseException:
            await self.close()
            raise

    async def stop(self) -> None:
        """No further delivery arrives. The channel is closed when all are settled."""
        self._stopped = True
        with suppress(*CLIENT_ERRORS), self._session.within(_TIMEOUT_S):
            await call(self._channel.basic_cancel(self._consumer_tag))
        if not self._unsettled:
            await self.close()

    async def close(self) -> None:
        """The channel is closed; the broker has read what was settled on it. Idempotent."""
        with suppress(*CLIENT_ERRORS), self._session.within(_TIMEOUT_S):
            await call(self._channel.close())
        self.over.set()

    async def settle(self, tag: int, tell: Callable[[int], Coroutine[Any, Any, None]]) -> bool:
        """`tell` the broker about the delivery `tag`; False if it no longer can be."""
        if not tag or self.over.is_set():
            return False
        try:
            await call(tell(tag))
        except CLIENT_ERRORS:
            return False
        self._unsettled -= 1
        if self._stopped and not self._unsettled:
            self._closing = asyncio.create_task(self.close())
        return True

    async def ack(self, tag: int) -> None:
        """The ack of `tag` is on its way."""
        await self._channel.basic_ack(tag, wait=False)

    async def requeue(self, tag: int) -> None:
        """The nack of `tag` is on its way. 4.3 counts a reject as a failure, but not a nack."""
        await self._channel.basic_nack(tag, requeue=True, wait=False)

    def _on_message(self, message: DeliveredMessage) -> Coroutine[Any, Any, None]:
        """Called by the library where it reads frames; what is returned it makes a task of."""
        tag = message.delivery_tag
        assert tag is not None
        self._unsettled += 1
        try:
            self._sink(self._delivery(message), RabbitSettlement(self, tag))
        except Exception as error:
            # The channel must not keep a delivery that nobody will settle.
            log.exception("delivery_not_taken", queue=self.queue, lane=str(self.lane))
            self.error = f"delivery not taken: {type(error).__name__}"
            self.over.set()
        return _finished()

    def _delivery(self, message: DeliveredMessage) -> Delivery:
        raw = raw_properties(message.header)
        try:
            properties = Properties.from_wire(raw)
            defect = properties.defect()
        except WireError as error:
            properties, defect = Properties(), str(error)
        routing_key = message.routing_key or ""
        if (odd_key := raw_routing_key(message.header)) is not None:
            routing_key = odd_key.decode("utf-8", "surrogateescape")
            defect = defect or "routing key is not UTF-8"
        return Delivery(
            Message(message.body, properties, raw, defect),
            self.queue, self.lane, routing_key, bool(message.redelivered),
        )

    def _on_cancelled(self, frame: commands.Basic.Cancel) -> None:
        if frame.consumer_tag == self._consumer_tag:
            self.error = self.error or "the broker cancelled the consumer"
            self.over.set()

    def _on_closed(self, closing: "asyncio.Future[Any]") -> None:
        error = None if closing.cancelled() else closing.exception()
        self.error = self.error or (str(error).split("\n")[0] if error else "channel closed")
        self.over.set()


async def _finished() -> None:
    """The delivery is in the sink already."""
