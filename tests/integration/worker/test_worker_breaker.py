"""A dependency that fails: its queues are left alone, probed with one message, then consumed again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from fleet import beats
from harness import FAST, Site, effect
from postbox import Found, Post, post
from pydantic import SecretStr

import consumer.compose
from consumer import App, Breaker, Command, Context, Dependency, Handler, Queue
from consumer.cli.dependency_state import DependencyState
from consumer.cli.overview import Overview, QueueState, overview
from consumer.settings import Settings
from consumer.worker.clock import SystemClock

pytestmark = pytest.mark.integration

OPEN_FOR = timedelta(hours=1)
MINIMUM_CALLS = 5


class Provider:
    """Takes payments: refuses to until it works, and answers nobody before it may."""

    def __init__(self) -> None:
        self.works, self.answers = False, asyncio.Event()
        self.answers.set()
        self.asked: list[str] = []
        self.busy = 0

    async def ask(self, context: Context) -> None:
        self.asked.append(context.key)
        self.busy += 1
        try:
            await self.answers.wait()
        finally:
            self.busy -= 1
        if not self.works:
            raise ConnectionRefusedError("no payments today")


class Charge(Command, type="till.charge"):
    pass


class Refund(Command, type="desk.refund"):
    pass


class Receipt(Command, type="till.receipt"):
    pass


class Charging(Handler[Charge]):
    name, queue, options, dependencies = "till.charge", "till", FAST, ("psp",)

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def handle(self, command: Charge, context: Context) -> None:
        async with context.call("psp"):
            await self._provider.ask(context)
        await effect(context)


class Refunding(Handler[Refund]):
    """Makes no call of its own: the attempt counts as the call."""

    name, queue, options, dependencies = "desk.refund", "desk", FAST, ("psp",)

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def handle(self, command: Refund, context: Context) -> None:
        await self._provider.ask(context)
        await effect(context)


class Printing(Handler[Receipt]):
    name, queue, options = "till.receipt", "till", FAST

    async def handle(self, command: Receipt, context: Context) -> None:
        await effect(context)


def psp() -> Dependency:
    return Dependency(
        "psp", budget=None, breaker=Breaker(minimum_calls=MINIMUM_CALLS, open_for=OPEN_FOR))


def till(provider: Provider, concurrency: int) -> App:
    return App("till", handlers=[Charging(provider)], dependencies=[psp()],
               queues=[Queue("till", concurrency=concurrency)])


def charges(numbers: range) -> list[Post]:
    return [post("till.charge", {}, f"K{number:03}") for number in numbers]


@pytest.fixture
def provider() -> Provider:
    return Provider()


Pass = Callable[[timedelta], None]


@pytest.fixture
def time_passes(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Moves the monotonic clock of workers on."""
    class Clock(SystemClock):
        ahead_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.ahead_s

    def on(by: timedelta) -> None:
        Clock.ahead_s += by.total_seconds()

    monkeypatch.setattr(consumer.compose, "SystemClock", Clock)
    return on


async def seen(site: Site, app: App) -> Overview:
    """What `consumer status` shows."""
    settings = Settings(amqp_url=SecretStr(site.amqp_url), database_url=SecretStr(
        site.database_url))
    return await overview(settings, app)


async def seen_queue(site: Site, app: App, name: str) -> QueueState:
    return next(queue for queue in (await seen(site, app)).queues if queue.name == name)


async def seen_psp(site: Site, app: App) -> DependencyState:
    return next(each for each in (await seen(site, app)).dependencies if each.name == "psp")


def waiting(site: Site, queue: str, count: int) -> Callable[[], Awaitable[bool]]:
    """Whether so many messages are ready."""
    async def is_so() -> bool:
        return (await site.depth(queue)).ready == count

    return is_so


def rests(site: Site, queue: str, times: int = 1) -> Callable[[], Awaitable[bool]]:
    """Whether it is not consumed any more, for the so manieth time."""
    async def is_so() -> bool:
        return len(site.logged("consuming_stopped", queue=queue, why="pause")) == times \
            and (await site.depth(queue)).consumers == 0

    return is_so


def key_of(found: Found) -> str:
    return str(found.headers["idempotency-key"])


def times_delivered(headers: dict[str, object]) -> int:
    """How often a queue had delivered a message before, as brokers of 3.10 and of 4.3 tell."""
    counts = [headers.get(name, 0) for name in ("x-delivery-count", "x-acquired-count")]
    return max(count for count in counts if isinstance(count, int))


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_an_open_breaker_leaves_the_queue_alone(
    site: Site, provider: Provider, concurrency: int
) -> None:
    """No call has ever succeeded. The messages stay in the queue in their order, those that had
    been taken go back at once, nothing runs or is delivered again, and the process is ready.
    """
    app = till(provider, concurrency)
    await site.prepare(app)
    await site.publish(*charges(range(60)))
    async with site.worker(app) as worker:
        await site.until(rests(site, "till"), "nobody consumes")
        await site.until(waiting(site, "till", 60), "all are back, the retries too", 5)
        started = set(provider.asked)
        assert len(started) == len(provider.asked)
        assert MINIMUM_CALLS <= len(started) < MINIMUM_CALLS + concurrency
        await beats(site)
        assert len(provider.asked) == len(started)
        assert await worker.unready() == {}
    assert site.settled(why="breaker") == 0
    left = [found for found in await site.taken("till") if key_of(found) not in started]
    # RabbitMQ 3.10 can swap what is given back one by one.
    given_back = sorted(key_of(found) for found in left if found.redelivered)
    others = [key_of(found) for found in left if not found.redelivered]
    assert [*given_back, *others] == [f"K{n:03}" for n in range(60) if f"K{n:03}" not in started]
    assert max(times_delivered(dict(found.headers)) for found in left) <= 2
    assert await site.claims() == dict.fromkeys(started, ("retrying", 1))


async def test_status_says_why_a_queue_is_not_consumed(site: Site, provider: Provider) -> None:
    app = till(provider, 1)
    await site.prepare(app)
    await site.publish(*charges(range(20)))
    why = "5 of 5 calls failed (100 %)"
    async with site.worker(app):
        await site.until(rests(site, "till"), "nobody consumes")

        async def told() -> bool:
            return bool((await seen_queue(site, app, "till")).resting)

        await site.until(told, "it says so")
        queue, dependency = await seen_queue(site, app, "till"), await seen_psp(site, app)
    assert [(each.why, each.workers) for each in queue.resting] == [
        (f"the breaker of psp is open: {why}", 1)]
    assert (queue.consumers, queue.workers, queue.paused) == (0, 1, None)
    [breaker] = dependency.breakers
    assert (breaker.state, breaker.workers, breaker.why) == ("open", 1, why)
    assert breaker.since_seconds is not None


async def test_a_half_open_breaker_lets_one_message_probe(
    site: Site, provider: Provider, time_passes: Pass
) -> None:
    """A probe that fails opens it again; one that succeeds closes it, and everything is done."""
    app = till(provider, 8)
    await site.prepare(app)
    await site.publish(*charges(range(60)))
    async with site.worker(app):
        await site.until(rests(site, "till"), "nobody consumes")
        await site.until(waiting(site, "till", 60), "all are back")
        for works in (False, True):
            asked = len(provider.asked)
            provider.answers.clear()
            time_passes(OPEN_FOR)
            await site.until(lambda: provider.busy, "a probe is under way")
            await beats(site)
            assert provider.busy == 1
            assert (await site.depth("till")).ready == 59
            assert len(provider.asked) == asked + 1
            provider.works = works
            provider.answers.set()
            if not works:
                await site.until(rests(site, "till", times=2), "nobody consumes")
                await site.until(waiting(site, "till", 60), "all are back")
                assert len(provider.asked) == asked + 1
        await site.until(lambda: site.settled(why="done") == 60, "all are done")

        async def closed() -> bool:
            return [each.state for each in (await seen_psp(site, app)).breakers] == ["closed"]

        await site.until(closed, "status says so")
    assert [line["state"] for line in site.logged("breaker")] == [
        "open", "half_open", "open", "half_open", "closed"]
    assert site.settled(why="breaker") == 0


async def test_what_waited_is_done_in_the_order_it_was_sent(
    site: Site, provider: Provider, time_passes: Pass
) -> None:
    app = till(provider, 1)
    await site.prepare(app)
    await site.publish(*charges(range(40)))
    async with site.worker(app):
        await site.until(rests(site, "till"), "nobody consumes")
        await site.until(waiting(site, "till", 40), "all are back")
        provider.works = True
        time_passes(OPEN_FOR)
        await site.until(lambda: site.settled(why="done") == 40, "all are done")
    done = [key for _, key, _ in await site.effects()]
    given_back, others, retried = done[:3], done[3:35], done[35:]
    assert [*sorted(given_back), *others] == [f"K{n:03}" for n in range(MINIMUM_CALLS, 40)]
    assert sorted(retried) == [f"K{n:03}" for n in range(MINIMUM_CALLS)]


async def test_queues_that_share_a_dependency_all_rest(
    site: Site, provider: Provider, time_passes: Pass
) -> None:
    """Calls made for one of them speak for the others, in which nothing is tried."""
    app = App("till", handlers=[Charging(provider), Refunding(provider)], dependencies=[psp()])
    await site.prepare(app)
    async with site.worker(app):
        await site.until(lambda: site.logged("consuming", queue="desk"), "it is consumed")
        await site.publish(*charges(range(20)))
        for queue in ("till", "desk"):
            await site.until(rests(site, queue), f"nobody consumes {queue}")
        await site.publish(*(post("desk.refund", {}, f"R{number}") for number in range(20)))
        await beats(site)
        assert (await site.depth("desk")).ready == 20
        assert not [key for key in provider.asked if key.startswith("R")]
        provider.works = True
        time_passes(OPEN_FOR)
        await site.until(lambda: site.settled(why="done") == 40, "all are done")
    assert len(await site.effects()) == 40


async def test_a_mixed_queue_goes_on_with_its_other_handlers(
    site: Site, provider: Provider, time_passes: Pass
) -> None:
    """What needs the dependency is parked, retries as well, which is no attempt; all of it comes
    back and is done once the breaker has closed.
    """
    app = App("till", handlers=[Charging(provider), Printing], dependencies=[psp()],
              queues=[Queue("till", concurrency=1)])
    await site.prepare(app)
    await site.publish(*charges(range(10)))
    async with site.worker(app) as worker:
        await site.until(lambda: site.settled(why="breaker") >= 10, "all of them are parked")
        assert set(provider.asked) == {f"K{n:03}" for n in range(MINIMUM_CALLS)}
        assert await site.claims() == dict.fromkeys(provider.asked, ("retrying", 1))
        await site.publish(*(post("till.receipt", {}, f"R{number}") for number in range(10)))
        await site.until(lambda: site.settled(why="done") == 10, "the others are done")
        assert (await site.depth("till")).consumers == 1
        assert await worker.unready() == {}
        assert len(provider.asked) == MINIMUM_CALLS
        provider.works = True
        time_passes(OPEN_FOR)
        await site.until(lambda: site.settled(why="done") == 20, "all are done")
    attempts = {key: attempts for key, (_, attempts) in (await site.claims()).items()}
    assert attempts == {**{f"R{n}": 1 for n in range(10)}, **{
        f"K{n:03}": 2 if n < MINIMUM_CALLS else 1 for n in range(10)}}
