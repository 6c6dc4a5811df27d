"""Calls of the client library, and the ways they fail."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import aiormq
from aiormq.exceptions import ChannelInvalidStateError
from pamqp import commands

T = TypeVar("T")

CLIENT_ERRORS = (aiormq.AMQPError, RuntimeError, OSError)
"""What a call of the library raises when broker, connection or channel fail."""


async def call(awaitable: Awaitable[T]) -> T:
    """What `awaitable` returns.

    The library cancels whoever waits on a channel that closes. Only a cancellation meant for
    the calling task comes out as one.

    Raises:
        ChannelInvalidStateError: The channel was closed.
        Exception: As the library raises it; `CLIENT_ERRORS` where the broker is the reason.
    """
    try:
        return await awaitable
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ChannelInvalidStateError("closed") from None


# The library takes the names of the specification; RabbitMQ takes any UTF-8.


class Consume(commands.Basic.Consume):
    """Basic.Consume of a queue with any name."""

    def validate(self) -> None:
        pass


class DeclareQueue(commands.Queue.Declare):
    """Queue.Declare of a queue with any name."""

    def validate(self) -> None:
        pass


class BindQueue(commands.Queue.Bind):
    """Queue.Bind of a queue with any name."""

    def validate(self) -> None:
        pass
