"""Replies of refusal: what they say, and where none may go."""

import json
from typing import Any

import pytest
from simulation.bench import headers_of, sent

from consumer.app import DIRECT_REPLIES
from consumer.core.replies import REASON, TYPE, allowed, refusal
from consumer.message import Delivery, Outgoing
from consumer.outcome import DeadReason
from consumer.wire import Properties

TO = "amq.rabbitmq.reply-to.g1h2AA5yZXBseUA0.Tk=="
PATTERNS = (DIRECT_REPLIES,)


def delivery(reply_to: str | None = TO, **properties: Any) -> Delivery:
    return sent(b"{}", reply_to=reply_to, **properties)


def reply(why: DeadReason | None = DeadReason.DEADLINE, key: str | None = "o-1",
          message: str = "too late", *, to: Delivery | None = None, **more: Any) -> Outgoing:
    made = refusal(delivery(correlation_id="c-1") if to is None else to, key, why, message,
                   **{"patterns": PATTERNS, **more})
    assert made is not None
    return made


def content(outgoing: Outgoing) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(outgoing.body)
    return told


# --- what it says ----------------------------------------------------------------------------


@pytest.mark.parametrize(("why", "reason"), [
    (DeadReason.KEY_CONFLICT, "conflict"), (DeadReason.DEADLINE, "deadline"),
    (DeadReason.MALFORMED, "malformed"), (DeadReason.INVALID, "malformed"),
    (DeadReason.UNKNOWN_TYPE, "malformed"), (DeadReason.NO_KEY, "malformed"),
    (DeadReason.REJECTED, "dead"), (DeadReason.PERMANENT, "dead"), (DeadReason.ATTEMPTS, "dead"),
    (DeadReason.KEY_EXPIRED, "dead"), (DeadReason.NO_REPLAY_ITEM, "dead"),
])
def test_the_reason_is_one_of_four_words(why: DeadReason, reason: str) -> None:
    made = reply(why)
    assert content(made) == {"error": {
        "reason": reason, "message": "too late", "dead_reason": why, "key": "o-1"}}
    assert headers_of(made) == {REASON: reason}


def test_every_reason_to_die_can_be_told() -> None:
    assert {content(reply(why))["error"]["reason"] for why in DeadReason} == {
        "conflict", "deadline", "malformed", "dead"}


def test_one_more_copy_of_a_dead_command_is_told_that_it_is_dead() -> None:
    assert content(reply(None)) == {"error": {
        "reason": "dead", "message": "too late", "key": "o-1"}}


def test_where_no_key_could_be_read_none_is_told() -> None:
    assert "key" not in content(reply(key=None))["error"]


def test_it_goes_straight_to_the_queue_of_the_requester_with_its_correlation() -> None:
    made = reply()
    properties = Properties.from_wire(made.properties)
    assert (made.exchange, made.routing_key) == ("", TO)
    assert (properties.correlation_id, properties.type, properties.content_type) == (
        "c-1", TYPE, "application/json")
    assert properties.reply_to is None
    assert properties.message_id == made.message_id


def test_a_requester_that_names_no_correlation_gets_none() -> None:
    made = reply(to=delivery())
    assert Properties.from_wire(made.properties).correlation_id is None


@pytest.mark.parametrize(("fallback", "told"), [
    ({"rate": 1.5, "stale": True}, {"rate": 1.5, "stale": True}), (None, None), ({}, None)])
def test_a_fallback_is_told_beside_the_error(fallback: Any, told: Any) -> None:
    made = content(reply(fallback=fallback))
    assert made.get("fallback") == told
    assert made["error"]["reason"] == "deadline"


def test_text_of_any_kind_is_told() -> None:
    made = reply(key="ключ\ud800", message="nicht möglich\n\ud83d")
    assert content(made)["error"]["message"].startswith("nicht möglich\n")


def test_a_reply_that_is_sent_again_has_the_same_id_and_another_one_does_not() -> None:
    ids = [reply().message_id, reply().message_id, reply(DeadReason.ATTEMPTS).message_id,
           reply(key="o-2").message_id,
           reply(to=delivery(correlation_id="c-2")).message_id,
           reply(to=delivery(TO + "x", correlation_id="c-1")).message_id]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 5


# --- where none may go -----------------------------------------------------------------------


@pytest.mark.parametrize(("reply_to", "patterns", "may"), [
    (TO, PATTERNS, True), ("amq.rabbitmq.reply-to", PATTERNS, True),
    ("orders", PATTERNS, False), ("x.amq.rabbitmq.reply-to", PATTERNS, False),
    ("AMQ.RABBITMQ.REPLY-TO", PATTERNS, False), ("amqXrabbitmqXreply-to", PATTERNS, False),
    ("answers.web", ["answers.*"], True), ("answers.", ["answers.*"], True),
    ("answersXweb", ["answers.*"], False), ("answers.web", ["answers.web"], True),
    ("answers.web2", ["answers.web"], False), ("answers.web\n", ["answers.web"], False),
    ("answers.a\nb", ["answers.*"], True), ("a-x-b-y-c", ["a*b*c"], True),
    ("a-x-c", ["a*b*c"], False), ("web", ["x", "w*"], True), ("web", [], False),
    ("web", [""], False), ("web", ["*"], True), ("[a]", ["[a]"], True), ("a", ["[a]"], False),
    ("a" * 255, ["*"], True), ("a" * 256, ["*"], False), ("é" * 128, ["*"], False),
    ("a\ud800", ["a*"], True),
])
def test_replies_go_only_where_a_pattern_allows(
    reply_to: str, patterns: list[str], may: bool
) -> None:
    assert allowed(reply_to, patterns) is may


@pytest.mark.parametrize("hostile", [
    "orders", "orders.dead", "shop.commands", "", "amq.rabbitmq.reply", "#", "*", "\0"])
def test_a_reply_to_that_names_something_else_gets_none(hostile: str) -> None:
    """A producer cannot have us write into a queue of its choice."""
    assert refusal(delivery(hostile), "k", DeadReason.DEADLINE, "x", patterns=PATTERNS) is None


def test_without_a_reply_to_there_is_none() -> None:
    assert refusal(delivery(None), "k", DeadReason.DEADLINE, "x", patterns=["*"]) is None


def test_properties_that_cannot_be_trusted_get_none() -> None:
    broken = sent(b"{}", reply_to=TO, raw_headers=b"\x01a?")
    assert broken.message.defect is not None
    assert refusal(broken, "k", DeadReason.MALFORMED, "x", patterns=PATTERNS) is None
