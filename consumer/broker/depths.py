"""How much waits in queues, asked over AMQP, which needs no management API."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiormq import Channel
from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity

from consumer.broker.address import parse_address
from consumer.broker.calls import CLIENT_ERRORS, DeclareQueue, call
from consumer.broker.connection import ConnectionOptions, connect
from consumer.errors import BrokerUnavailable

_OPTIONS = ConnectionOptions(name="consumer: status")
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Depth:
    """What a queue holds now.

    Args:
        ready: Messages that wait for a consumer.
        consumers: Consumers it delivers to.
    """

    ready: int
    consumers: int


async def depths(url: str, queues: Iterable[str]) -> Mapping[str, Depth | None]:
    """The depth of each queue, in their order; None where it does not exist, or may not be asked.

    Changes nothing: the declarations are passive.

    Raises:
        ConfigurationError: The URL is not valid.
        BrokerUnavailable: The broker does not answer.
    """
    session = await connect(parse_address(url), _OPTIONS)
    try:
        found: dict[str, Depth | None] = {}
        channel: Channel | None = None
        for queue in queues:
            if channel is None or channel.is_closed:  # a queue that is not there closes it
                channel = await session.channel()
            found[queue] = await _depth(channel, queue)
        return found
    finally:
        await session.close()


async def _depth(channel: Channel, queue: str) -> Depth | None:
    frame = DeclareQueue(queue=queue, durable=True, passive=True)
    try:
        answer = await call(channel.rpc(frame, timeout=_TIMEOUT_S))
    except (ChannelNotFoundEntity, ChannelAccessRefused):
        return None
    except CLIENT_ERRORS as error:
        raise BrokerUnavailable(f"queue {queue!r}: {type(error).__name__}") from None
    return Depth(answer.message_count or 0, answer.consumer_count or 0)
