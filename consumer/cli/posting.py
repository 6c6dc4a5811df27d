"""Publishing what operators send."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from consumer.broker.connection import ConnectionOptions
from consumer.broker.depths import depths
from consumer.broker.publish import PublishLimits, RabbitPublisher
from consumer.cli.access import at_first_broker
from consumer.cli.drafts import Draft
from consumer.core.topology import unroutable
from consumer.errors import BrokerUnavailable
from consumer.ports import Published
from consumer.settings import Settings

_BATCH = 500


@dataclass(frozen=True, slots=True)
class Posting:
    """How it went.

    Args:
        answers: One per draft, in their order.
        strays: By how much the queue of unroutable messages has grown meanwhile, for whatever
            reason.
    """

    answers: Sequence[Published]
    strays: int


async def post(settings: Settings, prefix: str, drafts: Sequence[Draft]) -> Posting:
    """Every draft is published, with a confirm, at the first of the addresses that answers.

    Raises:
        ConfigurationError: No address is set, or one is not valid.
        BrokerUnavailable: None answers; nothing was sent.
    """
    strays = unroutable(prefix)

    async def waiting(url: str) -> tuple[str, int]:
        depth = (await depths(url, [strays]))[strays]
        return url, depth.ready if depth else 0

    url, before = await at_first_broker(settings, waiting)
    answers = await _publish(url, settings, drafts)
    grown = 0
    with suppress(BrokerUnavailable):  # what was sent is what counts
        grown = (await waiting(url))[1] - before
    return Posting(answers, max(0, grown))


async def _publish(url: str, settings: Settings, drafts: Sequence[Draft]) -> list[Published]:
    publisher = RabbitPublisher(
        lambda: [url], ConnectionOptions(name="consumer: send"),
        PublishLimits(timeout_s=settings.publish_timeout.total_seconds()))
    publisher.open()
    try:
        answers: list[Published] = []
        for start in range(0, len(drafts), _BATCH):
            batch = [draft.message for draft in drafts[start:start + _BATCH]]
            answers += await publisher.publish(batch)
        return answers
    finally:
        await publisher.close()
