"""A process's dealings with retry budgets: what it brings, what it asks for, what it gives back."""

import asyncio
from collections.abc import Sequence

import pytest
from simulation.guarded import counted
from simulation.loop import in_virtual_time

from consumer import Budget, Dependency
from consumer.core.budget import Wish
from consumer.errors import SerializationConflict, StoreUnavailable
from consumer.telemetry.metrics import Metrics
from consumer.worker.budgets import Budgets


class Till:
    """A store that grants what it has, of either of its dependencies, and keeps all wishes."""

    def __init__(self, retries: int = 0) -> None:
        self.retries = retries
        self.asked: list[list[tuple[str, int, int, int]]] = []
        self.at_s: list[float] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.error: Exception | None = None

    async def exchange(self, wishes: Sequence[Wish]) -> list[int]:
        self.asked.append([(w.dependency, w.originals, w.returned, w.wanted) for w in wishes])
        self.at_s.append(asyncio.get_running_loop().time())
        await self.answering.wait()
        if self.error is not None:
            raise self.error
        granted = []
        for wish in wishes:
            granted.append(min(wish.wanted, self.retries))
            self.retries -= granted[-1]
        return granted


class Desk:
    """Budgets of psp and mail; nothing limits retries of free."""

    def __init__(self, retries: int = 0) -> None:
        self.till, self.metrics = Till(retries), Metrics()
        dependencies = [Dependency("psp", budget=Budget()), Dependency("mail"),
                        Dependency("free", budget=None)]
        self.budgets = Budgets(self.till, dependencies, self.metrics,
                               asyncio.get_running_loop().time)

    def paying(self, *dependencies: str) -> list[asyncio.Task[bool]]:
        return [asyncio.create_task(self.budgets.pay(name)) for name in dependencies]

    async def exchange(self) -> None:
        await asyncio.sleep(0)
        await self.budgets.exchange()
        await asyncio.sleep(0)


# --- originals -------------------------------------------------------------------------------


@in_virtual_time
async def test_an_original_costs_no_call_to_the_store() -> None:
    desk = Desk()
    for _ in range(1000):
        desk.budgets.earn("psp")
    assert desk.till.asked == []
    await desk.exchange()
    assert desk.till.asked == [[("psp", 1000, 0, 0)]]


@in_virtual_time
async def test_originals_are_paid_in_once() -> None:
    desk = Desk()
    desk.budgets.earn("psp")
    await desk.exchange()
    await desk.exchange()
    assert len(desk.till.asked) == 1


@in_virtual_time
async def test_all_dependencies_are_exchanged_in_one_call() -> None:
    desk = Desk()
    desk.budgets.earn("psp")
    desk.budgets.earn("mail")
    desk.budgets.earn("mail")
    await desk.exchange()
    assert desk.till.asked == [[("psp", 1, 0, 0), ("mail", 2, 0, 0)]]


@in_virtual_time
async def test_without_a_budget_retries_are_free_and_nothing_is_earned() -> None:
    desk = Desk()
    desk.budgets.earn("free")
    assert await desk.budgets.pay("free")
    assert desk.budgets.pay_now("free")
    desk.budgets.give_back("free")
    await desk.exchange()
    assert desk.till.asked == []
    assert [desk.budgets.limits(name) for name in ("psp", "free")] == [True, False]


# --- retries ---------------------------------------------------------------------------------


@in_virtual_time
async def test_those_who_wait_are_answered_in_order_by_one_exchange() -> None:
    desk = Desk(retries=2)
    waiting = desk.paying("psp", "psp", "psp", "psp")
    await desk.exchange()
    assert [task.result() for task in waiting] == [True, True, False, False]
    assert desk.till.asked == [[("psp", 0, 0, 4)]]
    assert desk.budgets.leased("psp") == 0
    assert [counted(desk.metrics, f"consumer_budget_{what}_total", dependency="psp")
            for what in ("granted", "denied")] == [2, 2]


@in_virtual_time
async def test_nobody_is_denied_before_the_store_was_asked() -> None:
    """One who comes during an exchange is answered by the next."""
    desk = Desk(retries=1)
    desk.till.answering.clear()
    early = desk.paying("psp", "psp")
    exchange = asyncio.create_task(desk.exchange())
    await asyncio.sleep(1)
    late = desk.paying("psp")
    await asyncio.sleep(1)
    early[0].cancel()
    early[1].cancel()
    desk.till.retries = 0
    desk.till.answering.set()
    await exchange
    assert not late[0].done()
    desk.till.retries = 1
    await desk.exchange()
    assert await late[0]
    assert [wishes[0][3] for wishes in desk.till.asked] == [2, 1]


@in_virtual_time
async def test_what_one_who_left_was_granted_goes_to_the_next() -> None:
    desk = Desk(retries=1)
    desk.till.answering.clear()
    [first] = desk.paying("psp")
    exchange = asyncio.create_task(desk.exchange())
    await asyncio.sleep(1)
    [second] = desk.paying("psp")
    first.cancel()
    await asyncio.sleep(1)
    desk.till.answering.set()
    await exchange
    assert await second


@in_virtual_time
async def test_what_one_who_left_was_granted_is_kept_for_a_second_where_nobody_waits() -> None:
    desk = Desk(retries=1)
    desk.till.answering.clear()
    [gone] = desk.paying("psp")
    exchange = asyncio.create_task(desk.exchange())
    await asyncio.sleep(1)
    gone.cancel()
    await asyncio.sleep(1)
    desk.till.answering.set()
    await exchange
    assert desk.budgets.leased("psp") == 1
    await asyncio.sleep(1.125)
    await desk.exchange()
    assert desk.till.asked[1:] == [[("psp", 0, 1, 0)]]


@in_virtual_time
async def test_one_who_was_granted_and_is_cancelled_gives_it_back() -> None:
    desk = Desk(retries=1)
    [waiting] = desk.paying("psp")
    await asyncio.sleep(0)
    await desk.budgets.exchange()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert desk.budgets.leased("psp") == 1
    assert desk.budgets.pay_now("psp")
    assert not desk.budgets.pay_now("psp")


@in_virtual_time
async def test_one_who_is_cancelled_before_an_answer_is_not_asked_for() -> None:
    desk = Desk(retries=5)
    gone, stays = desk.paying("psp", "psp")
    await asyncio.sleep(0)
    gone.cancel()
    await desk.exchange()
    assert await stays
    assert desk.till.asked == [[("psp", 0, 0, 1)]]
    assert desk.budgets.leased("psp") == 0


@in_virtual_time
async def test_a_retry_that_cannot_wait_is_paid_with_what_is_at_hand() -> None:
    desk = Desk(retries=5)
    assert not desk.budgets.pay_now("psp")
    desk.budgets.give_back("psp")
    assert not desk.budgets.pay_now("mail")
    assert desk.budgets.pay_now("psp")
    assert desk.till.asked == []


@in_virtual_time
async def test_what_was_given_back_pays_for_another_retry_for_a_second() -> None:
    desk = Desk()
    desk.budgets.give_back("psp")
    await asyncio.sleep(1)
    assert await desk.budgets.pay("psp")
    assert desk.till.asked == []


@in_virtual_time
async def test_after_a_second_it_goes_back_to_the_fleet() -> None:
    desk = Desk()
    desk.budgets.give_back("psp")
    desk.budgets.give_back("psp")
    await desk.exchange()
    assert desk.till.asked == []
    await asyncio.sleep(1.125)
    assert not desk.budgets.pay_now("psp")
    await desk.exchange()
    await desk.exchange()
    assert desk.till.asked == [[("psp", 0, 2, 0)]]
    assert desk.budgets.leased("psp") == 0


# --- when the store fails --------------------------------------------------------------------

FAULTS = [StoreUnavailable("away"), SerializationConflict("55P03"), RuntimeError("no such table")]


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
@in_virtual_time
async def test_a_failed_exchange_denies_and_loses_what_it_brought(error: Exception) -> None:
    """It may have been booked: to bring it again could grant twice."""
    desk = Desk(retries=5)
    desk.budgets.earn("psp")
    desk.budgets.give_back("mail")
    await asyncio.sleep(1.125)
    waiting = desk.paying("psp", "mail")
    desk.till.error = error
    await desk.exchange()
    assert [task.result() for task in waiting] == [False, False]
    desk.till.error = None
    await desk.exchange()
    assert len(desk.till.asked) == 1


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
@in_virtual_time
async def test_exchanging_goes_on_after_a_failure(error: Exception) -> None:
    desk = Desk(retries=5)
    run = asyncio.create_task(desk.budgets.run())
    desk.till.error = error
    assert not await desk.budgets.pay("psp")
    desk.till.error = None
    assert await desk.budgets.pay("psp")
    assert not run.done()


# --- the loop --------------------------------------------------------------------------------


@in_virtual_time
async def test_under_load_there_are_at_most_ten_exchanges_a_second() -> None:
    desk = Desk(retries=1_000_000)
    run = asyncio.create_task(desk.budgets.run())

    async def retry_for_ever() -> None:
        while True:
            assert await desk.budgets.pay("psp")
            await asyncio.sleep(0.001)

    retries = [asyncio.create_task(retry_for_ever()) for _ in range(20)]
    await asyncio.sleep(10)
    assert len(desk.till.asked) > 50
    for first, eleventh in zip(desk.till.at_s, desk.till.at_s[10:], strict=False):
        assert eleventh - first >= 1 - 1e-9
    assert not any(task.done() for task in [run, *retries])


@in_virtual_time
async def test_originals_are_paid_in_every_few_hundred_milliseconds() -> None:
    desk, loop = Desk(), asyncio.get_running_loop()
    tasks = [asyncio.create_task(desk.budgets.run())]
    for number in range(1000):
        desk.budgets.earn("psp")
        await asyncio.sleep(0.01)
        assert sum(wishes[0][1] for wishes in desk.till.asked) >= number - 50
    assert len(desk.till.asked) <= 35
    assert (loop.time(), len(tasks)) == (pytest.approx(10), 1)


@in_virtual_time
async def test_an_idle_process_asks_the_store_for_nothing() -> None:
    desk = Desk()
    run = asyncio.create_task(desk.budgets.run())
    await asyncio.sleep(3600)
    assert desk.till.asked == []
    assert not run.done()
