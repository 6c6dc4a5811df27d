"""Connections of the pool: one kept between uses, or one for a single transaction."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from consumer.errors import CommitFailed, StoreUnavailable, TransactionOwned
from consumer.store.failures import (
    CANNOT_CONNECT,
    RECORDER,
    UNUSABLE,
    ErrorLog,
    ErrorRecorder,
    OwnStatement,
    meaning,
    unreachable,
)
from consumer.store.sql import Driver

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_ROLLBACK_SECONDS = 5
# Raised by the driver and nobody else.
_DRIVERS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class KeptConnection:
    """One connection of the pool, checked out when first needed and kept until `close`.

    SQLAlchemy holds it in AUTOCOMMIT and sends no BEGIN and no COMMIT: this class does, through
    the driver. That takes the round trips it must and no more, it shows what COMMIT answered, and
    nothing a handler does to its session can end the transaction.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._connection: AsyncConnection | None = None
        self._driver: Driver | None = None
        self._recorder = ErrorRecorder()

    @property
    def connection(self) -> AsyncConnection:
        """The SQLAlchemy side of it."""
        assert self._connection is not None
        return self._connection

    async def driver(self) -> Driver:
        """The driver side of it, connected.

        Raises:
            StoreUnavailable: Postgres cannot be reached.
        """
        if self._driver is None or self._driver.is_closed():
            await self.discard()
            await self._check_out()
            assert self._driver is not None
        return self._driver

    async def _check_out(self) -> None:
        try:
            connection = await self._engine.connect()
        except CANNOT_CONNECT as error:
            raise unreachable(error) from error
        try:
            self._connection = await connection.execution_options(
                isolation_level="AUTOCOMMIT", **{RECORDER: self._recorder})
            self._driver = (await connection.get_raw_connection()).driver_connection
        except BaseException:
            await connection.close()
            self._connection = None
            raise

    def new_log(self) -> ErrorLog:
        """From now on, errors of this connection go into this log."""
        log = self._recorder.log = ErrorLog()
        return log

    async def begin(self, log: ErrorLog) -> Driver:
        """Begin a transaction. Raises StoreUnavailable."""
        driver = await self.driver()
        with OwnStatement(log):
            await driver.execute(_BEGIN)
        return driver

    async def commit(self, log: ErrorLog) -> None:
        """COMMIT, and make sure that it was one.

        Raises:
            CommitFailed: Nothing stands: a deferred constraint refused it, or an error that was
                swallowed before had already rolled it back.
            TransactionOwned: The transaction was ended by SQL of the handler.
        """
        driver = self._driver
        assert driver is not None
        if not driver.is_closed() and not driver.is_in_transaction():
            raise TransactionOwned("the handler ended the framework's transaction with SQL",
                                   remedy="leave COMMIT and ROLLBACK to the framework")
        with OwnStatement(log):
            try:
                answer = await driver.execute("COMMIT")
            except asyncpg.PostgresError as error:
                if meaning(error) is not None:
                    raise
                raise CommitFailed(f"Postgres refused the COMMIT: {error}") from error
        if answer != "COMMIT":
            # Postgres answers COMMIT with ROLLBACK, and without an error, once it has reported one.
            raise log.aborted("an error in it was swallowed")

    async def abandon(self, error: BaseException) -> None:
        """Roll back what `error` ended. The connection is usable afterwards, or dropped. Never
        raises but for cancellation.
        """
        if self._connection is None or self._driver is None:
            return
        lost = self._connection.invalidated or self._driver.is_closed()
        if lost or isinstance(error, StoreUnavailable):
            await self.discard()
            return
        try:
            # Nothing may keep waiting here for a server that is gone.
            async with asyncio.timeout(_ROLLBACK_SECONDS):
                if self._driver.is_in_transaction():
                    await self._driver.execute("ROLLBACK")
        except UNUSABLE:
            await self.discard()
        except BaseException:
            await self.discard()
            raise

    async def discard(self) -> None:
        """Close the connection instead of giving it back; the next use opens another."""
        connection, self._connection, self._driver = self._connection, None, None
        if connection is None:
            return
        if not connection.invalidated and not connection.closed:
            connection.sync_connection.invalidate()  # type: ignore[union-attr]
        await connection.close()

    async def close(self) -> None:
        """Give the connection back. Idempotent; a later use checks one out again."""
        if self._driver is not None and self._driver.is_in_transaction():
            await self.discard()
        connection, self._connection, self._driver = self._connection, None, None
        if connection is not None:
            await connection.close()


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[Driver]:
    """One transaction on a connection of its own: COMMIT at the end, ROLLBACK when it raises.

    Raises:
        StoreUnavailable: Postgres fails.
        SerializationConflict: Postgres asks for the transaction to be run again.
        CommitFailed: COMMIT was refused.
    """
    kept = KeptConnection(engine)
    log = kept.new_log()
    try:
        driver = await kept.begin(log)
        try:
            yield driver
        except _DRIVERS as error:
            raise log.own(error) from error
        await kept.commit(log)
    except BaseException as error:
        await kept.abandon(error)
        raise
    finally:
        await kept.close()
