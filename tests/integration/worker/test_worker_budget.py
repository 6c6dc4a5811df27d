"""Retries are bounded: by attempts, by the budget of the fleet, by what the other side asks for."""

import asyncio
import itertools
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from harness import FAST, Site, effect
from postbox import Post, post

from consumer import App, Budget, Command, Context, Dependency, Handler, Options, Queue

pytestmark = pytest.mark.integration

ALONE = replace(FAST, group_size=1)
NONE = Budget(ratio=0, capacity=0, floor_per_minute=0)


class Capture(Command, type="till.capture"):
    order: str


class Refund(Command, type="till.refund"):
    order: str


@dataclass
class Provider:
    """A payment provider that answers every request alike, and notes when each came.

    Attributes:
        requests: Monotonic seconds of its requests, by order.
    """

    status: int
    headers: dict[str, str]

    def __post_init__(self) -> None:
        self.requests: defaultdict[str, list[float]] = defaultdict(list)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests[request.url.path.strip("/")].append(time.monotonic())
        return httpx.Response(self.status, headers=self.headers)

    @property
    def retries(self) -> int:
        """Requests that were made again."""
        return sum(len(times) - 1 for times in self.requests.values())

    async def ask(self, order: str) -> None:
        transport = httpx.MockTransport(self.answer)
        async with httpx.AsyncClient(transport=transport, base_url="http://psp") as client:
            (await client.post(f"/{order}")).raise_for_status()


class Capturing(Handler[Capture]):
    name, queue, options = "till.capture", "captures", ALONE

    def __init__(self, provider: Provider, options: Options = ALONE) -> None:
        self.provider, self.options = provider, options  # type: ignore[misc]

    async def handle(self, command: Capture, context: Context) -> None:
        await effect(context, command.order)
        await self.provider.ask(command.order)


class Refunding(Handler[Refund]):
    """On another queue, with another provider."""

    name, queue, options = "till.refund", "refunds", ALONE

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    async def handle(self, command: Refund, context: Context) -> None:
        await self.provider.ask(command.order)


def unavailable(**headers: str) -> Provider:
    return Provider(503, headers)


def busy(after: str) -> Provider:
    return Provider(429, {"Retry-After": after})


def captures(number: int, **more: Any) -> list[Post]:
    return [post("till.capture", {"order": f"o-{n}"}, f"o-{n}", **more) for n in range(number)]


async def test_attempts_end_at_their_maximum_where_no_budget_limits_them(site: Site) -> None:
    """Every attempt meets 503: five for each command, five letters, no effect."""
    provider = unavailable()
    app = App("till", handlers=[Capturing(provider)], retry_budget=None)
    await site.prepare(app)
    await site.publish(*captures(5))
    async with site.worker(app):
        await site.until(lambda: site.settled(why="died") == 5, "all are given up")
        await site.until(site.outbox_empty, "the letters are sent")
    assert {len(times) for times in provider.requests.values()} == {ALONE.max_attempts}
    assert await site.effects() == []
    letters = await site.taken("captures.dead")
    assert [letter.reason for letter in letters] == ["attempts"] * 5
    assert all("503" in str(letter.headers["consumer-dead-error"]) for letter in letters)


async def test_without_a_budget_each_command_is_tried_once_and_waits(site: Site) -> None:
    """Originals are never throttled; their retries are parked, longer each time, and none dies."""
    provider = unavailable()
    app = App("till", handlers=[Capturing(provider)], retry_budget=NONE)
    await site.prepare(app)
    await site.publish(*captures(30))
    async with site.worker(app):
        await site.until(lambda: site.settled(why="budget") >= 60, "each was parked twice or so")
    assert {len(times) for times in provider.requests.values()} == {1}
    assert set((await site.claims()).values()) == {("retrying", 1)}
    assert len(provider.requests) == 30
    assert (await site.depth("captures.dead")).ready == 0


async def test_budgets_of_two_queues_are_apart(site: Site) -> None:
    """One queue's originals earn nothing for the other: 20 earn ten retries, 20 others earn none.

    The budget of a queue is that of the dependency named after it.
    """
    capturing, refunding = unavailable(), unavailable()
    app = App("till", handlers=[Capturing(capturing), Refunding(refunding)], retry_budget=NONE,
              dependencies=[Dependency("captures", budget=Budget(0.5, 10, 0))])
    await site.prepare(app)
    await site.publish(*captures(20), *(
        post("till.refund", {"order": f"r-{n}"}, f"r-{n}") for n in range(20)))
    async with site.worker(app):
        await site.until(lambda: capturing.retries == 10, "the budget is spent")
        await site.until(
            lambda: site.settled(queue="captures", why="budget") >= 40
            and site.settled(queue="refunds", why="budget") >= 40, "all wait")
    assert (capturing.retries, refunding.retries) == (10, 0)
    assert (len(capturing.requests), len(refunding.requests)) == (20, 20)


async def test_a_wait_beyond_the_deadline_is_not_waited_for(site: Site) -> None:
    """429 with a `Retry-After` of an hour, a minute before the deadline: dead at once, one attempt.

    The budget has nothing to do with it.
    """
    provider = busy("3600")
    app = App("till", handlers=[Capturing(provider)], retry_budget=None)
    await site.prepare(app)
    deadline_ms = int((datetime.now(UTC) + timedelta(minutes=1)).timestamp() * 1000)
    await site.publish(*captures(1, headers={"x-deadline-ms": deadline_ms}))
    async with site.worker(app):
        await site.until(lambda: site.settled(why="died") == 1, "it is given up")
        await site.until(site.outbox_empty, "its letter is sent")
    assert provider.retries == 0
    assert await site.claims() == {"o-0": ("dead", 1)}
    [letter] = await site.taken("captures.dead")
    assert (letter.reason, letter.headers["consumer-dead-attempts"]) == ("deadline", 1)
    assert "429" in str(letter.headers["consumer-dead-error"])
    [decision] = [line["decision"] for line in site.logged("attempt_failed")]
    assert "3600.000 s" in decision


async def test_a_wait_that_fits_is_waited_for(site: Site) -> None:
    """No attempt comes before the `Retry-After` of the one before it is over."""
    provider = busy("1")
    app = App("till", handlers=[Capturing(provider, replace(ALONE, max_attempts=3))],
              retry_budget=None)
    await site.prepare(app)
    deadline_ms = int((datetime.now(UTC) + timedelta(minutes=1)).timestamp() * 1000)
    await site.publish(*captures(3, headers={"x-deadline-ms": deadline_ms}))
    async with site.worker(app):
        await site.until(lambda: site.settled(why="died") == 3, "all are given up")
        await site.until(site.outbox_empty, "the letters are sent")
    for times in provider.requests.values():
        assert len(times) == 3
        assert all(later - sooner >= 1 for sooner, later in itertools.pairwise(times))
    assert {letter.reason for letter in await site.taken("captures.dead")} == {"attempts"}


async def test_many_callers_at_once_stay_within_the_bound(site: Site) -> None:
    """Two workers, 400 commands that all fail: the provider sees at most
    ratio · originals + capacity + floor requests beyond the originals, and never the load of 400
    times five attempts.
    """
    provider, budget = unavailable(), Budget(ratio=0.1, capacity=5, floor_per_minute=60)
    app = App("till", handlers=[Capturing(provider)], queues=[Queue("captures", concurrency=4)],
              dependencies=[Dependency("captures", budget=budget)])
    await site.prepare(app)
    await site.publish(*captures(400))
    begun_s = time.monotonic()
    async with site.worker(app), site.worker(app):
        await site.until(lambda: site.settled(why="budget") >= 800, "all wait for budget", 60)
        spent_s = time.monotonic() - begun_s
        retries = provider.retries
    assert len(provider.requests) == 400
    assert 5 <= retries <= 0.1 * 400 + 5 + 1 + spent_s * 60 / 60
    row = await site.database.fetchrow(
        "SELECT originals, granted, returned FROM consumer.retry_budget WHERE dependency = $1",
        "captures")
    assert row is not None
    assert row["originals"] == 400
    assert row["granted"] - row["returned"] >= provider.retries


class Stuck(Capturing):
    """Names its provider, and waits for an answer that does not come in its first attempt."""

    dependencies = ("psp",)

    def __init__(self, provider: Provider, options: Options) -> None:
        super().__init__(provider, options)
        self.attempts: list[int] = []

    async def handle(self, command: Capture, context: Context) -> None:
        self.attempts.append(context.attempt)
        await effect(context, command.order)
        if context.attempt == 1:
            await asyncio.Event().wait()


async def test_a_handler_longer_than_its_timeout_has_failed_and_frees_what_it_held(
    site: Site
) -> None:
    """Each is cut off and rolled back, its slot is free for the next, and its retry succeeds
    (B31): one effect each.
    """
    stuck = Stuck(unavailable(), replace(ALONE, attempt_timeout=timedelta(milliseconds=300)))
    app = App("till", handlers=[stuck], dependencies=[
        Dependency("psp", max_in_flight=1, budget=None, breaker=None)])
    await site.prepare(app)
    await site.publish(*captures(3))
    async with site.worker(app):
        await site.until(lambda: site.settled(why="done") == 3, "all are done")
    assert sorted(stuck.attempts) == [1, 1, 1, 2, 2, 2]
    assert sorted(value for _, _, value in await site.effects()) == ["o-0", "o-1", "o-2"]
    errors = await site.database.fetch("SELECT error FROM consumer.attempt")
    assert ["TimeoutError" in row["error"] for row in errors] == [True] * 3


async def test_a_command_that_waits_for_its_retry_is_held_by_no_worker(site: Site) -> None:
    """Backoff and the wait for budget are never slept on an unacknowledged message (B31): the
    worker has room for two deliveries, 20 commands wait for an hour, and all the others pass;
    none of them is given back when it ends.
    """
    provider = busy("3600")
    app = App("till", handlers=[Capturing(provider)], retry_budget=None,
              queues=[Queue("captures", concurrency=1, prefetch=2)])
    await site.prepare(app)
    await site.publish(*captures(20))
    async with site.worker(app):
        await site.until(lambda: site.settled(why="retrying") == 20, "all wait")
        await site.until(lambda: all_on_the_ladder(site, 20), "all are in delay queues")
        assert await site.database.fetchval(
            "SELECT count(*) FROM consumer.claim WHERE state = 'retrying'") == 20
    assert (await site.depth("captures")).ready == 0
    assert provider.retries == 0


async def all_on_the_ladder(site: Site, number: int) -> bool:
    """So many messages wait in delay queues, and none in the work queue."""
    waiting = [(await site.depth(f"consumer.delay.{level:02}")).ready for level in range(24)]
    return sum(waiting) == number and not (await site.depth("captures")).ready
