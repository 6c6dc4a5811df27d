"""From bytes to a JSON object, or a reason (B01 B02 B03 B06 B07 B08 B09)."""

import base64
import codecs
import gzip
from pathlib import Path
from typing import Any

import pytest

from consumer.core.decode import MAX_BODY_BYTES, MAX_DEPTH, Malformed, decode, parse
from consumer.core.fingerprint import fingerprint
from consumer.message import Message
from consumer.wire import Properties


def reason(body: bytes, **properties: Any) -> str:
    found = decode(Message(body, Properties(**properties)))
    assert isinstance(found, Malformed), found
    return found.detail


def accepted(body: bytes, **properties: Any) -> dict[str, Any]:
    found = decode(Message(body, Properties(**properties)))
    assert not isinstance(found, Malformed), found
    return found


@pytest.mark.parametrize(("body", "name", "path"), [
    ('{"order_id":"A1","amount":1,"amount":100}', "amount", "$"),
    ('{"lines":[{"sku":"y"},{"sku":"x","qty":1,"qty":9}]}', "qty", "$.lines[1]"),
    ('{"a":1,"\\u0061":1}', "a", "$"),
    ('{"a":{"b":{"":0,"":0}}}', "", "$.a.b"),
    ('{"a":1,"a":1,"b":{"c":1,"c":1}}', "a", "$"),
    ('{"a":NaN,"b":1,"b":2}', None, None),
])
def test_a_name_that_occurs_twice_is_refused_with_its_place(
    body: str, name: str | None, path: str | None
) -> None:
    detail = reason(body.encode())
    if name is not None:
        assert f"duplicate name {name!r} in {path!r}" in detail


def test_equal_names_in_different_objects_are_no_duplicates() -> None:
    assert accepted(b'{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]}')
    assert accepted('{"é":1,"e\u0301":2,"E":3,"e":4}'.encode())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1E+999999"])
def test_what_is_no_finite_number_is_refused(number: str) -> None:
    assert number.lstrip("-")[:5] in reason(f'{{"amount":{number}}}'.encode())


@pytest.mark.parametrize("number", [
    "+1", "01", ".5", "1.", "0x10", "1_000", "\u0661", "Inf", "1e", "- 1", "nan"])
def test_what_is_no_json_number_is_refused(number: str) -> None:
    assert reason(f'{{"amount":{number}}}'.encode())


@pytest.mark.parametrize(("text", "value"), [
    ("9007199254740993", 9007199254740993), ("-0", 0), ("1e-400", 0.0), ("12.50", 12.5)])
def test_numbers_are_read_as_they_are(text: str, value: float) -> None:
    found = accepted(f'{{"n":{text}}}'.encode())["n"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("body", [
    b"[" * 100_000 + b"]" * 100_000, b'{"n":' + b"9" * 5000 + b"}", b"[", b'{"a":' * 50_000,
    b'{"n":-' + b"9" * 5000 + b"}",
    b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
    b"{" + b'"a":[' * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
    b'{"\\"[":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
], ids=lambda body: body[:12].decode())
def test_what_breaks_decoders_is_refused(body: bytes) -> None:
    assert reason(body)


def test_as_deep_as_allowed_is_read_and_hashed() -> None:
    body = b'{"a":' * MAX_DEPTH + b"1.5" + b"}" * MAX_DEPTH
    assert fingerprint(accepted(body))


def test_brackets_in_strings_do_not_nest() -> None:
    text = "[" * 1000 + '\\"{\\\\'
    assert accepted(f'{{"a":"{text}","b":["]"]}}'.encode())
    assert accepted(b'{"a":[' + b",".join([b"[]"] * 5000) + b"]}")


@pytest.mark.parametrize("body", [b"", b" ", b"null", b'"text"', b"17", b"[]", b"true", b"[{}]"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    assert reason(body)


@pytest.mark.parametrize("body", [
    b"{}}", b"{} {}", b"{},", b"{'a':1}", b'{"a":1,}', b'{a:1}', b'{"a":1 /* c */}', b"\x0c{}",
    b'{"a":"\n"}', b'{"a":"\\x41"}', b'{"a":"\\u12"}', b'{"a" 1}', b'{1:1}', b"{}\x00", b"\xa0{}",
    b'{"a":tru}', b'{"a":"\x01"}'])
def test_what_is_not_json_is_refused(body: bytes) -> None:
    assert reason(body)


def test_nul_in_text_is_text() -> None:
    assert accepted(b'{"note":"a\\u0000b","k\\u0000":1}') == {"note": "a\0b", "k\0": 1}


@pytest.mark.parametrize("body", [
    b'{"note":"\\ud800"}', b'{"note":"\\uDFFF x"}', b'{"a":[{"b":["\\ud83d"]}]}',
    b'{"\\ud800":1}', b'{"note":"\\ude00\\ud83d"}', b'{"note":"\xed\xa0\x80"}'])
def test_half_a_surrogate_pair_is_refused(body: bytes) -> None:
    assert reason(body)


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert accepted(b'{"note":"\\ud83d\\ude00 \\\\ud800"}') == {"note": "\U0001f600 \\ud800"}


@pytest.mark.parametrize("body", [
    bytes.fromhex("7B226E223A22636166E9227D"), '{"a":1}'.encode("utf-16-le"),
    '{"a":1}'.encode("utf-16"), '{"a":1}'.encode("utf-32"), b"\xff\xfe{}", b'{"a":"\xc0\xaf"}',
    '{"a":1}'.encode("utf-7") + b"\xff"])
def test_other_encodings_are_refused(body: bytes) -> None:
    assert reason(body)


def test_a_byte_order_mark_means_nothing() -> None:
    assert accepted(codecs.BOM_UTF8 + b'{"a":1}') == accepted(b'{"a":1}')
    assert reason(codecs.BOM_UTF8 * 2 + b"{}")


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate", "br", "zstd", "binary", "gzip, br",
                                      "iso-8859-1", "\udcff"])
def test_compressed_bodies_are_refused_unopened(encoding: str) -> None:
    bomb = gzip.compress(bytes(2**20))
    assert "content encoding" in reason(bomb, content_encoding=encoding)
    assert "content encoding" in reason(b"{}", content_encoding=encoding)


@pytest.mark.parametrize("encoding", [None, "", "utf-8", "UTF-8", " utf8 ", "identity"])
def test_plain_encodings_are_accepted(encoding: str | None) -> None:
    assert accepted(b"{}", content_encoding=encoding) == {}


@pytest.mark.parametrize("kind", [
    None, "", "application/json", 'Application/JSON; charset="utf-8"',
    "application/json;charset=UTF8",
    "application/vnd.shop.order+json", "application/json; version=2; charset=utf-8",
    " application/json ", "application/cloudevents+json"])
def test_json_by_any_name_is_accepted(kind: str | None) -> None:
    assert accepted(b"{}", content_type=kind) == {}


@pytest.mark.parametrize("kind", [
    "text/plain", "text/json", "application/xml", "application/octet-stream", "application/jsonp",
    "application/x-python-serialize", "application/x-yaml", "json",
    "application/json; charset=utf-16",
    "application/json;charset=iso-8859-1", "application/+json2", "application/json;charset=",
    "\udcff\udcfe"])
def test_what_calls_itself_something_else_is_refused(kind: str) -> None:
    assert "content type" in (detail := reason(b"{}", content_type=kind)) or "charset" in detail


PICKLE = base64.b64decode(
    "gASVLAAAAAAAAACMAmlvlIwEb3BlbpSTlIwSL3RtcC9mY19waWNrbGVfcmFulIwBd5SGlFKULg==")


@pytest.mark.parametrize("properties", [
    {"content_type": "application/x-python-serialize", "content_encoding": "binary"},
    {"content_type": "application/json"}, {}])
def test_a_pickled_body_is_refused_unopened(properties: dict[str, str]) -> None:
    assert reason(PICKLE, **properties)
    assert not Path("/tmp/fc_pickle_ran").exists()


def test_properties_that_cannot_be_trusted_refuse_the_message() -> None:
    assert decode(Message(b"{}", defect="message_id is not UTF-8")) == Malformed(
        "message_id is not UTF-8")


def test_a_body_of_the_greatest_size_is_read_and_one_byte_more_is_not() -> None:
    filler = b'{"a":"' + b"x" * (MAX_BODY_BYTES - 8) + b'"}'
    assert not isinstance(parse(filler), Malformed)
    assert isinstance(parse(filler + b" "), Malformed)


def test_reasons_are_bounded_and_printable() -> None:
    """They go into logs and headers; the input does not."""
    bodies = ['{"' + "n" * 10_000 + '":1,"' + "n" * 10_000 + '":1}', "9" * 5000,
              '{"a":' + "1" * 10_000 + "e999}", '{"a\nb":1,"a\nb":2}', '{"a\n":{"b":1,"b":2}}']
    for body in bodies:
        detail = reason(body.encode())
        assert len(detail) < 400
        assert detail.isprintable()
