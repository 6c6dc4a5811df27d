"""One connection to the broker.

A connection is never repaired. What hangs on it (channels, consumers, unconfirmed publishes) ends
with it, and the next session starts from nothing.
"""

import asyncio
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aio_pika
import aiormq
import structlog
from yarl import URL

from consumer.broker.address import describe
from consumer.broker.calls import CLIENT_ERRORS, call
from consumer.broker.repeat import Pace
from consumer.broker.transport import ContentTransportFactory
from consumer.errors import BrokerUnavailable

log = structlog.get_logger("consumer.broker")

@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to connect.

    Args:
        name: What the broker shows for the connection.
        heartbeat_s: Interval of heartbeats in seconds, unless the URL says otherwise.
        connect_timeout_s: Longest time for one attempt to connect.
        close_timeout_s: Longest time for saying goodbye; then the socket is closed.
        ssl_context: For `amqps://`; None makes one from the URL's parameters.
        pace: How soon a lost connection is opened again.
    """

    name: str = "consumer"
    heartbeat_s: int = 30
    connect_timeout_s: float = 10.0
    close_timeout_s: float = 5.0
    ssl_context: ssl.SSLContext | None = None
    pace: Pace = field(default_factory=Pace)


class ContentConnection(aio_pika.Connection):
    """An aio-pika connection whose content frames always decode."""

    def __init__(self, url: URL, **kwargs: Any) -> None:
        super().__init__(url, **kwargs)
        self.transport_factory = ContentTransportFactory(self._on_flow)
        self.kwargs["transport_factory"] = self.transport_factory
        self.flowing = asyncio.Event()
        """Cleared while the broker, for want of memory or disk, reads no publishes."""
        self.flowing.set()

    def _on_flow(self, flowing: bool) -> None:
        if flowing:
            log.info("broker_unblocked", host=self.url.host, port=self.url.port)
            self.flowing.set()
        else:
            log.warning("broker_blocked", host=self.url.host, port=self.url.port)
            self.flowing.clear()


class Session:
    """One connection. When `lost` is set, everything that was made of it is void."""

    def __init__(self, connection: ContentConnection, url: URL, close_timeout_s: float) -> None:
        assert connection.transport is not None
        self._connection = connection
        client = connection.transport.connection
        assert isinstance(client, aiormq.Connection)
        self._client = client
        self._url, self._close_timeout_s = url, close_timeout_s
        self.lost = asyncio.Event()
        self.error = ""
        """Why it was lost, without secrets."""
        self.flowing = connection.flowing
        """Set while the broker reads what is published, and when the session is lost."""
        self._client.closing.add_done_callback(self._on_closed)

    @property
    def frame_max(self) -> int:
        """Largest frame in bytes, header and end mark included."""
        return self._client.connection_tune.frame_max

    @property
    def broker_version(self) -> str:
        """Version of the broker, as it says itself."""
        return str(self._client.server_properties.get("version", ""))

    @contextmanager
    def within(self, timeout_s: float) -> Iterator[None]:
        """Where the block takes longer, the connection is aborted and what waits on it fails.

        The library cannot be trusted with a channel after a call on it was given up.
        """
        timer = asyncio.get_running_loop().call_later(timeout_s, self.abort)
        try:
            yield
        finally:
            timer.cancel()

    def abort(self) -> None:
        """The connection is cut, without a word to the broker. Idempotent."""
        self._connection.transport_factory.abort()

    async def channel(self, *, confirms: bool = False) -> aiormq.Channel:
        """A new channel. With `confirms`, unroutable messages raise.

        Raises:
            BrokerUnavailable: The connection is lost.
        """
        try:
            channel = await call(
                self._client.channel(publisher_confirms=confirms, on_return_raises=True)
            )
        except CLIENT_ERRORS as error:
            raise BrokerUnavailable(describe(error, self._url)) from None
        assert isinstance(channel, aiormq.Channel)
        return channel

    async def close(self) -> None:
        """The connection is closed, whether or not the broker answers. Idempotent."""
        try:
            async with asyncio.timeout(self._close_timeout_s):
                await self._connection.close()
        except TimeoutError:
            pass
        finally:
            self.abort()
            self._end()

    def _on_closed(self, closing: "asyncio.Future[Any]") -> None:
        error = None if closing.cancelled() else closing.exception()
        self.error = describe(error, self._url) if error else "closed"
        self._end()

    def _end(self) -> None:
        self.lost.set()
        self.flowing.set()


async def connect(url: URL, options: ConnectionOptions) -> Session:
    """One attempt to connect.

    Raises:
        BrokerUnavailable: It failed; the message has no secrets.
    """
    defaults = {"heartbeat": str(options.heartbeat_s)}
    connection = ContentConnection(
        url.with_query({**defaults, **url.query}), ssl_context=options.ssl_context,
        client_properties={"connection_name": options.name},
    )
    try:
        async with asyncio.timeout(options.connect_timeout_s):
            await call(connection.connect())
    except (*CLIENT_ERRORS, ValueError) as error:
        connection.transport_factory.abort()
        await connection.close()
        raise BrokerUnavailable(describe(error, url)) from None
    except asyncio.CancelledError:
        connection.transport_factory.abort()
        await connection.close()
        raise
    return Session(connection, url, options.close_timeout_s)


def quiet_client_loggers() -> None:
    """The client library logs nothing below CRITICAL: its records hold URLs and frames.

    What matters of them is logged here, without secrets.
    """
    for name in ("aiormq", "aio_pika"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
