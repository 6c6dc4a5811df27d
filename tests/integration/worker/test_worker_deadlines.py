"""Deadlines: what is too late does not begin, does not go on, and does not begin again."""

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from harness import FAST, Site, effect
from postbox import Post, post

from consumer import App, Budget, Command, Context, Handler, Options
from consumer.wire import HeaderValue

pytestmark = pytest.mark.integration

ALONE = replace(FAST, group_size=1)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
TOLERANCE = timedelta(seconds=5)
"""Between two readings of the clock by programs on one machine."""
NO_RETRIES = Budget(ratio=0, capacity=0, floor_per_minute=0)


class Ride(Command, type="trips.ride"):
    how: str = ""


class Follow(Command, type="trips.follow"):
    how: str


@dataclass
class Seen:
    """What a context told."""

    deadline: datetime | None
    remaining: timedelta
    headers: dict[str, str]
    grpc_timeout: str


def seen(context: Context) -> Seen:
    return Seen(context.deadline, context.remaining(), context.timeout_headers(),
                context.grpc_timeout())


class Riding(Handler[Ride]):
    """Does what its command says, and notes what time it has."""

    name, queue = "trips.ride", "trips"

    def __init__(self, options: Options = ALONE) -> None:
        self.options = options  # type: ignore[misc]
        self.seen: list[Seen] = []
        self.begun, self.arrival = asyncio.Event(), asyncio.Event()

    async def handle(self, command: Ride, context: Context) -> None:
        self.seen.append(seen(context))
        self.begun.set()
        await effect(context, command.how)
        match command.how:
            case "fails":
                raise ConnectionError("no petrol")
            case "waits":
                await self.arrival.wait()
            case "sends":
                for how, inherits in (("inherits", True), ("is free", False)):
                    await context.outbox.send(Follow(how=how), key=how, inherit_deadline=inherits)


class Following(Handler[Follow]):
    name, queue, options = "trips.follow", "follows", ALONE

    def __init__(self) -> None:
        self.deadlines: dict[str, datetime | None] = {}

    async def handle(self, command: Follow, context: Context) -> None:
        self.deadlines[command.how] = context.deadline


def now() -> datetime:
    """Now, to the millisecond, as headers have it."""
    moment = datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def ride(key: str, how: str = "", headers: dict[str, HeaderValue] | None = None, **more: Any
         ) -> Post:
    return post("trips.ride", {"how": how}, key, headers, **more)


def due(deadline: datetime) -> dict[str, HeaderValue]:
    return {"x-deadline-ms": ms(deadline)}


TOO_LATE = [
    ("the producer's deadline", ALONE, due(now() - SECOND), None),
    ("as text", ALONE, {"x-deadline-ms": str(ms(now() - SECOND))}, None),
    ("the producer's timeout", ALONE, {"x-timeout-ms": 1000}, now() - HOUR),
    ("older than max_age", replace(ALONE, max_age=timedelta(minutes=10)), {}, now() - HOUR),
    ("a deadline cannot prolong max_age", replace(ALONE, max_age=timedelta(minutes=10)),
     due(now() + HOUR), now() - HOUR),
    ("less than min_attempt left", replace(ALONE, attempt_timeout=2 * HOUR, min_attempt=2 * HOUR),
     due(now() + HOUR), None),
]


@pytest.mark.parametrize(("options", "headers", "sent"), [row[1:] for row in TOO_LATE],
                         ids=[row[0] for row in TOO_LATE])
async def test_what_became_too_late_in_the_queue_never_begins(
    site: Site, options: Options, headers: dict[str, HeaderValue], sent: datetime | None
) -> None:
    """It dies as `deadline`, makes no claim and no attempt; the one behind it is handled."""
    riding = Riding(options)
    app = App("trips", handlers=[riding])
    await site.prepare(app)
    when = {} if sent is None else {"timestamp": int(sent.timestamp())}
    await site.publish(ride("late", "", headers, **when), ride("in time"))
    async with site.worker(app):
        await site.until(lambda: site.settled() == 2, "both are settled")
    assert len(riding.seen) == 1
    assert await site.claims() == {"in time": ("done", 1)}
    assert await site.database.fetchval("SELECT count(*) FROM consumer.attempt") == 0
    [letter] = await site.taken("trips.dead")
    assert (letter.reason, letter.headers["consumer-dead-attempts"]) == ("deadline", 0)
    assert letter.headers["idempotency-key"] == "late"


async def test_a_command_that_died_too_late_can_be_sent_again_under_its_key(site: Site) -> None:
    riding = Riding()
    app = App("trips", handlers=[riding])
    await site.prepare(app)
    async with site.worker(app):
        await site.publish(ride("K", "", due(now() - SECOND)))
        await site.until(lambda: site.settled(why="deadline") == 1, "it is dead")
        await site.publish(ride("K", "", due(now() + HOUR)))
        await site.until(lambda: site.settled(why="done") == 1, "it is done")
    assert await site.claims() == {"K": ("done", 1)}


async def test_a_duplicate_of_what_is_done_is_no_failure_when_it_comes_too_late(site: Site) -> None:
    """The work is done; that a copy of it is late harms nobody. Another payload is a conflict."""
    riding = Riding()
    app = App("trips", handlers=[riding])
    await site.prepare(app)
    async with site.worker(app):
        await site.publish(ride("K"))
        await site.until(lambda: site.settled(why="done") == 1, "it is done")
        await site.publish(ride("K", "", due(now() - SECOND)))
        await site.until(lambda: site.settled(why="duplicate") == 1, "the duplicate is acked")
        await site.publish(ride("K", "differs", due(now() - SECOND)))
        await site.until(lambda: site.settled(why="key_conflict") == 1, "the other is refused")
    assert len(riding.seen) == 1
    assert [letter.reason for letter in await site.taken("trips.dead")] == ["key_conflict"]


async def test_a_command_that_becomes_too_late_while_parked_dies_with_its_claim(
    site: Site
) -> None:
    """A retry that waits for budget is given up at its deadline: one attempt, one letter."""
    riding = Riding()
    app = App("trips", handlers=[riding], retry_budget=NO_RETRIES)
    await site.prepare(app)
    await site.publish(ride("K", "fails", {"x-timeout-ms": 2500}))
    async with site.worker(app):
        await site.until(lambda: site.settled(why="budget") >= 1, "it waits for budget")
        assert await site.claims() == {"K": ("retrying", 1)}
        await site.until(lambda: site.settled(why="died") == 1, "it is given up")
        await site.until(site.outbox_empty, "its letter is sent")
    assert len(riding.seen) == 1
    assert await site.claims() == {"K": ("dead", 1)}
    [letter] = await site.taken("trips.dead")
    assert (letter.reason, letter.headers["consumer-dead-attempts"]) == ("deadline", 1)


async def test_an_attempt_is_cut_off_at_the_deadline(site: Site) -> None:
    """Long before its timeout: what it did is rolled back, and no other attempt is made."""
    riding = Riding()
    app = App("trips", handlers=[riding], retry_budget=None)
    await site.prepare(app)
    async with site.worker(app):
        await site.publish(ride("K", "waits", {"x-timeout-ms": 1000}))
        await site.until(lambda: site.settled(why="died") == 1, "it is given up", 15)
        await site.until(site.outbox_empty, "its letter is sent")
    assert len(riding.seen) == 1
    assert riding.seen[0].remaining <= SECOND
    assert await site.effects() == []
    assert await site.claims() == {"K": ("dead", 1)}
    [letter] = await site.taken("trips.dead")
    assert (letter.reason, letter.headers["consumer-dead-attempts"]) == ("deadline", 1)
    assert "TimeoutError" in str(letter.headers["consumer-dead-error"])


async def test_a_handler_knows_how_much_time_is_left(site: Site) -> None:
    """The shorter of deadline and attempt timeout, and the headers that say it to others."""
    riding, deadline = Riding(replace(ALONE, attempt_timeout=2 * HOUR)), now() + HOUR
    app = App("trips", handlers=[riding])
    await site.prepare(app)
    await site.publish(ride("K0", "", due(deadline)), ride("K1"))
    async with site.worker(app):
        await site.until(lambda: site.settled() == 2, "both are done")
    by_deadline, by_timeout = sorted(riding.seen, key=lambda one: one.remaining)
    assert (by_deadline.deadline, by_timeout.deadline) == (deadline, None)
    for told, span in ((by_deadline, HOUR), (by_timeout, 2 * HOUR)):
        assert span - told.remaining < timedelta(minutes=5)
        assert told.remaining <= span
        assert told.headers.keys() == {"x-deadline-ms", "x-timeout-ms"}
        assert int(told.headers["x-timeout-ms"]) <= told.remaining / timedelta(milliseconds=1)
        assert told.grpc_timeout[-1] in "muS"
    stated = datetime.fromtimestamp(int(by_deadline.headers["x-deadline-ms"]) / 1000, UTC)
    assert abs(stated - deadline) < TOLERANCE


async def test_a_message_inherits_the_deadline_where_its_handler_says_so(site: Site) -> None:
    """The next handler has the very same deadline; a message that does not inherit has none."""
    riding, following, deadline = Riding(), Following(), now() + HOUR
    app = App("trips", handlers=[riding, following])
    await site.prepare(app)
    await site.publish(ride("K", "sends", due(deadline)))
    async with site.worker(app):
        await site.until(lambda: site.settled(queue="follows") == 2, "both follow")
    assert following.deadlines == {"inherits": deadline, "is free": None}


async def test_what_inherits_a_deadline_dies_of_it_too(site: Site) -> None:
    """It waits in its queue until the deadline has passed, and never begins."""
    riding, following = Riding(), Following()
    await site.prepare(App("trips", handlers=[riding, following]))
    await site.publish(ride("K", "sends", {"x-timeout-ms": 3000}))
    async with site.worker(App("trips", handlers=[riding])):
        await site.until(lambda: site.settled(why="done") == 1, "both are sent")
        await site.until(site.outbox_empty, "both wait in their queue")
    [told] = riding.seen
    await site.until(lambda: told.deadline is not None and told.deadline < now(), "it is too late")
    async with site.worker(App("trips", handlers=[following])):
        await site.until(lambda: site.settled(queue="follows") == 2, "both are settled")
    assert following.deadlines == {"is free": None}
    [letter] = await site.taken("follows.dead")
    assert (letter.reason, letter.headers["idempotency-key"]) == ("deadline", "inherits")


NO_DEADLINES: list[HeaderValue] = [
    "soon", "", "-1", -1, "1.5", 1.5, True, b"1", None, [1], {"ms": 1}, "9" * 17, 2**63 - 1,
    "\u0661"]


async def test_headers_that_hold_no_deadline_are_ignored(site: Site) -> None:
    """Whatever is there instead of milliseconds, the command runs, and has no deadline."""
    riding = Riding()
    app = App("trips", handlers=[riding])
    await site.prepare(app)
    await site.publish(*(
        ride(f"K{number}", "", {"x-deadline-ms": value, "x-timeout-ms": value})
        for number, value in enumerate(NO_DEADLINES)))
    async with site.worker(app):
        await site.until(lambda: site.settled(why="done") == len(NO_DEADLINES), "all are done")
    assert [told.deadline for told in riding.seen] == [None] * len(NO_DEADLINES)
    assert await site.taken("trips.dead") == []
