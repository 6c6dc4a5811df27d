"""Publishes committed outbox rows and writes down how that ended."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from consumer.core.backoff import full_jitter
from consumer.core.topology import route_delay
from consumer.message import Outgoing, SentRow
from consumer.ports import Clock, OutboxStore, Published, Publisher, Receipt

_BACKOFF_BASE = timedelta(seconds=2)
_BACKOFF_CAP = timedelta(minutes=5)
_TRIES_BEFORE_PARK = 10

log = structlog.get_logger("consumer.relay")


class RowSender:
    """Sends outbox rows with confirms.

    Args:
        prefix: The application's prefix, which names the delay ladder.
    """

    def __init__(self, prefix: str, publisher: Publisher, outbox: OutboxStore, clock: Clock
                 ) -> None:
        self._prefix, self._publisher, self._outbox, self._clock = prefix, publisher, outbox, clock

    async def send(self, rows: Sequence[SentRow]) -> int:
        """Each row is published and gone (or kept, if it is a next copy), or will be tried again.

        Returns:
            How many were confirmed.

        Raises:
            StoreUnavailable: What was confirmed may be published once more.
        """
        now = self._clock.now()
        answers = await self._publisher.publish([self._routed(row, now) for row in rows])
        confirmed = [row for row, answer in zip(rows, answers, strict=True)
                     if answer.receipt is Receipt.CONFIRMED]
        if confirmed:
            await self._outbox.confirmed(confirmed)
        for row, answer in zip(rows, answers, strict=True):
            if answer.receipt is not Receipt.CONFIRMED:
                await self._failed(row, answer)
        return len(confirmed)

    def _routed(self, row: SentRow, now: datetime) -> Outgoing:
        """The row's message, by way of the delay ladder where its time has not come."""
        if row.due_at is None:
            return row.message
        route = route_delay(self._prefix, max(timedelta(0), row.due_at - now),
                            row.message.routing_key)
        return replace(row.message, exchange=route.exchange, routing_key=route.routing_key)

    async def _failed(self, row: SentRow, answer: Published) -> None:
        """Back off; a row that only its own contents can make fail is parked in the end.

        An unknown outcome is the broker's trouble, and never parks a row.
        """
        tries = row.tries + 1
        park = answer.receipt is not Receipt.UNKNOWN and (
            tries >= _TRIES_BEFORE_PARK or answer.receipt is Receipt.UNSENDABLE)
        retry_in = None if park else full_jitter(
            tries, _BACKOFF_BASE, _BACKOFF_CAP, self._clock.jitter(), _BACKOFF_BASE)
        log.warning("outbox_row_not_sent", row=row.id, receipt=answer.receipt,
                    detail=answer.detail, tries=tries, parked=park,
                    exchange=row.message.exchange, routing_key=row.message.routing_key)
        await self._outbox.failed(row, f"{answer.receipt}: {answer.detail}", retry_in=retry_in)

