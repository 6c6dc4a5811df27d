"""The overload experiment's arithmetic: the provider, the figures, and bars that can be missed."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.overload import archive
from benchmarks.overload.bars import check
from benchmarks.overload.generator import schedule
from benchmarks.overload.measure import latency, measure, most_in_flight, recovery
from benchmarks.overload.plan import CONFIGURATIONS, D, Phases, RunPlan, Variant, plans
from benchmarks.overload.plots import plot_all
from benchmarks.overload.provider import Call, Provider
from benchmarks.overload.records import Publication, Records, Refusal, Sample, Times, read_parks
from benchmarks.overload.report import report
from benchmarks.overload.results import Latency, PhaseResult, Result, from_json, to_json

PHASES = Phases(20, 30, 40)


# The provider


@dataclass
class FakeLoop:
    """A clock that tests move, with the calls scheduled on it."""

    now: float = 0.0
    due: list[Any] = field(default_factory=list)

    def schedule(self, seconds: float, call: Callable[[], None]) -> Any:
        timer = FakeTimer(self.now + seconds, call)
        self.due.append(timer)
        return timer

    def advance(self, to: float) -> None:
        while ready := [t for t in self.due if not t.cancelled and t.at <= to]:
            timer = min(ready, key=lambda t: t.at)
            self.due.remove(timer)
            self.now = timer.at
            timer.call()
        self.now = to


@dataclass(eq=False)
class FakeTimer:
    at: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


def provider(loop: FakeLoop, *, honours: bool, slots: int = 1) -> Provider:
    return Provider(slots, 1.0, honours, lambda: loop.now, loop.schedule)


def test_the_provider_executes_no_more_calls_than_it_has_slots_and_in_their_order() -> None:
    loop, answered = FakeLoop(), []
    served = provider(loop, honours=True, slots=2)
    for name in "abc":
        served.accept(name, lambda name=name: answered.append((name, loop.now)))
    assert (served.executing, served.queued) == (2, 1)
    loop.advance(5)
    assert answered == [("a", 1.0), ("b", 1.0), ("c", 2.0)]


def test_a_service_time_holds_for_calls_that_begin_afterwards() -> None:
    loop, answered = FakeLoop(), []
    served = provider(loop, honours=True)
    for _ in "ab":
        served.accept("x", lambda: answered.append(loop.now))
    served.service_seconds = 3.0
    loop.advance(10)
    assert answered == [1.0, 4.0]


def test_a_provider_that_honours_hang_ups_frees_slot_and_queue() -> None:
    loop, answered = FakeLoop(), []
    served = provider(loop, honours=True)
    hang_up = [served.accept(n, lambda n=n: answered.append((n, loop.now))) for n in "abc"]
    loop.advance(0.5)
    hang_up[1]()  # it waits
    hang_up[0]()  # it executes
    loop.advance(5)
    assert answered == [("c", 1.5)]
    assert [(c.start, c.end, c.gone, c.done) for c in served.calls] == [
        (0.0, 0.5, 0.5, False), (None, 0.5, 0.5, False), (0.5, 1.5, None, True)]


def test_a_provider_that_ignores_hang_ups_finishes_the_work_and_answers_nobody() -> None:
    loop, answered = FakeLoop(), []
    served = provider(loop, honours=False)
    hang_up = [served.accept(n, lambda n=n: answered.append((n, loop.now))) for n in "abc"]
    loop.advance(0.5)
    hang_up[1]()
    hang_up[0]()
    loop.advance(5)
    assert answered == [("c", 3.0)]
    assert all(call.done for call in served.calls)


def test_hanging_up_after_the_answer_or_twice_changes_nothing() -> None:
    loop = FakeLoop()
    served = provider(loop, honours=True)
    first, second = (served.accept(n, lambda: None) for n in "ab")
    loop.advance(1.0)
    first()
    second()
    second()
    assert served.calls[0].gone is None
    assert (served.executing, served.queued) == (0, 0)


# The generator's schedule


def test_the_schedule_has_one_command_in_each_slot_and_is_the_same_for_a_seed() -> None:
    due = list(schedule(50, 4, seed=7))
    assert [int(at * 50) for at in due] == list(range(200))
    assert due == list(schedule(50, 4, seed=7)) != list(schedule(50, 4, seed=8))
    assert len({round(b - a, 6) for a, b in pairwise(due)}) > 100


# Runs


def test_a_control_runs_with_one_kind_of_provider_only() -> None:
    made = plans(["a", "control"], [50, 70], list(Variant), PHASES)
    assert [plan.name for plan in made] == [
        "a-50-honours", "a-50-ignores", "control-a-50-honours", "control-d-50-honours",
        "a-70-honours", "a-70-ignores", "control-a-70-honours", "control-d-70-honours"]


def test_an_unknown_configuration_is_refused() -> None:
    with pytest.raises(ValueError, match="no configuration is named x"):
        plans(["a", "x"], [50], list(Variant), PHASES)


# Figures

TIMES = Times(start=100, slowed=110, restored=120, end=130)


def records(**changes: Any) -> Records:
    plain = Records(TIMES, [], [], [], {}, [], frozenset(), {})
    return replace(plain, **changes)


def published(key: str, at: float, confirmed: bool = True) -> Publication:
    return Publication(key, at - 0.01, at, at + 0.01 if confirmed else None)


def figures(found: Records) -> Result:
    return measure(RunPlan(D, 1, Variant.HONOURS, Phases(10, 10, 10)), found, "now")


def test_attempts_count_where_they_arrive_and_originals_where_the_first_call_does() -> None:
    calls = [Call("k", 109, 109, 109.1), Call("k", 111, 111, 111.1), Call("l", 112, 112, 112.1)]
    phases = figures(records(calls=calls)).phases
    assert [(p.originals, p.attempts) for p in phases.values()] == [(1, 1), (1, 2), (0, 0), (0, 0)]
    assert phases["slow"].amplification == 2.0
    assert phases["restored"].amplification == 1.0


def test_an_effect_after_its_deadline_is_not_useful() -> None:
    result = figures(records(
        publications=[published("a", 105), published("b", 105)],
        completions={"a": 107.9, "b": 108.1}))
    assert (result.useful, result.late) == (1, 1)
    assert result.phases["healthy"].useful == 1
    assert result.phases["healthy"].goodput == 0.1


def test_a_command_without_any_trace_is_lost_and_an_unconfirmed_one_is_not() -> None:
    names = ("done", "dead", "waiting", "gone")
    result = figures(records(
        publications=[*(published(key, 105) for key in names), published("unsure", 105, False)],
        completions={"done": 106}, refusals=[Refusal("dead", "deadline", 108)],
        waiting=frozenset({"waiting", "done"})))
    assert (result.published, result.lost, result.waiting, result.unconfirmed) == (5, 1, 1, 1)
    assert result.refused == {"deadline": 1}


def test_excess_is_the_work_done_after_the_client_hung_up() -> None:
    calls = [
        Call("executing", 111, start=111, end=112, gone=111.5, done=True),
        Call("queued", 111, start=115, end=116, gone=111.5, done=True),
        Call("stopped", 111, start=111, end=111.5, gone=111.5),
        Call("withdrawn", 111, end=111.5, gone=111.5),
        Call("across", 119, start=119.5, end=121, gone=119, done=True),
    ]
    phases = figures(records(calls=calls)).phases
    assert (phases["slow"].excess_calls, phases["slow"].excess_seconds) == (3, 2.0)
    assert (phases["restored"].excess_calls, phases["restored"].excess_seconds) == (1, 1.0)


def test_calls_in_flight_are_counted_exactly_and_across_the_bounds_of_a_phase() -> None:
    calls = [Call("a", 1, 1, 10), Call("b", 2, 2, 3), Call("c", 3, 3, 4),
             Call("d", 5, end=6, gone=6)]
    assert most_in_flight(calls, 0, 100) == 2
    assert most_in_flight(calls, 7, 8) == 1
    assert most_in_flight(calls, 11, 12) == 0
    assert most_in_flight([Call("never done", 1)], 50, 60) == 1


def test_latency_of_effects_and_of_refusals_is_kept_apart() -> None:
    result = figures(records(
        publications=[published("a", 105), published("b", 105)],
        completions={"a": 105.5}, refusals=[Refusal("b", "deadline", 108)]))
    assert result.phases["healthy"].success == Latency(1, 500.0, 500.0, 500.0)
    assert result.phases["healthy"].refusal == Latency(1, 3000.0, 3000.0, 3000.0)


def test_percentiles_are_values_that_occurred() -> None:
    assert latency(n / 1000 for n in range(1, 101)) == Latency(100, 50.0, 95.0, 99.0)
    assert latency([]) == Latency(0)


def restored(served: Callable[[float], bool]) -> Records:
    """Ten commands a second after restoration, of which some are done at once."""
    commands = [published(str(n), 120 + n / 10) for n in range(100)]
    return records(publications=commands, completions={
        p.key: p.published + 0.1 for p in commands if served(p.published - 120)})


@pytest.mark.parametrize(("served", "expected"), [
    (lambda at: True, 0.0),
    (lambda at: at > 4.05, 4.0),
    (lambda at: False, None),
    (lambda at: 2 < at < 5, None),       # a lucky moment
    (lambda at: at > 9, None),           # too late for a whole window to show it
], ids=["at once", "after four seconds", "never", "a lucky moment", "too late"])
def test_recovery_is_when_commands_are_served_in_time_from_then_on(
    served: Callable[[float], bool], expected: float | None
) -> None:
    assert recovery(restored(served)) == expected


def test_a_burst_of_old_work_is_no_recovery() -> None:
    old = [published(f"old-{n}", 119) for n in range(100)]
    new = [published(f"new-{n}", 120 + n / 10) for n in range(100)]
    found = records(publications=old + new, completions={p.key: 121 for p in old})
    assert recovery(found) is None


def test_seconds_tell_what_happened_in_each() -> None:
    result = figures(records(
        publications=[published("a", 100.5)], completions={"a": 102.5},
        calls=[Call("a", 101.5, 101.5, 102.4)], refusals=[Refusal("b", "deadline", 103)],
        samples=[Sample(101.6, 0, 1), Sample(101.7, 3, 4)]))
    assert [(s.published, s.attempts, s.useful, s.refused, s.in_flight)
            for s in result.seconds] == [
        (1, 0, 0, 0, 0), (0, 1, 0, 0, 7), (0, 0, 1, 0, 0), (0, 0, 0, 1, 0)]


def test_parks_are_counted_from_what_workers_log(tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    lines = [{"event": "settled", "outcome": "delay", "why": "budget"},
             {"event": "settled", "outcome": "delay", "why": "budget"},
             {"event": "settled", "outcome": "ack", "why": "done"},
             {"event": "consuming"}]
    log.write_text("not json\n" + "".join(json.dumps(line) + "\n" for line in lines))
    assert read_parks([log]) == {"budget": 2}


# Bars


def phase(**changes: Any) -> PhaseResult:
    none = Latency(0)
    plain = PhaseResult(seconds=30, published=2100, originals=1000, attempts=1050, useful=970,
                        excess_calls=0, excess_seconds=0, most_in_flight=4, success=none,
                        refusal=none)
    return replace(plain, **changes)


def result(configuration: str, **changes: Any) -> Result:
    plain = Result(
        name=f"{configuration}-70", configuration=configuration, rate=70.0, variant="honours",
        finished_at="", phases={"healthy": phase(), "slow": phase(), "restored": phase(),
                                "drain": phase(originals=0, attempts=3)},
        published=6300, useful=5000, late=0, refused={}, parks={}, waiting=0, lost=0,
        unconfirmed=0, recovery_seconds=1.0, lag=Latency(6300, 1.0, 5.0, 20.0))
    return replace(plain, **changes)


def slow(**changes: Any) -> dict[str, PhaseResult]:
    return {**result("d").phases, "slow": phase(**changes)}


def missed(*results: Result) -> list[str]:
    bars = check({r.name: r for r in results})
    return [f"{bar.run}: {bar.claim}" for bar in bars if not bar.holds]


def test_results_as_they_should_be_miss_no_bar() -> None:
    fine = [*(result(name) for name in ("b", "c", "d", "control-a", "control-d")),
            *(result(name, variant="ignores", recovery_seconds=None) for name in ("a", "celery"))]
    assert missed(*fine) == []
    assert len(check({r.name: r for r in fine})) == 34


@pytest.mark.parametrize(("found", "bar"), [
    (result("d", lag=Latency(1, 1.0, 2.0, 101.0)), "the generator's lag is at most 100 ms (p99)"),
    (result("d", lag=Latency(0)), "the generator's lag is at most 100 ms (p99)"),
    (result("a", lost=1), "no command is lost"),
    (result("b", phases=slow(attempts=1124)),
     "slow: attempts ≤ 1.1 · originals + capacity + floor"),
    (result("c", phases={**result("c").phases, "drain": phase(originals=0, attempts=24)}),
     "drain: attempts ≤ 1.1 · originals + capacity + floor"),
    (result("d", phases=slow(attempts=1101)), "slow: amplification ≤ 1.10"),
    (result("d", phases=slow(useful=949)), "slow: at least 31.7 useful completions a second"),
    (result("d", recovery_seconds=5.1), "recovery within 5 s"),
    (result("d", recovery_seconds=None), "recovery within 5 s"),
    (result("d", phases=slow(most_in_flight=5)), "never more than 4 calls in flight"),
    (result("a", variant="ignores", recovery_seconds=39.0), "does not recover within the run"),
    (result("celery", variant="ignores", recovery_seconds=0.0), "does not recover within the run"),
    (result("control-d", refused={"deadline": 1}), "nothing is refused"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_each_bar_can_be_missed(found: Result, bar: str) -> None:
    assert missed(found) == [f"{found.name}: {bar}"]


def test_a_control_that_is_more_than_three_percent_slower_misses_its_bar() -> None:
    plain = result("control-a", useful=6300)
    assert missed(plain, result("control-d", useful=6111)) == []
    assert missed(plain, result("control-d", useful=6110)) == [
        "control-d-70: throughput within 3 % of no protection"]


def test_calls_in_flight_have_no_bar_where_the_provider_ignores_hang_ups() -> None:
    assert missed(result("d", variant="ignores", phases=slow(most_in_flight=5))) == []


def test_a_phase_without_originals_but_with_attempts_has_no_finite_amplification() -> None:
    assert phase(originals=0, attempts=1).amplification == float("inf")
    assert phase(originals=0, attempts=0).amplification == 1.0


# Archive and report


def test_a_result_survives_being_kept_and_only_those_of_the_same_phases_are_found(
    tmp_path: Path,
) -> None:
    kept = figures(records(publications=[published("a", 100.5)], completions={"a": 101}))
    archive.save(kept, PHASES, tmp_path)
    archive.save(replace(kept, name="other"), Phases(1, 1, 1), tmp_path)
    assert archive.load(PHASES, tmp_path) == {kept.name: kept}
    assert from_json(json.loads(json.dumps(to_json(kept)))) == kept


def test_the_report_shows_every_run_every_picture_and_every_bar(tmp_path: Path) -> None:
    shown = [result(name) for name in CONFIGURATIONS]
    bars = check({r.name: r for r in shown})
    plots = plot_all(shown, PHASES, tmp_path)
    page = report(shown, bars, PHASES, plots)
    assert [file.name for file in tmp_path.iterdir()] == ["70-honours.png"] == [*plots.values()]
    for configuration in CONFIGURATIONS.values():
        assert page.count(f"| {configuration.title} |") == 2
    assert "(70-honours.png)" in page
    assert page.count("| holds |") + page.count("| **missed** |") == len(bars)
