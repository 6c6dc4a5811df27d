"""A command as a message of ours: what is written, and what is refused when it is written."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from pydantic import ConfigDict, Field

from consumer import Command
from consumer.command import new_message_id, to_outgoing, to_row
from consumer.core.copies import MAX_HEADER_FRAME_BYTES
from consumer.core.decode import MAX_BODY_BYTES, decode
from consumer.errors import UnsendableMessage
from consumer.message import Message, Outgoing
from consumer.wire import Properties


class Order(Command, type="orders.place"):
    note: str = ""
    amount: float = 1.5
    extra: Any = None
    placed_at: datetime | None = None
    by_alias: str = Field("x", alias="byAlias")
    model_config = ConfigDict(populate_by_name=True)


def send(command: Command | None = None, **options: Any) -> Outgoing:
    return to_outgoing(command or Order(), prefix="shop", **options)


def test_what_is_sent_is_read_back() -> None:
    order = Order(note="a\0é\U0001f600", extra={"n": [1, None, True]}, placed_at=datetime.now(UTC))
    outgoing = send(order, key="k", headers={"traceparent": "00"})
    properties = Properties.from_wire(outgoing.properties)
    payload = decode(Message(outgoing.body, properties))
    assert isinstance(payload, dict)
    assert Order.model_validate(payload) == order
    assert payload["byAlias"] == "x"
    assert properties.headers.decoded() == {"traceparent": "00", "idempotency-key": "k"}
    assert (properties.type, properties.delivery_mode) == ("orders.place", 2)
    assert properties.message_id == outgoing.message_id
    assert (outgoing.exchange, outgoing.routing_key) == ("shop.commands", "orders.place")


def test_without_a_key_the_message_id_is_one() -> None:
    outgoing = send()
    headers = Properties.from_wire(outgoing.properties).headers
    assert headers.get("idempotency-key") == outgoing.message_id != send().message_id


def test_message_ids_are_time_ordered_uuids() -> None:
    ids = [new_message_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert {UUID(id_).version for id_ in ids} == {7}
    assert [UUID(id_).int >> 80 for id_ in ids] == sorted(UUID(id_).int >> 80 for id_ in ids)


@pytest.mark.parametrize(("command", "field"), [
    (Order(amount=float("nan")), "$.amount"), (Order(amount=float("-inf")), "$.amount"),
    (Order(extra={"a": [1, float("inf")]}), "$.extra.a[1]"),
    (Order.model_construct(note="\ud800"), "$.note"),
    (Order(extra=["ok", {"x": "\udfff"}]), "$.extra[1].x"),
])
def test_what_json_cannot_hold_is_refused_by_the_name_of_its_field(
    command: Order, field: str
) -> None:
    with pytest.raises(UnsendableMessage, match="cannot be written as JSON") as caught:
        send(command)
    assert f" {field} " in str(caught.value)


@pytest.mark.parametrize("extra", [object(), {object(): 1}, {"\ud800": 1}])
def test_what_cannot_be_written_at_all_is_refused(extra: Any) -> None:
    with pytest.raises(UnsendableMessage):
        send(Order.model_construct(note="", amount=1.0, extra=extra))


def test_a_body_that_is_too_large_is_refused_when_it_is_written() -> None:
    with pytest.raises(UnsendableMessage, match="bytes"):
        send(Order(note="x" * MAX_BODY_BYTES))


@pytest.mark.parametrize("key", ["", "x" * 256, "a\0b", "\ud800", [], 1.5])
def test_a_bad_key_is_refused(key: Any) -> None:
    with pytest.raises(UnsendableMessage):
        send(key=key)


@pytest.mark.parametrize("name", ["consumer-ticket", "consumer-parks", "idempotency-key", "x-death",
                                  "CC", "BCC", "x-last-death-queue", "x-delivery-count"])
def test_reserved_headers_are_refused(name: str) -> None:
    with pytest.raises(UnsendableMessage, match="reserved"):
        send(headers={name: "x"})


@pytest.mark.parametrize("headers", [
    {"n" * 256: 1}, {"n": 2**63}, {"n": b"x" * MAX_HEADER_FRAME_BYTES}, {"n": [2**64]}])
def test_headers_that_do_not_fit_are_refused(headers: dict[str, Any]) -> None:
    with pytest.raises(UnsendableMessage):
        send(headers=headers)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("nan")], {"a": float("nan")}])
def test_a_header_that_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(UnsendableMessage):
        send(headers={"n": value})


def test_a_message_id_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UnsendableMessage):
        send(message_id="m" * 256, key="k")


def test_a_mere_base_cannot_be_sent() -> None:
    class Base(Command):
        pass

    with pytest.raises(UnsendableMessage, match="no command type"):
        send(Base())


def test_a_schedule_needs_a_zone_and_no_order() -> None:
    later = datetime(2030, 1, 1)  # noqa: DTZ001 - that is the point
    with pytest.raises(UnsendableMessage, match="zone"):
        to_row(Order(), prefix="shop", at=later)
    with pytest.raises(UnsendableMessage, match="exclude"):
        to_row(Order(), prefix="shop", at=later.replace(tzinfo=UTC), ordering_key="k")


def test_a_scheduled_message_is_dated_when_it_is_due() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(milliseconds=5)
    row = to_row(Order(), prefix="shop", at=at)
    assert row.available_at == at
    assert Properties.from_wire(row.message.properties).timestamp == int(at.timestamp())


# --- deadlines ------------------------------------------------------------------------------------


AT = datetime(2030, 1, 1, tzinfo=UTC)


def deadline_headers(outgoing: Outgoing) -> dict[str, Any]:
    decoded = Properties.from_wire(outgoing.properties).headers.decoded()
    return {name: value for name, value in decoded.items() if name.startswith("x-")}


def test_a_deadline_is_sent_as_a_time_and_as_what_is_left_of_it() -> None:
    found = deadline_headers(send(dated=AT, deadline=AT + timedelta(milliseconds=1500)))
    assert found == {"x-deadline-ms": 1_893_456_001_500, "x-timeout-ms": 1500}


def test_a_deadline_in_the_past_leaves_nothing() -> None:
    found = deadline_headers(send(deadline=datetime(2020, 1, 1, tzinfo=UTC)))
    assert found == {"x-deadline-ms": 1_577_836_800_000, "x-timeout-ms": 0}


def test_what_is_left_counts_from_the_clock_where_no_date_is_given() -> None:
    before = datetime.now(UTC)
    deadline = before + timedelta(hours=1)
    left = deadline_headers(send(deadline=deadline))["x-timeout-ms"]
    spent = datetime.now(UTC) - before
    assert 3_600_000 - spent / timedelta(milliseconds=1) - 1 <= left <= 3_600_000


def test_without_a_deadline_no_header_of_one_is_sent() -> None:
    assert deadline_headers(send()) == {}


def test_what_is_left_of_a_scheduled_message_counts_from_when_it_is_due() -> None:
    row = to_row(Order(), prefix="shop", at=AT, deadline=AT + timedelta(seconds=1))
    assert deadline_headers(row.message)["x-timeout-ms"] == 1000


def test_a_message_that_is_not_scheduled_is_dated_when_it_is_written() -> None:
    row = to_row(Order(), prefix="shop", now=AT, deadline=AT + timedelta(seconds=1))
    assert deadline_headers(row.message)["x-timeout-ms"] == 1000
    assert Properties.from_wire(row.message.properties).timestamp == int(AT.timestamp())
    assert row.available_at is None


@pytest.mark.parametrize("late", [timedelta(0), timedelta(microseconds=1), timedelta(days=1)])
def test_a_message_due_when_it_is_too_late_is_refused(late: timedelta) -> None:
    with pytest.raises(UnsendableMessage, match="not before the deadline"):
        to_row(Order(), prefix="shop", at=AT + late, deadline=AT)


def test_a_deadline_needs_a_zone() -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - that is the point
    with pytest.raises(UnsendableMessage, match="deadline= has no time zone"):
        send(deadline=naive)
    with pytest.raises(UnsendableMessage, match="deadline= has no time zone"):
        to_row(Order(), prefix="shop", at=AT, deadline=naive)


@pytest.mark.parametrize("name", ["x-deadline-ms", "x-timeout-ms"])
def test_a_deadline_is_stated_in_one_way_only(name: str) -> None:
    assert deadline_headers(send(headers={name: 5})) == {name: 5}
    with pytest.raises(UnsendableMessage, match=name):
        send(headers={name: 5}, deadline=AT)


def test_a_body_is_compact_utf_8() -> None:
    assert send(Order(note="é")).body == json.dumps(
        {"note": "é", "amount": 1.5, "extra": None, "placed_at": None, "byAlias": "x"},
        ensure_ascii=False, separators=(",", ":")).encode()
