"""What `consumer status` says of dependencies, and of workers that rest because of them."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from rich.console import Console, RenderableType

from consumer import App, Command, Context, Dependency, Handler
from consumer.cli import overview, queues_view
from consumer.cli.dependencies_view import as_dict, rendered
from consumer.cli.dependency_state import DependencyState, dependency_states
from consumer.cli.overview import Overview, QueueState
from consumer.cli.resting import Resting, resting, sentences
from consumer.cli.status import as_dict as status_dict
from consumer.cli.status import rendered as status_rendered
from consumer.store.dependency_view import BudgetLevel
from consumer.store.workers import DependencyUse, LiveWorker, Pause, QueueUse, WorkerInfo

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
SILENT_SECONDS = 2.0


def worker(dependencies: Mapping[str, DependencyUse] | None = None,
           **queues: Sequence[QueueUse]) -> LiveWorker:
    info = WorkerInfo(uuid4(), "host", 1, NOW, queues, "1", dependencies or {})
    return LiveWorker(info, SILENT_SECONDS)


def psp(*uses: DependencyUse, budget: BudgetLevel | None = None) -> DependencyState:
    """The state of `psp`, which as many workers call as there are uses."""
    [state] = dependency_states([worker({"psp": use}) for use in uses],
                                {"psp": budget} if budget else {}, {"psp"})
    return state


def text_of(shown: RenderableType, width: int = 200) -> str:
    out = StringIO()
    Console(file=out, width=width).print(shown)
    return out.getvalue()


def cells(state: DependencyState) -> list[str]:
    """The row of numbers; header and row are two lines, the header's second one is `flight`."""
    return text_of(rendered([state])).splitlines()[2].split()


def test_numbers_are_summed_over_workers() -> None:
    state = psp(
        DependencyUse("closed", in_flight=3, share=5, window={
            "originals": 90, "attempts": 100, "succeeded": 80, "failed": 20,
            "retries_granted": 10, "retries_denied": 7}),
        DependencyUse("closed", in_flight=1, share=0, window={"originals": 10, "attempts": 13}),
        budget=BudgetLevel(12, 20, 1000, 60, 6, 1, 70))
    assert json.loads(json.dumps(as_dict(state))) == {
        "dependency": "psp", "workers": 2, "window_seconds": 300, "amplification": 1.13,
        "attempts": 113, "originals": 100, "succeeded": 80, "failed": 20,
        "retries_granted": 10, "retries_denied": 7,
        "budget": {"left": 12, "capacity": 20, "originals": 1000, "granted": 60,
                   "granted_by_floor": 6, "returned": 1, "denied": 70},
        "breaker": [{"state": "closed", "workers": 2, "why": "", "since_seconds": None}],
        "in_flight": 4, "slots": 5}
    assert cells(state) == ["psp", "1.13", "113", "100", "12/20", "7", "closed", "4", "5"]


@pytest.mark.parametrize(("window", "number", "shown"), [
    ({}, None, "-"), ({"attempts": 6}, None, "-"), ({"originals": 4}, 0.0, "0.00"),
    ({"originals": 3, "attempts": 4}, 1.333, "1.33"), ({"originals": 7, "attempts": 7}, 1, "1.00")])
def test_amplification_is_attempts_for_each_original_and_nothing_without_originals(
    window: dict[str, int], number: float | None, shown: str
) -> None:
    state = psp(DependencyUse(window=window))
    assert as_dict(state)["amplification"] == number
    assert cells(state)[1] == shown


@pytest.mark.parametrize(("shares", "slots"), [
    ([2, 3], 5), ([0, 0], 0), ([None, None], None), ([4, None], None), ([], None)])
def test_slots_are_those_of_all_workers_unless_one_has_no_limit(
    shares: list[int | None], slots: int | None
) -> None:
    state = psp(*(DependencyUse(share=share) for share in shares))
    assert (state.slots, cells(state)[-1]) == (slots, "-" if slots is None else str(slots))


@pytest.mark.parametrize(("breakers", "shown", "lines"), [
    ([("none", "", None)], "-", []),
    ([("closed", "", 9.0), ("none", "", None)], "closed", []),
    ([("open", "12 of 20 calls failed (60 %)", 3.0)], "open 1/1",
     ["psp: breaker is open in 1 of 1 worker: 12 of 20 calls failed (60 %)"]),
    ([("open", "late", 3.0), ("open", "first", 9.0), ("open", "?", None), ("closed", "", 99.0)],
     "open 3/4", ["psp: breaker is open in 3 of 4 workers: first"]),
    ([("half_open", "slow", 1.0), ("closed", "", 1.0)], "half open 1/2",
     ["psp: breaker is half open in 1 of 2 workers: slow"]),
    ([("open", "", 1.0)], "open 1/1", ["psp: breaker is open in 1 of 1 worker"]),
])
def test_a_breaker_that_is_not_closed_is_stated_with_what_was_seen_first(
    breakers: list[tuple[str, str, float | None]], shown: str, lines: list[str]
) -> None:
    state = psp(*(DependencyUse(*breaker) for breaker in breakers))
    _, _, row, *below = text_of(rendered([state])).splitlines()
    assert row.split()[6:-2] == shown.split()
    assert below == lines


def test_breakers_are_told_apart_by_state_and_age_with_their_heartbeat() -> None:
    state = psp(DependencyUse("open", "a", 5.04), DependencyUse("half_open", "b"),
                DependencyUse("open", "c", 7.0), DependencyUse("closed", "", 60.0))
    assert as_dict(state)["breaker"] == [
        {"state": "closed", "workers": 1, "why": "", "since_seconds": 62.0},
        {"state": "half_open", "workers": 1, "why": "b", "since_seconds": None},
        {"state": "open", "workers": 2, "why": "c", "since_seconds": 9.0}]
    assert text_of(rendered([state])).count("psp: breaker is") == 2


class Charge(Command, type="charge"):
    pass


class Mail(Command, type="mail"):
    pass


def test_without_an_app_the_dependencies_are_those_that_workers_call() -> None:
    alive = [worker({"psp": DependencyUse()}), worker({"bank": DependencyUse()}), worker()]
    found = dependency_states(alive, {"psp": BudgetLevel(1, 2), "old": BudgetLevel(3, 4)})
    assert [(each.name, each.workers) for each in found] == [("bank", 1), ("psp", 1)]


def test_an_apps_dependencies_are_shown_though_no_worker_lives() -> None:
    state = psp(budget=BudgetLevel(3, 20))
    assert cells(state) == ["psp", "-", "0", "0", "3/20", "0", "-", "0", "-"]
    assert (as_dict(state)["workers"], as_dict(state)["breaker"]) == (0, [])


def test_an_apps_dependencies_are_those_its_handlers_call() -> None:
    class Charging(Handler[Charge]):
        name, queue, dependencies = "charging", "payments", ("psp",)

        async def handle(self, command: Charge, context: Context) -> None: ...

    class Mailing(Handler[Mail]):
        name, queue = "mailing", "mails"

        async def handle(self, command: Mail, context: Context) -> None: ...

    app = App("shop", handlers=[Charging, Mailing],
              dependencies=[Dependency("psp"), Dependency("unused")])
    assert overview._dependencies(app) == {"psp", "mails"}
    assert overview._dependencies(None) is None


def use(why: str, lane: str = "live") -> QueueUse:
    return QueueUse(lane, 2, 0, why)


def test_a_worker_that_rests_counts_once_and_those_of_most_workers_come_first() -> None:
    alive = [worker(payments=[use("database"), use("database", "replay")]),
             worker(payments=[use("", "live"), use("no slot of psp", "replay")]),
             worker(payments=[use("no slot of psp")]), worker(payments=[use("")]),
             worker(mails=[use("broker")])]
    assert resting(alive, "payments") == [Resting("no slot of psp", 2), Resting("database", 1)]
    assert resting(alive, "unknown") == []


def test_reasons_that_differ_in_their_details_are_one_sentence() -> None:
    reasons = [Resting("database", 1),
               Resting("breaker of a: b is open: 12 of 20 calls failed (60 %)", 1),
               Resting("breaker of a: b is open: 14 of 21 calls failed (67 %)", 1),
               Resting("breaker of a: c is open: 12 of 20 calls failed (60 %)", 1)]
    assert sentences(reasons, 4) == [
        "2 of 4 workers rest: breaker of a: b is open: 12 of 20 calls failed (60 %)",
        "1 of 4 workers rests: breaker of a: c is open: 12 of 20 calls failed (60 %)",
        "1 of 4 workers rests: database"]


def queue(paused: Pause | None, *reasons: Resting) -> QueueState:
    return QueueState("payments", 7, 0, 0, 0, 0, 4, 4, paused, reasons)


def test_programs_get_each_reason_as_it_is() -> None:
    shown = queues_view.as_dict(queue(None, Resting("no slot of [red]", 3), Resting("database", 1)))
    assert shown["resting"] == [{"why": "no slot of [red]", "workers": 3},
                                {"why": "database", "workers": 1}]


@pytest.mark.parametrize(("state", "cell", "lines"), [
    (queue(None), "", []),
    (queue(None, Resting("paused", 4)), "4/4", ["payments: 4 of 4 workers rest: paused"]),
    (queue(None, Resting("no slot of [b]", 1), Resting("database", 1)), "2/4",
     ["payments: 1 of 4 workers rests: database",
      "payments: 1 of 4 workers rests: no slot of [b]"]),
    (queue(Pause("payments", "ann", "why", NOW), Resting("paused", 3), Resting("database", 1)),
     "paused", ["payments: paused by ann, 0 s ago: why",
                "payments: 1 of 4 workers rests: database"]),
], ids=["consumed", "resumed just now", "two reasons", "paused"])
def test_people_read_why_a_queue_is_not_consumed(
    state: QueueState, cell: str, lines: list[str]
) -> None:
    _, row, *below = text_of(queues_view.rendered([state], NOW)).splitlines()
    assert row.split()[8:] == cell.split()
    assert below == lines


def test_names_and_reasons_that_look_like_markup_are_shown_as_they_are() -> None:
    [state] = dependency_states([worker({"[red]x[/]": DependencyUse("open", "[b]y[/b]")})], {})
    shown = text_of(rendered([state]))
    assert shown.count("[red]x[/]") == 2
    assert "[b]y[/b]" in shown


def test_eighty_columns_break_no_number_and_no_word() -> None:
    window = {"originals": 12_345, "attempts": 13_021, "retries_denied": 345}
    alive = [worker({"payments": DependencyUse("open", "all failed", 1, 12, 20, window)})] * 4
    states = dependency_states(alive, {"payments": BudgetLevel(120, 200)})
    shown = text_of(rendered(states), width=80)
    assert {"dependency", "amplification", "payments", "52084", "49380", "120/200", "1380", "open",
            "48", "80"} <= set(shown.split())
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_sixty_columns_hide_nothing() -> None:
    window = {"originals": 7, "attempts": 8}
    alive = [worker({"abc": DependencyUse("open", "", None, 6, 9, window)})]
    shown = text_of(rendered(dependency_states(alive, {"abc": BudgetLevel(5, 20)})), width=60)
    table, _, _ = shown.partition("abc:")
    assert {"abc", "1.14", "8", "7", "5/20", "open", "6", "9"} <= set(table.split())


def test_status_shows_dependencies_between_queues_and_outbox() -> None:
    states = [psp(DependencyUse("open", "all failed"))]
    now = Overview([queue(None)], {}, [], [], NOW, states)
    found: dict[str, Any] = status_dict(now)
    assert [each["dependency"] for each in found["dependencies"]] == ["psp"]
    shown = text_of(status_rendered(now))
    assert shown.index("payments") < shown.index("psp: breaker is open") < shown.index("outbox:")


def test_what_workers_say_and_what_is_left_of_budgets_reaches_the_overview() -> None:
    stored = overview._Stored([], [worker({"psp": DependencyUse()}, payments=[use("database")])],
                              {}, [], {"psp": BudgetLevel(1, 2)})
    depths = dict.fromkeys(["payments", "payments.replay", "payments.dead"])
    now = overview._overview(stored, depths, None, NOW)
    assert [each.resting for each in now.queues] == [[Resting("database", 1)]]
    assert [(each.name, each.budget) for each in now.dependencies] == [("psp", BudgetLevel(1, 2))]


def test_status_has_no_table_of_dependencies_where_there_are_none() -> None:
    assert "amplification" not in text_of(status_rendered(Overview([queue(None)], {}, [], [], NOW)))
