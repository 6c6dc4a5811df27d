"""Loops that run beside the work of a process."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any


def run_beside(stack: AsyncExitStack, *loops: Coroutine[Any, Any, None]) -> None:
    """Each loop runs until `stack` unwinds, which cancels it and waits for its end."""
    for loop in loops:
        stack.push_async_callback(_ended, asyncio.create_task(loop))


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
