"""Bodies, encodings and keys that break decoders: each ends where it should, in one delivery."""

import json
import os
import pickle
import secrets
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from harness import FAST, Site, effect
from postbox import Post, post

from consumer import App, Command, Context, Handler
from consumer.wire import HeaderValue

pytestmark = pytest.mark.integration


class Note(Command, type="notes.add"):
    note: str = ""
    amount: float = 0
    lines: tuple[Any, ...] = ()


class Notes(Handler[Note]):
    """Does what the note says."""

    name, queue, options = "notes.add", "notes", FAST

    async def handle(self, command: Note, context: Context) -> None:
        await effect(context, command.note.replace("\0", "<NUL>"))
        match command.note:
            case "raise":
                raise ValueError("a\0b \ud800 c")
            case "emit NaN":
                await context.outbox.send(Note(note="sent", amount=float("nan")))
            case "emit NUL":
                await context.outbox.send(Note(note="a\0b"), key="emitted")
            case "emit too much":
                await context.outbox.send(Note(note="x" * (17 << 20)))
            case "write NUL":
                await effect(context, "a\0b")


class Payload(Command, type="keys.derive"):
    order_id: Any = None


class DerivedKey(Handler[Payload]):
    """The key of a command is its order id, whatever that is."""

    name, queue, options = "keys.derive", "keys", FAST

    def key(self, command: Payload) -> object:
        return command.order_id

    async def handle(self, command: Payload, context: Context) -> None:
        await effect(context)


APP = App("notes", handlers=[Notes, DerivedKey], deploy_grace=timedelta(0),
          retry_budget=None)


def raw(body: bytes, key: str, **properties: Any) -> Post:
    return post("notes.add", body, key, **properties)


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


NINES = b"9" * 5000
CELERY: dict[str, HeaderValue] = {
    "lang": "py", "task": "shop.charge", "id": "28f83657-0000-4000-8000-000000000001",
    "retries": 0, "eta": None, "argsrepr": "()"}
GZIP = zlib.compressobj(9, wbits=31)
ZEROS = GZIP.compress(bytes(64 << 20)) + GZIP.flush()

# name, body, properties, reason of its death, and a part of the error
BAD: list[tuple[str, bytes, dict[str, Any], str, str]] = [
    ("B01 twice", b'{"note":"a","amount":1,"amount":100}', {}, "malformed", "'amount'"),
    ("B01 nested", b'{"lines":[{"sku":"x","qty":1,"qty":9}]}', {}, "malformed", "'qty'"),
    ("B02 NaN", b'{"amount":NaN}', {}, "malformed", "NaN is not JSON"),
    ("B02 Infinity", b'{"amount":-Infinity}', {}, "malformed", "Infinity is not JSON"),
    ("B02 1e400", b'{"amount":1e400}', {}, "malformed", "too large"),
    ("B03 a", b"[" * 100_000 + b"]" * 100_000, {}, "malformed", "nested deeper"),
    ("B03 b", b'{"lines":' + b"[" * 900 + b"]" * 900 + b"}", {}, "malformed", "nested deeper"),
    ("B03 c", b'{"amount":' + NINES + b"}", {}, "malformed", "not JSON"),
    ("B03 d", b"[", {}, "malformed", "not JSON"),
    ("B03 e", b'{"a":' * 50_000, {}, "malformed", "nested deeper"),
    ("B06 surrogate", b'{"note":"\\ud800"}', {}, "malformed", "surrogate"),
    ("B07 a", b'{"note":"caf\xe9"}', {}, "malformed", "not UTF-8"),
    ("B07 c", '{"amount":1}'.encode("utf-16-le"), {}, "malformed", "not JSON"),
    ("B07 d", b"not gzip", {"content_encoding": "gzip"}, "malformed", "'gzip'"),
    ("B07 e", ZEROS, {"content_encoding": "gzip"}, "malformed", "'gzip'"),
    ("B07 g", b"{}", {"content_type": "text/plain"}, "malformed", "'text/plain'"),
    ("B08 celery", b'[[], {"order_id": 1}, {"callbacks": null}]', {"headers": CELERY},
     "malformed", "not a JSON object"),
    ("B08 empty", b"", {}, "malformed", "not JSON"),
    ("B08 space", b" ", {}, "malformed", "not JSON"),
    ("B08 null", b"null", {}, "malformed", "not a JSON object"),
    ("B08 text", b'"text"', {}, "malformed", "not a JSON object"),
    ("B08 number", b"17", {}, "malformed", "not a JSON object"),
    ("B08 array", b"[]", {}, "malformed", "not a JSON object"),
    ("schema", b'{"amount":"much"}', {}, "invalid", "amount: "),
]
REFUSED = {
    name: (raw(body, name, message_id=name, **properties), reason, error)
    for name, body, properties, reason, error in BAD}
REFUSED["unknown type"] = (
    post("notes.burn", {}, message_id="unknown type"), "unknown_type", "'notes.burn'")
ACCEPTED = {
    "B06 NUL": raw(b'{"note":"a\\u0000b"}', "B06 NUL"),
    "B06 NUL in a name": raw(b'{"k\\u0000":1}', "B06 NUL in a name"),
    "B07 b": raw(b"\xef\xbb\xbf{}", "B07 b"),
    "B07 f": raw(b"{}", "B07 f"),
    "B07 h": raw(b"{}", "B07 h", content_type='Application/JSON; charset="utf-8"'),
    "headers with NUL": raw(b"{}", "headers with NUL", headers={"h": "a\0b"}),
}


async def test_each_odd_body_ends_in_the_right_place_in_one_delivery(site: Site) -> None:
    """What is no command dies with a reason and its exact bytes, without a claim; what is one takes
    effect; each bad one leaves the good ones around it alone (B01, B02, B03, B06, B07, B08).
    """
    await site.prepare(APP)
    refused = [one.sent_to("", "notes") for one, _, _ in REFUSED.values()]
    posts = [one for pair in zip(refused, map(healthy, range(len(refused))), strict=True)
             for one in pair]
    again = raw(b"{}", "B07 b")  # the same as with the mark
    await site.publish(*posts, *ACCEPTED.values(), again)
    expected = len(posts) + len(ACCEPTED) + 1
    async with site.worker(APP) as worker:
        await site.until(lambda: site.settled() == expected, "all are settled")
        assert await worker.unready() == {}
    effects = {key: value for _, key, value in await site.effects()}
    assert set(effects) == {*ACCEPTED, *(f"healthy {n}" for n in range(len(refused)))}
    assert len(await site.effects()) == len(effects)
    assert effects["B06 NUL"] == "a<NUL>b"
    assert site.settled(why="duplicate") == 1
    assert await site.claims() == dict.fromkeys(effects, ("done", 1))
    letters = await site.taken("notes.dead")
    assert sorted(str(letter.properties.message_id) for letter in letters) == sorted(REFUSED)
    for letter in letters:
        sent, reason, error = REFUSED[str(letter.properties.message_id)]
        assert letter.body == sent.body
        assert letter.headers.get("idempotency-key") == sent.key
        assert (letter.reason, letter.headers["consumer-dead-attempts"]) == (reason, 0)
        assert error in str(letter.headers["consumer-dead-error"])


def healthy(number: int) -> Post:
    return post("notes.add", {"note": "ok"}, f"healthy {number}")


async def test_what_a_handler_raises_or_emits_cannot_spoil_its_own_record(site: Site) -> None:
    """NUL and half a surrogate pair in an error, NaN or too much sent, NUL written: the attempt
    fails with all it did and is on record; a NUL in a message is carried (B02, B06, B40).
    """
    await site.prepare(APP)
    notes = ("raise", "emit NaN", "emit NUL", "emit too much", "write NUL")
    await site.publish(*(post("notes.add", {"note": note}, note) for note in notes))
    async with site.worker(APP):
        await site.until(lambda: in_the_end(site, 6), "all six have ended")
        await site.until(site.outbox_empty, "letters and messages are sent")
    claims = await site.claims()
    assert claims == {
        "raise": ("dead", 5), "emit NaN": ("dead", 1), "emit NUL": ("done", 1),
        "emitted": ("done", 1), "emit too much": ("dead", 1), "write NUL": ("dead", 1)}
    assert sorted((key, value) for _, key, value in await site.effects()) == [
        ("emit NUL", "emit NUL"), ("emitted", "a<NUL>b")]
    errors = {letter.headers["idempotency-key"]: str(letter.headers["consumer-dead-error"])
              for letter in await site.taken("notes.dead")}
    assert errors["raise"].startswith("ValueError: a")
    assert "notes.add: $.amount cannot be written as JSON" in errors["emit NaN"]
    assert "more than 16777216" in errors["emit too much"]
    assert set(errors) == {"raise", "emit NaN", "emit too much", "write NUL"}


async def in_the_end(site: Site, count: int) -> bool:
    states = [state for state, _ in (await site.claims()).values()]
    return len(states) == count and not {"retrying", "running"} & set(states)


async def test_nothing_is_ever_unpickled(site: Site, tmp_path: Path) -> None:
    """A pickle dies as it came, whatever it says it is, and the file it would make never appears;
    the same bytes in a header do nothing (B09).
    """
    evil = pickle.dumps(Bomb(tmp_path / "unpickled"))
    assert pickle.loads(evil).close() is None
    (tmp_path / "unpickled").unlink()
    await site.prepare(APP)
    await site.publish(
        raw(evil, "as pickle", content_type="application/x-python-serialize",
            content_encoding="binary"),
        raw(evil, "as JSON", content_type="application/json"),
        raw(b'{"note": "!!python/object/apply:os.system [id]"}', "in a header",
            headers={"pickled": evil}))
    async with site.worker(APP):
        await site.until(lambda: site.settled() == 3, "all are settled")
    assert [letter.body for letter in await site.taken("notes.dead")] == [evil, evil]
    assert [key for _, key, _ in await site.effects()] == ["in a header"]
    assert not os.listdir(tmp_path)


async def test_messages_without_a_key_are_not_duplicates_of_each_other(site: Site) -> None:
    """No key: each dies for itself. A key function's null is no key and `[]` is none that could be;
    0 and false are keys (B14).
    """
    await site.prepare(APP)
    bodies = [json.dumps({"note": str(number)}).encode() for number in range(3)]
    keyless = [Post("notes.add", body, post("notes.add", b"").properties) for body in bodies]
    empty = [raw(body, "", message_id="") for body in bodies]
    order_ids: list[object] = [None, 0, False, []]
    derived = [post("keys.derive", {"order_id": order_id}) for order_id in order_ids]
    await site.publish(*keyless, *empty, *derived)
    async with site.worker(APP):
        await site.until(lambda: site.settled() == 10, "all are settled")
    letters = await site.taken("notes.dead")
    assert sorted((letter.reason, letter.body) for letter in letters) == sorted(
        ("no_key", body) for body in (*bodies, *bodies))
    assert len({letter.properties.message_id for letter in letters}) == 6
    assert {letter.reason for letter in await site.taken("keys.dead")} == {"no_key", "invalid"}
    assert sorted(await site.effects()) == [("keys.derive", "0", ""), ("keys.derive", "false", "")]


KEYS = ["order-1", "ORDER-1", "order-1 ", "\torder-1", "\u00e9", "e\u0301", "order\u200b-1", "1",
        "01", "1.0", "'; DROP TABLE claim;--", "k" * 255, "\u00e9" * 127]
BAD_KEYS = ["k" * 256, "\u00e9" * 130, "a\0b", secrets.token_hex(1500), "x" * 4999 + "a",
            "x" * 4999 + "b"]


async def test_keys_are_compared_exactly_and_never_cut(site: Site) -> None:
    """No trimming, folding or normalising; each of these is a key of its own. One that is too long
    or holds NUL is refused before anything happens, and told to operators (B15).
    """
    await site.prepare(APP)
    await site.publish(*(post("notes.add", {}, key) for key in (*KEYS, *BAD_KEYS, *KEYS)))
    async with site.worker(APP):
        await site.until(
            lambda: site.settled() == 2 * len(KEYS) + len(BAD_KEYS), "all are settled")
    assert sorted(key for _, key, _ in await site.effects()) == sorted(KEYS)
    assert site.settled(why="duplicate") == len(KEYS)
    assert await site.claims() == dict.fromkeys(KEYS, ("done", 1))
    letters = await site.taken("notes.dead")
    assert [letter.reason for letter in letters] == ["invalid"] * len(BAD_KEYS)
