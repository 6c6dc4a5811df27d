"""What the end of a publish says about its message."""

from aiormq.exceptions import ChannelNotFoundEntity, DeliveryError, PublishError

from consumer.broker.confirms import Confirm, ConfirmChannel
from consumer.ports import Published, Receipt

LATE = Published(Receipt.UNKNOWN, "not confirmed in time")
_CONFIRMED = Published(Receipt.CONFIRMED)


def answer_of(channel: ConfirmChannel, confirm: Confirm) -> Published | None:
    """How a publish ended; None if the broker closed the channel for one of those on it."""
    if not confirm.done():
        return LATE
    error = None if confirm.cancelled() else confirm.exception()
    if error is None and not confirm.cancelled():
        return _CONFIRMED
    if isinstance(error, PublishError):
        return Published(Receipt.UNROUTABLE, f"no queue is bound for it ({error.args[0]})")
    if isinstance(error, DeliveryError):
        return Published(Receipt.REFUSED, "the broker refused it (nack)")
    if channel.blamed is not None:
        return None
    if isinstance(error, ValueError | TypeError):
        return Published(Receipt.REFUSED, f"it cannot be encoded: {error}")
    return Published(Receipt.UNKNOWN, "the connection was lost before the confirm")


def blame(channel: ConfirmChannel) -> Published:
    """How the only publish on a channel ended that the broker closed for it."""
    receipt = Receipt.UNROUTABLE if isinstance(channel.blamed, ChannelNotFoundEntity) else (
        Receipt.REFUSED)
    return Published(receipt, str(channel.blamed).split("\n")[0])
