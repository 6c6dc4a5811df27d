"""Single statements outside a worker's transactions, on a connection kept for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncEngine

from consumer.store.connection import KeptConnection
from consumer.store.engine import is_pooled
from consumer.store.failures import OwnStatement
from consumer.store.sql import Driver


class Statements:
    """Runs statements one at a time on one connection, each in a transaction of its own.

    Args:
        engine: Made by `consumer.store.engine.create_engine`.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._kept = KeptConnection(engine)
        self._turn = asyncio.Lock()
        # Behind a pooler, parsing and running a statement may meet two server connections unless
        # a transaction holds on to one.
        self._explicit = is_pooled(engine)

    @asynccontextmanager
    async def driver(self) -> AsyncIterator[Driver]:
        """The driver's connection for one statement; others wait for their turn.

        Raises:
            StoreUnavailable: Postgres failed; the next call connects again.
        """
        async with self._turn:
            log = self._kept.new_log()
            try:
                if self._explicit:
                    driver = await self._kept.begin(log)
                else:
                    driver = await self._kept.driver()
                with OwnStatement(log):
                    yield driver
                if self._explicit:
                    await self._kept.commit(log)
            except BaseException as error:
                await self._kept.abandon(error)
                raise

    async def close(self) -> None:
        """Give the connection back. Idempotent."""
        async with self._turn:
            await self._kept.close()
