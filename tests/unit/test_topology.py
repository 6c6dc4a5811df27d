"""The plan of what the broker holds, and the rules for names."""

from datetime import timedelta

import pytest

from consumer.core.names import MAX_PREFIX_BYTES, MAX_QUEUE_BYTES
from consumer.core.topology import (
    LEVELS,
    LONGEST_DELAY,
    LONGEST_ROUNDED_DELAY,
    Binding,
    Route,
    check_prefix,
    check_queue_name,
    plan,
    round_up_delay,
    route_delay,
)
from consumer.errors import RegistrationError

PLAN = plan("shop", {"payments": ["payment.capture", "payment.refund"], "mail.out": []})
QUEUES = {queue.name: queue for queue in PLAN.queues}
EXCHANGES = {exchange.name: exchange for exchange in PLAN.exchanges}
ZEROS = "0." * LEVELS


def test_every_queue_is_a_quorum_queue() -> None:
    assert {queue.arguments["x-queue-type"] for queue in PLAN.queues} == {"quorum"}


def test_queues_that_workers_consume_have_no_delivery_limit_on_any_version() -> None:
    consumed = {queue.name for queue in PLAN.queues if queue.consumed}
    assert consumed == {
        "payments", "payments.replay", "payments.dead",
        "mail.out", "mail.out.replay", "mail.out.dead", "shop.unroutable",
    }
    assert {QUEUES[name].arguments["x-delivery-limit"] for name in consumed} == {2147483647}


@pytest.mark.parametrize("name", ["payments", "payments.replay"])
def test_both_lanes_dead_letter_at_least_once_to_the_dead_queue(name: str) -> None:
    arguments = QUEUES[name].arguments
    assert arguments["x-dead-letter-strategy"] == "at-least-once"
    assert arguments["x-overflow"] == "reject-publish"
    assert arguments["x-dead-letter-exchange"] == "shop.delay.deliver"
    assert arguments["x-dead-letter-routing-key"] == ZEROS + "payments.dead"


def test_the_dead_queue_dead_letters_nowhere() -> None:
    assert set(QUEUES["payments.dead"].arguments) == {"x-queue-type", "x-delivery-limit"}


def test_commands_are_bound_by_type_and_fall_back_to_unroutable() -> None:
    assert EXCHANGES["shop.commands"].arguments == {"alternate-exchange": "shop.unroutable"}
    assert EXCHANGES["shop.delay.deliver"].arguments == {"alternate-exchange": "shop.unroutable"}
    assert Binding("shop.commands", "payment.refund", "payments", "queue") in PLAN.bindings
    assert Binding("shop.unroutable", "", "shop.unroutable", "queue") in PLAN.bindings
    assert EXCHANGES["shop.unroutable"].kind == "fanout"


def test_levels_double_their_time_and_lead_one_down() -> None:
    for level in range(LEVELS):
        arguments = QUEUES[f"shop.delay.{level:02}"].arguments
        below = f"shop.delay.{level - 1:02}" if level else "shop.delay.deliver"
        assert arguments["x-message-ttl"] == 100 * 2**level
        assert arguments["x-dead-letter-exchange"] == below
        assert arguments["x-dead-letter-strategy"] == "at-least-once"
        assert arguments["x-overflow"] == "reject-publish"


def test_destinations_are_bound_with_an_exact_number_of_wildcards() -> None:
    bound = {b.routing_key for b in PLAN.bindings if b.exchange == "shop.delay.deliver"}
    assert "*." * LEVELS + "mail.out" in bound
    assert not any("#" in key for key in bound)


def test_one_second_enters_at_its_highest_bit() -> None:
    assert route_delay("p", timedelta(seconds=1), "q") == Route(
        "p.delay.03", "0." * 20 + "1.0.1.0." + "q")


@pytest.mark.parametrize("milliseconds", [-5, 0, 1, 99])
def test_less_than_a_unit_goes_straight_to_deliver(milliseconds: int) -> None:
    delay = timedelta(milliseconds=milliseconds)
    assert route_delay("p", delay, "q") == Route("p.delay.deliver", ZEROS + "q")
    assert round_up_delay(delay) == timedelta(0)


def test_rounding_keeps_five_bits_and_exact_delays_keep_all() -> None:
    delay = timedelta(milliseconds=100 * 0b1000011)
    assert round_up_delay(delay) == timedelta(milliseconds=100 * 0b1000100)
    assert route_delay("p", delay, "q", exact=True).routing_key == "0." * 17 + "1.0.0.0.0.1.1.q"


def test_a_delay_longer_than_the_ladder_is_cut_and_an_exact_one_refused() -> None:
    assert round_up_delay(timedelta(days=400)) == LONGEST_ROUNDED_DELAY
    assert route_delay("p", LONGEST_DELAY, "q", exact=True).routing_key == "1." * LEVELS + "q"
    with pytest.raises(ValueError, match="at most"):
        route_delay("p", LONGEST_DELAY + timedelta(milliseconds=1), "q", exact=True)


@pytest.mark.parametrize("name", [
    "payments", "orders.v1", "o'rders", 'a"b', "x; DROP TABLE claims;--", "日本", "a b",
    "q" * MAX_QUEUE_BYTES, "a*b", "dead", "replay",
])
def test_names_that_are_allowed(name: str) -> None:
    check_queue_name(name)


@pytest.mark.parametrize(("name", "rule"), [
    ("", "empty"),
    ("q" * (MAX_QUEUE_BYTES + 1), "at most 200 are allowed"),
    ("日" * 67, "has 201 bytes"),
    ("a\nb", "control character"),
    ("a\0b", "control character"),
    ("a\x85b", "control character"),
    ("amq.mine", "'amq.'"),
    ("a.dead", "'.dead' is reserved"),
    ("a.replay", "'.replay' is reserved"),
    ("a.*", "must not be"),
    ("#", "must not be"),
    ("\udcff", "not valid Unicode"),
])
def test_refused_names_are_told_the_rule(name: str, rule: str) -> None:
    with pytest.raises(RegistrationError, match=rule.replace(".", r"\.").replace("*", r"\*")):
        check_queue_name(name)


@pytest.mark.parametrize("name", ["shop.unroutable", "shop.delay.00", "shop.delay.deliver"])
def test_a_queue_cannot_take_the_name_of_one_of_ours(name: str) -> None:
    with pytest.raises(RegistrationError, match="collides"):
        plan("shop", {name: []})


def test_the_longest_name_fits_a_routing_key_with_its_suffix() -> None:
    topology = plan("p" * MAX_PREFIX_BYTES, {"q" * MAX_QUEUE_BYTES: ["t"]})
    assert max(len(b.routing_key) for b in topology.bindings) == 255
    assert max(len(e.name) for e in topology.exchanges) == 127


@pytest.mark.parametrize(("prefix", "rule"), [
    ("", "empty"), ("amq.x", "amq"), ("a b", "ASCII"), ("é", "ASCII"),
    ("p" * (MAX_PREFIX_BYTES + 1), "at most"),
])
def test_refused_prefixes_are_told_the_rule(prefix: str, rule: str) -> None:
    with pytest.raises(RegistrationError, match=rule):
        check_prefix(prefix)


@pytest.mark.parametrize("command_type", ["", "a.#", "*", "x" * 256])
def test_a_command_type_that_would_match_others_is_refused(command_type: str) -> None:
    with pytest.raises(RegistrationError):
        plan("shop", {"q": [command_type]})
