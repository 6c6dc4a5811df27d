"""Metrics: what is recorded is exposed, under bounded labels, and as the documentation says."""

import math
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, Metric
from prometheus_client.parser import text_string_to_metric_families

from consumer.core.breaker import State
from consumer.outcome import DeadReason, ParkReason, RequeueReason
from consumer.telemetry.labels import AttemptOutcome, DeadlineResult, Met, RetryDecision
from consumer.telemetry.metrics import Metrics

DOCUMENT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
Record = Callable[[Metrics], None]


def families(metrics: Metrics) -> list[Metric]:
    return list(text_string_to_metric_families(metrics.render()[0].decode()))


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """The exposed value of one series; None where it is not exposed."""
    found = [sample.value for family in families(metrics) for sample in family.samples
             if sample.name == name and sample.labels == labels]
    assert len(found) < 2
    return found[0] if found else None


RECORDED: list[tuple[Record, str, dict[str, str], float]] = [
    (lambda m: m.original("pay"), "consumer_originals_total", {"handler": "pay"}, 1),
    *((lambda m, outcome=outcome: m.attempt("pay", outcome),
       "consumer_attempts_total", {"handler": "pay", "outcome": outcome.value}, 1)
      for outcome in AttemptOutcome),
    (lambda m: m.recovered("pay"), "consumer_recovered_total", {"handler": "pay"}, 1),
    (lambda m: m.within_deadline("pay", True),
     "consumer_deadlines_total", {"handler": "pay", "result": "met"}, 1),
    (lambda m: m.within_deadline("pay", False),
     "consumer_deadlines_total", {"handler": "pay", "result": "missed"}, 1),
    *((lambda m, met=met: m.met("pay", met),
       "consumer_idempotency_total", {"handler": "pay", "result": met.value}, 1) for met in Met),
    (lambda m: m.succeeded("pay", 0.3), "consumer_success_seconds_sum", {"handler": "pay"}, 0.3),
    (lambda m: m.refused("pay", ParkReason.BREAKER, 0.002), "consumer_refusal_seconds_sum",
     {"handler": "pay", "reason": "breaker"}, 0.002),
    (lambda m: m.refused("pay", DeadReason.KEY_CONFLICT, 0.002), "consumer_refusal_seconds_count",
     {"handler": "pay", "reason": "key_conflict"}, 1),
    (lambda m: m.grouped("pay", 50), "consumer_group_size_sum", {"handler": "pay"}, 50),
    (lambda m: m.parked("q", ParkReason.NO_SLOT),
     "consumer_parks_total", {"queue": "q", "reason": "no_slot"}, 1),
    (lambda m: m.dead("q", DeadReason.DEADLINE),
     "consumer_dead_letters_total", {"queue": "q", "reason": "deadline"}, 1),
    (lambda m: m.requeued("q", RequeueReason.DRAIN),
     "consumer_requeues_total", {"queue": "q", "reason": "drain"}, 1),
    (lambda m: m.in_flight("q", 7), "consumer_in_flight", {"queue": "q"}, 7),
    (lambda m: m.queued("q", 3000), "consumer_message_age_seconds_sum", {"queue": "q"}, 3000),
    *((lambda m, why=why: m.retry("psp", why),
       "consumer_retries_total", {"dependency": "psp", "decision": why.value}, 1)
      for why in RetryDecision),
    (lambda m: m.budget("psp", 3, 2), "consumer_budget_granted_total", {"dependency": "psp"}, 3),
    (lambda m: m.budget("psp", 3, 2), "consumer_budget_denied_total", {"dependency": "psp"}, 2),
    (lambda m: m.budget_level("psp", 9), "consumer_budget_level", {"dependency": "psp"}, 9),
    (lambda m: m.budget_leased("psp", 4), "consumer_budget_leased", {"dependency": "psp"}, 4),
    *((lambda m, state=state: m.breaker("psp", state),
       "consumer_breaker_state", {"dependency": "psp", "state": state.value}, 1)
      for state in State),
    (lambda m: m.dependency_in_flight("psp", 5),
     "consumer_dependency_in_flight", {"dependency": "psp"}, 5),
    (lambda m: m.slots("psp", 6), "consumer_slot_share", {"dependency": "psp"}, 6),
    (lambda m: m.slots("psp", None), "consumer_slot_share", {"dependency": "psp"}, math.inf),
    (lambda m: m.slot_waited("psp", 1.5),
     "consumer_slot_wait_seconds_sum", {"dependency": "psp"}, 1.5),
    (lambda m: m.pool_waited(0.5), "consumer_pool_wait_seconds_sum", {}, 0.5),
    (lambda m: m.outbox(9, 8.5, 2), "consumer_outbox_pending", {}, 9),
    (lambda m: m.outbox(9, 8.5, 2), "consumer_outbox_lag_seconds", {}, 8.5),
    (lambda m: m.outbox(9, 8.5, 2), "consumer_outbox_parked", {}, 2),
]


@pytest.mark.parametrize(("record", "name", "labels", "expected"), RECORDED,
                         ids=lambda part: part if isinstance(part, str) else "")
def test_what_is_recorded_is_exposed(
    record: Record, name: str, labels: dict[str, str], expected: float
) -> None:
    metrics = Metrics()
    assert value(metrics, name, **labels) in (None, 0)
    record(metrics)
    assert value(metrics, name, **labels) == expected


def test_counters_add_up() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.original("pay")
        metrics.budget("psp", 2, 0)
    metrics.original("other")
    assert value(metrics, "consumer_originals_total", handler="pay") == 3
    assert value(metrics, "consumer_budget_granted_total", dependency="psp") == 6


def test_a_breaker_is_in_one_state_at_a_time() -> None:
    metrics = Metrics()
    for state in (State.CLOSED, State.OPEN, State.HALF_OPEN, State.CLOSED):
        metrics.breaker("psp", state)
        shown = {known: value(metrics, "consumer_breaker_state", dependency="psp", state=known)
                 for known in State}
        assert shown == {known: float(known == state) for known in State}


@pytest.mark.parametrize(("age_s", "bound"), [
    (-5, "0.005"), (math.nan, "0.005"), (0.005, "0.005"), (11, "30.0"), (3601, "7200.0"),
    (86400, "86400.0"), (86401, "+Inf")])
def test_an_age_of_up_to_a_day_falls_into_a_bucket(age_s: float, bound: str) -> None:
    metrics = Metrics()
    metrics.queued("q", age_s)
    bounds = [sample.labels["le"] for family in families(metrics) for sample in family.samples
              if sample.name == "consumer_message_age_seconds_bucket" and sample.value]
    assert bounds[0] == bound
    total = value(metrics, "consumer_message_age_seconds_sum", queue="q")
    assert total is not None
    assert total >= 0


def test_counters_of_what_is_declared_begin_at_0() -> None:
    """A counter that first appears at 1 would show no increase."""
    metrics = Metrics(handlers=["pay"], queues=["q"], dependencies=["psp"])
    counters = [family for family in families(metrics)
                if family.type == "counter" and family.name.startswith("consumer_")]
    assert {family.name: len(family.samples) for family in counters} == {
        "consumer_originals": 1, "consumer_attempts": len(AttemptOutcome),
        "consumer_recovered": 1, "consumer_deadlines": len(DeadlineResult),
        "consumer_idempotency": len(Met), "consumer_parks": len(ParkReason),
        "consumer_dead_letters": len(DeadReason), "consumer_requeues": len(RequeueReason),
        "consumer_retries": len(RetryDecision), "consumer_budget_granted": 1,
        "consumer_budget_denied": 1}
    assert {sample.value for family in counters for sample in family.samples} == {0}


def test_two_objects_share_nothing() -> None:
    one, other = Metrics(), Metrics()
    one.original("pay")
    assert value(other, "consumer_originals_total", handler="pay") is None
    assert not [family for family in REGISTRY.collect() if family.name.startswith("consumer_")]


def test_names_with_quotes_and_line_ends_stay_one_label() -> None:
    metrics, odd = Metrics(), 'a"b\\c\nd{e="f"} ü'
    metrics.original(odd)
    assert value(metrics, "consumer_originals_total", handler=odd) == 1


def test_what_is_rendered_is_prometheus_text() -> None:
    body, content_type = Metrics().render()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert body.endswith(b"\n")
    assert b"_created" not in body


def test_rendering_while_others_record_loses_nothing() -> None:
    metrics, ended = Metrics(), threading.Event()
    failures: list[Exception] = []

    def scrape() -> None:
        try:
            while not ended.is_set():
                metrics.render()
        except Exception as error:
            failures.append(error)

    def record(name: str) -> None:
        for number in range(2000):
            metrics.original("pay")
            metrics.original(f"{name}{number % 100}")

    scraper = threading.Thread(target=scrape)
    writers = [threading.Thread(target=record, args=(name,)) for name in ("a", "a", "b")]
    for thread in (scraper, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    scraper.join()
    assert failures == []
    assert value(metrics, "consumer_originals_total", handler="pay") == 6000
    assert value(metrics, "consumer_originals_total", handler="a7") == 40


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels by name, from the table of docs/metrics.md."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| .+ \|$", DOCUMENT, re.MULTILINE)
    assert len({name for name, _, _ in rows}) == len(rows)
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def exposed() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels by name, of a process where everything was recorded."""
    metrics = Metrics()
    for record, *_ in RECORDED:
        record(metrics)
    return {family.name + ("_total" if family.type == "counter" else ""): (
        family.type, frozenset(name for sample in family.samples for name in sample.labels) - {"le"}
    ) for family in families(metrics)}


def test_the_documentation_lists_exactly_what_is_exposed() -> None:
    assert documented() == exposed()


def test_every_method_that_records_is_tested() -> None:
    """So the documentation is compared with all there is."""
    called: set[str] = set()

    class Seen:
        def __getattr__(self, name: str) -> Callable[..., None]:
            called.add(name)
            return lambda *_: None

    for record, *_ in RECORDED:
        record(Seen())  # type: ignore[arg-type]
    assert called == {name for name in dir(Metrics) if name[0] != "_"} - {"render"}


@pytest.mark.parametrize("words", [
    AttemptOutcome, RetryDecision, Met, DeadlineResult, ParkReason, DeadReason, RequeueReason,
    State], ids=str)
def test_the_documentation_names_every_word_of_a_label(words: type[Met]) -> None:
    table = set(re.findall(r"`(\w+)`", DOCUMENT))
    assert {str(word) for word in words} <= table


def test_the_queries_of_the_documentation_ask_for_what_is_exposed() -> None:
    queries = re.findall(r"```promql\n(.*?)```", DOCUMENT, re.DOTALL)
    assert len(queries) == 3
    asked = {name for query in queries for name in re.findall(r"consumer_\w+", query)}
    assert {name.removesuffix("_bucket") for name in asked} <= set(exposed())
