"""Doing again what must not end: connecting, consuming."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, stop_never, wait_fixed
from tenacity import wait_random_exponential as full_jitter

log = structlog.get_logger("consumer.broker")


@dataclass(frozen=True, slots=True)
class Pace:
    """How soon something that ended is begun again.

    Args:
        first_s: Longest wait after the first short run, in seconds; it doubles from there.
        longest_s: Longest wait.
        shortest_s: Shortest wait.
        lasting_s: A run of at least this long was a good one: the next begins at once.
    """

    first_s: float = 0.5
    longest_s: float = 15.0
    shortest_s: float = 0.05
    lasting_s: float = 10.0


class _Short(Exception):
    """A run did not last."""


async def repeat(run: Callable[[], Awaitable[None]], pace: Pace) -> NoReturn:
    """Run `run` for ever, one after the other, with pauses of `pace`; ends by cancellation.

    `run` reports the failures it expects and returns. Others are logged here and count as short.
    """
    loop = asyncio.get_running_loop()

    async def once() -> None:
        began = loop.time()
        try:
            await run()
        except Exception:
            log.exception("broker_unexpected")
            raise _Short from None
        if loop.time() - began < pace.lasting_s:
            raise _Short

    while True:
        await AsyncRetrying(
            retry=retry_if_exception_type(_Short), stop=stop_never,
            wait=wait_fixed(pace.shortest_s) + full_jitter(pace.first_s, max=pace.longest_s),
        )(once)
