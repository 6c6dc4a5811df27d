"""Whatever is encoded is decoded again; whatever arrives is read or refused, never more."""

import struct
from datetime import UTC, datetime
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from consumer.wire import (
    Headers,
    HeaderValue,
    Properties,
    WireError,
    decode_value,
    encode_value,
)

names = st.text(st.characters(codec="utf-8"), max_size=60)
seconds = st.datetimes(
    datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)  # noqa: DTZ001
).map(lambda moment: moment.replace(microsecond=0))
decimals = st.builds(
    lambda unscaled, places: Decimal(unscaled).scaleb(-places),
    st.integers(-(2**31) + 1, 2**31 - 1), st.integers(0, 255),
)
scalars: st.SearchStrategy[HeaderValue] = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")) | st.binary() | seconds | decimals
)
values: st.SearchStrategy[HeaderValue] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
texts = st.none() | st.binary(max_size=255).map(lambda b: b.decode("utf-8", "surrogateescape"))
octets = st.none() | st.integers(0, 255)
properties = st.builds(
    Properties, texts, texts, st.dictionaries(names, values, max_size=4).map(Headers.of), octets,
    octets, texts, texts, texts, texts, st.none() | st.integers(0, 2**64 - 1), texts, texts,
    texts, texts,
)

# Bytes that look like a table more often than chance would have it.
letters = st.sampled_from([bytes((c,)) for c in b"tbBsUuIilLfdTDVSxAF?\0"])
almost_values = st.recursive(
    st.builds(lambda tag, rest: tag + rest, letters, st.binary(max_size=12)),
    lambda inner: st.builds(
        lambda tag, content: tag + struct.pack(">I", len(content)) + content,
        st.sampled_from([b"S", b"x", b"A", b"F"]), st.lists(inner, max_size=3).map(b"".join),
    ),
    max_leaves=6,
)


@given(values)
def test_a_value_comes_back_with_its_type(value: HeaderValue) -> None:
    decoded = decode_value(encode_value(value))
    assert decoded == value
    assert type(decoded) is type(value)


@given(properties)
def test_properties_come_back_byte_for_byte(given_properties: Properties) -> None:
    encoded = given_properties.to_wire()
    decoded = Properties.from_wire(encoded)
    assert decoded == given_properties
    assert decoded.to_wire() == encoded


@given(st.binary() | st.builds(
    lambda flags, table: struct.pack(">HI", flags | 1 << 13, len(table)) + table,
    st.integers(0, 0xFFFF), st.lists(almost_values, max_size=3).map(
        lambda found: b"".join(b"\x01a" + value for value in found)),
))
def test_garbage_is_refused_by_one_error_only(data: bytes) -> None:
    try:
        decoded = Properties.from_wire(data)
    except WireError:
        return
    decoded.defect()
    for name in ("a", "idempotency-key"):
        try:
            decoded.headers.get(name)
        except WireError:
            assert decoded.defect() is not None
    decoded.headers.keep(lambda name: name != "a")


@given(almost_values)
def test_a_field_that_is_carried_is_never_looked_into(tagged: bytes) -> None:
    headers = Headers(b"\x01a" + tagged)
    try:
        kept = headers.keep(lambda _: True)
    except WireError:
        return
    assert kept == headers
