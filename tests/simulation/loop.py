"""An event loop that never waits: its time passes when nothing else can happen, or when told to."""

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class NothingCanHappen(Exception):
    """Every task waits for another one."""


class _IdleSelector(selectors.SelectSelector):
    """Tells the loop that it is idle instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.on_idle: Callable[[float | None], None] = lambda timeout: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.on_idle(timeout)
        return []


class SteppedLoop(asyncio.SelectorEventLoop):
    """Runs callbacks and timers; no input or output ever arrives."""

    def __init__(self) -> None:
        self._now, self._idle = 0.0, _IdleSelector()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Timers that are due by then run when the loop next does."""
        self._now += seconds

    def settle(self) -> None:
        """Run until every task waits for something."""
        self._idle.on_idle = lambda timeout: self.stop()
        self.run_forever()

    def play(self, story: Coroutine[Any, Any, T]) -> T:
        """Run `story` to its end; time jumps to the next timer when nothing else can happen.

        Raises:
            NothingCanHappen: It would wait for ever.
        """
        self._idle.on_idle = self._jump
        return self.run_until_complete(story)

    def _jump(self, timeout: float | None) -> None:
        if timeout is None:
            raise NothingCanHappen
        self._now += timeout

    def end(self) -> None:
        """All tasks are cancelled and the loop is closed."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        with suppress(NothingCanHappen):
            self.settle()
        self.close()


def in_virtual_time(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """An async test that needs no real time: timeouts and backoffs pass at once."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def story() -> None:
            await test(*args, **kwargs)

        loop = SteppedLoop()
        try:
            loop.play(story())
        finally:
            loop.end()

    return run
