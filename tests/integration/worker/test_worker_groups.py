"""Group commit on a real Postgres: whatever fails in a group, exactly the others take effect."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from harness import FAST, Site, effect
from postbox import Post, post
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from consumer import App, Command, Context, Handler, Options, Queue
from consumer.core.copies import MAX_HEADER_FRAME_BYTES, MAX_PROPERTIES_BYTES

pytestmark = pytest.mark.integration

WAITING = 200
_ACCOUNTS = """
CREATE TABLE account (name text UNIQUE, owner text UNIQUE DEFERRABLE INITIALLY DEFERRED);
INSERT INTO account VALUES ('taken', 'somebody')
"""
_OPEN = text("INSERT INTO account (name, owner) VALUES (:name, :owner)")
TWO = Options(max_attempts=2, backoff_base=timedelta(milliseconds=50),
              backoff_cap=timedelta(milliseconds=50))


class OpenAccount(Command, type="bank.open"):
    name: str
    owner: str
    trouble: str = ""


class Opener(Handler[OpenAccount]):
    name, queue, options = "bank.open", "bank", TWO

    async def handle(self, command: OpenAccount, context: Context) -> None:
        await effect(context)
        if command.trouble == "exception":
            raise ConnectionError("the register does not answer")
        if command.trouble == "swallowed":
            try:
                await context.session.execute(text("SELECT 1 / 0"))
            except DBAPIError:
                return
        await context.session.execute(_OPEN, {"name": command.name, "owner": command.owner})


class GroupOpener(Opener):
    """The same in one statement for all; the others' trouble comes from the database."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def handle_group(
        self, commands: Sequence[OpenAccount], contexts: Sequence[Context]
    ) -> None:
        self.sizes.append(len(commands))
        if any(command.trouble == "exception" for command in commands):
            raise ConnectionError("the register does not answer")
        await contexts[0].session.execute(
            _OPEN, [{"name": c.name, "owner": c.owner} for c in commands])
        for context in contexts:
            await effect(context)


TROUBLE: dict[str, tuple[dict[str, str], tuple[str, int]]] = {
    "unique": ({"name": "taken"}, ("dead", 1)),
    "deferred": ({"owner": "somebody"}, ("dead", 1)),
    "exception": ({"trouble": "exception"}, ("dead", 2)),
    "swallowed": ({"trouble": "swallowed"}, ("dead", 1)),
}


async def run_all(site: Site, handler: Handler[Any], kinds: Sequence[str]) -> None:
    """200 commands wait, 2 % of which fail; each of the others takes effect once."""
    app = App("bank", handlers=[handler], queues=[Queue("bank", concurrency=2)])
    await site.prepare(app)
    await site.database.execute(_ACCOUNTS)
    bad = {f"{kind} {copy}": kind for copy in range(2) for kind in kinds}
    places = {17 + number * 23: key for number, key in enumerate(bad)}
    posts = []
    for number in range(WAITING):
        key = places.get(number, f"good {number}")
        special = TROUBLE[bad[key]][0] if key in bad else {}
        posts.append(post("bank.open", {
            "name": f"n{number}", "owner": f"o{number}", **special}, key))
    await site.publish(*posts)
    good = {f"good {number}" for number in range(WAITING) if number not in places}
    async with site.worker(app):
        await site.until(lambda: ended(site), "all have ended", 40)
        await site.until(site.outbox_empty, "the letters are sent")
    assert await site.claims() == {
        **dict.fromkeys(good, ("done", 1)), **{key: TROUBLE[kind][1] for key, kind in bad.items()}}
    assert sorted(key for _, key, _ in await site.effects()) == sorted(good)
    assert await site.database.fetchval("SELECT count(*) FROM account") == 1 + len(good)
    letters = await site.taken("bank.dead")
    assert sorted(str(letter.headers["idempotency-key"]) for letter in letters) == sorted(bad)
    assert await site.taken("bank") == []


async def ended(site: Site) -> bool:
    return bool(await site.database.fetchval(
        "SELECT count(*) = $1 FROM consumer.claim WHERE state IN ('done', 'dead')", WAITING))


async def test_culprits_of_every_kind_fail_alone(site: Site) -> None:
    """A unique violation, an exception, a deferred constraint at COMMIT, an error the handler
    swallowed: only these die, with as many attempts as their kind has; nobody else is touched.
    """
    await run_all(site, Opener(), list(TROUBLE))


async def test_a_group_handler_does_its_work_in_few_statements(site: Site) -> None:
    """`handle_group` gets what waits, together; its culprits fail alone, too."""
    handler = GroupOpener()
    await run_all(site, handler, ["unique", "deferred", "exception"])
    assert max(handler.sizes) > 1


class Pack(Command, type="depot.pack"):
    items: list[str]
    fail: bool


class Packer(Handler[Pack]):
    """Spoils the command it is given."""

    name, queue, options = "depot.pack", "depot", FAST

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def handle(self, command: Pack, context: Context) -> None:
        self.bodies.append(context.message.body)
        await effect(context, ",".join(command.items))
        command.items.clear()
        if command.fail and context.attempt == 1:
            raise ConnectionError("no box")


async def test_a_handler_may_spoil_its_command(site: Site) -> None:
    """The retry carries the original bytes, every run gets a fresh command, and a duplicate is
    recognised by what was sent (B19).
    """
    packer = Packer()
    app = App("depot", handlers=[packer])
    await site.prepare(app)
    bodies = {key: b'{"items": [ "a","b" ], "fail": %s}' % fail
              for key, fail in (("works", b"false"), ("fails", b"true"))}
    await site.publish(*(post("depot.pack", body, key) for key, body in bodies.items()))
    async with site.worker(app):
        await site.until(lambda: site.settled(why="done") == 2, "both are done")
        await site.publish(*(post("depot.pack", body, key) for key, body in bodies.items()))
        await site.until(lambda: site.settled(why="duplicate") == 2, "duplicates are recognised")
    assert sorted(await site.effects()) == [
        ("depot.pack", key, "a,b") for key in ("fails", "works")]
    assert set(packer.bodies) == set(bodies.values())
    assert await site.claims() == {"fails": ("done", 2), "works": ("done", 1)}


class Burst(Command, type="depot.burst"):
    how: str


class Burster(Handler[Burst]):
    name, queue = "depot.burst", "depot"
    options = Options(max_attempts=1)

    async def handle(self, command: Burst, context: Context) -> None:
        if command.how == "chain":
            chain(500)
        raise ValueError({"long": "x" * 200_000, "emoji": "\U0001f4a5" * 50_000,
                          "odd": "\ud800\0" * 50_000}[command.how])


def chain(causes: int) -> None:
    error: Exception = ValueError("the first")
    for number in range(causes):
        following = ValueError(f"cause {number}")
        following.__cause__ = error
        error = following
    raise error


@pytest.mark.parametrize("theirs", [10, 129_000])
async def test_an_error_too_large_for_a_header_is_cut(site: Site, theirs: int) -> None:
    """The letter comes at the first try, with the producer's headers intact and ours cut, on a
    character boundary and with a mark; the connection stays up (B44).
    """
    app = App("depot", handlers=[Burster])
    await site.prepare(app)
    hows = ["long", "emoji", "odd", "chain"]
    await site.publish(*(post("depot.burst", {"how": how}, how, {"theirs": "h" * theirs})
                         for how in hows))
    async with site.worker(app):
        await site.until(lambda: site.settled() == len(hows), "all are settled")
        await site.until(site.outbox_empty, "the letters are sent")
    letters = {str(letter.headers["idempotency-key"]): letter.headers
               for letter in await site.taken("depot.dead")}
    assert sorted(letters) == sorted(hows)
    for how, headers in letters.items():
        assert headers["theirs"] == "h" * theirs
        assert headers["consumer-dead-reason"] == "attempts"
        if how != "chain":
            assert str(headers["consumer-dead-error"]).endswith("[…cut]")
    assert site.logged("outbox_row_not_sent") == []
    assert site.logged("broker_lost") == []


class Burden(Command, type="depot.burden"):
    fail: bool


class Bearer(Handler[Burden]):
    name, queue, options = "depot.burden", "depot", TWO

    async def handle(self, command: Burden, context: Context) -> None:
        await effect(context)
        if command.fail:
            raise ConnectionError("too heavy")


def padded(size: int, fail: bool, key: str) -> Post:
    """A command whose properties take so many bytes."""
    bare = post("depot.burden", {"fail": fail}, key, {"theirs": ""})
    padding = "h" * (size - len(bare.properties))
    return post("depot.burden", {"fail": fail}, key, {"theirs": padding})


async def test_headers_that_fill_the_frame_hold_nobody_up(site: Site) -> None:
    """As large as can be, a message runs, is retried and dies like any other; larger, it dies at
    once, for no copy of it could be sent; the worker goes on.
    """
    app = App("depot", handlers=[Bearer], queues=[Queue("depot", concurrency=1)])
    await site.prepare(app)
    most = MAX_HEADER_FRAME_BYTES
    await site.publish(
        padded(most, True, "fails"), padded(most, False, "works"),
        padded(most + 1, False, "too large"), padded(MAX_PROPERTIES_BYTES, False, "full"),
        post("depot.burden", {"fail": False}, "next"))
    async with site.worker(app):
        await site.until(lambda: site.settled() == 6, "all are settled")
        await site.until(site.outbox_empty, "the letter is sent")
    assert await site.claims() == {
        "fails": ("dead", 2), "works": ("done", 1), "next": ("done", 1)}
    letters = [(letter.reason, letter.body) for letter in await site.taken("depot.dead")]
    assert sorted(map(str, letters)) == sorted(map(str, [
        ("attempts", b'{"fail": true}'), ("malformed", b'{"fail": false}'),
        ("malformed", b'{"fail": false}')]))
