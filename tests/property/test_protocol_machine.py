"""The delivery protocol, on the real processor, settler, dispatcher and relay.

`Stage.check` and `Stage.check_at_rest` say what must hold: an effect at most once, and in the end
exactly one effect or one dead letter for a command; a conflict never touches the claim and has a
letter of its own; attempts within their limit; a handler's messages if and only if it is done;
nothing lost; and everything comes to rest once faults are over.
"""

import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation import mutations
from simulation.explorer import Drawn, Written, explore
from simulation.stage import IN_TRANSACTION, Stage, Violation, Worker

WALKS = 1000 if os.environ.get("CI") else 200


def test_no_walk_breaks_a_rule_and_walks_meet_every_kind_of_fault() -> None:
    """A search that never meets a fault would prove nothing about it."""
    happened: set[str] = set()
    for seed in range(WALKS):
        happened |= explore(Drawn(seed, moves=250))
    assert happened >= {
        "answer lost", "cancelled", "channel lost", "connection lost", "database", "deliver two",
        "doubled", "killed", "lost", "no answer", "not sent", "orphan commits",
        "orphan rolls back", "permanent", "refused", "relay killed", "time", "transient",
    }


@given(st.binary(min_size=20, max_size=300))
def test_no_story_breaks_a_rule(story: bytes) -> None:
    """As the walks; Hypothesis shrinks what it finds."""
    explore(Written(story))


@pytest.mark.parametrize("mutation", mutations.ALL, ids=lambda mutation: mutation.__name__)
def test_a_broken_rule_is_found(
    mutation: mutations.Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    with pytest.raises(Violation):  # noqa: PT012 - one of many walks finds it
        for seed in range(400):
            explore(Drawn(seed, moves=250))


# --- a fault at every single point of a story ------------------------------------------------

Story = Callable[[Stage], list[str]]
"""Publishes something; returns what the handler does, run by run."""


def succeeds(stage: Stage) -> list[str]:
    stage.publish()
    return []


def fails_once(stage: Stage) -> list[str]:
    stage.publish()
    return ["transient"]


def is_rejected(stage: Stage) -> list[str]:
    stage.publish()
    return ["permanent"]


def always_fails(stage: Stage) -> list[str]:
    stage.publish()
    return ["transient"] * 20


def has_a_failing_neighbour(stage: Stage) -> list[str]:
    stage.publish("a")
    stage.publish("b")
    return ["", "permanent", "", "permanent"]


def meets_a_conflict(stage: Stage) -> list[str]:
    stage.publish("a", 1, message_id="a")
    stage.publish("a", 2, message_id="a")
    stage.publish("a", 3, message_id="a")
    return ["transient"]


STORIES: list[Story] = [
    succeeds, fails_once, is_rejected, always_fails, has_a_failing_neighbour, meets_a_conflict]


def kill(worker: Worker, _: Stage) -> Worker:
    worker.kill()
    return worker.stage.worker()


def lose_channel(worker: Worker, _: Stage) -> Worker:
    worker.lose_channel()
    return worker


def commit_after_death(worker: Worker, stage: Stage) -> Worker:
    """Killed; if a COMMIT was under way, it arrives after another worker had a look."""
    if not any(gate.point in IN_TRANSACTION for gate in worker.gates):
        return kill(worker, stage)
    worker.orphan()
    other = stage.worker()
    other.deliver(3)
    stage.finish(other)
    stage.end_orphan(commits=stage.orphans[0][1].point == "commit")
    return other


def lose_connection(worker: Worker, _: Stage) -> Worker:
    gate = worker.gates[0]
    if gate.point == "publish":
        gate.open("not sent")
    elif gate.point == "confirm":
        gate.open("no answer")
    elif gate.point == "commit":
        gate.open("answer lost")
    elif gate.point not in ("ack", "handle"):
        gate.open("connection lost")
    return worker


FAULTS = [kill, lose_channel, commit_after_death, lose_connection]


def play(stage: Stage, story: Story, fault: Callable[[Worker, Stage], Worker] | None,
         after: set[int]) -> int:
    """Play `story` with faults after so many steps, then drain; returns how many steps it took."""
    runs = story(stage)
    worker, steps = stage.worker(), 0
    for _ in range(8):
        worker.deliver(3)
        while worker.gates:
            if fault is not None and steps in after:
                steps += 1
                worker = fault(worker, stage)
                continue
            gate = worker.gates[0]
            steps += 1
            gate.open(runs.pop(0) if gate.point == "handle" and runs else "")
            stage.check()
        stage.pass_time(minutes=6)
    stage.drain([worker], succeed=not (runs and story is always_fails))
    return steps


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_point_breaks_no_rule(
    story: Story, fault: Callable[[Worker, Stage], Worker]
) -> None:
    with Stage() as stage:
        steps = play(stage, story, None, set())
    assert steps >= 6
    for after in range(steps):
        with Stage() as stage:
            play(stage, story, fault, {after})


@pytest.mark.parametrize("story", [fails_once, is_rejected])
@pytest.mark.parametrize("fault", [kill, commit_after_death])
def test_two_faults_at_any_points_break_no_rule(
    story: Story, fault: Callable[[Worker, Stage], Worker]
) -> None:
    with Stage() as stage:
        steps = play(stage, story, None, set())
    for first in range(steps):
        for second in range(first + 1, steps + 4, 3):
            with Stage() as stage:
                play(stage, story, fault, {first, second})
