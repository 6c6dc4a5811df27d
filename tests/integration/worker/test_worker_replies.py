"""A requester that waits is told when its command is refused or given up, and why, by machine."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from harness import FAST, Site, effect
from requester import Requester

from consumer import App, Command, Context, Handler, Reject

pytestmark = pytest.mark.integration


class Quote(Command, type="quotes.quote"):
    item: str


class Quoting(Handler[Quote]):
    """Does what the name of its item says."""

    name, queue, options = "quotes.quote", "quotes", replace(FAST, max_attempts=2, group_size=1)

    async def handle(self, command: Quote, context: Context) -> None:
        await effect(context, command.item)
        if command.item == "mistaken":
            raise KeyError("secret of the price list")
        if command.item == "unavailable":
            raise ConnectionError("secret address of the price service")
        if command.item == "rejected":
            raise Reject("we do not sell that to you")

    def fallback_reply(self, command: Quote) -> Mapping[str, Any] | None:
        return {"cents": 999, "item": command.item}


APP = App("quotes", handlers=[Quoting], retry_budget=None, deploy_grace=timedelta(0))
PAST_MS = int(datetime(2020, 1, 1, tzinfo=UTC).timestamp() * 1000)

DEATHS = [
    ("mistaken", "dead", "permanent", None),
    ("rejected", "dead", "rejected", None),
    ("unavailable", "dead", "attempts", {"cents": 999, "item": "unavailable"}),
]


@pytest.mark.parametrize(("item", "reason", "dead_reason", "fallback"), DEATHS)
async def test_a_requester_is_told_that_its_command_was_given_up(
    site: Site, item: str, reason: str, dead_reason: str, fallback: object
) -> None:
    """Once, with its correlation id, the reason in body and header, and what the handler answers
    instead where a dependency is to blame; the error itself is not for it to see.
    """
    await site.prepare(APP)
    async with Requester.opened(site.amqp_url) as requester, site.worker(APP):
        await requester.ask("quotes.quote", {"item": item}, "K", "c-1")
        reply = await requester.answer()
        await site.until(lambda: site.settled(why="died") == 1, "it is settled")
        await site.until(site.outbox_empty, "its letter is sent")
    assert (reply.correlation_id, reply.type, reply.refused) == ("c-1", "consumer.refused", reason)
    assert reply.error == {
        "reason": reason, "dead_reason": dead_reason, "key": "K",
        "message": f"the command was given up: {dead_reason}"}
    assert reply.content.get("fallback") == fallback
    assert "secret" not in str(reply.content)
    assert requester.silent()
    assert [letter.reason for letter in await site.taken("quotes.dead")] == [dead_reason]


async def test_a_requester_is_told_of_a_conflict_and_of_a_command_that_is_dead(site: Site) -> None:
    """Another payload is a conflict; the same again, of a command that was given up, is dead; of a
    command that is done, nothing is said, for nothing was refused.
    """
    await site.prepare(APP)
    async with Requester.opened(site.amqp_url) as requester, site.worker(APP):
        await requester.ask("quotes.quote", {"item": "good"}, "done", "c-1")
        await requester.ask("quotes.quote", {"item": "mistaken"}, "dead", "c-2")
        assert (await requester.answer()).correlation_id == "c-2"
        await site.until(lambda: site.settled() == 2, "both have ended")
        await requester.ask("quotes.quote", {"item": "good"}, "done", "c-3")
        await requester.ask("quotes.quote", {"item": "other"}, "done", "c-4")
        await requester.ask("quotes.quote", {"item": "mistaken"}, "dead", "c-5")
        answers = {reply.correlation_id: reply
                   for reply in (await requester.answer(), await requester.answer())}
        await site.until(lambda: site.settled() == 5, "all are settled")
    assert answers.keys() == {"c-4", "c-5"}
    assert (answers["c-4"].error["reason"], answers["c-4"].error["dead_reason"]) == (
        "conflict", "key_conflict")
    assert answers["c-5"].error == {
        "reason": "dead", "message": "the command was given up before", "key": "dead"}
    assert requester.silent()


async def test_a_requester_is_told_that_its_command_came_too_late(site: Site) -> None:
    """Also of a command that never ran; it made no claim, so it may be sent again in time."""
    await site.prepare(APP)
    async with Requester.opened(site.amqp_url) as requester, site.worker(APP):
        await requester.ask(
            "quotes.quote", {"item": "good"}, "K", "c-1", **{"x-deadline-ms": str(PAST_MS)})
        reply = await requester.answer()
        assert (reply.correlation_id, reply.refused) == ("c-1", "deadline")
        assert (reply.error["reason"], reply.error["dead_reason"]) == ("deadline", "deadline")
        assert await site.claims() == {}
        await requester.ask("quotes.quote", {"item": "good"}, "K", "c-2")
        await site.until(lambda: site.settled(why="done") == 1, "it is done")
    assert requester.silent()


MALFORMED = [
    (b'{"item": ', "K", "malformed"),
    ({"item": 5}, "K", "invalid"),
    ({"item": "good"}, "K" * 256, "invalid"),
]


@pytest.mark.parametrize(("body", "key", "dead_reason"), MALFORMED)
async def test_a_requester_is_told_that_its_message_is_no_command(
    site: Site, body: object, key: str, dead_reason: str
) -> None:
    await site.prepare(APP)
    async with Requester.opened(site.amqp_url) as requester, site.worker(APP):
        await requester.ask("quotes.quote", body, key, "c-1")
        reply = await requester.answer()
        await site.until(lambda: site.settled() == 1, "it is settled")
    assert (reply.correlation_id, reply.refused) == ("c-1", "malformed")
    assert (reply.error["reason"], reply.error["dead_reason"]) == ("malformed", dead_reason)
    assert [letter.reason for letter in await site.taken("quotes.dead")] == [dead_reason]


@pytest.mark.parametrize("reply_to", ["quotes", "quotes.dead", "consumer.delay.00", "amq.topic"])
async def test_a_queue_gets_no_reply_because_a_message_names_it(site: Site, reply_to: str) -> None:
    """A producer cannot have workers write into queues: those match no pattern of replies."""
    await site.prepare(APP)
    async with Requester.opened(site.amqp_url) as requester, site.worker(APP):
        await requester.ask("quotes.quote", {"item": "mistaken"}, "K", "c-1", reply_to=reply_to)
        await site.until(lambda: site.settled(why="died") == 1, "it is settled")
        await site.until(site.outbox_empty, "its letter is sent")
    [letter] = await site.taken("quotes.dead")
    assert letter.properties.type == "quotes.quote", "the letter itself, no reply"
    assert await site.taken("quotes") == []
    assert (await site.depth("consumer.delay.00")).ready == 0
    assert site.logged("reply_not_delivered") == []


async def test_a_queue_gets_replies_where_the_app_allows_it(site: Site) -> None:
    """A pattern of the app's own, for requesters that keep their replies in a queue."""
    app = App("quotes", handlers=[Quoting], retry_budget=None, reply_patterns=["replies.*"])
    await site.prepare(App("replies", handlers=[Quoting], prefix="consumer"))
    async with Requester.opened(site.amqp_url) as requester:
        await requester.declare("replies.web")
        async with site.worker(app):
            for number, address in enumerate(("replies.web", "quotes.dead")):
                await requester.ask("quotes.quote", {"item": "rejected"}, f"K{number}", "c-1",
                                    reply_to=address)
            await site.until(lambda: site.settled(why="died") == 2, "both are settled")
        [reply] = await site.taken("replies.web")
    assert (reply.properties.correlation_id, reply.properties.type) == ("c-1", "consumer.refused")


async def test_a_requester_that_is_gone_holds_nothing_up(site: Site) -> None:
    """Its commands end as all others do, and the worker goes on."""
    await site.prepare(APP)
    async with Requester.opened(site.amqp_url) as requester:
        for item in ("mistaken", "unavailable", "good"):
            await requester.ask("quotes.quote", {"item": item}, item, "c-1")
        await site.until(lambda: all_wait(site, 3), "the commands are in the queue")
    async with site.worker(APP) as worker:
        await site.until(lambda: site.settled() == 4, "three first attempts and one retry")
        await site.until(site.outbox_empty, "the letters are sent")
        assert await worker.unready() == {}
    assert sorted(str(letter.reason) for letter in await site.taken("quotes.dead")) == [
        "attempts", "permanent"]
    assert await site.claims() == {
        "mistaken": ("dead", 1), "unavailable": ("dead", 2), "good": ("done", 1)}


async def all_wait(site: Site, number: int) -> bool:
    return (await site.depth("quotes")).ready == number
