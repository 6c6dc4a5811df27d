"""Transactions of a worker: the claim, the handler's writes and the outbox in one."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sqlalchemy import Transaction as RootTransaction
from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from consumer.claim import Claim, ClaimRequest, Completion, FailureRecord, Meeting
from consumer.errors import TransactionOwned
from consumer.message import OutboxRow, SentRow
from consumer.store import attempts, claims, outbox
from consumer.store.connection import KeptConnection
from consumer.store.failures import UNUSABLE, ErrorLog, OwnStatement, is_aftermath
from consumer.store.session import ContextSession
from consumer.store.sql import DEFAULT_SCHEMA, Driver, Schema


class PostgresStore:
    """Opens transactions one at a time, on one connection that it keeps between them.

    Args:
        engine: Made by `consumer.store.engine.create_engine`.
        schema: Where the framework's tables are.
    """

    def __init__(self, engine: AsyncEngine, *, schema: str = DEFAULT_SCHEMA) -> None:
        self._schema = Schema(schema)
        self._kept = KeptConnection(engine)
        self._open = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["PostgresTransaction"]:
        """BEGIN; COMMIT at the end of the block; ROLLBACK when it raises.

        Errors of the block pass unchanged; `PostgresTransaction.translate` tells what they mean.

        Raises:
            StoreUnavailable: Postgres fails, before, in or after the block. Lost during COMMIT,
                the transaction may stand.
            SerializationConflict: Postgres asks for the transaction to be run again.
            CommitFailed: COMMIT was refused; nothing stands.
        """
        if self._open:
            raise RuntimeError("a store opens one transaction at a time; use one per executor")
        self._open = True
        opened: PostgresTransaction | None = None
        try:
            log = self._kept.new_log()
            driver = await self._kept.begin(log)
            opened = PostgresTransaction(driver, self._kept.connection, self._schema, log)
            yield opened
            opened.check()
            await self._kept.commit(log)
        except BaseException as error:
            await self._kept.abandon(error)
            raise
        finally:
            if opened is not None:
                opened.release()
            self._open = False

    async def close(self) -> None:
        """Give the connection back. Idempotent; a later transaction takes one again."""
        await self._kept.close()


class _SessionPlace:
    """Where a session is made when first asked for: a transaction or a savepoint in it."""

    __slots__ = ("_connection", "_root", "session")

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._root: RootTransaction | None = None
        self.session: ContextSession | None = None

    def open(self, log: ErrorLog) -> ContextSession:
        if self.session is None:
            sync = self._connection.sync_connection
            if sync is None or sync.invalidated:  # it would connect again, outside of ours
                raise log.aborted("its connection is lost")
            # In AUTOCOMMIT this sends nothing. It is SQLAlchemy's idea of the transaction, which
            # dies when a flush fails or somebody reaches for `connection.rollback()`.
            self._root = sync.get_transaction() or sync.begin()
            self.session = ContextSession(self._connection)
        return self.session

    async def flush(self, log: ErrorLog) -> None:
        if self.session is None:
            return
        try:
            await self.session.flush()
        except (exc.DBAPIError, exc.PendingRollbackError) as error:
            if is_aftermath(error):
                raise log.aborted("an error in it was swallowed") from error
            raise
        self.check(log)

    def check(self, log: ErrorLog) -> None:
        if self.session is None or self._root is None:
            return
        if not self._root.is_active:
            raise log.aborted("the handler rolled it back")
        if self.session.in_nested_transaction():
            raise TransactionOwned("the handler left a savepoint open",
                                   remedy="use `async with session.begin_nested():`")

    def release(self) -> None:
        """Detach the session and its objects. Sends nothing."""
        session, self.session = self.session, None
        if session is None or self._root is None:
            return
        if session.in_nested_transaction():
            self._root.close()  # or closing the session would send ROLLBACK TO SAVEPOINT
        session.release()


class PostgresTransaction:
    """One open transaction. Its statements go straight to the driver."""

    def __init__(
        self, driver: Driver, connection: AsyncConnection, schema: Schema, log: ErrorLog
    ) -> None:
        self._driver, self._connection, self._schema, self._log = driver, connection, schema, log
        self._place = _SessionPlace(connection)

    @property
    def session(self) -> ContextSession:
        """The handler's session in this transaction, or in the savepoint that is open."""
        return self._place.open(self._log)

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Meeting]:
        """Lock the keys that are free and say what each request met, in order. Never waits."""
        with OwnStatement(self._log):
            return await claims.claim(self._driver, self._schema, requests)

    async def finish(
        self, completions: Sequence[Completion], rows: Sequence[OutboxRow]
    ) -> list[SentRow]:
        """Flush the session, mark retries done, write outbox rows.

        Returns:
            The rows in the order given. `ordered` says that only the relay may publish it: it has
            an ordering key, or its time has not come.

        Raises:
            CommitFailed: The transaction is rolled back already: the handler swallowed an error.
        """
        await self._place.flush(self._log)
        with OwnStatement(self._log):
            if completions:
                await claims.complete(self._driver, self._schema, completions)
            return await outbox.insert(self._driver, self._schema, rows) if rows else []

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A savepoint with a session of its own, flushed before it is released.

        When the block raises, all of it is rolled back, keys locked in it included.
        """
        outer, mark = self._place, self._log.mark()
        await outer.flush(self._log)
        with OwnStatement(self._log):
            await self._driver.execute("SAVEPOINT consumer_savepoint")
        inner = self._place = _SessionPlace(self._connection)
        try:
            yield
            await inner.flush(self._log)
            with OwnStatement(self._log):
                await self._driver.execute("RELEASE SAVEPOINT consumer_savepoint")
        except Exception:
            inner.release()
            with contextlib.suppress(*UNUSABLE):  # then the next statement will tell
                await self._driver.execute("ROLLBACK TO SAVEPOINT consumer_savepoint;"
                                           " RELEASE SAVEPOINT consumer_savepoint")
                self._log.rolled_back_to(mark)
            raise
        finally:
            inner.release()
            self._place = outer

    async def lock(self, scope: str, key: str) -> Claim | None:
        """Wait for the key's lock, then read its claim."""
        with OwnStatement(self._log):
            await claims.lock(self._driver, self._schema, scope, key)
            return await claims.read(self._driver, self._schema, scope, key)

    async def record(self, failure: FailureRecord) -> SentRow:
        """Write attempt, claim and next place; the claim's kept rows are deleted."""
        with OwnStatement(self._log):
            return await attempts.record(self._driver, self._schema, failure)

    def translate(self, error: Exception) -> Exception:
        """StoreUnavailable or SerializationConflict where this transaction's own connection
        reported `error`, or what it was raised from, and it means that; otherwise `error`.
        """
        return self._log.translate(error)

    def check(self) -> None:
        """Raise what makes a COMMIT pointless: CommitFailed or TransactionOwned."""
        self._place.check(self._log)

    def release(self) -> None:
        """The transaction is over: detach the session. Sends nothing."""
        self._place.release()
        sync = self._connection.sync_connection
        root = sync.get_transaction() if sync is not None else None
        if root is not None:
            root.close()
