"""Frames that the client library cannot decode reach it in a form that it can."""

import asyncio
import struct

import pamqp.frame
import pytest
from aiormq.connection import FrameReceiver
from aiormq.exceptions import AMQPConnectionError
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.exceptions import PAMQPException
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from consumer.broker.frames import (
    ContentReader,
    EncodedProperties,
    raw_properties,
    raw_routing_key,
    return_id,
)
from consumer.wire import Headers, Properties

MICROSECONDS = Properties(timestamp=1_700_000_000_000_000, message_id="m")
BAD_ID = Properties(message_id="\udcff\udcfe\udcfa")
BAD_NAME = Properties(headers=Headers(b"\x02\xff\xfeV"), message_id="m")


def nested(depth: int) -> Properties:
    table = b""
    for _ in range(depth):
        table = b"\x01aF" + struct.pack(">I", len(table)) + table
    return Properties(headers=Headers(table), message_id="m")


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def header(properties: bytes, channel: int = 1, size: int = 4) -> bytes:
    return frame(2, channel, struct.pack(">HHQ", 60, 0, size) + properties)


def deliver(routing_key: bytes, exchange: bytes = b"x", channel: int = 1) -> bytes:
    payload = b"\x00\x3c\x00\x3c\x03tag" + struct.pack(">Q", 200) + b"\x01"
    for text in (exchange, routing_key):
        payload += bytes((len(text),)) + text
    return frame(1, channel, payload)


def returned(routing_key: bytes, channel: int = 1) -> bytes:
    payload = b"\x00\x3c\x00\x32" + struct.pack(">H", 312) + b"\x08NO_ROUTE" + b"\x01x"
    return frame(1, channel, payload + bytes((len(routing_key),)) + routing_key)


async def received(data: bytes, chunk: int = 1 << 20) -> list[object]:
    """The frames the library makes of `data`, which arrives in pieces of `chunk` bytes."""
    stream = asyncio.StreamReader()

    async def feed() -> None:
        for start in range(0, len(data), chunk):
            stream.feed_data(data[start:start + chunk])
            await asyncio.sleep(0)
        stream.feed_data(frame(8, 0, b""))

    feeding = asyncio.create_task(feed())
    frames = list[object]()
    async for _, _, item in FrameReceiver(ContentReader(stream)):  # type: ignore[arg-type]
        if isinstance(item, Heartbeat):
            break
        frames.append(item)
    await feeding
    return frames


@pytest.mark.parametrize("properties", [MICROSECONDS, BAD_ID, BAD_NAME, nested(3000)])
def test_the_library_alone_cannot_decode_them(properties: Properties) -> None:
    with pytest.raises((PAMQPException, RecursionError)):
        pamqp.frame.unmarshal(header(properties.to_wire()))


@pytest.mark.parametrize("chunk", [1, 7, 8, 100, 1 << 20])
@pytest.mark.parametrize("properties", [Properties(), MICROSECONDS, BAD_ID, BAD_NAME, nested(3000)])
async def test_properties_arrive_byte_for_byte(properties: Properties, chunk: int) -> None:
    encoded = properties.to_wire()
    data = deliver(b"key") + header(encoded) + frame(3, 1, b"body")
    method, content, body = await received(data, chunk)
    assert isinstance(method, commands.Basic.Deliver)
    assert (method.delivery_tag, method.routing_key) == (200, "key")
    assert isinstance(content, ContentHeader)
    assert content.body_size == 4
    assert raw_properties(content) == encoded
    assert raw_routing_key(content) is None
    assert isinstance(body, ContentBody)
    assert body.value == b"body"


@pytest.mark.parametrize("properties", [b"", b"\xff", b"\xff\xff", b"\x20\x00\xff\xff\xff\xff"])
async def test_properties_that_are_not_properties_arrive_too(properties: bytes) -> None:
    content, = await received(header(properties))
    assert isinstance(content, ContentHeader)
    assert raw_properties(content) == properties


@pytest.mark.parametrize("make", [deliver, returned])
async def test_a_routing_key_that_is_not_utf8_arrives_beside_a_readable_one(make) -> None:  # type: ignore[no-untyped-def]
    data = make(b"a\xff\xfe") + header(b"\0\0") + deliver(b"next") + header(b"\0\0")
    odd, content, fine, other = await received(data)
    assert isinstance(odd, commands.Basic.Deliver | commands.Basic.Return)
    assert odd.routing_key == "a??"
    assert isinstance(content, ContentHeader)
    assert raw_routing_key(content) == b"a\xff\xfe"
    assert isinstance(fine, commands.Basic.Deliver)
    assert fine.routing_key == "next"
    assert isinstance(other, ContentHeader)
    assert raw_routing_key(other) is None


async def test_an_exchange_that_is_not_utf8_is_made_readable() -> None:
    method, _ = await received(deliver(b"\xc3\xa9" * 100, b"\xff") + header(b"\0\0"))
    assert isinstance(method, commands.Basic.Deliver)
    assert (method.exchange, method.routing_key) == ("?", "é" * 100)


async def test_contents_of_two_channels_are_told_apart() -> None:
    data = (deliver(b"\xff", channel=1) + returned(b"k", channel=2)
            + header(BAD_ID.to_wire(), channel=2) + header(BAD_ID.to_wire(), channel=1))
    _, _, of_two, of_one = await received(data)
    assert isinstance(of_one, ContentHeader)
    assert isinstance(of_two, ContentHeader)
    assert raw_routing_key(of_one) == b"\xff"
    assert raw_routing_key(of_two) is None
    assert of_one.properties.message_id is None
    assert of_two.properties.message_id == return_id(BAD_ID.to_wire())


@pytest.mark.parametrize("properties", [
    Properties(message_id="m"), BAD_ID, MICROSECONDS, nested(100),
    Properties("a", "b", Headers.of({"x": 1}), 2, 3, "c", "r", "9", "mé" * 50, 5),
])
async def test_a_returned_message_is_recognised_by_what_it_was_sent_with(
    properties: Properties,
) -> None:
    encoded = properties.to_wire()
    _, content = await received(returned(b"key") + header(encoded))
    sent = EncodedProperties(encoded, return_id(encoded) or "")
    assert isinstance(content, ContentHeader)
    assert content.properties.message_id == sent.message_id != ""


def test_encoded_properties_go_out_as_they_are() -> None:
    encoded = nested(70).to_wire()
    sent = ContentHeader(properties=EncodedProperties(encoded, "m"), body_size=3)
    assert sent.marshal() == struct.pack(">HHQ", 60, 0, 3) + encoded


def test_properties_without_a_message_id_have_nothing_to_recognise_them_by() -> None:
    assert return_id(Properties(correlation_id="c").to_wire()) is None
    assert return_id(Properties(message_id="").to_wire()) is None


@pytest.mark.parametrize("size", range(13))
def test_properties_cut_off_before_their_message_id_are_an_error(size: int) -> None:
    encoded = Properties(content_type="text", message_id="long").to_wire()
    assert len(encoded) == 12
    if size < len(encoded):
        with pytest.raises(ValueError, match="cut off"):
            return_id(encoded[:size])
    else:
        assert return_id(encoded) == "long"


async def test_being_blocked_and_unblocked_is_told() -> None:
    told = list[bool]()
    stream = asyncio.StreamReader()
    stream.feed_data(frame(1, 0, b"\x00\x0a\x00\x3c\x0alow memory")
                     + frame(1, 0, b"\x00\x0a\x00\x3d") + frame(8, 0, b""))
    receiver = FrameReceiver(ContentReader(stream, told.append))  # type: ignore[arg-type]
    _, _, blocked = await receiver.get_frame()
    assert isinstance(blocked, commands.Connection.Blocked)
    assert told == [False]
    _, _, unblocked = await receiver.get_frame()
    assert isinstance(unblocked, commands.Connection.Unblocked)
    assert told == [False, True]
    _, _, heartbeat = await receiver.get_frame()
    assert isinstance(heartbeat, Heartbeat)


async def test_a_connection_that_ends_within_a_frame_is_an_error_of_the_connection() -> None:
    whole = header(Properties(message_id="m").to_wire())
    for cut in range(1, len(whole)):
        stream = asyncio.StreamReader()
        stream.feed_data(whole[:cut])
        stream.feed_eof()
        with pytest.raises(AMQPConnectionError, match="unexpectedly closed"):
            await FrameReceiver(ContentReader(stream)).get_frame()  # type: ignore[arg-type]


async def test_a_connection_that_ends_between_frames_ends_the_iteration() -> None:
    stream = asyncio.StreamReader()
    stream.feed_data(header(b"\0\0"))
    stream.feed_eof()
    assert len([item async for item in FrameReceiver(ContentReader(stream))]) == 1  # type: ignore[arg-type]
