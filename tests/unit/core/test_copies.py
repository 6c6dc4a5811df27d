"""Messages we publish again: what is carried, what is ours, and that it fits (B12 B13 B42 B44)."""

import struct
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from consumer.core.copies import (
    MAX_HEADER_FRAME_BYTES,
    MAX_PROPERTIES_BYTES,
    Death,
    cut,
    dead_id,
    dead_letter,
    next_copy,
    parked_copy,
    parked_since,
    parks,
    ticket_of,
)
from consumer.core.deadline import deadline_of, epoch_ms, first_seen
from consumer.core.topology import delay_level, deliver_exchange
from consumer.message import Delivery, Lane, Message, Outgoing
from consumer.outcome import DeadReason
from consumer.wire import Headers, Properties

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
SEEN = NOW - timedelta(minutes=5)
TICKET = UUID("5d1d9f5c-0000-4000-8000-000000000000")


def field(name: str, tagged: bytes) -> bytes:
    return bytes((len(name),)) + name.encode() + tagged


# One header of each type there is on the wire, in encodings client libraries do not write.
TYPED = b"".join([
    field("bool", b"t\x01"), field("int8", b"b\x07"), field("uint8", b"B\xff"),
    field("int16", b"s\xff\xfe"), field("uint16", b"u\xff\xfe"),
    field("int32", b"I\xff\xff\xff\xff"),
    field("uint32", b"i\xff\xff\xff\xff"), field("int64", b"l" + struct.pack(">q", 7)),
    field("float", b"f" + struct.pack(">f", 0.1)),
    field("double", b"d" + struct.pack(">d", 1700000000.123)),
    field("decimal", b"D\x02" + struct.pack(">i", 1234)), field("void", b"V"),
    field("bytes", b"x\x00\x00\x00\x01\xff"), field("text", b"S\x00\x00\x00\x02\xc3\xa9"),
    field("time", b"T" + struct.pack(">Q", 1_700_000_000)),
    field("table", b"F\x00\x00\x00\x04\x01nb\x07"),
    field("array", b"A\x00\x00\x00\x03b\x07V"),
])

BROKERS: dict[str, Any] = {
    "x-death": [{"count": 50, "queue": "orders"}], "x-first-death-queue": "q",
    "x-first-death-reason": "rejected", "x-first-death-exchange": "e", "x-last-death-queue": "q",
    "x-last-death-reason": "r", "x-last-death-exchange": "e", "x-delivery-count": 9,
    "x-acquired-count": 9, "CC": ["other"], "BCC": ["other"],
}
SPOOFED: dict[str, Any] = {
    "consumer-ticket": "spoofed", "consumer-replay-item": 7, "consumer-parks": 3,
    "consumer-dead-id": "x", "consumer-dead-reason": "x", "consumer-dead-queue": "other.queue",
    "consumer-anything": True, "consumer-parked-since-ms": 1, "consumer-dead-attempts": 99,
    "consumer-first-seen-ms": 4_070_908_800_000,
}
CARRIED: dict[str, Any] = {
    "x-deadline-ms": 5, "traceparent": "00-1", "X-Death": "not the broker's", "x-deathly": 1,
    "cc": "lower case", "x-first-deat": 1, "Consumer-ticket": "upper case", "consumer": 1,
}


def delivery(headers: dict[str, Any] | None = None, raw: bytes = b"", body: bytes = b" {} ",
             lane: Lane = Lane.LIVE, **properties: Any) -> Delivery:
    table = Headers(Headers.of(headers or {}).table + raw)
    made = Properties(headers=table, **properties)
    return Delivery(Message(body, made, made.to_wire(), made.defect()), "orders", lane, "orders.x")


def death(error: str = "broken", **more: Any) -> Death:
    return Death(DeadReason.PERMANENT, error, NOW, **more)


def all_copies(of: Delivery) -> list[Outgoing]:
    return [
        next_copy("shop", of, "key", "orders.x", TICKET, None, SEEN),
        parked_copy("shop", of, "key", timedelta(seconds=1), NOW, SEEN),
        parked_copy("shop", of, None, timedelta(seconds=1), NOW, SEEN),
        dead_letter("shop", of, "key", death()),
        dead_letter("shop", of, None, death()),
    ]


def properties(copy: Outgoing) -> Properties:
    return Properties.from_wire(copy.properties)


def headers(copy: Outgoing) -> dict[str, Any]:
    return properties(copy).headers.decoded()


def test_headers_are_carried_byte_for_byte_with_their_types() -> None:
    for copy in all_copies(delivery(raw=TYPED)):
        assert properties(copy).headers.table.startswith(TYPED)


def test_a_double_header_is_not_cut_to_32_bits_and_a_decimal_is_no_float() -> None:
    for copy in all_copies(delivery(raw=TYPED)):
        assert headers(copy)["double"] == 1700000000.123
        assert str(headers(copy)["decimal"]) == "12.34"
        assert headers(copy)["bytes"] == b"\xff"


def test_what_the_broker_wrote_or_would_act_upon_is_never_carried() -> None:
    for copy in all_copies(delivery({**BROKERS, **CARRIED})):
        assert not set(BROKERS) & set(headers(copy))
        assert headers(copy).items() >= CARRIED.items()


def test_headers_do_not_grow_with_the_number_of_copies() -> None:
    """40 trips through the same queues: sizes stay what they were (B25)."""
    travelling = delivery({"a": 1, **BROKERS})
    sizes = set()
    for _ in range(40):
        copy = next_copy("shop", travelling, "key", "orders.x", TICKET, None, SEEN)
        sizes.add(len(copy.properties))
        arrived = properties(copy)
        travelling = Delivery(Message(copy.body, arrived.with_headers(
            arrived.headers.plus(BROKERS)), copy.properties), "orders", routing_key="whatever")
    assert len(sizes) == 1


@pytest.mark.parametrize("lane", Lane)
def test_spoofed_control_headers_steer_nothing(lane: Lane) -> None:
    of = delivery(SPOOFED, lane=lane)
    copy = headers(next_copy("shop", of, "key", "orders.x", TICKET, None, SEEN))
    assert copy == {"idempotency-key": "key", "consumer-ticket": str(TICKET),
                    "consumer-routing-key": "orders.x",
                    "consumer-first-seen-ms": epoch_ms(SEEN)}
    letter = dead_letter("shop", of, "key", death(attempts=2))
    assert letter.routing_key.endswith(".orders.dead")
    assert headers(letter)["consumer-dead-queue"] == "orders"
    assert headers(letter)["consumer-dead-attempts"] == 2
    assert not {"consumer-replay-item", "consumer-ticket", "consumer-anything",
                "consumer-first-seen-ms"} & set(headers(letter))


def test_a_copy_is_built_from_a_fixed_list_of_properties() -> None:
    """Expiry, priority, user and cluster of the original do not steer the copy."""
    sent: dict[str, Any] = {
        "content_type": "application/json", "content_encoding": "utf-8", "correlation_id": "c",
        "reply_to": "r", "timestamp": 5, "app_id": "app", "message_id": "m"}
    steering: dict[str, Any] = {"priority": 9, "expiration": "100", "user_id": "u",
                                "cluster_id": "c", "delivery_mode": 1, "type": "orders.x"}
    for copy in all_copies(delivery(**sent, **steering)):
        found = properties(copy)
        assert {name: getattr(found, name) for name in sent} == sent
        assert (found.priority, found.expiration, found.user_id, found.cluster_id) == (None,) * 4
        assert (found.delivery_mode, found.type) == (2, "orders.x")
        assert copy.message_id == "m"
        assert copy.body == b" {} "


def test_the_dead_letter_keeps_the_properties_it_does_not_carry() -> None:
    letter = dead_letter("shop", delivery(priority=9, expiration="100", user_id="u"), None, death())
    original = headers(letter)["consumer-original-properties"]
    assert Properties.from_wire(original) == Properties(priority=9, expiration="100", user_id="u")


def test_the_next_copy_names_its_lane_and_its_replay() -> None:
    copy = next_copy("shop", delivery(lane=Lane.REPLAY), "key", "t", TICKET, 7, SEEN)
    assert (copy.exchange, copy.routing_key) == (deliver_exchange("shop"), "orders.replay")
    assert headers(copy)["consumer-replay-item"] == 7


def test_the_parked_copy_goes_through_the_delay_queues_and_counts() -> None:
    copy = parked_copy("shop", delivery(), "key", timedelta(seconds=1), NOW, SEEN)
    assert copy.exchange == delay_level("shop", 3)
    assert headers(copy)["consumer-parks"] == 1
    again = Delivery(Message(copy.body, properties(copy), copy.properties), "orders")
    copy = parked_copy("shop", again, "key", timedelta(seconds=1), NOW, SEEN)
    assert headers(copy)["consumer-parks"] == 2
    assert parked_since(Message(b"", properties(copy)), NOW + timedelta(hours=1)) == NOW
    assert list(headers(copy)) == list(dict.fromkeys(headers(copy)))


@pytest.mark.parametrize("tagged", [
    b"D\x00\x80\x00\x00\x00", b"D\xff\x7f\xff\xff\xff", b"f\x7f\xc0\x00\x00",
    b"x\x00\x00\x00\x01\xff", b"T" + struct.pack(">Q", 253_402_300_799),
    b"L" + struct.pack(">q", -(2**63)), b"V",
    b"A\x00\x00\x00\x06D\x00\x80\x00\x00\x00"])
@pytest.mark.parametrize("name", ["consumer-ticket", "consumer-replay-item", "idempotency-key"])
def test_a_control_header_of_any_encoding_survives_a_park_as_it_is(
    name: str, tagged: bytes
) -> None:
    """Some values have no encoding of ours: they are copied, not written anew."""
    of = delivery(raw=field(name, tagged))
    copy = parked_copy("shop", of, None, timedelta(seconds=1), NOW, SEEN)
    if not (name == "idempotency-key" and tagged == b"V"):
        assert field(name, tagged) in properties(copy).headers.table


def test_a_replay_item_of_zero_or_none_is_no_difference_and_a_number_is() -> None:
    message = Message(b"{}")
    ids = [dead_id("q", message, "m", item, DeadReason.ATTEMPTS) for item in (None, 7, 8)]
    assert len(set(ids)) == 3


def test_a_dead_letters_id_is_of_queue_message_body_replay_and_reason() -> None:
    """Doubled copies of one letter collapse, and nothing else does."""
    first = dead_id("orders", Message(b"{}"), "m", None, DeadReason.ATTEMPTS)
    assert first == dead_id("orders", Message(b"{}", Properties(app_id="x")), "m", None,
                            DeadReason.ATTEMPTS)
    others = {
        dead_id("mail", Message(b"{}"), "m", None, DeadReason.ATTEMPTS),
        dead_id("orders", Message(b"{ }"), "m", None, DeadReason.ATTEMPTS),
        dead_id("orders", Message(b"{}"), "n", None, DeadReason.ATTEMPTS),
        dead_id("orders", Message(b"{}"), "m", 1, DeadReason.ATTEMPTS),
        dead_id("orders", Message(b"{}"), "m", None, DeadReason.PERMANENT),
    }
    assert len(others | {first}) == 6


# --- deadlines ------------------------------------------------------------------------------------


LATER = NOW + timedelta(hours=1)
DEADLINES: list[dict[str, Any]] = [
    {}, {"x-deadline-ms": epoch_ms(NOW) + 30_000}, {"x-timeout-ms": "30000"},
    {"x-deadline-ms": epoch_ms(NOW) + 600_000, "x-timeout-ms": 30_000}]


@pytest.mark.parametrize("sent", DEADLINES)
@pytest.mark.parametrize("timestamp", [
    None, int(NOW.timestamp()) - 10, int(NOW.timestamp()) + 600])
@pytest.mark.parametrize("lane", Lane)
def test_a_copy_of_a_copy_has_the_deadline_of_its_original(
    sent: dict[str, Any], timestamp: int | None, lane: Lane
) -> None:
    original = delivery(sent, lane=lane, timestamp=timestamp)
    seen, deadline = (first_seen(original.message, NOW),
                      deadline_of(original, timedelta(hours=2), NOW))
    parked = properties(parked_copy("shop", original, "key", timedelta(seconds=1), NOW, seen))
    arrived = Delivery(Message(b"{}", parked), "orders", lane)
    assert first_seen(arrived.message, LATER) == NOW
    assert deadline_of(arrived, timedelta(hours=2), LATER) == deadline
    copy = properties(next_copy("shop", arrived, "key", "t", TICKET, None,
                                first_seen(arrived.message, LATER)))
    arrived = Delivery(Message(b"{}", copy), "orders", lane)
    assert deadline_of(arrived, timedelta(hours=2), LATER + timedelta(hours=9)) == deadline
    assert copy.headers.decoded().items() >= sent.items()


def test_a_dead_letter_tells_no_first_sight_so_that_a_replay_restarts_it() -> None:
    seen = delivery({"consumer-first-seen-ms": epoch_ms(SEEN), "x-deadline-ms": 5})
    letter = headers(dead_letter("shop", seen, "key", death()))
    assert "consumer-first-seen-ms" not in letter
    assert letter["x-deadline-ms"] == 5


# --- sizes (B44) -----------------------------------------------------------------------------


ODD = "a\x00\ud800é\U0001f600"


@pytest.mark.parametrize("error", [
    "x" * 200_000, ODD * 20_000, "\U0001f600" * 60_000, "\ud800" * 200_000, "", "short"])
@pytest.mark.parametrize("own", [0, 100_000, 128_000, 129_000, MAX_HEADER_FRAME_BYTES - 20,
                                 130_000, 130_600, 130_990, MAX_PROPERTIES_BYTES - 11])
def test_a_dead_letter_fits_one_frame_and_keeps_the_producers_headers(
    error: str, own: int
) -> None:
    """Ours shrink first, down to nothing."""
    of = delivery(raw=field("own", b"x" + struct.pack(">I", own) + b"y" * own))
    dying = death(error, attempts=3, traceback=error, handler="h" * 200,
                  fingerprints={"fingerprint": b"f" * 32, "claimed-fingerprint": b"g" * 32})
    letter = dead_letter("shop", of, "k" * 255, dying)
    assert len(letter.properties) <= MAX_PROPERTIES_BYTES
    found = headers(letter)
    if own <= 130_990:
        assert found["own"] == b"y" * own
    if own <= 130_000:
        assert found["consumer-dead-reason"] == "permanent"
        assert found["consumer-dead-id"]


def test_diagnostics_are_cut_on_a_character_with_a_mark() -> None:
    letter = headers(dead_letter("shop", delivery(), None, death("\U0001f600" * 50_000)))
    text = letter["consumer-dead-error"]
    assert text.endswith(" […cut]")
    assert set(text.removesuffix(" […cut]")) == {"\U0001f600"}


def test_properties_that_cannot_be_read_travel_inside_one_header() -> None:
    raw = b"\x20\x00" + struct.pack(">I", 4) + b"\x02\xff\xfeV"
    made = Properties.from_wire(raw)
    of = Delivery(Message(b"{}", made, raw, "a header name is not UTF-8"), "orders")
    letter = dead_letter("shop", of, None, death())
    assert headers(letter)["consumer-original-properties"] == raw
    assert properties(letter).defect() is None


@pytest.mark.parametrize("size", [100_000, 130_500, 131_000, MAX_PROPERTIES_BYTES])
def test_unreadable_properties_of_any_size_fit_or_are_left_behind(size: int) -> None:
    of = Delivery(Message(b"{}", Properties(), b"\xff" * size, "cut off"), "orders")
    letter = dead_letter("shop", of, None, death("why", traceback="x" * 50_000))
    assert len(letter.properties) <= MAX_PROPERTIES_BYTES
    assert headers(letter)["consumer-dead-reason"] == "permanent"


@pytest.mark.parametrize("type_", ["", "t" * 255])
def test_copies_of_the_largest_message_that_is_run_fit_one_frame(type_: str) -> None:
    room = MAX_HEADER_FRAME_BYTES - len(delivery(raw=field("own", b"x" + bytes(4))).message
                                        .raw_properties)
    of = delivery(raw=field("own", b"x" + struct.pack(">I", room) + b"y" * room))
    assert len(of.message.raw_properties) == MAX_HEADER_FRAME_BYTES
    of = Delivery(of.message, "orders", routing_key="r" * 255)
    copy = next_copy("shop", of, "k" * 255, type_ or "t", TICKET, 2**63 - 1, SEEN)
    assert len(copy.properties) <= MAX_PROPERTIES_BYTES
    arrived = Message(copy.body, properties(copy), copy.properties)
    parked = parked_copy("shop", Delivery(arrived, "orders", routing_key="r" * 255), "k" * 255,
                         timedelta(seconds=1), NOW, SEEN)
    assert len(parked.properties) <= MAX_PROPERTIES_BYTES
    assert max(len(copy.properties), len(parked.properties)) - MAX_HEADER_FRAME_BYTES <= 1243


# --- control headers, as they are read -----------------------------------------------------------


@pytest.mark.parametrize("value", [
    "abc", "1.0", "", -5, True, b"\xff", [1], {"n": 1}, None, 0, 1.5])
def test_garbage_in_a_counter_counts_as_absent(value: Any) -> None:
    found = delivery({"consumer-parks": value, "consumer-parked-since-ms": value}).message
    assert parks(found) == 0
    assert parked_since(found, NOW) == NOW


def test_counters_are_bounded() -> None:
    found = delivery({"consumer-parks": 2**63 - 1, "consumer-parked-since-ms": 2**63 - 1}).message
    assert parks(found) == 1000
    assert parked_since(found, NOW) == NOW


@pytest.mark.parametrize("value", ["abc", "", 5, None, b"x" * 16, ["x"], str(TICKET) + "0"])
def test_what_is_no_ticket_is_none(value: Any) -> None:
    assert ticket_of(delivery({"consumer-ticket": value}).message) is None


def test_a_ticket_is_read_back() -> None:
    copy = next_copy("shop", delivery(), "key", "t", TICKET, None, SEEN)
    assert ticket_of(Message(b"", properties(copy))) == TICKET


@pytest.mark.parametrize(("text", "limit", "wanted"), [
    ("abc", 3, "abc"), ("abcd", 3, ""), ("x" * 20, 19, "x" * 10 + " […cut]"),
    ("é" * 10, 20, "é" * 10),
    ("é" * 11, 20, "é" * 5 + " […cut]"), ("\ud800", 1, "?"), ("", 0, ""), ("a", 0, "")])
def test_cut(text: str, limit: int, wanted: str) -> None:
    assert cut(text, limit) == wanted


@pytest.mark.parametrize(("stated", "kept"), [
    ("amq.rabbitmq.reply-to", None), ("amq.rabbitmq.reply-to.g1h2.token", "same"), ("r", "same")])
def test_the_name_only_a_requester_may_publish_is_not_copied(
    stated: str, kept: str | None
) -> None:
    properties = Properties(message_id="m", reply_to=stated)
    delivery = Delivery(Message(b"{}", properties, properties.to_wire()), "orders")
    copies = [next_copy("shop", delivery, "k", "t", TICKET, None, SEEN),
              parked_copy("shop", delivery, "k", timedelta(seconds=1), NOW, SEEN),
              dead_letter("shop", delivery, "k", Death(DeadReason.PERMANENT, "x", NOW))]
    for copy in copies:
        assert Properties.from_wire(copy.properties).reply_to == (stated if kept else None)
