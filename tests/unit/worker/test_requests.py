"""From a delivery to a request, whatever a producer may have sent (B08, B12, B13, B14)."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import field_validator
from simulation.bench import QUEUE, Bench, Charge, arrived, headers_of, sent

from consumer import Command, Context, Handler
from consumer import message as names
from consumer.core import copies
from consumer.message import Delivery, Lane, Outgoing
from consumer.outcome import DeadLetter, DeadReason, Delay, ParkReason
from consumer.wire import Properties
from consumer.worker.requests import Request

GRACE = timedelta(minutes=10)
KEY = {"idempotency-key": "k"}
PARKED = names.PARKED_SINCE_MS


def after_its_delay(outgoing: Outgoing) -> Delivery:
    """The parked copy as it arrives again in the work queue."""
    return arrived(outgoing)


def parked(bench: Bench, delivery: Delivery, why: ParkReason) -> Outgoing:
    outcome = bench.reader.read(delivery)
    assert isinstance(outcome, Delay)
    assert outcome.why is why
    return outcome.copy


def died(bench: Bench, delivery: Delivery, why: DeadReason) -> DeadLetter:
    outcome = bench.reader.read(delivery)
    assert isinstance(outcome, DeadLetter), outcome
    assert outcome.why is why
    return outcome


def key_of(bench: Bench, delivery: Delivery) -> str:
    read = bench.reader.read(delivery)
    assert isinstance(read, Request), read
    return read.key


# --- foreign protocols, empty and scalar bodies (B08) ----------------------------------------


@pytest.mark.parametrize("body", [
    b"", b" ", b"null", b'"text"', b"17", b"[]", b"[[], {\"order_id\": 1}, {}]"])
def test_a_body_that_is_no_object_dies_at_once(body: bytes) -> None:
    died(Bench(), sent(body, KEY, type="orders.charge"), DeadReason.MALFORMED)


def test_a_celery_message_dies_with_all_it_came_with() -> None:
    body = (b'[[], {"order_id": 1}, {"callbacks": null, "errbacks": null, "chain": null, '
            b'"chord": null}]')
    headers: dict[str, Any] = {
        "lang": "py", "task": "shop.charge", "id": "28f83657-0000-4000-8000-000000000001",
        "retries": 0, "eta": None, "argsrepr": "()"}
    letter = died(Bench(), sent(body, headers, content_type="application/json"),
                  DeadReason.MALFORMED).letter
    assert letter.body == body
    assert headers_of(letter).items() >= headers.items()


def test_a_missing_field_is_named_after_the_grace() -> None:
    bench = Bench(deploy_grace=timedelta(0))
    outcome = died(bench, sent(b"{}", KEY, type="orders.charge"), DeadReason.INVALID)
    assert outcome.error == "key: Field required"


def test_the_error_of_an_invalid_command_does_not_show_its_values() -> None:
    bench = Bench(deploy_grace=timedelta(0))
    delivery = sent(b'{"key":"k","amount":"4111111111111111x"}', KEY, type="orders.charge")
    assert "4111" not in died(bench, delivery, DeadReason.INVALID).error


def test_an_error_of_many_fields_stays_short() -> None:
    bench = Bench(deploy_grace=timedelta(0))
    body = b'{"key":"k","lines":[' + b",".join([b"1"] * 5000) + b"]}"
    error = died(bench, sent(body, KEY, type="orders.charge"), DeadReason.INVALID).error
    assert error.endswith("; …")
    assert len(error) < 2000


# --- deploys ----------------------------------------------------------------------------------

UNKNOWN: dict[str, Any] = {"type": "orders.unknown"}
CASES = [
    (b'{"key":"k"}', "orders.unknown", ParkReason.UNKNOWN_TYPE, DeadReason.UNKNOWN_TYPE),
    (b"{}", "orders.charge", ParkReason.INVALID, DeadReason.INVALID),
]


@pytest.mark.parametrize(("body", "type_", "park", "dead"), CASES)
def test_what_a_new_version_may_understand_is_parked_until_the_grace_is_over(
    body: bytes, type_: str, park: ParkReason, dead: DeadReason
) -> None:
    bench = Bench()
    delivery, waits = sent(body, KEY, type=type_), []
    begun = bench.clock.now()
    while isinstance(outcome := bench.reader.read(delivery), Delay):
        assert outcome.why is park
        waits.append(outcome.delay)
        bench.clock.advance(outcome.delay)
        delivery = after_its_delay(outcome.copy)
    assert isinstance(outcome, DeadLetter)
    assert outcome.why is dead
    assert bench.clock.now() - begun == GRACE
    assert waits[:7] == [timedelta(seconds=s) for s in (1, 2, 4, 8, 16, 32, 60)]
    assert max(waits) == timedelta(seconds=60)
    assert outcome.letter.body == body


def test_a_parked_command_runs_under_its_key_once_its_type_is_known() -> None:
    bench = Bench()
    copy = parked(bench, sent(b'{"key":"k"}', KEY, type="orders.refund"), ParkReason.UNKNOWN_TYPE)

    class Refund(Command, type="orders.refund"):
        key: str

    class RefundHandler(Handler[Refund]):
        name, queue = "orders.refund", QUEUE

        async def handle(self, command: Refund, context: Context) -> None: ...

    bench.register(RefundHandler)
    assert key_of(bench, after_its_delay(copy)) == "k"


def test_a_type_given_by_the_routing_key_alone_survives_parking() -> None:
    bench = Bench()
    copy = parked(bench, sent(b"{}", KEY), ParkReason.INVALID)
    assert isinstance(bench.reader.read(after_its_delay(copy)), Delay)
    assert parked(bench, after_its_delay(copy), ParkReason.INVALID).properties


@pytest.mark.parametrize("spoof", [0, -1, -(2**63), "abc", "", b"\xff", None, True, 1.5, [1],
                                   {"n": 1}])
def test_garbage_in_the_parking_mark_counts_as_absent(spoof: Any) -> None:
    bench = Bench()
    copy = parked(bench, sent(b"{}", {**KEY, PARKED: spoof}, **UNKNOWN), ParkReason.UNKNOWN_TYPE)
    assert headers_of(copy)[PARKED] == int(bench.clock.now().timestamp() * 1000)
    assert list(headers_of(copy)).count(PARKED) == 1


def test_a_parking_mark_in_the_future_gives_no_more_than_the_grace() -> None:
    bench = Bench()
    delivery = sent(b"{}", {**KEY, PARKED: 2**62}, **UNKNOWN)
    copy = parked(bench, delivery, ParkReason.UNKNOWN_TYPE)
    bench.clock.advance(GRACE)
    died(bench, after_its_delay(copy), DeadReason.UNKNOWN_TYPE)


def test_a_parking_mark_long_past_harms_only_a_message_nobody_knows() -> None:
    bench = Bench()
    died(bench, sent(b"{}", {**KEY, PARKED: 1}, **UNKNOWN), DeadReason.UNKNOWN_TYPE)
    good = sent(b'{"key":"k"}', {**KEY, PARKED: 1}, type="orders.charge")
    assert key_of(bench, good) == "k"


@pytest.mark.parametrize("parks", [99, 2**63 - 1, -5, "abc", 1.5])
def test_a_spoofed_count_of_parks_waits_at_most_a_minute(parks: Any) -> None:
    bench = Bench()
    delivery = sent(b"{}", {**KEY, names.PARKS: parks}, **UNKNOWN)
    outcome = bench.reader.read(delivery)
    assert isinstance(outcome, Delay)
    assert outcome.delay <= timedelta(seconds=60)


@pytest.mark.parametrize("grace", [timedelta.max, timedelta(days=365 * 9000)])
def test_no_grace_is_too_long_to_be_computed(grace: timedelta) -> None:
    parked(Bench(deploy_grace=grace), sent(b"{}", KEY, **UNKNOWN), ParkReason.UNKNOWN_TYPE)


# --- identity across parking -------------------------------------------------------------------


class KeyedHandler(Handler[Charge]):
    """Derives the key from the payload."""

    name, queue = "orders.charge", QUEUE

    def key(self, command: Charge) -> object:
        return None if command.key == "none" else command.key

    async def handle(self, command: Charge, context: Context) -> None: ...


@pytest.mark.parametrize("headers", [{}, {names.PARKS: 3}, {names.PARKS: "x"}])
def test_parking_does_not_change_the_key_of_a_message_without_one(headers: Any) -> None:
    """The copy has a message id, which is ours and no key: a handler derives the same key."""
    bench = Bench(KeyedHandler())
    delivery = sent(b'{"key":"derived"}', headers, type="orders.charge")
    assert key_of(bench, delivery) == "derived"
    copy = parked(bench, sent(b'{"key":"derived"}', headers, type="later"), ParkReason.UNKNOWN_TYPE)
    again = parked(bench, after_its_delay(copy), ParkReason.UNKNOWN_TYPE)
    assert copy.message_id == again.message_id
    for parked_copy in (copy, again):
        arrived_copy = after_its_delay(parked_copy)
        known = Delivery(
            arrived_copy.message, QUEUE, routing_key=arrived_copy.routing_key)
        properties = known.message.properties
        assert properties.message_id == parked_copy.message_id
        typed = sent(known.message.body, properties.headers.decoded(), type="orders.charge",
                     message_id=properties.message_id)
        assert key_of(bench, typed) == "derived"


def test_a_parked_message_without_a_key_still_has_none() -> None:
    bench = Bench()
    copy = parked(bench, sent(b'{"key":"k"}', **UNKNOWN), ParkReason.UNKNOWN_TYPE)
    known = after_its_delay(copy).message.properties
    typed = sent(b'{"key":"k"}', known.headers.decoded(), type="orders.charge",
                 message_id=known.message_id)
    died(bench, typed, DeadReason.NO_KEY)


@pytest.mark.parametrize("message_id", ["m-1", "with space ", "order\u200b-1", "é", "\t"])
def test_parking_does_not_change_the_key_that_a_message_id_is(message_id: str) -> None:
    bench = Bench()
    assert key_of(bench, sent(b'{"key":"k"}', type="orders.charge", message_id=message_id)
                  ) == message_id
    copy = parked(bench, sent(b'{"key":"k"}', message_id=message_id, **UNKNOWN),
                  ParkReason.UNKNOWN_TYPE)
    known = after_its_delay(copy).message.properties
    typed = sent(b'{"key":"k"}', known.headers.decoded(), type="orders.charge",
                 message_id=known.message_id)
    assert key_of(bench, typed) == message_id


def test_two_messages_without_ids_never_share_one_once_parked() -> None:
    bench = Bench()
    bodies = [b'{"order_id":1}', b'{"order_id":2}', b'{"order_id":3}']
    copies_ = [parked(bench, sent(body, **UNKNOWN), ParkReason.UNKNOWN_TYPE) for body in bodies]
    assert len({copy.message_id for copy in copies_}) == 3


# --- keys (B14) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("properties", [{}, {"message_id": ""}])
@pytest.mark.parametrize("headers", [{}, {"idempotency-key": ""}, {"idempotency-key": None}])
def test_a_message_without_a_key_dies(properties: Any, headers: Any) -> None:
    for order in (1, 2, 3):
        delivery = sent(b'{"key":"%d"}' % order, headers, type="orders.charge", **properties)
        died(Bench(), delivery, DeadReason.NO_KEY)


@pytest.mark.parametrize(("value", "key"), [
    (0, "0"), (False, "false"), (True, "true"), (7, "7"), (b"bytes", "bytes"), (" ", " ")])
def test_zero_and_false_are_keys(value: Any, key: str) -> None:
    bench = Bench()
    delivery = sent(b'{"key":"k"}', {"idempotency-key": value}, type="orders.charge")
    assert key_of(bench, delivery) == key


@pytest.mark.parametrize("value", [[], {}, 1.5, b"\xff", "a\0b", "é" * 128])
def test_a_header_that_can_be_no_key_dies(value: Any) -> None:
    died(Bench(), sent(b'{"key":"k"}', {"idempotency-key": value}, type="orders.charge",
                       message_id="m"), DeadReason.INVALID)


def test_the_header_wins_over_the_message_id() -> None:
    delivery = sent(b'{"key":"k"}', KEY, type="orders.charge", message_id="m")
    assert key_of(Bench(), delivery) == "k"


@pytest.mark.parametrize("own", [0, False])
def test_a_handler_may_derive_zero_or_false(own: object) -> None:
    class Deriving(KeyedHandler):
        def key(self, command: Charge) -> object:
            return own

    bench = Bench(Deriving())
    assert key_of(bench, sent(b'{"key":"k"}', type="orders.charge")) == str(own).lower()


@pytest.mark.parametrize("own", [[], 1.5, "", "a\0b", "x" * 256,
                                 pytest.param(10**5000, id="5,000 digits")])
def test_a_derived_key_that_can_be_no_key_is_never_run(own: object) -> None:
    class Deriving(KeyedHandler):
        def key(self, command: Charge) -> object:
            return own

    bench = Bench(Deriving(), deploy_grace=timedelta(0))
    died(bench, sent(b'{"key":"k"}', type="orders.charge"), DeadReason.INVALID)


def test_a_derivation_that_raises_waits_for_a_deploy_and_never_raises() -> None:
    class Deriving(KeyedHandler):
        def key(self, command: Charge) -> object:
            return command.lines[0]

    bench = Bench(Deriving())
    copy = parked(bench, sent(b'{"key":"k"}', type="orders.charge"), ParkReason.INVALID)
    bench.clock.advance(GRACE)
    error = died(bench, after_its_delay(copy), DeadReason.INVALID).error
    assert error == "key() of handler orders.charge raised IndexError"


def test_a_validator_that_raises_waits_for_a_deploy_and_never_raises() -> None:
    class Checked(Command, type="orders.checked"):
        amount: int

        @field_validator("amount")
        @classmethod
        def divides(cls, value: int) -> int:
            return 1 // value

    class CheckedHandler(Handler[Checked]):
        name, queue = "orders.checked", QUEUE

        async def handle(self, command: Checked, context: Context) -> None: ...

    bench = Bench(CheckedHandler(), deploy_grace=timedelta(0))
    error = died(bench, sent(b'{"amount":0}', KEY, type="orders.checked"), DeadReason.INVALID).error
    assert error == "a validator of orders.checked raised ZeroDivisionError"


# --- retention ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "may"), [
    (timedelta(0), True), (timedelta(days=30), True), (timedelta(days=30, seconds=1), False),
    (timedelta(days=-365), True)])
def test_a_message_older_than_the_retention_makes_no_claim(age: timedelta, may: bool) -> None:
    bench = Bench()
    timestamp = int((bench.clock.now() - age).timestamp())
    read = bench.reader.read(sent(b'{"key":"k"}', KEY, type="orders.charge", timestamp=timestamp))
    assert isinstance(read, Request)
    assert read.claim.may_create is may


@pytest.mark.parametrize("lane", Lane)
def test_only_the_live_lane_makes_claims(lane: Lane) -> None:
    read = Bench().reader.read(sent(b'{"key":"k"}', KEY, type="orders.charge", lane=lane))
    assert isinstance(read, Request)
    assert read.claim.may_create is (lane is Lane.LIVE)


# --- sizes ----------------------------------------------------------------------------------


def headers_filling(total: int, **properties: Any) -> Delivery:
    """A message whose properties take so many bytes."""
    empty = sent(b'{"key":"k"}', {**KEY, "x": b""}, **properties)
    room = total - len(empty.message.raw_properties)
    return sent(b'{"key":"k"}', {**KEY, "x": b"y" * room}, **properties)


def test_properties_that_leave_room_for_ours_are_handled() -> None:
    bench = Bench()
    delivery = headers_filling(copies.MAX_HEADER_FRAME_BYTES, type="orders.charge")
    assert key_of(bench, delivery) == "k"
    copy = parked(bench, headers_filling(copies.MAX_HEADER_FRAME_BYTES, **UNKNOWN),
                  ParkReason.UNKNOWN_TYPE)
    assert len(copy.properties) <= copies.MAX_PROPERTIES_BYTES


@pytest.mark.parametrize("total", [copies.MAX_HEADER_FRAME_BYTES + 1, copies.MAX_PROPERTIES_BYTES])
def test_properties_that_leave_no_room_for_ours_die_at_once_in_one_frame(total: int) -> None:
    """Their copies could never be sent, and their delivery would stay for ever."""
    outcome = died(Bench(), headers_filling(total, **UNKNOWN), DeadReason.MALFORMED)
    assert len(outcome.letter.properties) <= copies.MAX_PROPERTIES_BYTES
    assert Properties.from_wire(outcome.letter.properties).headers.get(names.DEAD_ID)
