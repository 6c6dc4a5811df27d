"""AMQP properties and field tables, byte for byte."""

import struct
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from consumer.wire import (
    MAX_HEADER_DEPTH,
    Headers,
    HeaderValue,
    Properties,
    WireError,
    decode_value,
    encode_value,
)


def long(tag: bytes, content: bytes) -> bytes:
    return tag + struct.pack(">I", len(content)) + content


EVERY_TYPE: list[tuple[bytes, HeaderValue]] = [
    (b"t\x01", True), (b"t\x00", False), (b"b\xff", -1), (b"B\xff", 255),
    (b"s\xff\xfe", -2), (b"U\xff\xfe", -2), (b"u\xff\xfe", 65534),
    (b"I\xff\xff\xff\xff", -1), (b"i\xff\xff\xff\xff", 2**32 - 1),
    (b"l" + b"\xff" * 8, -1), (b"L" + b"\xff" * 8, -1),
    (b"f\x3f\x80\x00\x00", 1.0), (b"d" + struct.pack(">d", 1700000000.123), 1700000000.123),
    (b"T" + struct.pack(">Q", 0), datetime(1970, 1, 1, tzinfo=UTC)),
    (b"T" + struct.pack(">Q", 1_700_000_000_000), datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
    (b"D\x02" + struct.pack(">i", -1234), Decimal("-12.34")), (b"V", None),
    (long(b"S", "é".encode()), "é"), (long(b"x", b"\xff\x00"), b"\xff\x00"),
    (long(b"A", b"t\x01V" + long(b"S", b"a")), [True, None, "a"]),
    (long(b"F", b"\x01k" + long(b"F", b"\x01jb\x05")), {"k": {"j": 5}}),
]


@pytest.mark.parametrize(("tagged", "value"), EVERY_TYPE)
def test_every_type_is_decoded_alone_and_in_a_table(tagged: bytes, value: HeaderValue) -> None:
    assert decode_value(tagged) == value
    headers = Headers(b"\x01a" + tagged + b"\x01zV")
    assert headers.get("a") == value
    assert headers.decoded() == {"a": value, "z": None}


@pytest.mark.parametrize(("tagged", "value"), EVERY_TYPE)
def test_every_type_is_carried_on_as_it_came(tagged: bytes, value: HeaderValue) -> None:
    table = b"\x01a" + tagged
    kept = Headers(table + b"\x04gone" + tagged).keep(lambda name: name != "gone")
    assert kept.table == table
    copy = Properties.from_wire(Properties(headers=kept.plus({"ours": 1})).to_wire())
    assert copy.headers.table == table + b"\x04oursI\x00\x00\x00\x01"


@pytest.mark.parametrize("tagged", [tagged for tagged, _ in EVERY_TYPE if tagged != b"V"])
def test_a_value_that_is_cut_off_is_an_error_and_nothing_else(tagged: bytes) -> None:
    for cut in range(1, len(tagged)):
        with pytest.raises(WireError):
            Properties.from_wire(b"\x20\x00" + struct.pack(">I", 2 + cut) + b"\x01a" + tagged[:cut])


def test_the_last_of_two_headers_of_one_name_counts() -> None:
    headers = Headers.of({"a": 1}).plus({"a": 2})
    assert headers.get("a") == 2
    assert headers.decoded() == {"a": 2}


def nested(depth: int) -> Headers:
    table = b""
    for _ in range(depth):
        table = b"\x01a" + long(b"F", table)
    return Headers(table)


def test_headers_may_be_nested_up_to_a_limit_and_pass_through_beyond_it() -> None:
    assert nested(MAX_HEADER_DEPTH).decoded()
    deep = Properties(headers=nested(3000))
    assert Properties.from_wire(deep.to_wire()) == deep
    assert deep.defect() == f"headers are nested deeper than {MAX_HEADER_DEPTH} levels"


@pytest.mark.parametrize(("properties", "defect"), [
    (Properties(), None),
    (Properties(timestamp=1_700_000_000), None),
    (Properties(timestamp=1_700_000_000_000), None),
    (Properties(timestamp=1_700_000_000_000_000), "a timestamp is out of range"),
    (Properties(timestamp=2**63), "a timestamp is out of range"),
    (Properties(timestamp=2**64 - 1), "a timestamp is out of range"),
    (Properties(headers=Headers(b"\x01aT" + b"\xff" * 8)), "a timestamp is out of range"),
    (Properties(message_id="\udcff\udcfe"), "message_id is not UTF-8"),
    (Properties(content_type="\udcff"), "content_type is not UTF-8"),
    (Properties(headers=Headers(b"\x02\xff\xfeV")), "header text is not UTF-8"),
    (Properties(headers=Headers(b"\x01a" + long(b"S", b"\xff"))), "header text is not UTF-8"),
    (Properties(headers=Headers(b"\x01a" + long(b"A", b"?"))), "unknown field type b'?'"),
])
def test_a_defect_is_named(properties: Properties, defect: str | None) -> None:
    assert properties.defect() == defect
    assert Properties.from_wire(properties.to_wire()) == properties


@pytest.mark.parametrize("properties", [
    Properties(message_id="m" * 256), Properties(message_id="é" * 130), Properties(priority=300),
    Properties(timestamp=2**64), Properties(delivery_mode=-1),
])
def test_what_does_not_fit_is_refused_when_it_is_encoded(properties: Properties) -> None:
    with pytest.raises(WireError):
        properties.to_wire()


@pytest.mark.parametrize("value", [
    2**63, -(2**63) - 1, Decimal(2**31), Decimal("1e-256"), Decimal("NaN"), Decimal("Infinity"),
])
def test_numbers_that_do_not_fit_are_refused(value: HeaderValue) -> None:
    with pytest.raises(WireError):
        encode_value(value)


def test_a_header_name_longer_than_255_bytes_is_refused() -> None:
    with pytest.raises(WireError):
        Headers.of({"é" * 128: 1})


def test_an_empty_header_table_is_left_out() -> None:
    assert Properties(message_id="m").to_wire() == b"\x00\x80\x01m"
