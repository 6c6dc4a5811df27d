# ruff: noqa: F811 - fixtures are imported
"""One retry budget for many processes, some of which die, restart or have another clock (B26)."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from store_fixtures import Stores, stores  # noqa: F401

from consumer.core.budget import Budget, Wish
from consumer.errors import SerializationConflict, StoreUnavailable
from consumer.store.budgets import PostgresBudgets
from consumer.store.engine import create_engine
from consumer.store.sql import Schema
from consumer.store.statements import Statements

pytestmark = pytest.mark.integration

ROUNDS = 150
WIDE = Budget(ratio=0.1, capacity=1_000_000, floor_per_minute=0)
PLAIN = Budget(ratio=0.1, capacity=20, floor_per_minute=0)
FLOORED = Budget(ratio=0.1, capacity=20, floor_per_minute=6)


async def exchange_as_fast_as_it_can(url: str, rounds: int) -> None:
    """What a process of the fleet does: says what it brought and got, then spends it."""
    engine = create_engine(url)
    statements = Statements(engine)
    budgets = PostgresBudgets(statements, Schema())
    unused = 0
    for n in range(rounds):
        originals, returned = n % 5, unused
        wishes = [Wish("psp", WIDE, originals, returned, 3), Wish("mail", WIDE, 1, 0, 1)]
        pair = await budgets.exchange(wishes if n % 2 else wishes[::-1])
        granted = pair[0 if n % 2 else 1]
        sys.stdout.write(json.dumps([originals, returned, granted]) + "\n")
        sys.stdout.flush()
        unused = granted // 2
        async with engine.begin() as connection:
            await connection.execute(
                text("INSERT INTO spent SELECT generate_series(1, :n)"), {"n": granted - unused})
    await budgets.exchange([Wish("psp", WIDE, 0, unused, 0)])
    sys.stdout.write(json.dumps([0, unused, 0]) + "\n")
    await statements.close()
    await engine.dispose()


class Process:
    """One of the fleet, and the lines it has written."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.sums = [0, 0, 0]

    @classmethod
    async def start(cls, url: str, rounds: int) -> "Process":
        return cls(await asyncio.create_subprocess_exec(
            sys.executable, __file__, url, str(rounds), stdout=asyncio.subprocess.PIPE))

    async def read(self, lines: int) -> None:
        """So many lines, or all that is left."""
        assert self._process.stdout is not None
        for _ in range(lines):
            line = await self._process.stdout.readline()
            if not line.endswith(b"\n"):
                return
            self.sums = [a + b for a, b in zip(self.sums, json.loads(line), strict=True)]

    async def kill_after(self, lines: int) -> int:
        await self.read(lines)
        self._process.send_signal(signal.SIGKILL)
        await self.read(10 * ROUNDS)
        return await self._process.wait()

    async def finish(self) -> int:
        await self.read(10 * ROUNDS)
        return await self._process.wait()


async def test_eight_processes_never_spend_more_than_they_earned(stores: Stores) -> None:
    await stores.run("CREATE TABLE spent (n int)")
    survivors = [await Process.start(stores.url, ROUNDS) for _ in range(5)]
    victims = [await Process.start(stores.url, 100 * ROUNDS) for _ in range(3)]
    ends = await asyncio.gather(
        *(p.finish() for p in survivors), *(p.kill_after(20 + 13 * n)
                                            for n, p in enumerate(victims)))
    assert ends == [0] * 5 + [-signal.SIGKILL] * 3

    [row] = await stores.read("SELECT * FROM consumer.retry_budget WHERE dependency = 'psp'")
    assert row.credits == row.originals + 10 * row.returned - 10 * row.granted
    assert row.granted - row.returned <= row.originals / 10
    [(spent,)] = await stores.read("SELECT count(*) FROM spent")
    assert 0 < spent <= row.granted - row.returned

    told = [sum(column) for column in zip(*(p.sums for p in survivors + victims), strict=True)]
    lost = [row.originals - told[0], row.returned - told[1], row.granted - told[2]]
    assert all(0 <= n <= at_most for n, at_most in zip(lost, [3 * 4, 3 * 3, 3 * 3], strict=True))


class Fleet:
    """Makes budgets, each as a process that has just started has it."""

    def __init__(self, engine: AsyncEngine, stack: AsyncExitStack) -> None:
        self._engine, self._stack = engine, stack

    def statements(self) -> Statements:
        statements = Statements(self._engine)
        self._stack.push_async_callback(statements.close)
        return statements

    def start(self) -> PostgresBudgets:
        return PostgresBudgets(self.statements(), Schema())

    async def restart(self) -> PostgresBudgets:
        await self._stack.aclose()
        await self._engine.dispose()
        return self.start()


@pytest.fixture
async def fleet(stores: Stores) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(stores.engine, stack)


async def ask(budgets: PostgresBudgets, budget: Budget = PLAIN, name: str = "psp",
              **counts: int) -> int:
    [granted] = await budgets.exchange([Wish(name, budget, **counts)])
    return granted


async def test_ten_retries_are_ten_for_all_processes_together(stores: Stores, fleet: Fleet) -> None:
    processes = [fleet.start() for _ in range(3)]
    await ask(processes[0], originals=100)

    async def share(budgets: PostgresBudgets) -> int:
        return sum([await ask(budgets, wanted=1) for _ in range(33)])

    assert sum(await asyncio.gather(*map(share, processes))) == 10
    [row] = await stores.read("SELECT credits, granted, denied FROM consumer.retry_budget")
    assert tuple(row) == (0, 10, 99 - 10)


async def test_a_restart_grants_nothing(fleet: Fleet) -> None:
    assert await ask(fleet.start(), FLOORED, originals=10, wanted=9) == 2
    for _ in range(3):
        assert await ask(await fleet.restart(), FLOORED, wanted=9) == 0


@pytest.mark.parametrize("off_s", [-3600, 3600, 10**9])
async def test_the_clock_of_a_worker_grants_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, off_s: int
) -> None:
    assert await ask(fleet.start(), FLOORED, wanted=9) == 1
    wrong: Callable[[], float] = lambda real=time.time: real() + off_s  # noqa: E731
    monkeypatch.setattr(time, "time", wrong)
    assert await ask(fleet.start(), FLOORED, wanted=9) == 0


async def test_time_passes_while_an_exchange_waits_for_the_lock(
    stores: Stores, fleet: Fleet
) -> None:
    """The floor goes by the time at which the row is ours, not by when the statement began."""
    budgets = fleet.start()
    await ask(budgets, FLOORED, wanted=1)
    async with stores.engine.begin() as other:
        await other.execute(text("UPDATE consumer.retry_budget SET updated_at = now()"))
        waiting = asyncio.create_task(ask(budgets, FLOORED, wanted=1))
        await stores.until("EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        await other.execute(text("UPDATE consumer.retry_budget SET floor_at = clock_timestamp()"))
    assert await waiting == 1


async def test_two_queues_have_two_budgets(fleet: Fleet) -> None:
    budgets = fleet.start()
    assert await ask(budgets, name="payments", originals=100, wanted=100) == 10
    assert await ask(budgets, name="payments.replay", wanted=1) == 0
    assert await ask(budgets, Budget(0.5, 20, 0), "receipts", originals=10, wanted=100) == 5


async def test_an_account_deleted_under_way_begins_empty(stores: Stores, fleet: Fleet) -> None:
    budgets = fleet.start()
    await ask(budgets, originals=500)
    await stores.run("DELETE FROM consumer.retry_budget")
    assert await ask(budgets, originals=10, returned=7, wanted=9) == 1
    [row] = await stores.read("SELECT originals, returned, granted FROM consumer.retry_budget")
    assert tuple(row) == (10, 0, 1)


class Sent:
    """First words of what goes to Postgres."""

    def __init__(self) -> None:
        self._seen: list[str] = []

    def note(self, record: Any) -> None:
        self._seen.append(record.query.split()[0].rstrip(";"))

    async def words(self) -> list[str]:
        """Since the last call."""
        await asyncio.sleep(0)  # the driver tells its loggers in the next turn of the loop
        seen, self._seen = self._seen, []
        return seen


async def test_an_exchange_is_one_statement_and_the_first_is_three(
    stores: Stores, fleet: Fleet
) -> None:
    statements, sent = fleet.statements(), Sent()
    budgets = PostgresBudgets(statements, Schema())
    await ask(budgets, name="warm")
    async with statements.driver() as driver:
        driver.add_query_logger(sent.note)
    wishes = [Wish(name, PLAIN, 1, 0, 1) for name in "abc"]
    await budgets.exchange(wishes)
    assert await sent.words() == ["WITH", "INSERT", "WITH"]
    await budgets.exchange(wishes)
    assert await sent.words() == ["WITH"]
    assert await stores.read("SELECT originals FROM consumer.retry_budget ORDER BY 1") == [
        (0,), (2,), (2,), (2,)]


async def test_an_exchange_that_fails_leaves_nothing_half_done(
    stores: Stores, fleet: Fleet
) -> None:
    budgets = fleet.start()
    await budgets.exchange([Wish(name, PLAIN, 30) for name in "abc"])
    before = await stores.read("SELECT * FROM consumer.retry_budget ORDER BY 1")
    await stores.run("ALTER TABLE consumer.retry_budget ADD CONSTRAINT no CHECK"
                     " (dependency <> 'c' OR granted = 0)")
    with pytest.raises(Exception, match="violates check constraint"):
        await budgets.exchange([Wish(name, PLAIN, 10, 0, 1) for name in "abc"])
    assert await stores.read("SELECT * FROM consumer.retry_budget ORDER BY 1") == before
    await stores.run("ALTER TABLE consumer.retry_budget DROP CONSTRAINT no")
    assert await budgets.exchange([Wish(name, PLAIN, 0, 0, 1) for name in "abc"]) == [1, 1, 1]


async def test_the_parameters_of_the_last_exchange_can_be_read(
    stores: Stores, fleet: Fleet
) -> None:
    await ask(fleet.start(), PLAIN)
    await ask(fleet.start(), Budget(0.25, 8, 6))
    [row] = await stores.read("SELECT earned, cost, most_credits,"
                              " extract(epoch FROM floor_interval)::int FROM consumer.retry_budget")
    assert tuple(row) == (1, 4, 32, 10)


async def test_a_database_that_is_away_is_infrastructure() -> None:
    engine = create_engine("postgresql://nobody@127.0.0.1:1/nowhere")
    with pytest.raises(StoreUnavailable):
        await ask(PostgresBudgets(Statements(engine), Schema()), wanted=1)
    await engine.dispose()


async def test_a_wait_that_takes_too_long_changes_nothing(stores: Stores, fleet: Fleet) -> None:
    await ask(fleet.start(), originals=10)
    await stores.run(f'ALTER DATABASE "{stores.url.rsplit("/", 1)[1]}" SET lock_timeout = 50')
    budgets = await fleet.restart()
    async with stores.engine.begin() as other:
        await other.execute(text("SELECT FROM consumer.retry_budget FOR UPDATE"))
        with pytest.raises(SerializationConflict):
            await ask(budgets, originals=10, wanted=1)
    assert await ask(budgets, wanted=5) == 1


async def test_behind_a_pooler_it_is_the_same(stores: Stores) -> None:
    engine = create_engine(stores.url, pooler="transaction")
    statements = Statements(engine)
    budgets = PostgresBudgets(statements, Schema())
    assert [await ask(budgets, FLOORED, originals=10, wanted=5) for _ in range(3)] == [2, 1, 1]
    await statements.close()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(exchange_as_fast_as_it_can(sys.argv[1], int(sys.argv[2])))
