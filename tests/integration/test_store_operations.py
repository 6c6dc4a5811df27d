# ruff: noqa: F811 - fixtures are imported
"""Heartbeats, pauses, the record of the topology, and what a database is warned about."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from store_fixtures import Stores, store, stores  # noqa: F401

from consumer.errors import ConfigurationError
from consumer.store import probe, topology, workers
from consumer.store.connection import transaction
from consumer.store.sql import Schema
from consumer.store.topology import DeclaredObject
from consumer.store.workers import QueueUse, WorkerInfo

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
