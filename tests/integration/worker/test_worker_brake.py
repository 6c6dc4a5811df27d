"""A brake stops a queue whose handler fails for everything: a bad deploy kills no backlog."""

import asyncio
import json
import os
import sys
from dataclasses import replace
from typing import Any

import pytest
from harness import FAST, SCHEMA, Site, effect
from postbox import Post, post

from consumer import App, Command, Context, Handler, Options, Queue, Reject
from consumer.store import workers

pytestmark = pytest.mark.integration

ALONE = replace(FAST, group_size=1)
BACKLOG, HALF, HUNDRED = 300, 51, 100
"""More than half of the last hundred pull the brake."""


class Ship(Command, type="yard.ship"):
    number: int


class Shipping(Handler[Ship]):
    """Has a programming error until it is mended, or rejects what it is told to."""

    name, queue = "yard.ship", "yard"

    def __init__(self, options: Options = ALONE) -> None:
        self.options = options  # type: ignore[misc]
        self.mended, self.rejects = False, False

    async def handle(self, command: Ship, context: Context) -> None:
        await effect(context)
        if self.rejects:
            raise Reject("the yard is closed")
        if not self.mended:
            raise TypeError("'NoneType' object is not subscriptable")


def ships(number: int) -> list[Post]:
    return [post("yard.ship", {"number": n}, f"K{n}") for n in range(number)]


def app(shipping: Shipping) -> App:
    return App("yard", handlers=[shipping], queues=[Queue("yard", concurrency=2)])


async def operator(site: Site, *arguments: str) -> str:
    """What `consumer` prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "consumer", *arguments, stdout=asyncio.subprocess.PIPE, env={
            **os.environ, "CONSUMER_AMQP_URL": site.amqp_url,
            "CONSUMER_DATABASE_URL": site.database_url})
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


async def yard(site: Site) -> dict[str, Any]:
    """The queue as `consumer status --json` shows it."""
    found = json.loads(await operator(site, "status", "--json"))
    [queue] = [queue for queue in found["queues"] if queue["queue"] == "yard"]
    return dict(queue)


async def paused(site: Site) -> bool:
    return bool(await workers.pauses(site.database, SCHEMA))


async def at_rest(site: Site) -> bool:
    """Nobody consumes the paused queue; each command is in it or dead, with its letter.

    Some may be both: when a channel closes while the broker is busy taking back what it had sent,
    it can lose the last acks, and what was acked comes again and is recognised.
    """
    queue, letters = await site.depth("yard"), await site.depth("yard.dead")
    died = len(await site.claims())
    return (await paused(site) and not queue.consumers and letters.ready == died
            and queue.ready >= BACKLOG - died)


async def test_a_handler_that_fails_for_everything_stops_its_queue(site: Site) -> None:
    """After just over half of a hundred deaths the queue is paused for the fleet, with an alarm;
    the rest waits in the queue, operators see who paused it and why, and once the handler is mended
    and the queue resumed, all that is left is done.
    """
    shipping = Shipping()
    await site.prepare(app(shipping))
    await site.publish(*ships(BACKLOG))
    async with site.worker(app(shipping)) as worker:
        await site.until(lambda: at_rest(site), "the queue is paused, and nothing is in flight")
        [alarm] = site.logged("brake_pulled")
        assert (alarm["log_level"], alarm["queue"], alarm["handler"]) == (
            "error", "yard", "yard.ship")
        assert "consumer resume yard" in alarm["remedy"]
        assert await worker.unready() == {}, "a paused queue is no fault of the process"
        died = len(await site.claims())
        assert HALF <= died <= HUNDRED, "the pull, and what began until the broker stopped"
        shown = await yard(site)
        assert shown["ready"] >= BACKLOG - died
        assert (shown["dead"], shown["consumers"]) == (died, 0)
        assert shown["paused"]["by"].startswith("the brake of worker ")
        assert shown["paused"]["reason"] == alarm["why"]
        assert "most of the last messages of handler yard.ship died" in alarm["why"]
        shipping.mended = True
        assert "resumed" in await operator(site, "resume", "yard", "--reason", "mended")
        await site.until(lambda: site.settled(why="done") == BACKLOG - died, "the rest is done")
        assert not await paused(site)
    states = [state for state, _ in (await site.claims()).values()]
    assert (states.count("dead"), states.count("done")) == (died, BACKLOG - died)
    assert len(await site.effects()) == BACKLOG - died


async def test_a_queue_resumed_too_early_is_stopped_again(site: Site) -> None:
    """What was counted before is forgotten with `resume`, so it takes another half of a hundred."""
    shipping = Shipping()
    await site.prepare(app(shipping))
    await site.publish(*ships(BACKLOG))
    async with site.worker(app(shipping)):
        await site.until(lambda: at_rest(site), "the queue is paused")
        first = len(await site.claims())
        assert await workers.resume(site.database, SCHEMA, "yard", actor="ada", reason="")
        await site.until(lambda: len(site.logged("brake_pulled")) == 2, "it is pulled again")
        await site.until(lambda: at_rest(site), "the queue is paused again")
        assert HALF <= len(await site.claims()) - first <= HUNDRED


async def test_groups_that_had_begun_are_all_that_dies_beyond(site: Site) -> None:
    """Two executors with groups of 50 have at most 100 in hand."""
    shipping = Shipping(FAST)
    await site.prepare(app(shipping))
    await site.publish(*ships(BACKLOG))
    async with site.worker(app(shipping)):
        await site.until(lambda: at_rest(site), "the queue is paused")
    assert HALF <= len(await site.claims()) <= HALF + 99


async def test_rejections_do_not_pull_the_brake(site: Site) -> None:
    """A handler that says no has judged its command; that is work, though all of it dies."""
    shipping = Shipping()
    shipping.rejects = True
    await site.prepare(app(shipping))
    await site.publish(*ships(120))
    async with site.worker(app(shipping)):
        await site.until(lambda: site.settled(why="died") == 120, "all are rejected")
        await site.until(site.outbox_empty, "the letters are sent")
        assert not await paused(site)
    assert site.logged("brake_pulled") == []
    assert {letter.reason for letter in await site.taken("yard.dead")} == {"rejected"}
