# ruff: noqa: F811 - fixtures are imported
"""Heartbeats, pauses, the record of the topology, and what a database is warned about."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from store_fixtures import Stores, store, stores  # noqa: F401

from consumer.core.budget import Budget, Wish
from consumer.errors import ConfigurationError
from consumer.store import budgets, probe, topology, workers
from consumer.store.connection import transaction
from consumer.store.dependency_view import BudgetLevel, budget_levels
from consumer.store.sql import Schema
from consumer.store.topology import DeclaredObject
from consumer.store.workers import DependencyUse, QueueUse, WorkerInfo

pytestmark = pytest.mark.integration

OURS = Schema()
NAMES = ["o'rders", 'a"b', "x; DROP TABLE claim;--", "Orders", "orders", "日本", "é" * 120]


def worker(**changes: object) -> WorkerInfo:
    info = WorkerInfo(uuid4(), "host\0-1", 42, datetime(2026, 1, 1, tzinfo=UTC),
                      {"orders": (QueueUse("live", 2, 7), QueueUse("replay", 2, 0))}, "0.1.0")
    return replace(info, **changes)  # type: ignore[arg-type]


async def test_a_worker_is_live_from_its_heartbeat_on(stores: Stores) -> None:
    one = worker()
    async with transaction(stores.engine) as driver:
        assert await workers.heartbeat(driver, OURS, one) == set()
        await workers.heartbeat(driver, OURS, replace(one, queues={}))
        await workers.heartbeat(driver, OURS, one)
        [seen] = await workers.live(driver, OURS, within=timedelta(minutes=1))
    assert seen.info == replace(one, host="host\\x00-1")
    assert seen.silent_seconds >= 0


async def test_what_a_worker_says_of_queues_and_dependencies_is_read_as_it_was(
    stores: Stores
) -> None:
    one = worker(
        queues={"orders": (QueueUse("live", 2, 0, "no slot of psp"), QueueUse("replay", 2, 1))},
        dependencies={
            "o'psp": DependencyUse("open", "12 of 20 calls failed (60 %)", 3.25, 4, 5,
                                   {"originals": 90, "attempts": 100, "retries_denied": 7}),
            "日本": DependencyUse("closed", since_seconds=0.0, share=0), "free": DependencyUse()})
    async with transaction(stores.engine) as driver:
        await workers.heartbeat(driver, OURS, worker(id=one.id, host="host"))
        await workers.heartbeat(driver, OURS, replace(one, host="host"))
        [seen] = await workers.live(driver, OURS, within=timedelta(minutes=1))
        assert seen.info == replace(one, host="host")
        await workers.heartbeat(driver, OURS, replace(one, dependencies={}))
        [seen] = await workers.live(driver, OURS, within=timedelta(minutes=1))
    assert seen.info.dependencies == {}


async def test_reasons_postgres_would_refuse_or_that_are_long_do_not_stop_heartbeats(
    stores: Stores
) -> None:
    odd = "nul \0, surrogate \ud800, " + "é" * 10_000
    async with transaction(stores.engine) as driver:
        await workers.heartbeat(driver, OURS, worker(
            queues={"orders": (QueueUse("live", 1, 0, odd),)},
            dependencies={"psp": DependencyUse("open", odd)}))
        [seen] = await workers.live(driver, OURS, within=timedelta(minutes=1))
    for why in (seen.info.queues["orders"][0].resting, seen.info.dependencies["psp"].why):
        assert why.startswith("nul \\x00, surrogate \\ud800, é")
        assert len(why.encode()) <= 500


async def test_workers_of_older_and_newer_releases_are_read(stores: Stores) -> None:
    await stores.run("""
        INSERT INTO consumer.worker (id, host, pid, started_at, heartbeat_at, queues, version)
        VALUES (gen_random_uuid(), 'h', 1, now(), now(),
                '{"q": [{"lane": "live", "concurrency": 2, "in_flight": 1}]}', '0.1.0')""")
    await stores.run("""
        INSERT INTO consumer.worker VALUES (gen_random_uuid(), 'h', 2, now(), now(),
            CAST(:queues AS jsonb), '9.0.0', CAST(:dependencies AS jsonb))""",
        queues='{"q": [{"lane": "replay", "resting": "why", "later": [1]}, {}]}',
        dependencies='{"psp": {"breaker": "open", "later": {"a": 1}}, "other": {}}')
    async with transaction(stores.engine) as driver:
        older, newer = [w.info for w in await workers.live(
            driver, OURS, within=timedelta(minutes=1))]
    assert (older.queues, older.dependencies) == ({"q": (QueueUse("live", 2, 1),)}, {})
    assert newer.queues == {"q": (QueueUse("replay", 0, 0, "why"), QueueUse("live", 0, 0))}
    assert newer.dependencies == {"psp": DependencyUse("open"), "other": DependencyUse()}


async def test_a_worker_that_consumes_says_nothing_older_commands_could_not_read(
    stores: Stores
) -> None:
    async with transaction(stores.engine) as driver:
        await workers.heartbeat(driver, OURS, worker())
    [(queues,)] = await stores.read("SELECT queues FROM consumer.worker")
    assert queues["orders"][0] == {"lane": "live", "concurrency": 2, "in_flight": 7}


async def test_what_is_left_of_budgets_is_told_in_retries(stores: Stores) -> None:
    budget = Budget(ratio=0.1, capacity=3, floor_per_minute=6)
    async with transaction(stores.engine) as driver:
        assert await budget_levels(driver, OURS) == {}
        await budgets.open_accounts(driver, OURS, ["psp", "new"])
        await budgets.exchange(driver, OURS, [Wish("psp", budget, originals=29)])
        await budgets.exchange(driver, OURS, [Wish("psp", budget, wanted=1)])
        assert await budget_levels(driver, OURS) == {
            "new": BudgetLevel(0, 0), "psp": BudgetLevel(1, 3, originals=29, granted=1)}
        await budgets.exchange(driver, OURS, [Wish("psp", budget, wanted=3)])
        await budgets.exchange(driver, OURS, [Wish("psp", budget, returned=1)])
        assert (await budget_levels(driver, OURS))["psp"] == BudgetLevel(
            1, 3, originals=29, granted=3, granted_by_floor=1, returned=1, denied=1)


async def test_a_silent_worker_is_not_live_and_can_be_forgotten(stores: Stores) -> None:
    silent, gone, live = worker(pid=1), worker(pid=2), worker(pid=3)
    async with transaction(stores.engine) as driver:
        for each in (silent, gone, live):
            await workers.heartbeat(driver, OURS, each)
        await workers.remove(driver, OURS, gone.id)
        await workers.remove(driver, OURS, gone.id)
    await stores.run("UPDATE consumer.worker SET heartbeat_at = heartbeat_at - interval '1 hour'"
                     " WHERE pid = 1")
    async with transaction(stores.engine) as driver:
        seen = await workers.live(driver, OURS, within=timedelta(minutes=1))
        assert [w.info.pid for w in seen] == [3]
        assert await workers.forget_silent(driver, OURS, after=timedelta(minutes=30)) == 1
        assert await workers.forget_silent(driver, OURS, after=timedelta(minutes=30)) == 0


async def test_pauses_are_seen_at_the_next_heartbeat_and_audited_once(stores: Stores) -> None:
    async with transaction(stores.engine) as driver:
        for name in NAMES:
            assert await workers.pause(driver, OURS, name, actor="ana", reason="provider is down")
            assert not await workers.pause(driver, OURS, name, actor="bo", reason="again")
        assert await workers.heartbeat(driver, OURS, worker()) == set(NAMES)
        found = await workers.pauses(driver, OURS)
    assert {pause.queue: pause.reason for pause in found} == dict.fromkeys(
        NAMES, "provider is down")
    async with transaction(stores.engine) as driver:
        for name in NAMES:
            assert await workers.resume(driver, OURS, name, actor="bo", reason="it is back")
            assert not await workers.resume(driver, OURS, name, actor="bo", reason="again")
        assert await workers.heartbeat(driver, OURS, worker()) == set()
    log = await stores.read("SELECT actor, action, detail FROM consumer.audit_log ORDER BY id")
    assert [(r.actor, r.action) for r in log] == (
        [("ana", "queue.pause")] * len(NAMES) + [("bo", "queue.resume")] * len(NAMES))
    assert log[-1].detail["paused_by"] == "ana"


async def test_two_operators_pausing_at_once_are_one_pause(stores: Stores) -> None:
    async def pause(actor: str) -> bool:
        async with transaction(stores.engine) as driver:
            return await workers.pause(driver, OURS, "orders", actor=actor, reason="why")

    assert sorted(await asyncio.gather(pause("ana"), pause("bo"))) == [False, True]
    assert len(await stores.read("SELECT id FROM consumer.audit_log")) == 1


async def test_what_was_declared_is_on_record(stores: Stores) -> None:
    queue = DeclaredObject("queue", "o'rders", {"x-queue-type": "quorum", "x-message-ttl": 100})
    exchange = DeclaredObject("exchange", "o'rders", {"type": "topic"})
    async with transaction(stores.engine) as driver:
        await topology.record(driver, OURS, [queue, exchange], broker_version="3.10.8")
        changed = replace(queue, arguments={"x-queue-type": "quorum"})
        await topology.record(driver, OURS, [changed], broker_version="4.3.6")
        found = await topology.read(driver, OURS)
        assert [(r.declared, r.broker_version) for r in found] == [
            (exchange, "3.10.8"), (changed, "4.3.6")]
        await topology.forget(driver, OURS, [("exchange", "o'rders"), ("queue", "unknown")])
        assert [r.declared for r in await topology.read(driver, OURS)] == [changed]


async def test_settings_that_lose_commits_are_warned_about(stores: Stores) -> None:
    async with transaction(stores.engine) as driver:
        await probe.answers(driver)
        await driver.execute("SET LOCAL synchronous_commit = on")
        before = await probe.warnings(driver, OURS)
        await driver.execute("SET LOCAL synchronous_commit = off")
        [found] = set(await probe.warnings(driver, OURS)) - set(before)
    assert found.startswith("synchronous_commit=off")


async def test_a_search_path_that_leads_into_our_schema_is_warned_about(stores: Stores) -> None:
    """A role named like the schema has such a path, and its own tables come to lie among ours."""
    async with transaction(stores.engine) as driver:
        before = await probe.warnings(driver, OURS)
        await driver.execute(f"SET LOCAL search_path = {OURS.quoted}, public")
        [found] = set(await probe.warnings(driver, OURS)) - set(before)
    assert "'consumer', the framework's own" in found


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64, "é" * 32, "pg_mine", "\ud800"])
def test_a_schema_postgres_would_cut_or_refuse_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="schema name"):
        Schema(name)
