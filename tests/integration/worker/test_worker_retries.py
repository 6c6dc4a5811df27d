"""Failures go through the real delay ladder, are counted in Postgres, and end where they should."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import uuid4

import pytest
from harness import Site, effect
from postbox import Post, post

from consumer import App, Command, Context, Handler, Options, Retry
from consumer.wire import Headers, HeaderValue, Properties

pytestmark = pytest.mark.integration

SHORT = timedelta(milliseconds=50)
# Whoever shares a transaction with a failure runs again; these tests count runs.
ALONE = Options(backoff_base=SHORT, backoff_cap=SHORT, group_size=1)
TWICE = Options(max_attempts=2, backoff_base=SHORT, backoff_cap=SHORT, group_size=1)


class Charge(Command, type="shop.charge"):
    order: str
    failures: int = 0


class Charger(Handler[Charge]):
    """Fails as often as the command says, after it has written its effect."""

    name, queue, options = "shop.charge", "shop", ALONE

    def __init__(self, options: Options = ALONE) -> None:
        self.options = options  # type: ignore[misc]
        self.runs: dict[str, list[int]] = defaultdict(list)
        self.property_sizes: set[int] = set()

    async def handle(self, command: Charge, context: Context) -> None:
        self.runs[context.key].append(context.attempt)
        self.property_sizes.add(len(context.message.raw_properties))
        await effect(context, command.order)
        if context.attempt <= command.failures:
            if command.order == "programming error":
                raise KeyError("amount")
            raise self.transient(command.order)

    def transient(self, order: str) -> Exception:
        return ConnectionError("the bank does not answer")


def charge(key: str, failures: int, headers: dict[str, HeaderValue] | None = None) -> Post:
    return post("shop.charge", {"order": key, "failures": failures}, key, headers)


async def test_attempts_are_counted_over_the_copies_of_a_message(site: Site) -> None:
    """A producer sets only `message_id`; the third attempt succeeds; its effects are the only ones.

    Exactly 3 runs: our own retry is never taken for a duplicate (B20).
    """
    charger = Charger()
    app = App("shop", handlers=[charger], retry_budget=None)
    await site.prepare(app)
    sent = post("shop.charge", {"order": "o-1", "failures": 2}, message_id="m-1")
    await site.publish(sent, sent)
    async with site.worker(app):
        await site.until(lambda: site.settled() == 4, "two deliveries and two copies are settled")
    assert charger.runs == {"m-1": [1, 2, 3]}
    assert await site.effects() == [("shop.charge", "m-1", "o-1")]
    assert await site.claims() == {"m-1": ("done", 3)}
    attempts = await site.database.fetch("SELECT number, error FROM consumer.attempt ORDER BY id")
    assert [tuple(row) for row in attempts] == [
        (number, "ConnectionError: the bank does not answer") for number in (1, 2)]
    assert await site.outbox_empty()
    assert await site.taken("shop.dead") == []


async def test_a_permanent_failure_dies_at_its_first_attempt(site: Site) -> None:
    """A programming error is not retried; one letter, one attempt, no effect; others go on."""
    charger = Charger()
    app = App("shop", handlers=[charger], retry_budget=None)
    await site.prepare(app)
    await site.publish(post("shop.charge", {"order": "programming error", "failures": 9}, "bad"),
                       charge("good", 0))
    async with site.worker(app):
        await site.until(lambda: site.settled() == 2, "both are settled")
        await site.until(site.outbox_empty, "the letter is sent")
    assert charger.runs["bad"] == [1]
    assert await site.effects() == [("shop.charge", "good", "good")]
    assert await site.claims() == {"bad": ("dead", 1), "good": ("done", 1)}
    [letter] = await site.taken("shop.dead")
    assert letter.headers["consumer-dead-error"] == "KeyError: 'amount'"
    assert (letter.reason, letter.headers["consumer-dead-attempts"]) == ("permanent", 1)


# Each type of header value RabbitMQ has, also those that Python clients cannot write. In the order
# of names, for that is how the broker writes the headers of what it has dead-lettered.
TYPED = Headers(b"".join(
    bytes((len(name),)) + name + tagged for name, tagged in sorted({
        b"int8": b"b\xf9", b"uint8": b"B\xf9", b"int16": b"s\xff\x00", b"uint16": b"u\xff\x00",
        b"int32": b"I\x00\x00\x00\x07", b"uint32": b"i\xff\x00\x00\x07",
        b"long": b"l\x00\x00\x00\x00\x00\x00\x00\x07",
        b"double": b"d\x41\xd9\x54\xfc\x40\x07\xdf\x3b", b"float": b"f\x3f\xc0\x00\x00",
        b"decimal": b"D\x02\x00\x00\x04\xd2", b"timestamp": b"T\x00\x00\x00\x00\x65\x53\xf1\x00",
        b"bytes": b"x\x00\x00\x00\x01\xff", b"true": b"t\x01", b"void": b"V",
        b"text": b"S\x00\x00\x00\x03\xe2\x82\xac",
        b"nested": b"F\x00\x00\x00\x04\x01nb\x07", b"array": b"A\x00\x00\x00\x03b\x01V",
    }.items())))


async def test_a_dead_letter_carries_the_original_and_why_it_died(site: Site) -> None:
    """After exactly `max_attempts`: body and headers byte for byte, with their types; the reason,
    error, traceback and number of attempts.
    """
    charger = Charger(Options(max_attempts=3, backoff_base=SHORT, backoff_cap=SHORT))
    app = App("shop", handlers=[charger], retry_budget=None)
    await site.prepare(app)
    body = b'{ "order":"o-1",\n\t"failures": 99e0, "note": "\\u00e9" }  '
    sent = Properties(
        content_type="application/json", headers=TYPED, message_id="m-1", type="shop.charge",
        correlation_id="c-1", app_id="web", timestamp=int(datetime.now(UTC).timestamp()),
        priority=3, user_id=None, expiration="3600000")
    await site.publish(Post("shop.charge", body, sent.to_wire()))
    async with site.worker(app):
        await site.until(lambda: site.settled() == 3, "three attempts are settled")
        await site.until(site.outbox_empty, "the letter is sent")
    assert charger.runs == {"m-1": [1, 2, 3]}
    assert await site.claims() == {"m-1": ("dead", 3)}
    assert await site.effects() == []
    [letter] = await site.taken("shop.dead")
    assert letter.body == body
    theirs = letter.properties.headers.keep(
        lambda name: not name.startswith(("consumer-", "idempotency-key", "x-")))
    assert theirs == TYPED
    assert theirs.decoded()["decimal"] == Decimal("12.34")
    for name in ("content_type", "message_id", "type", "correlation_id", "app_id", "timestamp"):
        assert getattr(letter.properties, name) == getattr(sent, name)
    assert (letter.properties.priority, letter.properties.expiration) == (None, None)
    headers = letter.headers
    assert headers["consumer-dead-reason"] == "attempts"
    assert headers["consumer-dead-attempts"] == 3
    assert headers["consumer-dead-error"] == "ConnectionError: the bank does not answer"
    assert headers["consumer-dead-queue"] == "shop"
    assert headers["consumer-dead-handler"] == "shop.charge"
    assert "raise self.transient(command.order)" in str(headers["consumer-dead-traceback"])


GARBAGE: list[HeaderValue] = [
    "abc", "1.0", "", -5, 2**63 - 1, True, b"\xff", [1], {"n": 1}, None, 99, -1000000,
    "[{count=1}]", [{"count": "7"}], [], [{"count": 50, "queue": "shop"}] * 300]
CONTROL = ("x-death", "x-delivery-count", "consumer-ticket", "consumer-parks",
           "consumer-parked-since-ms", "consumer-replay-item", "consumer-dead-attempts",
           "consumer-dead-queue")


async def test_garbage_in_headers_of_ours_and_the_brokers_counts_for_nothing(site: Site) -> None:
    """Whatever a producer writes there, a command runs exactly `max_attempts` times, and its
    letter has values of ours only, each once (B12, B13).
    """
    charger = Charger(TWICE)
    app = App("shop", handlers=[charger], retry_budget=None)
    await site.prepare(app)
    for place, value in enumerate(GARBAGE):
        names = CONTROL[:1] if isinstance(value, list) and len(value) > 99 else CONTROL
        headers: dict[str, HeaderValue] = {**dict.fromkeys(names, value), "theirs": value}
        await site.publish(charge(f"{place}-ok", 0, headers), charge(f"{place}-fails", 9, headers))
    async with site.worker(app):
        await site.until(lambda: site.settled() == 3 * len(GARBAGE), "all attempts are settled")
        await site.until(site.outbox_empty, "the letters are sent")
    for key, attempts in charger.runs.items():
        assert attempts == ([1] if key.endswith("ok") else [1, 2])
    assert len(await site.effects()) == len(GARBAGE)
    letters = {str(letter.headers["idempotency-key"]): letter
               for letter in await site.taken("shop.dead")}
    assert len(letters) == len(GARBAGE)
    for place, value in enumerate(GARBAGE):
        letter = letters[f"{place}-fails"]
        assert letter.headers["theirs"] == value
        assert letter.headers["consumer-dead-attempts"] == 2
        assert letter.headers["consumer-dead-queue"] == "shop"
        ours = dict.fromkeys(CONTROL[-2:])  # every letter has these, once
        table = letter.properties.headers.table
        assert [table.count(bytes((len(name),)) + name.encode()) for name in ours] == [1, 1]
        assert letter.headers.get("x-delivery-count", 0) == 0, "none, or the broker's own"
        assert not {*CONTROL} - {*ours, "x-delivery-count"} & letter.headers.keys()


async def test_a_producer_cannot_pass_for_a_retry_or_a_replay(site: Site) -> None:
    """A ticket, a replay item or a dead letter's marks on a message whose key is done: a duplicate.

    And none of them lets a failing command live longer than `max_attempts` (B13).
    """
    charger = Charger()
    app = App("shop", handlers=[charger], retry_budget=None)
    await site.prepare(app)
    spoofed: dict[str, HeaderValue] = {
        "consumer-ticket": str(uuid4()), "consumer-replay-item": 1, "consumer-parks": 1,
        "consumer-dead-attempts": 0, "consumer-dead-queue": "other", "x-death": [{"count": 50}],
        "consumer-routing-key": "other.type"}
    await site.publish(charge("done", 0))
    async with site.worker(app):
        await site.until(lambda: site.settled() == 1, "the first is done")
        await site.publish(charge("done", 0, spoofed), charge("fresh", 0, spoofed))
        await site.until(lambda: site.settled() == 3, "the spoofed ones are settled")
    assert charger.runs == {"done": [1], "fresh": [1]}
    assert site.settled(why="duplicate") == 1


class Patient(Charger):
    """Waits as long as its order says."""

    def transient(self, order: str) -> Exception:
        return Retry("later", after=timedelta(seconds=float(order)))


async def test_a_long_wait_does_not_hold_back_a_short_one(site: Site) -> None:
    """A command that waits for long lets one that came after it pass in the ladder (B25 a)."""
    patient = Patient()
    app = App("shop", handlers=[patient], retry_budget=None)
    await site.prepare(app)
    await site.publish(
        *(post("shop.charge", {"order": seconds, "failures": 1}, key)
          for key, seconds in (("long", "60"), ("short", "1"))))
    async with site.worker(app):
        await site.until(lambda: site.settled() == 3, "the short one is back and settled")
        assert await site.claims() == {"long": ("retrying", 1), "short": ("done", 2)}
    assert patient.runs["long"] == [1]


async def test_forty_failures_go_through_the_same_delay_queue(site: Site) -> None:
    """No cycle detection drops a copy, each is counted, and copies do not grow (B25 c)."""
    patient = Patient(Options(
        max_attempts=41, backoff_base=timedelta(0), backoff_cap=timedelta(0)))
    app = App("shop", handlers=[patient], retry_budget=None)
    await site.prepare(app)
    await site.publish(post("shop.charge", {"order": "0.15", "failures": 40}, "K", message_id="m",
                            headers={"consumer-ticket": str(uuid4())}))
    async with site.worker(app):
        await site.until(lambda: site.settled() == 41, "the last attempt is settled", 60)
    assert patient.runs == {"K": list(range(1, 42))}
    assert await site.claims() == {"K": ("done", 41)}
    assert len(await site.effects()) == 1
    assert len(patient.property_sizes) == 2, "the original's, and the size of all copies"
