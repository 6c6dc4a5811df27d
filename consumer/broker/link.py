"""Connections that are opened again when they are lost."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count

import structlog
from yarl import URL

from consumer.broker.address import parse_address
from consumer.broker.connection import ConnectionOptions, Session, connect, quiet_client_loggers
from consumer.broker.repeat import repeat
from consumer.errors import BrokerUnavailable, ConfigurationError, ConsumerError

log = structlog.get_logger("consumer.broker")

Urls = Callable[[], Sequence[str]]


class Link:
    """Keeps a session open until it is closed itself.

    Args:
        urls: The broker's addresses, read again for each attempt and tried in turn.
        options: How to connect.
    """

    def __init__(self, urls: Urls, options: ConnectionOptions) -> None:
        self._urls, self._options = urls, options
        self._turn = count()
        self._session: Session | None = None
        self._renewing = False
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    @property
    def session(self) -> Session | None:
        """The session that is open now."""
        session = self._session
        return None if session is None or session.lost.is_set() else session

    def open(self) -> None:
        """Connecting begins, in the background. Idempotent.

        Raises:
            ConfigurationError: There is no address, or one is not valid.
        """
        if self._task is None:
            quiet_client_loggers()
            self._addresses()
            self._task = asyncio.create_task(repeat(self._hold_session, self._options.pace))

    async def wait(self, timeout_s: float | None = None) -> Session:
        """The open session, as soon as there is one.

        Raises:
            BrokerUnavailable: There was none within `timeout_s` seconds.
        """
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                while (session := self.session) is None:
                    await self._changed.wait()
                return session
        except TimeoutError:
            raise BrokerUnavailable(f"no connection to RabbitMQ within {timeout_s:g} s") from None

    async def extra_session(self) -> Session:
        """One more session, at the next address; the caller closes it.

        Raises:
            BrokerUnavailable: The broker does not answer.
        """
        addresses = self._addresses()
        return await connect(addresses[next(self._turn) % len(addresses)], self._options)

    def renew(self, session: Session) -> None:
        """`session`, if it is the open one, is given up and replaced at once."""
        if session is self.session:
            self._renewing = True
            session.lost.set()

    async def close(self) -> None:
        """No session is open and none will be. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _addresses(self) -> list[URL]:
        urls = [parse_address(url) for url in self._urls()]
        if not urls:
            raise ConfigurationError("no URL of RabbitMQ is given")
        return urls

    async def _hold_session(self) -> None:
        """One session from its begin to its end, and those that were asked for in its place."""
        while (session := await self._connect()) is not None:
            self._renewing = False
            try:
                await self._announce(session)
                await session.lost.wait()
                if not self._renewing:
                    log.warning("broker_lost", connection=self._options.name, error=session.error)
                    return
            finally:
                self._session = None
                await session.close()

    async def _announce(self, session: Session) -> None:
        async with self._changed:
            self._session = session
            self._changed.notify_all()

    async def _connect(self) -> Session | None:
        """A session; None, logged, if there is none to be had at the address whose turn it is."""
        try:
            addresses = self._addresses()
        except (ConsumerError, OSError) as error:
            log.error("broker_misconfigured", connection=self._options.name, error=str(error))
            return None
        url = addresses[next(self._turn) % len(addresses)]
        try:
            session = await connect(url, self._options)
        except BrokerUnavailable as error:
            log.warning("broker_unreachable", connection=self._options.name, host=url.host,
                        port=url.port, error=str(error))
            return None
        log.info("broker_connected", connection=self._options.name, host=url.host, port=url.port)
        return session
