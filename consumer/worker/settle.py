"""Turns an outcome into broker operations. It decides nothing.

A message leaves its queue only when its next place is durable: a committed row, or a publish that
was confirmed. So `Delay` and `DeadLetter` publish first and ack after the confirm.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

import structlog
from tenacity import AsyncRetrying, retry_if_not_result, stop_never
from tenacity.wait import wait_random_exponential

from consumer.message import DIRECT_REPLY_TO, Outgoing, SentRow
from consumer.outcome import Ack, DeadLetter, Delay, Outcome, Requeue
from consumer.ports import Publisher, Receipt, Settlement

log = structlog.get_logger("consumer.worker")



class Settler:
    """Settles deliveries.

    Args:
        dispatch: Takes rows that were committed, to publish them soon; does not wait.
    """

    def __init__(self, publisher: Publisher, dispatch: Callable[[Sequence[SentRow]], None]) -> None:
        self._publisher, self._dispatch = publisher, dispatch

    async def settle(self, outcome: Outcome, settlement: Settlement) -> bool:
        """`outcome` has happened to the delivery, or the broker will deliver it again.

        A publish the broker refuses is repeated with backoff, as long as it takes: the delivery
        stays unacknowledged meanwhile. Cancelling this leaves the delivery to be redelivered.

        Returns:
            False where the channel of the delivery was gone: it comes again and is recognised.
        """
        match outcome:
            case Ack():
                self._dispatch(outcome.rows)
                await self._reply(outcome.reply)
                return await settlement.ack()
            case Delay():
                await self._place(outcome.copy, outcome.why)
                return await settlement.ack()
            case DeadLetter():
                await self._place(outcome.letter, outcome.why)
                await self._reply(outcome.reply)
                return await settlement.ack()
            case Requeue():
                return await settlement.requeue()
        assert_never(outcome)

    async def _reply(self, reply: Outgoing | None) -> None:
        """Tell the requester, if one waits. Should it be gone, nothing is lost."""
        if reply is None:
            return
        [published] = await self._publisher.publish([reply])
        # RabbitMQ 3 returns every direct reply, those it delivers among them
        # (https://www.rabbitmq.com/docs/3.13/direct-reply-to, "Caveats and Limitations").
        told = published.receipt is not Receipt.UNROUTABLE \
            or not reply.routing_key.startswith(f"{DIRECT_REPLY_TO}.")
        if published.receipt is not Receipt.CONFIRMED and told:
            log.info("reply_not_delivered", receipt=published.receipt, detail=published.detail)

    async def _place(self, message: Outgoing, why: str) -> None:
        """Publish until it is confirmed."""
        async for attempt in AsyncRetrying(
            retry=retry_if_not_result(bool), stop=stop_never,
            wait=wait_random_exponential(0.2, 10),
        ):
            with attempt:
                [published] = await self._publisher.publish([message])
                confirmed = published.receipt is Receipt.CONFIRMED
                if not confirmed:
                    log.warning("publish_not_confirmed", why=why, receipt=published.receipt,
                                detail=published.detail, exchange=message.exchange)
            if not attempt.retry_state.outcome or not attempt.retry_state.outcome.failed:
                attempt.retry_state.set_result(confirmed)
