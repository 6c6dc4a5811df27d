"""What a message says it is: command type and key (B14, B15)."""

from typing import Any
from uuid import UUID

import pytest

from consumer.core.copies import logical_id
from consumer.core.identity import (
    MAX_KEY_BYTES,
    BadKey,
    as_key,
    command_type,
    derived_id,
    routed_by,
    stated_key,
)
from consumer.message import Delivery, Message
from consumer.wire import Headers, HeaderValue, Properties

KEYS = ["order-1", "ORDER-1", "order-1 ", "\torder-1", "é", "e\u0301", "order\u200b-1", "1", "01",
        "1.0", " ", "'; DROP TABLE claims;--", "null", "é" * 127, "x" * MAX_KEY_BYTES, "\U0001f600"]


def message(headers: dict[str, Any] | None = None, **properties: Any) -> Message:
    made = Properties(headers=Headers.of(headers or {}), **properties)
    return Message(b"{}", made, made.to_wire())


def bad(value: str | BadKey | None) -> bool:
    return isinstance(value, BadKey)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_kept_exactly(key: str) -> None:
    assert stated_key(message({"idempotency-key": key})) == key
    assert stated_key(message(message_id=key)) == key


def test_every_key_is_its_own() -> None:
    assert len({stated_key(message({"idempotency-key": key})) for key in KEYS}) == len(KEYS)


@pytest.mark.parametrize("text", [
    "x" * (MAX_KEY_BYTES + 1), "é" * 128, "a" * 5000, "a" * 4999 + "b", "a\0b", "\0", "\ud800", ""])
def test_what_can_be_no_key_is_said_and_never_cut(text: str) -> None:
    found = as_key(text, "key")
    assert isinstance(found, BadKey)
    assert len(found.detail) < 100


@pytest.mark.parametrize(("value", "key"), [
    (0, "0"), (-7, "-7"), (2**63, str(2**63)), (True, "true"), (False, "false"), (b"k", "k"),
    (UUID(int=5), str(UUID(int=5))), ("é".encode(), "é")])
def test_plain_values_are_keys(value: Any, key: str) -> None:
    assert as_key(value, "key") == key


@pytest.mark.parametrize("value", [None, [], {}, 1.5, b"\xff", object()])
def test_other_values_are_not(value: Any) -> None:
    assert bad(as_key(value, "key"))


@pytest.mark.parametrize("absent", [{}, {"idempotency-key": ""}, {"idempotency-key": None}])
def test_an_absent_header_leaves_it_to_the_message_id(absent: dict[str, Any]) -> None:
    assert stated_key(message(absent, message_id="m")) == "m"
    assert stated_key(message(absent)) is None
    assert stated_key(message(absent, message_id="")) is None


def test_a_bad_header_is_not_replaced_by_the_message_id() -> None:
    assert bad(stated_key(message({"idempotency-key": [1]}, message_id="m")))


def test_a_header_that_cannot_be_decoded_is_a_bad_key() -> None:
    table = b"\x0fidempotency-keyS\x00\x00\x00\x01\xff"
    assert bad(stated_key(Message(b"{}", Properties(headers=Headers(table), message_id="m"))))


def test_the_last_of_two_headers_of_that_name_counts() -> None:
    headers = Headers.of({"idempotency-key": "a"}).plus({"idempotency-key": "b"})
    assert stated_key(Message(b"{}", Properties(headers=headers))) == "b"


# --- ids of ours ------------------------------------------------------------------------------


def test_an_id_of_ours_is_no_key() -> None:
    headers = Headers.of({"consumer-own-id": True})
    assert stated_key(Message(b"{}", Properties(message_id="m", headers=headers))) is None


@pytest.mark.parametrize("claim", [False, 1, "true", None, []])
def test_any_other_value_of_that_header_leaves_the_id_a_key(claim: HeaderValue) -> None:
    headers = Headers.of({"consumer-own-id": claim})
    assert stated_key(Message(b"{}", Properties(message_id="m", headers=headers))) == "m"


def test_derived_ids_differ_by_identity_and_by_body() -> None:
    pairs = [(identity, body) for identity in (b"", b"a", b"b") for body in (b"", b"a", b"b")]
    assert len({derived_id(*pair) for pair in pairs}) == len(pairs)
    assert derived_id(b"a", b"b") == derived_id(b"a", b"b")


@pytest.mark.parametrize("own", ["m-1", "with space", "é"])
def test_the_logical_id_is_the_messages_own(own: str) -> None:
    assert logical_id(Delivery(message(message_id=own), "orders"), None) == own


@pytest.mark.parametrize("own", [None, "", "\n", "a\u200bb", "\udcff"])
def test_what_can_be_no_logical_id_is_replaced_by_a_stable_one(own: str | None) -> None:
    delivery = Delivery(message(message_id=own), "orders")
    found = logical_id(delivery, None)
    assert found == logical_id(delivery, None) != logical_id(delivery, "key")
    assert found != logical_id(Delivery(delivery.message, "mail"), None)
    assert found.isprintable()


# --- types ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("headers", "properties", "wanted"), [
    ({}, {}, "routed.by"),
    ({}, {"type": "own"}, "own"),
    ({}, {"type": ""}, "routed.by"),
    ({"consumer-routing-key": "first"}, {}, "first"),
    ({"consumer-routing-key": "first"}, {"type": "own"}, "own"),
    ({"consumer-routing-key": 5}, {}, "routed.by"),
    ({"consumer-routing-key": b"\xff"}, {}, "routed.by"),
])
def test_the_command_type(headers: dict[str, Any], properties: dict[str, Any], wanted: str) -> None:
    delivery = Delivery(message(headers, **properties), "orders", routing_key="routed.by")
    assert command_type(delivery) == wanted


def test_a_routing_key_header_that_cannot_be_decoded_counts_as_absent() -> None:
    table = b"\x14consumer-routing-keyS\x00\x00\x00\x01\xff"
    made = Message(b"{}", Properties(headers=Headers(table)))
    assert routed_by(Delivery(made, "orders", routing_key="r")) == "r"
