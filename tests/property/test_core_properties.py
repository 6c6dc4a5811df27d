"""Properties of the pure core, for whatever Hypothesis thinks of."""

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import rfc8785
from hypothesis import assume, example, given
from hypothesis import strategies as st

from consumer.core.backoff import ceiling, full_jitter
from consumer.core.classify import Failure, FailureKind
from consumer.core.copies import (
    MAX_HEADER_FRAME_BYTES,
    MAX_PROPERTIES_BYTES,
    Death,
    cut,
    dead_letter,
    next_copy,
    parked_copy,
)
from consumer.core.decide import GiveUp, RetryIn, RetryPolicy, decide
from consumer.core.decode import Malformed, parse
from consumer.core.fingerprint import canonical
from consumer.core.redact import redact
from consumer.core.topology import LONGEST_ROUNDED_DELAY
from consumer.message import Delivery, Lane, Message, is_carried
from consumer.outcome import DeadReason
from consumer.wire import Headers, Properties

SAFE = 2**53 - 1
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = (st.none() | st.booleans() | st.integers(-SAFE, SAFE) | text
           | st.floats(allow_nan=False, allow_infinity=False))
payloads = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=20)


@given(payloads)
@example({"\ufb33": 1, "\U0001f600": 2})
@example([5e-324, -0.0, 1e21, 1e-7, 123456789012345680000.0])
def test_canonical_is_what_rfc8785_writes(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@given(payloads)
def test_canonical_does_not_depend_on_how_json_is_written(value: Any) -> None:
    for options in ({"indent": 1}, {"ensure_ascii": False}, {"separators": (" ,", ": ")}):
        as_text = json.dumps(value, **options)
        assert canonical(json.loads(as_text)) == canonical(value)


@given(payloads, payloads)
def test_canonical_is_equal_for_equal_values_only(first: Any, second: Any) -> None:
    def typed(value: Any) -> Any:
        """The value with numbers by their mathematical value, and apart from booleans."""
        if isinstance(value, bool):
            return ("bool", value)
        if isinstance(value, dict):
            return {name: typed(member) for name, member in value.items()}
        return [typed(element) for element in value] if isinstance(value, list) else value

    assert (canonical(first) == canonical(second)) == (typed(first) == typed(second))


@given(st.integers(-(10**60), 10**60))
def test_canonical_integers_are_exact(number: int) -> None:
    assert canonical({"n": number}) == b'{"n":%d}' % number


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    return not isinstance(value, list) or all(map(_finite, value))


written = payloads.map(lambda value: json.dumps({"v": value}).encode())
damaged = st.tuples(written, st.integers(0, 60), st.binary(max_size=2)).map(
    lambda parts: parts[0][:parts[1]] + parts[2] + parts[0][parts[1] + 1:])
json_like = (
    st.binary(max_size=60) | written | damaged
    | st.text(max_size=60).map(lambda t: t.encode("utf-8", "replace"))
    | st.text('{}[]",:0123456789.eE+-\\u dDaAntrfls', max_size=40).map(str.encode))


@given(json_like)
@example(b"\xef\xbb\xbf{}")
@example(b'{"a":"\\ud83d\\ude00"}')
def test_parse_never_raises_and_reads_what_json_reads(body: bytes) -> None:
    found = parse(body)
    if isinstance(found, Malformed):
        assert found.detail
        return
    assert json.dumps(found) == json.dumps(json.loads(body))
    assert _finite(found)
    assert parse(json.dumps(found).encode()) == found
    assert canonical(found).decode()


@given(st.dictionaries(text, payloads, max_size=5))
def test_parse_reads_every_object(value: dict[str, Any]) -> None:
    assert parse(json.dumps(value).encode()) == value
    assert parse(json.dumps(value, ensure_ascii=False, indent=2).encode()) == value


waits = st.timedeltas(timedelta(0), timedelta(days=10))


@given(st.integers(), waits, waits)
def test_ceilings_are_bounded_and_monotone(attempt: int, base: timedelta, cap: timedelta) -> None:
    assume(base <= cap)
    here, after = ceiling(attempt, base, cap), ceiling(attempt + 1, base, cap)
    assert timedelta(0) <= here <= after <= cap
    assert after <= 2 * here or attempt < 1
    assert here >= min(base, cap)


@given(st.integers(), waits, waits, st.floats(0, 1, exclude_max=True),
       st.timedeltas(timedelta(days=-10), timedelta(days=10)))
def test_jitter_stays_between_the_minimum_and_the_ceiling_above_it(
    attempt: int, base: timedelta, cap: timedelta, jitter: float, at_least: timedelta
) -> None:
    least = max(timedelta(0), at_least)
    wait = full_jitter(attempt, base, cap, jitter, at_least)
    assert least <= wait <= least + ceiling(attempt, base, cap)


@given(st.sampled_from(FailureKind), st.timedeltas(), st.integers(), st.integers(1, 10**9), waits,
       waits, st.floats(0, 1, exclude_max=True), st.sampled_from(DeadReason))
def test_decide_is_total_and_deterministic(
    kind: FailureKind, retry_after: timedelta, attempts: int, most: int, base: timedelta,
    cap: timedelta, jitter: float, reason: DeadReason,
) -> None:
    failure = Failure(kind, "why", retry_after, dead_reason=reason)
    policy = RetryPolicy(most, base, cap)
    decision = decide(failure, attempts, policy, jitter)
    assert decision == decide(failure, attempts, policy, jitter)
    if kind is FailureKind.PERMANENT:
        assert decision == GiveUp(reason, "why")
    elif attempts >= most:
        assert isinstance(decision, GiveUp)
        assert decision.why is DeadReason.ATTEMPTS
    else:
        assert isinstance(decision, RetryIn)
        assert timedelta(0) <= decision.delay <= LONGEST_ROUNDED_DELAY + cap


@given(st.text(max_size=300), st.integers(0, 400))
@example("\ud800" * 50, 40)
def test_cut_is_valid_utf_8_within_its_limit(long: str, limit: int) -> None:
    found = cut(long, limit)
    assert len(found.encode()) <= limit
    assert found == long.encode("utf-8", "replace").decode() or not found or found.endswith("cut]")


@given(st.text("ab:/@.?=&'\" \npasswordtkn", max_size=200))
def test_redact_is_idempotent(anything: str) -> None:
    assert redact(redact(anything)) == redact(anything)


@given(st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"], exclude_characters="'\"<>"),
               min_size=1, max_size=40),
       st.sampled_from(["amqp", "amqps", "postgresql", "postgresql+asyncpg", "http"]))
def test_no_password_of_a_url_shows(password: str, scheme: str) -> None:
    shown = redact(f"cannot connect to {scheme}://app:{password}@broker.example:5672/vhost now")
    assert shown == f"cannot connect to {scheme}://***@broker.example:5672/vhost now"


# --- copies ---------------------------------------------------------------------------------------


def _field(name: bytes, tagged: bytes) -> bytes:
    return bytes((len(name),)) + name + tagged


fixed = st.one_of(*[
    st.tuples(st.just(tag), st.binary(min_size=size, max_size=size)).map(b"".join)
    for tag, size in [(b"b", 1), (b"B", 1), (b"s", 2), (b"u", 2), (b"I", 4), (b"i", 4), (b"l", 8),
                      (b"f", 4), (b"d", 8), (b"D", 5), (b"V", 0), (b"t", 1)]])
tagged = fixed | st.tuples(
    st.sampled_from([b"x", b"S"]), st.binary(max_size=30) | st.text(max_size=10).map(
        lambda t: t.encode("utf-8", "replace"))).map(
            lambda pair: pair[0] + len(pair[1]).to_bytes(4) + pair[1])
ours = st.sampled_from([
    b"idempotency-key", b"consumer-ticket", b"consumer-parks", b"consumer-parked-since-ms",
    b"consumer-routing-key", b"consumer-replay-item", b"consumer-dead-id", b"consumer-x",
    b"x-death", b"x-first-death-queue", b"x-last-death-reason", b"x-delivery-count", b"CC", b"BCC"])
fields = st.tuples(ours | st.binary(max_size=12), tagged).map(lambda pair: _field(*pair))
tables = st.lists(fields, max_size=8)
short = st.none() | st.text(max_size=12).map(
    lambda t: t.encode("utf-8", "replace").decode()) | st.just("\udcff")
properties = st.builds(
    Properties, content_type=short, content_encoding=short, delivery_mode=st.none() | st.just(1),
    priority=st.none() | st.integers(0, 255), correlation_id=short, reply_to=short,
    expiration=short, message_id=short, timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=short, user_id=short, app_id=short, cluster_id=short)


def _delivery(made: Properties, table: list[bytes], body: bytes = b"{}") -> Delivery:
    made = made.with_headers(Headers(b"".join(table)))
    return Delivery(Message(body, made, made.to_wire(), made.defect()), "orders", Lane.LIVE, "r")


def _carried(table: list[bytes]) -> bytes:
    return b"".join(entry for entry in table if is_carried(
        entry[1:1 + entry[0]].decode("utf-8", "surrogateescape")))


NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEATH = Death(DeadReason.MALFORMED, "why", NOW)


@given(properties, tables, st.binary(max_size=20))
def test_copies_carry_headers_byte_for_byte_and_none_of_the_brokers(
    made: Properties, table: list[bytes], body: bytes
) -> None:
    delivery = _delivery(made, table, body)
    copies = [dead_letter("shop", delivery, None, DEATH), dead_letter("shop", delivery, "k", DEATH)]
    if delivery.message.defect is None:
        copies += [next_copy("shop", delivery, "k", "t", UUID(int=1), None, NOW),
                   parked_copy("shop", delivery, "k", timedelta(seconds=1), NOW, NOW),
                   parked_copy("shop", delivery, None, timedelta(seconds=1), NOW, NOW)]
    for copy in copies:
        sent = Properties.from_wire(copy.properties)
        assert copy.body == body
        assert sent.message_id == copy.message_id != ""
        names = set(sent.headers.decoded())
        assert not names & {"x-death", "x-delivery-count", "CC", "BCC"}
        assert not [name for name in names if name.startswith(("x-first-death", "x-last-death"))]
        if delivery.message.defect is None:
            theirs = sent.headers.keep(is_carried)
            assert theirs.table == _carried(table)
        assert sent.defect() is None


@given(st.integers(0, MAX_PROPERTIES_BYTES - 20), st.text(max_size=50), st.integers(0, 10_000),
       short)
def test_every_letter_and_copy_fits_one_frame(
    size: int, error: str, times: int, message_id: str | None
) -> None:
    made = Properties(message_id=message_id)
    room = max(0, size - len(made.to_wire()) - 8)
    delivery = _delivery(made, [_field(b"x", b"x" + room.to_bytes(4) + b"y" * room)])
    death = Death(DeadReason.PERMANENT, error * times, NOW, 3, error * times, "handler")
    copies = [dead_letter("shop", delivery, "k" * 255, death)]
    if len(delivery.message.raw_properties) <= MAX_HEADER_FRAME_BYTES \
            and delivery.message.defect is None:
        copies += [next_copy("shop", delivery, "k" * 255, "t" * 255, UUID(int=1), 2**63 - 1, NOW),
                   parked_copy("shop", delivery, "k" * 255, timedelta(seconds=1), NOW, NOW)]
    for copy in copies:
        assert len(copy.properties) <= MAX_PROPERTIES_BYTES
