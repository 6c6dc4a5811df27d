"""Group commit: many commands in one transaction, of which only the culprits fail."""

from collections.abc import Sequence
from typing import Any

import pytest
from simulation.bench import Bench, Charge
from simulation.loop import in_virtual_time

from consumer import Context, Handler, Reject, Retry
from consumer.claim import ClaimState
from consumer.errors import CommitFailed, SerializationConflict, StoreUnavailable
from consumer.handler import MAX_GROUP_SIZE
from consumer.outcome import Ack, AckReason, Requeue, RequeueReason
from consumer.worker.groups import GroupSize

TEN = [f"k{number}" for number in range(10)]


def reasons(outcomes: Sequence[Any]) -> list[Any]:
    return [outcome.why for outcome in outcomes]


@in_virtual_time
async def test_a_group_shares_one_transaction() -> None:
    bench = Bench()
    steps = bench.watch()
    outcomes = await bench.process(*map(bench.delivery, TEN))
    assert reasons(outcomes) == [AckReason.DONE] * 10
    assert steps == ["begin", "claim", "finish", "commit"]
    assert [key for key, _ in bench.effects] == TEN


@pytest.mark.parametrize("culprit", [0, 4, 9])
@in_virtual_time
async def test_one_of_ten_fails_alone_and_the_others_commit_once(culprit: int) -> None:
    bench = Bench()
    bench.handler.on(TEN[culprit], Reject("bad"), Reject("bad"))
    steps = bench.watch()
    outcomes = await bench.process(*map(bench.delivery, TEN))
    wanted = [AckReason.DONE] * 10
    wanted[culprit] = AckReason.DIED
    assert reasons(outcomes) == wanted
    assert [key for key, _ in bench.effects] == [key for key in TEN if key != TEN[culprit]]
    assert steps.count("commit") == 2  # the nine, and the record of the failure
    assert all(bench.handler.runs[key] <= 2 for key in TEN)
    dead = bench.claim(TEN[culprit])
    assert dead is not None
    assert (dead.state, dead.attempts) == (ClaimState.DEAD, 1)


@in_virtual_time
async def test_a_member_that_fails_only_in_the_group_is_done() -> None:
    """What one member does to its neighbours is undone by running behind savepoints."""
    bench = Bench()
    bench.handler.on("k3", Retry("once"))
    outcomes = await bench.process(*map(bench.delivery, TEN))
    assert reasons(outcomes) == [AckReason.DONE] * 10
    assert bench.database.tables.attempts == []
    assert len(bench.effects) == 10


@in_virtual_time
async def test_an_effect_behind_a_savepoint_that_fails_does_not_stand() -> None:
    bench = Bench()
    bench.handler.on("k1", ValueError("x"), ValueError("x"))
    await bench.process(*map(bench.delivery, TEN[:3]))
    assert [key for key, _ in bench.effects] == ["k0", "k2"]


@pytest.mark.parametrize("error", [ValueError("flush"), CommitFailed("deferred constraint")])
@in_virtual_time
async def test_a_failing_flush_or_commit_of_the_group_falls_back_to_savepoints(
    error: Exception
) -> None:
    bench = Bench()
    bench.fail_at("finish" if isinstance(error, ValueError) else "commit", error)
    outcomes = await bench.process(*map(bench.delivery, TEN))
    assert reasons(outcomes) == [AckReason.DONE] * 10
    assert bench.database.tables.attempts == []
    assert len(bench.effects) == 10


@pytest.mark.parametrize("error", [CommitFailed("deferred"), SerializationConflict("40001")])
@in_virtual_time
async def test_a_failing_commit_behind_savepoints_falls_back_to_one_by_one(
    error: Exception
) -> None:
    bench = Bench()
    bench.handler.on("k1", Retry("group"), None, Retry("alone"))
    bench.fail_at("commit", error)
    outcomes = await bench.process(*map(bench.delivery, TEN[:3]))
    assert reasons(outcomes) == [AckReason.DONE, AckReason.RETRYING, AckReason.DONE]
    assert [key for key, _ in bench.effects] == ["k0", "k2"]
    assert bench.handler.runs == {"k0": 3, "k1": 3, "k2": 2}


@in_virtual_time
async def test_only_the_culprit_of_a_commit_that_fails_one_by_one_fails() -> None:
    bench = Bench()
    bench.fail_at("commit", *[CommitFailed("group"), CommitFailed("savepoints"),
                              CommitFailed("the first alone")])
    outcomes = await bench.process(*map(bench.delivery, TEN[:3]))
    assert reasons(outcomes) == [AckReason.RETRYING, AckReason.DONE, AckReason.DONE]


@in_virtual_time
async def test_a_conflict_behind_a_savepoint_runs_again_uncounted() -> None:
    """Postgres asked for it (40P01, say): that is no failed attempt."""
    bench = Bench()
    bench.handler.on("k1", Retry("group"))
    bench.fail_at("finish", SerializationConflict("deadlock"))
    outcomes = await bench.process(*map(bench.delivery, TEN[:3]))
    assert reasons(outcomes) == [AckReason.DONE] * 3
    assert bench.database.tables.attempts == []


@pytest.mark.parametrize("point", ["begin", "claim", "finish", "commit"])
@in_virtual_time
async def test_an_infrastructure_fault_gives_the_whole_group_back_uncounted(point: str) -> None:
    bench = Bench()
    bench.fail_at(point, StoreUnavailable("gone"))
    outcomes = await bench.process(*map(bench.delivery, TEN))
    assert outcomes == [Requeue(RequeueReason.INFRASTRUCTURE)] * 10
    assert bench.database.tables.claims == {}
    assert bench.effects == []
    assert bench.database.locks == {}


@pytest.mark.parametrize("point", ["savepoint", "release savepoint"])
@in_virtual_time
async def test_an_infrastructure_fault_behind_savepoints_gives_all_back(point: str) -> None:
    bench = Bench()
    bench.handler.on("k0", ValueError("group"))
    bench.fail_at(point, StoreUnavailable("gone"))
    outcomes = await bench.process(*map(bench.delivery, TEN))
    assert outcomes == [Requeue(RequeueReason.INFRASTRUCTURE)] * 10
    assert bench.effects == []


@in_virtual_time
async def test_an_infrastructure_fault_at_the_record_gives_back_the_culprit_only() -> None:
    bench = Bench()
    bench.handler.on("k1", Reject("x"), Reject("x"))
    bench.fail_at("record", StoreUnavailable("gone"))
    outcomes = await bench.process(*map(bench.delivery, TEN[:3]))
    assert [type(outcome) for outcome in outcomes] == [Ack, Requeue, Ack]
    assert bench.claim("k1") is None


@in_virtual_time
async def test_members_that_do_not_run_take_no_part_in_the_failure_of_others() -> None:
    bench = Bench()
    await bench.process(bench.delivery("k0"))
    bench.handler.on("k1", Reject("x"), Reject("x"))
    outcomes = await bench.process(*map(bench.delivery, TEN[:3]))
    assert reasons(outcomes) == [AckReason.DUPLICATE, AckReason.DIED, AckReason.DONE]


@in_virtual_time
async def test_rows_of_a_group_are_dispatched_once() -> None:
    bench = Bench()

    async def send(_: Charge, context: Context) -> None:
        await context.outbox.send(Charge(key=context.key))

    for key in TEN[:3]:
        bench.handler.on(key, send)
    outcomes = await bench.process(*map(bench.delivery, TEN[:3]))
    rows = [row.id for outcome in outcomes for row in getattr(outcome, "rows", ())]
    assert sorted(rows) == sorted(bench.database.tables.outbox)
    assert len(rows) == 3


@in_virtual_time
async def test_nothing_sent_by_a_member_that_failed_is_in_the_outbox() -> None:
    bench = Bench()

    async def send_and_fail(_: Charge, context: Context) -> Exception:
        await context.outbox.send(Charge(key="never"))
        return Reject("after sending")

    bench.handler.on("k1", send_and_fail, send_and_fail)
    await bench.process(*map(bench.delivery, TEN[:3]))
    assert not any(b"never" in outgoing.body for outgoing in bench.rows())


@in_virtual_time
async def test_the_group_is_halved_by_a_rollback_and_grows_back() -> None:
    bench = Bench()
    size = bench.processor.group_size
    assert size.limit == MAX_GROUP_SIZE
    bench.handler.on("k0", Retry("x"))
    await bench.process(*map(bench.delivery, TEN))
    assert size.limit == 25
    await bench.process(bench.delivery("alone"))
    await bench.process(bench.delivery("p"), bench.delivery("q"))
    assert size.limit == 27
    await bench.process(bench.delivery("alone"))  # a duplicate is no success
    assert size.limit == 27


def test_the_group_size_stays_between_1_and_50() -> None:
    size = GroupSize()
    size.grow()
    assert size.limit == 50
    for _ in range(10):
        size.shrink()
    assert size.limit == 1
    size.grow()
    assert size.limit == 2


class InOneStatement(Handler[Charge]):
    """Does the work of a group itself, and fails where a command is bad."""

    name, queue = "orders.charge", "orders"

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    async def handle_group(self, commands: Sequence[Charge], contexts: Sequence[Context]) -> None:
        self.calls.append([context.key for context in contexts])
        for command, context in zip(commands, contexts, strict=True):
            session: Any = context.session
            session.add((context.key, command.amount))
        if any(command.amount < 0 for command in commands):
            raise Reject("negative")


@in_virtual_time
async def test_handle_group_gets_those_that_run_in_one_call() -> None:
    handler = InOneStatement()
    bench = Bench(handler)
    await bench.process(bench.delivery("k1"))
    outcomes = await bench.process(*map(bench.delivery, TEN[:3]))
    assert handler.calls == [["k1"], ["k0", "k2"]]
    assert reasons(outcomes) == [AckReason.DONE, AckReason.DUPLICATE, AckReason.DONE]


@in_virtual_time
async def test_handle_group_that_fails_is_called_one_by_one() -> None:
    handler = InOneStatement()
    bench = Bench(handler)
    outcomes = await bench.process(
        bench.delivery("k0"), bench.delivery("k1", amount=-1), bench.delivery("k2"))
    assert handler.calls == [["k0", "k1", "k2"], ["k0"], ["k1"], ["k2"]]
    assert reasons(outcomes) == [AckReason.DONE, AckReason.DIED, AckReason.DONE]
    assert [key for key, _ in bench.effects] == ["k0", "k2"]


@in_virtual_time
async def test_a_group_of_one_is_the_same_code() -> None:
    handler = InOneStatement()
    bench = Bench(handler)
    assert reasons(await bench.process(bench.delivery("k0"))) == [AckReason.DONE]
    assert handler.calls == [["k0"]]
