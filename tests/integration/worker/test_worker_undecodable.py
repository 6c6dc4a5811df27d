"""Properties that Python clients cannot decode: poison like any other, harmless to neighbours."""

import pytest
from harness import FAST, Site, effect
from postbox import Post, post

from consumer import App, Command, Context, Handler
from consumer.message import ORIGINAL_PROPERTIES
from consumer.testing.raw_amqp import RawPublisher
from consumer.wire import Headers, Properties

pytestmark = pytest.mark.integration


class Ship(Command, type="shop.ship"):
    order: str


class Shipper(Handler[Ship]):
    name, queue, options = "shop.ship", "shop", FAST

    async def handle(self, command: Ship, context: Context) -> None:
        await effect(context)


def nested(depth: int) -> Headers:
    """A header table in a header table in …"""
    table = b""
    for _ in range(depth):
        table = b"\x01nF" + len(table).to_bytes(4) + table
    return Headers(table)


def text(encoded: bytes) -> str:
    return encoded.decode("utf-8", "surrogateescape")


POISON = {
    "microseconds": Properties(type="shop.ship", timestamp=1_700_000_000_000_000),
    "half the range": Properties(type="shop.ship", timestamp=2**63),
    "latest timestamp": Properties(type="shop.ship", timestamp=2**64 - 1),
    "timestamp in a header": Properties(
        type="shop.ship", headers=Headers(b"\x01tT" + b"\xff" * 8)),
    "message id": Properties(type="shop.ship", message_id=text(b"\xff\xfe\xfa")),
    "content type": Properties(type="shop.ship", content_type=text(b"\xff\xfe")),
    "header name": Properties(type="shop.ship", headers=Headers(b"\x02\xff\xfeS\x00\x00\x00\x01x")),
    "depth": Properties(type="shop.ship", headers=nested(3000)),
}


async def test_an_undecodable_message_dies_and_its_neighbours_take_effect(site: Site) -> None:
    """Every poison between two healthy ones in one queue: each healthy one takes effect once, each
    poison is found in `.dead` with the property bytes it came with, no connection is lost, and a
    line in the log names the queue and what was wrong (B10).
    """
    app = App("shop", handlers=[Shipper])
    await site.prepare(app)
    body = b'{"order": "o-1"}'
    posts = [post("shop.ship", {"order": "o"}, "before")]
    for name, properties in POISON.items():
        posts += [Post("shop.ship", body, properties.to_wire()),
                  post("shop.ship", {"order": "o"}, f"after {name}")]
    with RawPublisher(site.amqp_url) as raw:
        for one in posts:
            raw.publish(one.exchange.encode(), b"shop.ship", one.properties, one.body)
    async with site.worker(app) as worker:
        await site.until(lambda: site.settled() == len(posts), "all are settled")
        assert await worker.unready() == {}
    assert sorted(key for _, key, _ in await site.effects()) == sorted(
        ["before", *(f"after {name}" for name in POISON)])
    letters = await site.taken("shop.dead")
    assert {letter.headers[ORIGINAL_PROPERTIES] for letter in letters} == {
        properties.to_wire() for properties in POISON.values()}
    assert len(letters) == len(POISON)
    for letter in letters:
        assert (letter.body, letter.reason) == (body, "malformed")
        assert letter.headers["consumer-dead-error"]
        assert letter.properties.defect() is None, "any client can read the letter"
    for event in ("broker_lost", "consumer_lost", "broker_unreachable"):
        assert site.logged(event) == []
    lines = site.logged("settled", queue="shop", outcome="deadletter", why="malformed")
    assert {line["error"] for line in lines} == {
        "a timestamp is out of range", "message_id is not UTF-8", "content_type is not UTF-8",
        "header text is not UTF-8", "headers are nested deeper than 64 levels"}
    assert len(lines) == len(POISON)
