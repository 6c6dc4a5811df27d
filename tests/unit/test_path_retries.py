"""What the broker does again by itself, read from what the management API tells."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from consumer.broker.management import Holdings
from consumer.broker.path_retries import consumer_timeouts, retries
from consumer.broker.routes import Routes, topic_matches
from consumer.core.findings import Code, Finding, Severity
from consumer.core.topology import UNLIMITED_DELIVERIES, plan

PLAN = plan("shop", {"orders": ["order.place"]})
VIOLATION, WARNING, NOTE = Severity.VIOLATION, Severity.WARNING, Severity.NOTE
BINDINGS = {(b.exchange, b.routing_key, b.destination, b.destination_kind) for b in PLAN.bindings}


def described(arguments: Mapping[str, Any], policy: Mapping[str, Any] | None = None,
              **more: Any) -> dict[str, Any]:
    return {"type": "quorum", "arguments": dict(arguments),
            "policy": "ops" if policy is not None else None,
            "effective_policy_definition": policy or [], **more}


def held(queues: Mapping[str, dict[str, Any]] | None = None, *,
         exchanges: Mapping[str, str] | None = None,
         bindings: set[tuple[str, str, str, str]] = frozenset(),  # type: ignore[assignment]
         ) -> Holdings:
    """The planned topology, with what is given put over it."""
    kinds = {"": "direct", **{e.name: e.kind for e in PLAN.exchanges}, **(exchanges or {})}
    arguments = {e.name: e.arguments for e in PLAN.exchanges}
    found = {q.name: described(q.arguments) for q in PLAN.queues} | dict(queues or {})
    return Holdings(
        {name: {"type": kind, "arguments": arguments.get(name, {})}
         for name, kind in kinds.items()},
        found,
        frozenset({*BINDINGS, *bindings, *(("", name, name, "queue") for name in found)}))


def planned(name: str) -> dict[str, Any]:
    [arguments] = [q.arguments for q in PLAN.queues if q.name == name]
    return dict(arguments)


def look(broker: Holdings) -> list[Finding]:
    return [*retries(PLAN, ["orders"], broker)]


def kinds(findings: list[Finding]) -> Iterator[tuple[Code, Severity, str | None]]:
    return ((f.code, f.severity, f.queue) for f in findings)


def test_nothing_is_found_on_the_planned_topology() -> None:
    assert look(held()) == []
    assert look(Holdings({}, {}, frozenset())) == []


@pytest.mark.parametrize("name", ["orders", "orders.replay", "orders.dead", "shop.unroutable"])
@pytest.mark.parametrize(("argument", "policy"), [
    (UNLIMITED_DELIVERIES, {"delivery-limit": 20}), (20, None), (-1, None), (None, None),
    (UNLIMITED_DELIVERIES - 1, {"delivery-limit": UNLIMITED_DELIVERIES}),
])
def test_a_delivery_limit_is_found_on_every_queue_that_is_consumed(
    name: str, argument: int | None, policy: dict[str, Any] | None
) -> None:
    arguments = planned(name) | {"x-delivery-limit": argument}
    if argument is None:
        del arguments["x-delivery-limit"]
    found = look(held({name: described(arguments, policy)}))
    assert [*kinds(found)] == [(Code.DELIVERY_LIMIT, VIOLATION, name)]


def test_a_limit_that_is_none_and_a_queue_that_knows_none_are_fine() -> None:
    unlimited = described(planned("orders"), {"delivery-limit": UNLIMITED_DELIVERIES})
    classic = described({}, type="classic")
    assert look(held({"orders": unlimited, "orders.dead": classic})) == []
    ladder = described(planned("shop.delay.03"), {"delivery-limit": 3})
    assert look(held({"shop.delay.03": ladder})) == []


def test_an_operator_policy_is_named_beside_a_policy() -> None:
    queue = described(planned("orders"), {"delivery-limit": 5}, operator_policy="platform")
    [finding] = look(held({"orders": queue}))
    assert "policy 'ops' or 'platform'" in finding.message
    assert "policy 'ops' or 'platform'" in (finding.remedy or "")


@pytest.mark.parametrize(("arguments", "policy", "expected"), [
    ({}, {"delayed-retry-type": "all", "delayed-retry-min": 100}, 1),
    ({"x-delayed-retry-type": "failed"}, None, 1),
    ({"x-delayed-retry-type": "disabled"}, {"delayed-retry-type": "disabled"}, 0),
])
def test_delayed_retries_of_the_broker_are_found(
    arguments: dict[str, Any], policy: dict[str, Any] | None, expected: int
) -> None:
    found = look(held({"orders": described(planned("orders") | arguments, policy)}))
    assert [*kinds(found)] == [(Code.DELAYED_RETRY, VIOLATION, "orders")] * expected


@pytest.mark.parametrize(("name", "policy", "severity"), [
    ("orders.dead", {"dead-letter-exchange": "x"}, VIOLATION),
    ("orders", {"dead-letter-exchange": "x"}, NOTE),
    ("orders", {"dead-letter-routing-key": "x"}, NOTE),
    ("shop.delay.07", {"dead-letter-routing-key": "x"}, VIOLATION),
    ("shop.delay.07", {"dead-letter-exchange": "x"}, NOTE),
    ("orders.dead", {"dead-letter-routing-key": "x"}, None),
])
def test_a_policy_that_sends_dead_letters_elsewhere_is_found_where_it_has_an_effect(
    name: str, policy: dict[str, Any], severity: Severity | None
) -> None:
    found = look(held({name: described(planned(name), policy)}, exchanges={"x": "fanout"}))
    assert [*kinds(found)] == (
        [(Code.DEAD_LETTER_POLICY, severity, name)] if severity is not None else [])


TO_ORDERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}


@pytest.mark.parametrize(("arguments", "policy", "lane", "severity"), [
    (TO_ORDERS | {"x-message-ttl": 5000}, None, "orders", VIOLATION),
    (TO_ORDERS, {"message-ttl": 5000}, "orders", VIOLATION),
    ({}, {"message-ttl": 5000, "dead-letter-exchange": "",
          "dead-letter-routing-key": "orders.replay"}, "orders.replay", VIOLATION),
    (TO_ORDERS, None, "orders", WARNING),
])
def test_a_queue_that_expires_into_a_work_queue_is_found(
    arguments: dict[str, Any], policy: dict[str, Any] | None, lane: str, severity: Severity
) -> None:
    found = look(held({"retry": described(arguments, policy, type="classic")}))
    assert [*kinds(found)] == [(Code.DEAD_LETTER_LOOP, severity, lane)]
    assert found[0].message.startswith("retry: ")


@pytest.mark.parametrize(("exchange", "kind", "into_retry", "out", "loops"), [
    ("back", "direct", "work.orders", "work.orders", True),
    ("back", "direct", "work.orders", "work.mails", False),
    ("back", "fanout", "", "whatever", True),
    ("back", "topic", "work.#", "work.orders.*", True),
    ("back", "headers", "", "", True),
])
def test_without_a_key_of_its_own_a_dead_letter_keeps_the_one_it_came_with(
    exchange: str, kind: str, into_retry: str, out: str, loops: bool
) -> None:
    broker = held(
        {"retry": described({"x-message-ttl": 1, "x-dead-letter-exchange": exchange})},
        exchanges={exchange: kind},
        bindings={(exchange, into_retry, "retry", "queue"), (exchange, out, "orders", "queue")})
    assert [f.queue for f in look(broker)] == ["orders"] * loops


def test_ways_through_exchanges_and_alternate_exchanges_are_followed() -> None:
    queue = {"x-message-ttl": 1, "x-dead-letter-exchange": "a", "x-dead-letter-routing-key": "k"}
    broker = held(
        {"retry": described(queue)}, exchanges={"a": "topic", "b": "direct"},
        bindings={("a", "*", "b", "exchange"), ("b", "a", "b", "exchange"),
                  ("b", "k", "a", "exchange"), ("b", "k", "orders.replay", "queue")})
    assert [f.queue for f in look(broker)] == ["orders.replay"]
    broker.exchanges["a"]["arguments"]["alternate-exchange"] = "c"  # type: ignore[index]
    alternate = Holdings({**broker.exchanges, "c": {"type": "fanout", "arguments": {}}},
                         broker.queues, broker.bindings | {("c", "", "orders", "queue")})
    assert [f.queue for f in look(alternate)] == ["orders.replay"], "it is routed already"
    unrouted = Holdings(alternate.exchanges, broker.queues,
                        alternate.bindings - {("a", "*", "b", "exchange")})
    assert [f.queue for f in look(unrouted)] == ["orders"]


def test_dead_letters_that_expire_back_into_their_queue_are_a_loop() -> None:
    policy = {"message-ttl": 60_000, "dead-letter-exchange": "",
              "dead-letter-routing-key": "orders"}
    found = look(held({"orders.dead": described(planned("orders.dead"), policy)}))
    assert {f.code for f in found} == {Code.DEAD_LETTER_LOOP, Code.DEAD_LETTER_POLICY}


def test_the_ladder_of_another_application_is_none_of_ours() -> None:
    other = plan("other", {"mails": ["mail"]})
    broker = held({q.name: described(q.arguments) for q in other.queues},
                  exchanges={e.name: e.kind for e in other.exchanges},
                  bindings={(b.exchange, b.routing_key, b.destination, b.destination_kind)
                            for b in other.bindings})
    assert look(broker) == []


@pytest.mark.parametrize(("live", "replay", "expected"), [
    (None, None, None), ({"consumer-timeout": 60_000}, None, (60, "policy 'ops' of orders")),
    ({"consumer-timeout": 60_000}, {"consumer-timeout": 5_000},
     (5, "policy 'ops' of orders.replay")),
    ({"consumer-timeout": "soon"}, None, None),
])
def test_consumer_timeouts_are_those_of_the_stricter_lane(
    live: dict[str, Any] | None, replay: dict[str, Any] | None,
    expected: tuple[float, str] | None,
) -> None:
    found = consumer_timeouts(["orders", "nowhere"], held(
        {"orders": described({}, live), "orders.replay": described({}, replay)}))
    assert {name: (timeout.after.total_seconds(), timeout.source)
            for name, timeout in found.items()} == ({"orders": expected} if expected else {})


def test_an_argument_sets_a_consumer_timeout_too() -> None:
    found = consumer_timeouts(["orders"], held({"orders": described({"x-consumer-timeout": 1000})}))
    assert found["orders"].source == "argument x-consumer-timeout of orders"


@pytest.mark.parametrize(("pattern", "key", "matches"), [
    ("a.b", "a.b", True), ("a.b", "a.c", False), ("a.*", "a.b", True), ("a.*", "a", False),
    ("a.*", "a.b.c", False), ("#", "", True), ("#", "a.b", True), ("a.#", "a", True),
    ("a.#.z", "a.z", True), ("a.#.z", "a.b.c.z", True), ("a.#.z", "a.b", False),
    ("#.b", "a.b", True), ("#.b", "b", True), ("*", "", True), ("#.*", "a", True),
    ("*.#.b.#", "a.x.b", True), ("*.#.b.#", "b", False), ("x.#", "a", False),
])
def test_topic_patterns_match_as_the_broker_matches_them(
    pattern: str, key: str, matches: bool
) -> None:
    assert topic_matches(pattern, key) is matches


def test_keys_that_cannot_be_told_are_any() -> None:
    routes = Routes(held({"q": described({})}, exchanges={"t": "topic"},
                         bindings={("t", "a.b", "q", "queue")}))
    assert routes.keys_into("q") == {"q", "a.b"}
    wild = Routes(held({"q": described({})}, exchanges={"t": "topic"},
                       bindings={("t", "a.*", "q", "queue")}))
    assert wild.keys_into("q") is None
