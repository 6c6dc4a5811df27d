"""What `/metrics` and `consumer status` tell adds up with what was published."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import FAST, Running, Site, effect
from postbox import Post, post
from prometheus_client.parser import text_string_to_metric_families

from consumer import (
    App,
    Breaker,
    Budget,
    Command,
    Context,
    Dependency,
    Handler,
    Options,
    Queue,
    Reject,
)

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
WAITED_S = 100
"""So long ago was everything published, by its timestamp."""


class Charge(Command, type="till.charge"):
    fate: str


class Till(Handler[Charge]):
    """Each command says what becomes of it."""

    name, queue, dependencies = "till.charge", "till", ("psp",)
    options = Options(max_attempts=2, backoff_base=FAST.backoff_base, backoff_cap=FAST.backoff_cap)
    held, free = asyncio.Event(), asyncio.Event()

    async def handle(self, command: Charge, context: Context) -> None:
        async with context.call("psp"):
            match command.fate, context.attempt:
                case ("fails always", _) | ("fails once", 1):
                    raise ConnectionError("nobody answers")
                case "is late once", 1:
                    raise TimeoutError
                case "meets a bug", _:
                    raise KeyError("amount")
                case "is rejected", _:
                    raise Reject("no such card")
                case "is held", _:
                    self.held.set()
                    await self.free.wait()
        await effect(context)


def till(breaker: Breaker) -> App:
    psp = Dependency("psp", max_in_flight=4, breaker=breaker,
                     budget=Budget(ratio=1.0, capacity=50, floor_per_minute=0))
    return App("till", handlers=[Till], queues=[Queue("till", concurrency=2)], dependencies=[psp])


APP = till(Breaker(minimum_calls=1000))

FATES = {"is done": 20, "fails once": 5, "fails always": 3, "is late once": 1, "meets a bug": 2,
         "is rejected": 1}
ORIGINALS = sum(FATES.values())
RETRIES = FATES["fails once"] + FATES["fails always"] + FATES["is late once"]
DONE = FATES["is done"] + FATES["fails once"] + FATES["is late once"]


def charge(key: str, fate: str, headers: Mapping[str, Any] | None = None) -> Post:
    return post("till.charge", {"fate": fate}, key, headers,
                timestamp=int(time.time()) - WAITED_S)


def published() -> list[Post]:
    """Commands of all fates; four duplicates, a conflict and a late command; what nobody reads."""
    commands = [charge(f"{fate} {number}", fate)
                for fate, count in FATES.items() for number in range(1, count)]
    in_time = [charge(f"{fate} 0", fate, {"x-timeout-ms": 3_600_000}) for fate in FATES]
    again = [charge(f"is done {number}", "is done") for number in range(1, 5)]
    return [*commands, *in_time, *again, charge("is done 5", "is rejected"),
            charge("too late", "is done", {"x-deadline-ms": 1}),
            Post("till.charge", b"{", b"\x00\x00")]


EXPECTED = [
    ("originals_total", {"handler": "till.charge"}, ORIGINALS),
    ("attempts_total", {"handler": "till.charge", "outcome": "succeeded"}, DONE),
    ("attempts_total", {"handler": "till.charge", "outcome": "failed"}, 5 + 2 * 3 + 2 + 1),
    ("attempts_total", {"handler": "till.charge", "outcome": "timed_out"}, 1),
    ("attempts_total", {"handler": "till.charge", "outcome": "cancelled"}, 0),
    ("recovered_total", {"handler": "till.charge"}, 6),
    ("retries_total", {"dependency": "psp", "decision": "granted"}, RETRIES),
    ("retries_total", {"dependency": "psp", "decision": "denied_attempts"}, 3),
    ("retries_total", {"dependency": "psp", "decision": "denied_permanent"}, 3),
    ("retries_total", {"dependency": "psp", "decision": "denied_deadline"}, 0),
    ("retries_total", {"dependency": "psp", "decision": "denied_budget"}, 0),
    ("budget_granted_total", {"dependency": "psp"}, RETRIES),
    ("budget_denied_total", {"dependency": "psp"}, 0),
    ("budget_level", {"dependency": "psp"}, ORIGINALS - RETRIES),
    ("budget_leased", {"dependency": "psp"}, 0),
    ("idempotency_total", {"handler": "till.charge", "result": "new"}, ORIGINALS),
    ("idempotency_total", {"handler": "till.charge", "result": "retry"}, RETRIES),
    ("idempotency_total", {"handler": "till.charge", "result": "duplicate"}, 4),
    ("idempotency_total", {"handler": "till.charge", "result": "conflict"}, 1),
    ("idempotency_total", {"handler": "till.charge", "result": "takeover"}, 0),
    ("deadlines_total", {"handler": "till.charge", "result": "met"}, 6),
    ("deadlines_total", {"handler": "till.charge", "result": "missed"}, 1),
    ("dead_letters_total", {"queue": "till", "reason": "attempts"}, 3),
    ("dead_letters_total", {"queue": "till", "reason": "permanent"}, 2),
    ("dead_letters_total", {"queue": "till", "reason": "rejected"}, 1),
    ("dead_letters_total", {"queue": "till", "reason": "key_conflict"}, 1),
    ("dead_letters_total", {"queue": "till", "reason": "deadline"}, 1),
    ("dead_letters_total", {"queue": "till", "reason": "malformed"}, 1),
    ("parks_total", {"queue": "till", "reason": "budget"}, 0),
    ("parks_total", {"queue": "till", "reason": "breaker"}, 0),
    ("parks_total", {"queue": "till", "reason": "no_slot"}, 0),
    ("requeues_total", {"queue": "till", "reason": "pause"}, 0),
    ("success_seconds_count", {"handler": "till.charge"}, DONE),
    ("message_age_seconds_count", {"queue": "till"}, ORIGINALS),
    ("message_age_seconds_bucket", {"queue": "till", "le": "60.0"}, 0),
    ("message_age_seconds_bucket", {"queue": "till", "le": "300.0"}, ORIGINALS),
    ("breaker_state", {"dependency": "psp", "state": "closed"}, 1),
    ("breaker_state", {"dependency": "psp", "state": "open"}, 0),
    ("in_flight", {"queue": "till"}, 0),
    ("dependency_in_flight", {"dependency": "psp"}, 0),
    ("slot_share", {"dependency": "psp"}, 4),
    ("outbox_pending", {}, 0),
    ("outbox_parked", {}, 0),
]

Metrics = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(worker: Running) -> Metrics:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"http://127.0.0.1:{worker.health_port}/metrics")
    assert answer.status_code == 200
    return {(sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text) for sample in family.samples}


async def values(worker: Running, *wanted: tuple[str, Mapping[str, str], float]
                 ) -> list[tuple[str, Mapping[str, str], float | None]]:
    """The same metrics with the values they have."""
    found = await scraped(worker)
    return [(name, labels, found.get((f"consumer_{name}", frozenset(labels.items()))))
            for name, labels, _ in wanted]


async def status(site: Site) -> dict[str, Any]:
    """What `consumer status --json` prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "consumer", "status", "--app", "test_worker_metrics:APP", "--json",
        stdout=asyncio.subprocess.PIPE, cwd=HERE, env={
            **os.environ, "CONSUMER_AMQP_URL": site.amqp_url,
            "CONSUMER_DATABASE_URL": site.database_url})
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return dict(json.loads(printed))


async def test_metrics_and_status_add_up_with_what_was_published(site: Site) -> None:
    await site.prepare(APP)
    await site.publish(*published())
    async with site.worker(APP) as worker:
        async def all_has_ended() -> bool:
            return (await site.depth("till.dead")).ready == 9 \
                and site.settled(why="done") == DONE and await site.outbox_empty()

        await site.until(all_has_ended, "all has ended")

        async def adds_up() -> bool:
            return await values(worker, *EXPECTED) == EXPECTED

        with suppress(AssertionError):  # the comparison below shows what differs
            await site.until(adds_up, "it adds up")
        assert await values(worker, *EXPECTED) == EXPECTED
        shown = await status(site)
    [psp], [queue] = shown["dependencies"], shown["queues"]
    attempts = ORIGINALS + RETRIES
    assert psp["amplification"] == round(attempts / ORIGINALS, 3)
    assert {count: psp[count] for count in (
        "attempts", "originals", "succeeded", "failed", "retries_granted", "retries_denied")} == {
        "attempts": attempts, "originals": ORIGINALS, "succeeded": DONE, "failed": attempts - DONE,
        "retries_granted": RETRIES, "retries_denied": 0}
    assert psp["budget"]["left"] == ORIGINALS - RETRIES
    assert [(b["state"], b["workers"]) for b in psp["breaker"]] == [("closed", 1)]
    assert (psp["in_flight"], psp["slots"]) == (0, 4)
    assert (queue["ready"], queue["in_flight"], queue["dead"]) == (0, 0, 9)


async def test_what_is_in_flight_shows(site: Site) -> None:
    Till.held, Till.free = asyncio.Event(), asyncio.Event()
    gauges = [("in_flight", {"queue": "till"}), ("dependency_in_flight", {"dependency": "psp"})]
    await site.prepare(APP)
    await site.publish(charge("held", "is held"))
    async with site.worker(APP) as worker:
        await site.until(Till.held.is_set, "it is in flight")
        for number, free in ((1, True), (0, False)):
            wanted = [(*gauge, number) for gauge in gauges]

            async def shown(wanted: list[Any] = wanted) -> bool:
                return await values(worker, *wanted) == wanted

            await site.until(shown, f"{number} in flight")
            if free:
                now = await status(site)
                assert [q["in_flight"] for q in now["queues"]] == [1]
                assert [d["in_flight"] for d in now["dependencies"]] == [1]
                Till.free.set()


async def test_an_open_breaker_and_what_it_gave_back_show(site: Site) -> None:
    """A worker with four deliveries in hand gives back those it has not begun."""
    app = till(Breaker(minimum_calls=1, open_for=timedelta(hours=1)))
    await site.prepare(app)
    await site.publish(*(charge(f"K{number}", "fails always") for number in range(10)))
    async with site.worker(app) as worker:
        async def is_open() -> bool:
            wanted = [("breaker_state", {"dependency": "psp", "state": state}, float(value))
                      for state, value in (("open", 1), ("closed", 0), ("half_open", 0))]
            return await values(worker, *wanted) == wanted

        await site.until(is_open, "it is open")
        await site.until(lambda: site.logged("consuming_stopped", queue="till"), "it rests")

        async def all_back() -> bool:
            return (await site.depth("till")).ready == 10

        await site.until(all_back, "all are back")
        [(_, _, returned), (_, _, parked), (_, _, begun)] = await values(
            worker, ("requeues_total", {"queue": "till", "reason": "pause"}, 0),
            ("parks_total", {"queue": "till", "reason": "breaker"}, 0),
            ("originals_total", {"handler": "till.charge"}, 0))
    given_back = [found for found in await site.taken("till") if found.redelivered]
    assert returned is not None
    assert len(given_back) <= returned <= 2 * len(given_back)
    assert given_back
    assert parked == 0
    assert begun in (1, 2)
