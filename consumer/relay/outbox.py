"""Two loops that empty the outbox: dispatch, right after a commit; relay, for what is left."""

import asyncio
import time
from collections.abc import Sequence

import structlog

from consumer.errors import StoreUnavailable
from consumer.message import SentRow
from consumer.ports import OutboxStore
from consumer.relay.send import RowSender

BATCH = 200
STALE_SECONDS = 20.0
"""Rows are ours for a minute; so much of it may pass before they are published."""

log = structlog.get_logger("consumer.relay")


class Dispatcher:
    """Publishes rows this process has just committed, many at a time.

    What does not fit, or fails, is left to the relay: the rows are in the table.

    Args:
        capacity: Rows held in memory at most.
    """

    def __init__(self, sender: RowSender, capacity: int = 10_000) -> None:
        self._sender = sender
        self._waiting: asyncio.Queue[SentRow] = asyncio.Queue(capacity)

    def dispatch(self, rows: Sequence[SentRow]) -> None:
        """They will be published soon. Never blocks."""
        for row in rows:
            if row.relay_only or self._waiting.full():
                continue
            self._waiting.put_nowait(row)

    async def run(self) -> None:
        """Publish what is dispatched, until cancelled."""
        while True:
            rows = [await self._waiting.get()]
            while len(rows) < BATCH and not self._waiting.empty():
                rows.append(self._waiting.get_nowait())
            try:
                await self._sender.send(rows)
            except StoreUnavailable as error:
                log.warning("dispatch_interrupted", rows=len(rows), error=str(error))
            except Exception:
                log.exception("defect", rows=[row.id for row in rows])  # the relay has them too
            finally:
                for _ in rows:
                    self._waiting.task_done()

    async def drained(self) -> None:
        """Returns when everything dispatched so far was published or left to the relay."""
        await self._waiting.join()


class Relay:
    """Sweeps the outbox: rows left behind, scheduled rows, ordered rows, overdue next copies.

    Any number of relays may run at once.

    Args:
        interval_seconds: Pause after a sweep that found nothing, or failed.
    """

    def __init__(self, outbox: OutboxStore, sender: RowSender, interval_seconds: float) -> None:
        self._outbox, self._sender, self._interval = outbox, sender, interval_seconds

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            try:
                moved = await self.sweep()
            except StoreUnavailable as error:
                log.warning("relay_interrupted", error=str(error))
                moved = 0
            except Exception:
                log.exception("defect")  # the rows come due again; the relay must not end
                moved = 0
            if not moved:
                await asyncio.sleep(self._interval)

    async def sweep(self) -> int:
        """Send one batch of due rows; returns how many were confirmed."""
        began = time.monotonic()
        rows = await self._outbox.due(BATCH)
        if time.monotonic() - began > STALE_SECONDS:
            return 0  # this process stood still: another relay may be about to take them
        return await self._sender.send(rows) if rows else 0
