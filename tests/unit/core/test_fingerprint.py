"""Which payloads are the same (B05), and canonical JSON by the vectors of RFC 8785."""

import json
import struct
from typing import Any

import pytest

from consumer.claim import Fingerprint
from consumer.core.decode import Malformed, parse
from consumer.core.fingerprint import algorithm, canonical, fingerprint, matches

FIRST = '{"a":1,"b":["x","y"],"c":"é"}'

SAME = [
    '{ "b" : ["x","y"],\n "a":1, "c":"é" }',
    '{"a":1,"b":["x","y"],"c":"\\u00e9"}',
    '{"a":1.0,"b":["x","y"],"c":"é"}',
    '{"a":1e0,"b":["x","y"],"c":"é"}',
    '{"a":0.1e1,"b":["x","y"],"c":"é"}',
    '{"a":10E-1,"b":["\\u0078","y"],"c":"é"}',
    '\ufeff' + FIRST,
]
DIFFERENT = [
    '{"a":1,"b":["y","x"],"c":"é"}',
    '{"a":true,"b":["x","y"],"c":"é"}',
    '{"a":"1","b":["x","y"],"c":"é"}',
    '{"a":1,"b":["x","y"],"c":"e\u0301"}',
    '{"a":1,"b":["x","y"],"c":"é","d":null}',
    '{"a":1,"b":["x","y"]}',
    '{"A":1,"b":["x","y"],"c":"é"}',
    '{"a":1,"b":["x","y"],"c":"É"}',
    '{"a":1,"b":["x","y"],"c":"é "}',
    '{"a":1.0000000000000002,"b":["x","y"],"c":"é"}',
    '{"a":1,"b":["x",["y"]],"c":"é"}',
]


def of(text: str) -> Fingerprint:
    payload = parse(text.encode())
    assert not isinstance(payload, Malformed), payload
    return fingerprint(payload)


@pytest.mark.parametrize("text", SAME)
def test_the_same(text: str) -> None:
    assert of(text) == of(FIRST)


@pytest.mark.parametrize("text", DIFFERENT)
def test_not_the_same(text: str) -> None:
    assert of(text) != of(FIRST)


@pytest.mark.parametrize("zero", ["-0", "-0.0", "0.0", "0e5", "-0E-9", "1e-400"])
def test_zero_is_zero(zero: str) -> None:
    assert of(f'{{"a":{zero}}}') == of('{"a":0}')


@pytest.mark.parametrize(("bits", "text"), [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
])
def test_numbers_of_rfc_8785_appendix_b(bits: str, text: str) -> None:
    [number] = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == text.encode()
    assert canonical({"n": [number]}) == f'{{"n":[{text}]}}'.encode()


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_what_is_no_number_is_refused(bits: str) -> None:
    [number] = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(ValueError):
        canonical([number])


# The samples of RFC 8785, sections 3.2.2 and 3.2.3; and what libraries commonly get wrong.
STRUCTURES = [
    (r'{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],'
     r' "string": "\u20ac$\u000F\u000aA' "'" r'\u0042\u0022\u005c\\\"\/",'
     r' "literals": [null, true, false]}',
     '{"literals":[null,true,false],'
     '"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
     '"string":"€$\\u000f\\nA' "'" 'B\\"\\\\\\\\\\"/"}'),
    (r'{"\u20ac": "Euro Sign", "\r": "Carriage Return",'
     r' "\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One",'
     r' "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control",'
     r' "\u00f6": "Latin Small Letter O With Diaeresis"}',
     '{"\\r":"Carriage Return","1":"One","\x80":"Control",'
     '"ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign",'
     '"\U0001f600":"Emoji: Grinning Face","\ufb33":"Hebrew Letter Dalet With Dagesh"}'),
    ('{"b": {"z": [], "": {}}, "a": [[], [{}]]}', '{"a":[[],[{}]],"b":{"":{},"z":[]}}'),
    ('[56, {"d": true, "10": null, "1": []}]', '[56,{"1":[],"10":null,"d":true}]'),
    ('{"peach": "x", "péché": "y", "pêche": "z", "sin": 1}',
     '{"peach":"x","péché":"y","pêche":"z","sin":1}'),
    ('"A\u030a"', '"A\u030a"'),
    ('["\\u007f", "\\u2028", "\\/", "\\b\\f\\t\\u0000"]',
     '["\x7f","\u2028","/","\\b\\f\\t\\u0000"]'),
    ('[1e-07, 1e-06, 1e16, 56.0, 123456789012345680000.0, 1e21]',
     '[1e-7,0.000001,10000000000000000,56,123456789012345680000,1e+21]'),
]


@pytest.mark.parametrize(("text", "wanted"), STRUCTURES)
def test_structures_of_rfc_8785(text: str, wanted: str) -> None:
    assert canonical(json.loads(text)) == wanted.encode()


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, -(2**53) - 1, 2**63, 10**40, -(10**400)])
def test_huge_integers_stay_exact(number: int) -> None:
    assert canonical(number) == str(number).encode()
    assert of(f'{{"n":{number}}}') != of(f'{{"n":{number + 1}}}')


def test_names_beyond_the_basic_plane_sort_by_utf_16_in_every_depth() -> None:
    value: Any = {"\ufb33": 1, "\U0001f600": 2}
    assert canonical([{"x": value}]) == '[{"x":{"\U0001f600":2,"\ufb33":1}}]'.encode()


@pytest.mark.parametrize("value", [
    "\ud800", ["\udfff"], {"\ud800": 1}, {"a": {"\U0001f600": "\ud800"}}])
def test_half_a_surrogate_pair_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        canonical(value)


def test_members_that_are_left_out_do_not_count() -> None:
    using = algorithm({"sent_at", "trace"})
    payload = {"a": 1, "sent_at": "now", "nested": {"trace": 1}}
    assert fingerprint(payload, using) == fingerprint({"a": 1, "nested": {"trace": 1}}, using)
    assert fingerprint(payload, using).digest != fingerprint(
        {"a": 1, "nested": {"trace": 2}}, using).digest


@pytest.mark.parametrize("names", [[], ["a"], ["b", "a"], ['"', ";", "é", "\ud800", ""]])
def test_an_algorithm_is_named_by_what_it_leaves_out(names: list[str]) -> None:
    using = algorithm(names)
    assert algorithm(reversed(names)) == using
    payload = {name: 1 for name in names if name.isprintable()} | {"kept": 1}
    assert fingerprint(payload, using).digest == fingerprint({"kept": 1}).digest


def test_a_stored_fingerprint_is_compared_by_its_own_algorithm() -> None:
    """The algorithm in force has changed since; duplicates stay duplicates, conflicts conflicts."""
    before, now = algorithm(), algorithm({"trace"})
    first, again, other = ({"a": 1, "trace": t, "b": b} for t, b in ((1, 1), (1, 1), (1, 2)))
    stored = fingerprint(first, before)
    assert matches(stored, again, fingerprint(again, now))
    assert not matches(stored, other, fingerprint(other, now))
    stored = fingerprint(first, now)
    retraced = {**first, "trace": 2}
    assert matches(stored, retraced, fingerprint(retraced, before))


def test_an_algorithm_of_the_future_is_no_match_and_no_conflict() -> None:
    fresh = fingerprint({"a": 1})
    with pytest.raises(ValueError, match="unknown fingerprint algorithm"):
        matches(Fingerprint("jcs-sha512-9;[]", b"x"), {"a": 1}, fresh)
