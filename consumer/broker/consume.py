"""Consuming: subscriptions that outlive connections, channels and queues."""

import asyncio
from contextlib import suppress

import structlog

from consumer.broker.calls import CLIENT_ERRORS
from consumer.broker.connection import ConnectionOptions
from consumer.broker.generation import Generation
from consumer.broker.link import Link, Urls
from consumer.broker.repeat import Pace, repeat
from consumer.core.topology import replay_queue
from consumer.errors import BrokerUnavailable
from consumer.message import Lane
from consumer.ports import Sink

log = structlog.get_logger("consumer.broker")

_OPEN_TIMEOUT_S = 10.0


def queue_name(queue: str, lane: Lane) -> str:
    """The broker's queue for a lane of a work queue."""
    return queue if lane is Lane.LIVE else replay_queue(queue)


class RabbitSubscription:
    """A consumer that outlives reconnects; has a channel of its own."""

    def __init__(
        self, link: Link, pace: Pace, queue: str, lane: Lane, prefetch: int, sink: Sink
    ) -> None:
        self.queue, self.lane = queue, lane
        self._link, self._prefetch, self._sink = link, prefetch, sink
        self._generation: Generation | None = None
        self.tried = asyncio.Event()
        """Set when the first attempt to consume has ended, one way or the other."""
        self._task: asyncio.Task[None] | None = asyncio.create_task(
            repeat(self._hold_generation, pace)
        )

    @property
    def active(self) -> bool:
        """Whether the broker delivers to it now."""
        return not self.cancelled and self._open

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._task is None

    @property
    def ended(self) -> bool:
        """Whether it was cancelled and all that was taken from it is settled."""
        return self.cancelled and not self._open

    @property
    def _open(self) -> bool:
        return self._generation is not None and not self._generation.over.is_set()

    async def cancel(self) -> None:
        """No further delivery arrives; those taken can still be settled. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if self._generation is not None:
            await self._generation.stop()

    async def close(self) -> None:
        """It is cancelled, and nothing taken from it can be settled any more. Idempotent."""
        await self.cancel()
        if self._generation is not None:
            await self._generation.close()

    async def _hold_generation(self) -> None:
        """One generation from its begin to its end; returns when there is none any more."""
        session = await self._link.wait()
        try:
            with session.within(_OPEN_TIMEOUT_S):
                channel = await session.channel()
            generation = Generation(session, channel, self.queue, self.lane, self._sink)
            await generation.consume(queue_name(self.queue, self.lane), self._prefetch)
        except (BrokerUnavailable, *CLIENT_ERRORS) as error:
            log.warning("consume_failed", queue=self.queue, lane=str(self.lane), error=str(error))
            return
        finally:
            self.tried.set()
        self._generation = generation
        log.info("consuming", queue=self.queue, lane=str(self.lane), prefetch=self._prefetch)
        await generation.over.wait()
        self._generation = None
        log.warning(
            "consumer_lost", queue=self.queue, lane=str(self.lane), error=generation.error
        )
        await generation.close()


class RabbitBroker:
    """The consuming side of RabbitMQ, on a connection of its own.

    Args:
        urls: The broker's addresses, read again at each reconnect and tried in turn.
        options: How to connect.
        resume_pace: How soon a lost consumer consumes again.
    """

    def __init__(
        self, urls: Urls, options: ConnectionOptions | None = None, *,
        resume_pace: Pace | None = None,
    ) -> None:
        self._link = Link(urls, options or ConnectionOptions(name="consumer: consuming"))
        self._pace = resume_pace or Pace()
        self._subscriptions: set[RabbitSubscription] = set()

    def open(self) -> None:
        """Connecting begins, in the background.

        Raises:
            ConfigurationError: A URL is not valid.
        """
        self._link.open()

    @property
    def connected(self) -> bool:
        """Whether the consuming connection is up."""
        return self._link.session is not None

    async def wait_connected(self, timeout_s: float | None = None) -> None:
        """The consuming connection is up.

        Raises:
            BrokerUnavailable: It was not within `timeout_s` seconds.
        """
        await self._link.wait(timeout_s)

    async def subscribe(
        self, queue: str, lane: Lane, prefetch: int, sink: Sink
    ) -> RabbitSubscription:
        """Deliveries go to `sink`, which must not block; restored after each reconnect.

        While connected, it is active on return unless the broker refused. A queue that does not
        exist is waited for.
        """
        subscription = RabbitSubscription(self._link, self._pace, queue, lane, prefetch, sink)
        self._subscriptions = {s for s in self._subscriptions if not s.ended} | {subscription}
        if self.connected:
            await subscription.tried.wait()
        return subscription

    def inactive(self) -> list[tuple[str, Lane]]:
        """What is subscribed but not delivered now, for a watchdog."""
        return sorted(
            (s.queue, s.lane) for s in self._subscriptions if not s.cancelled and not s.active
        )

    async def close(self) -> None:
        """Subscriptions are cancelled, the broker has read all acks, the connection is closed."""
        for subscription in self._subscriptions:
            await subscription.close()
        self._subscriptions.clear()
        await self._link.close()
