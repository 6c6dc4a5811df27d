"""This process's dealings with the fleet's retry budgets.

Originals are counted in memory and paid in together. Retries that wait to begin are asked for
together, at most ten times a second. What is granted is begun at once, or given back.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from consumer.core.budget import Budget, Wish
from consumer.dependency import Dependency
from consumer.errors import SerializationConflict, StoreUnavailable
from consumer.ports import BudgetStore
from consumer.telemetry.metrics import Metrics
from consumer.worker.describe import describe

log = structlog.get_logger("consumer.worker")

_EVERY_S = 0.3
_AT_MOST_EVERY_S = 0.1
_GRANT_LASTS_S = 1.0


@dataclass(slots=True)
class _Purse:
    """One dependency's. `grants` holds when each unspent grant was received."""

    budget: Budget
    originals: int = 0
    returned: int = 0
    grants: deque[float] = field(default_factory=deque)
    waiting: deque["asyncio.Future[bool]"] = field(default_factory=deque)

    def wish(self, dependency: str) -> Wish | None:
        """What to exchange now; nothing is left to report then."""
        self.waiting = deque(future for future in self.waiting if not future.done())
        wanted = len(self.waiting)
        if not self.originals and not self.returned and not wanted:
            return None
        wish = Wish(dependency, self.budget, self.originals, self.returned, wanted)
        self.originals = self.returned = 0
        return wish


class Budgets:
    """Earns and pays for one process.

    Args:
        dependencies: Those without a budget always pay.
        now: Monotonic seconds.
    """

    def __init__(self, store: BudgetStore, dependencies: Iterable[Dependency],
                 metrics: Metrics, now: Callable[[], float]) -> None:
        self._store, self._metrics, self._now = store, metrics, now
        self._purses = {d.name: _Purse(d.budget) for d in dependencies if d.budget is not None}
        self._wanted = asyncio.Event()

    def earn(self, dependency: str) -> None:
        """An original has begun."""
        purse = self._purses.get(dependency)
        if purse is not None:
            purse.originals += 1

    def limits(self, dependency: str) -> bool:
        """Whether retries have to be paid for at all."""
        return dependency in self._purses

    def leased(self, dependency: str) -> int:
        """Granted retries that have not begun."""
        purse = self._purses.get(dependency)
        return len(purse.grants) if purse is not None else 0

    async def pay(self, dependency: str) -> bool:
        """Wait until a retry is granted or denied. What is granted is spent, or `give_back`."""
        purse = self._purses.get(dependency)
        if purse is None or self._from_purse(purse):
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        purse.waiting.append(future)
        self._wanted.set()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.result():
                self.give_back(dependency)
            raise

    def pay_now(self, dependency: str) -> bool:
        """Pay for a retry with what is at hand."""
        purse = self._purses.get(dependency)
        return purse is None or self._from_purse(purse)

    def give_back(self, dependency: str) -> None:
        """A granted retry does not begin; another one of this process can have it for a second."""
        purse = self._purses.get(dependency)
        if purse is not None:
            purse.grants.append(self._now())

    async def run(self) -> None:
        """Exchange with the store until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_EVERY_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            await self.exchange()
            await asyncio.sleep(_AT_MOST_EVERY_S)

    async def exchange(self) -> None:
        """Pay in, give back what is stale, and answer those who wait; one round trip, or none.

        Should it fail, what was brought is lost and those who wait are denied: the safe direction.
        """
        wishes = [wish for name, purse in self._purses.items()
                  if (wish := self._stale_returned(purse).wish(name))]
        if not wishes:
            return
        try:
            granted = await self._store.exchange(wishes)
        except (StoreUnavailable, SerializationConflict) as error:
            log.warning("budget_not_exchanged", error=describe(error))
            granted = [0] * len(wishes)
        except Exception:
            log.exception("defect")  # those who wait must be answered, and the loop must not end
            granted = [0] * len(wishes)
        for wish, number in zip(wishes, granted, strict=True):
            self._answer(wish, number)

    def _from_purse(self, purse: _Purse) -> bool:
        self._stale_returned(purse)
        if not purse.grants:
            return False
        purse.grants.popleft()
        return True

    def _stale_returned(self, purse: _Purse) -> _Purse:
        oldest_s = self._now() - _GRANT_LASTS_S
        while purse.grants and purse.grants[0] < oldest_s:
            purse.grants.popleft()
            purse.returned += 1
        return purse

    def _answer(self, wish: Wish, granted: int) -> None:
        """The first who wait get what was granted; the rest of those asked for are denied."""
        purse, left, denied = self._purses[wish.dependency], granted, 0
        for place, future in enumerate(list(purse.waiting)):
            if place >= wish.wanted and not left:
                break  # it came since, and was not asked for
            purse.waiting.popleft()
            if not future.done():
                future.set_result(left > 0)
                denied += not left
                left = max(0, left - 1)
        purse.grants.extend([self._now()] * left)
        self._metrics.budget(wish.dependency, granted, denied)
