"""Nothing a producer can send makes the reader raise."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from simulation.bench import Bench
from test_core_properties import _delivery, json_like, properties, tables

from consumer.message import Delivery, Lane
from consumer.outcome import DeadLetter, Delay
from consumer.wire import Properties
from consumer.worker.requests import Request

BENCH = Bench()


@given(properties, tables, json_like | st.just(b'{"key":"k"}'), st.sampled_from(Lane),
       st.none() | st.just("orders.charge"))
def test_read_never_raises_and_what_it_parks_can_be_read_again(
    made: Properties, table: list[bytes], body: bytes, lane: Lane, type_: Any
) -> None:
    made = Properties(content_type=None, message_id=made.message_id, type=type_ or made.type,
                      timestamp=made.timestamp)
    delivery = _delivery(made, table, body)
    delivery = Delivery(delivery.message, "orders", lane, "orders.charge")
    outcome = BENCH.reader.read(delivery)
    assert isinstance(outcome, Request | DeadLetter | Delay)
    if isinstance(outcome, Request):
        outcome.registration.command.model_validate(outcome.command.model_dump())
        assert outcome.key
    copy = outcome.copy if isinstance(outcome, Delay) else None
    if copy is not None:
        sent = Properties.from_wire(copy.properties)
        again = BENCH.reader.read(_delivery(sent, [sent.headers.table], copy.body))
        assert isinstance(again, Request | DeadLetter | Delay)
