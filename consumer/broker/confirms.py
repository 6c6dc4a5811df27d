"""One channel with publisher confirms, and the publishes on it that are not confirmed yet."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import aiormq
from aiormq import exceptions

from consumer.broker.calls import CLIENT_ERRORS, call
from consumer.broker.connection import Session
from consumer.broker.frames import EncodedProperties
from consumer.message import Outgoing

Confirm = asyncio.Task[object]
"""Ends when the broker has answered, or the channel is gone; then with the library's exception."""

_BLAMED_ON_A_MESSAGE = (
    exceptions.ChannelClosed, exceptions.ConnectionFrameError, exceptions.ConnectionSyntaxError,
    exceptions.ConnectionCommandInvalid, exceptions.ConnectionUnexpectedFrame,
    exceptions.ConnectionNotImplemented, exceptions.ConnectionInternalError,
    # The library may send one more publish on a channel that the broker has just closed.
    exceptions.ConnectionChannelError,
)


@dataclass(frozen=True, slots=True)
class Window:
    """How much may be unconfirmed on a channel at once."""

    messages: int = 256
    bytes: int = 64 * 1024 * 1024


class ConfirmChannel:
    """Publishes on one channel.

    Never two unconfirmed ones with one message id: the library tells returned messages apart by
    it, and reported 5 of 10 unroutable ones as sent where it could not.
    """

    def __init__(self, session: Session, channel: aiormq.Channel, window: Window) -> None:
        self.session = session
        self._channel, self._window = channel, window
        self._unconfirmed: dict[str, Confirm] = {}
        self._bytes = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._ours_to_close = False

    @property
    def open(self) -> bool:
        """Whether it can be published on."""
        return not self._channel.is_closed

    @property
    def blamed(self) -> BaseException | None:
        """What the broker closed it with, if it did that for something published on it."""
        if self.open or self._ours_to_close or self._channel.closing.cancelled():
            return None
        error = self._channel.closing.exception()
        return error if isinstance(error, _BLAMED_ON_A_MESSAGE) else None

    async def send(self, message: Outgoing, return_id: str) -> Confirm:
        """Publish once the broker reads, there is room, and `return_id` is not unconfirmed."""
        while not self._has_room(return_id) or not self.session.flowing.is_set():
            if not self.session.flowing.is_set():
                await self.session.flowing.wait()
                continue
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(room)
            await room
        confirm: Confirm = asyncio.create_task(self._publish(message, return_id))
        self._unconfirmed[return_id] = confirm
        self._bytes += len(message.body)
        confirm.add_done_callback(self._answered(return_id, len(message.body)))
        return confirm

    async def drain(self, timeout_s: float) -> None:
        """The channel is closed, after waiting up to `timeout_s` for what is unconfirmed.

        While the broker blocks the connection, that waiting has not begun.
        """
        await self.session.flowing.wait()
        if self._unconfirmed:
            await asyncio.wait(self._unconfirmed.values(), timeout=timeout_s)
        self._ours_to_close = self.open
        with suppress(*CLIENT_ERRORS), self.session.within(timeout_s):
            await call(self._channel.close())

    def _has_room(self, return_id: str) -> bool:
        return not self.open or (
            return_id not in self._unconfirmed
            and len(self._unconfirmed) < self._window.messages
            and (self._bytes < self._window.bytes or not self._unconfirmed)
        )

    async def _publish(self, message: Outgoing, return_id: str) -> object:
        return await self._channel.basic_publish(
            message.body, exchange=message.exchange, routing_key=message.routing_key,
            properties=EncodedProperties(message.properties, return_id),
            mandatory=True, wait=False,
        )

    def _answered(self, return_id: str, size: int) -> Callable[[Confirm], None]:
        def forget(confirm: Confirm) -> None:
            if self._unconfirmed.get(return_id) is confirm:
                del self._unconfirmed[return_id]
            self._bytes -= size
            if not confirm.cancelled():
                confirm.exception()  # seen, should nobody wait for it any more
            waiting, self._waiting = self._waiting, []
            for room in waiting:
                if not room.done():
                    room.set_result(None)
        return forget
