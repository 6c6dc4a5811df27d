"""A command takes effect once, however often it comes; another payload under its key never."""

import asyncio
from datetime import timedelta

import pytest
from harness import FAST, Site, effect
from postbox import Post, post

from consumer import App, Command, Context, Handler, Queue, Reject, Retry

pytestmark = pytest.mark.integration

SECRET = "4012-8888"


class Deposit(Command, type="ledger.deposit"):
    account: str
    cents: int


class Book(Handler[Deposit]):
    """Books, once `booking` is set; what account `how` says in its first run."""

    name, queue, options = "ledger.book", "ledger", FAST

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.booking = asyncio.Event()
        self.booking.set()

    async def handle(self, command: Deposit, context: Context) -> None:
        self.runs.append(command.cents)
        await effect(context, str(command.cents))
        if command.account == "rejected":
            raise Reject("the account is closed")
        if command.account == "delayed" and context.attempt == 1:
            raise Retry("the account is busy", after=timedelta(seconds=1.5))
        await self.booking.wait()


class Notify(Handler[Deposit]):
    """Another handler of the same command, on a queue of its own."""

    name, queue, options = "mail.notify", "mail", FAST

    async def handle(self, command: Deposit, context: Context) -> None:
        await effect(context)


def deposit(cents: int, message_id: str, account: str = "open") -> Post:
    return post("ledger.deposit", {"account": account, "cents": cents, "card": SECRET}, "K",
                message_id=message_id)


async def test_three_deliveries_of_a_command_take_effect_once(site: Site) -> None:
    """Duplicates are acked; one effect, one claim, no dead letter, nothing left in the queue."""
    book = Book()
    app = App("ledger", handlers=[book])
    await site.prepare(app)
    await site.publish(*(deposit(5, name) for name in ("m1", "m2", "m1")))
    async with site.worker(app):
        await site.until(lambda: site.settled() == 3, "three deliveries are settled")
    assert await site.effects() == [("ledger.book", "K", "5")]
    assert await site.claims() == {"K": ("done", 1)}
    assert book.runs == [5]
    for queue in ("ledger", "ledger.dead"):
        assert await site.taken(queue) == []


async def test_two_handlers_of_one_command_both_run(site: Site) -> None:
    """The scope of a key is its handler: the same key runs once in each of them (B22)."""
    app = App("ledger", handlers=[Book, Notify])
    await site.prepare(app)
    await site.publish(deposit(5, "m1"), deposit(5, "m1"))
    async with site.worker(app):
        await site.until(lambda: site.settled() == 4, "both queues settled both")
    assert sorted(await site.effects()) == [("ledger.book", "K", "5"), ("mail.notify", "K", "")]


async def letters_of_conflicts(site: Site, claimed: bytes) -> None:
    """Both messages with the other payload died of it, and tell both fingerprints."""
    letters = [letter for letter in await site.taken("ledger.dead")
               if letter.reason == "key_conflict"]
    # In any order: what was parked is delivered in whatever order the delay queue gives it back.
    assert sorted(str(letter.properties.message_id) for letter in letters) == ["p2", "p3"]
    for letter in letters:
        assert letter.headers["consumer-claimed-fingerprint"] == claimed.hex()
        assert len(str(letter.headers["consumer-fingerprint"])) == len(claimed.hex())
        assert letter.headers["consumer-fingerprint"] != claimed.hex()
        assert b'"cents": 6' in letter.body
    assert all(SECRET not in str(line) for line in site.logs), "a payload was logged"


@pytest.mark.parametrize(
    ("account", "state"),
    [("delayed", ("retrying", 1)), ("open", ("done", 1)), ("rejected", ("dead", 1))])
async def test_another_payload_is_refused_in_each_state_of_the_key(
    site: Site, account: str, state: tuple[str, int]
) -> None:
    """P2 twice under P1's key dies twice, and nothing of P1's claim changes (B18 b, c, d)."""
    book = Book()
    app = App("ledger", handlers=[book])
    await site.prepare(app)
    async with site.worker(app):
        await site.publish(deposit(5, "p1", account))
        await site.until(lambda: site.settled() == 1, "P1 is settled")
        assert await site.claims() == {"K": state}
        before = await site.database.fetchrow("SELECT * FROM consumer.claim")
        await site.publish(deposit(6, "p2", account), deposit(6, "p3", account))
        await site.until(lambda: site.settled(why="key_conflict") == 2, "P2 is refused twice")
        after = await site.database.fetchrow("SELECT * FROM consumer.claim")
        assert before is not None
        assert before == after
        if account == "delayed":
            await site.until(lambda: site.settled() == 4, "P1's retry is settled")
            assert await site.claims() == {"K": ("done", 2)}
        if account == "rejected":
            await site.until(site.outbox_empty, "P1's letter is sent")
    assert book.runs == ([5, 5] if account == "delayed" else [5])
    assert await site.effects() == (
        [] if account == "rejected" else [("ledger.book", "K", "5")])
    await letters_of_conflicts(site, before["fingerprint"])


async def test_another_payload_is_refused_while_the_first_one_runs(site: Site) -> None:
    """A worker that meets P1's open transaction parks P2; it dies once P1 is done (B18 a)."""
    first, second = Book(), Book()
    alone = Queue("ledger", concurrency=1, prefetch=1)
    one, two = (App("ledger", handlers=[book], queues=[alone]) for book in (first, second))
    await site.prepare(one)
    first.booking.clear()
    async with site.worker(one):
        await site.publish(deposit(5, "p1"))
        await site.until(lambda: first.runs, "P1 runs")
        async with site.worker(two):
            await site.publish(deposit(6, "p2"), deposit(6, "p3"))
            await site.until(lambda: site.settled(why="claimed_elsewhere") >= 2, "P2 is parked")
            first.booking.set()
            await site.until(lambda: site.settled(why="key_conflict") == 2, "P2 is refused twice")
    assert (first.runs, second.runs) == ([5], [])
    assert await site.effects() == [("ledger.book", "K", "5")]
    assert await site.claims() == {"K": ("done", 1)}
    claimed = await site.database.fetchval("SELECT fingerprint FROM consumer.claim")
    await letters_of_conflicts(site, claimed)


async def test_an_invalid_payload_does_not_own_the_key(site: Site) -> None:
    """A command that never ran leaves its key to the mended one (B18 f)."""
    app = App("ledger", handlers=[Book], deploy_grace=timedelta(0))
    await site.prepare(app)
    await site.publish(post("ledger.deposit", {"account": "open"}, "K"), deposit(5, "p2"))
    async with site.worker(app):
        await site.until(lambda: site.settled() == 2, "both are settled")
    assert await site.effects() == [("ledger.book", "K", "5")]
    [letter] = await site.taken("ledger.dead")
    assert (letter.reason, letter.headers["consumer-dead-error"]) == (
        "invalid", "cents: Field required")
