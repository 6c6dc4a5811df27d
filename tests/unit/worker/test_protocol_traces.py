"""The shortest traces that break the protocol without one of its rules, played with the rule.

Each test follows a trace of the protocol model step by step, shows what our code does where the
broken one goes wrong, and lets everything come to its end.
"""

from datetime import timedelta

import pytest
from simulation.stage import MAX_ATTEMPTS, SCOPE, Stage, Worker

from consumer import message as names
from consumer.claim import ClaimState
from consumer.core.admit import TAKEOVER_GRACE
from consumer.outcome import DeadReason

KEY = (SCOPE, "a")


def run_until(worker: Worker, point: str, handler: str = "") -> None:
    """Let a worker on until it waits at `point`; its handler does what is said."""
    while worker.gates[0].point != point:
        gate = worker.gates[0]
        gate.open(handler if gate.point == "handle" else "")


def take(stage: Stage, point: str = "", handler: str = "") -> Worker:
    """A worker takes the next delivery, and goes on until `point`, or to the end."""
    worker = stage.worker()
    worker.deliver()
    if point:
        run_until(worker, point, handler)
    else:
        stage.finish(worker, lambda at: handler if at == "handle" else "")
    return worker


def state(stage: Stage) -> ClaimState | None:
    row = stage.claim()
    return row.state if row is not None else None


def publish_twice(stage: Stage) -> None:
    stage.publish_again("a", stage.publish())


@pytest.mark.parametrize("point", ["claim", "handle", "finish", "commit", "ack"])
def test_ack_before_commit(stage: Stage, point: str) -> None:
    """A delivery is unacknowledged until its transaction has committed."""
    stage.publish()
    worker = take(stage, point)
    assert len(worker.unsettled) == 1
    assert (state(stage) is ClaimState.DONE) == (point == "ack")
    stage.drain([worker])


def test_ack_before_commit_of_two_that_fail(stage: Stage) -> None:
    """Two copies run one after the other, both fail: neither was acked before a retry stood."""
    publish_twice(stage)
    first = take(stage, "begin")
    run_until(first, "commit", "transient")       # of the record
    assert first.unsettled
    second = take(stage, "commit")                # claims: locked elsewhere, parks
    second.gates[0].open()
    assert second.unsettled                       # its parked copy is not confirmed yet
    stage.finish(first)
    assert state(stage) is ClaimState.RETRYING
    stage.drain([first, second])
    assert stage.effects() == [("a", 1)]


def test_ack_uncommitted(stage: Stage) -> None:
    """A copy that meets an uncommitted transaction is parked; when that one loses its channel and
    then fails, a copy is still there.
    """
    publish_twice(stage)
    first = take(stage, "handle")
    second = take(stage)
    assert second.idle
    assert stage.broker.delayed                   # parked, not gone
    first.lose_channel()
    third = take(stage)
    assert third.idle
    assert len(stage.broker.delayed) == 2
    stage.finish(first, lambda at: "transient" if at == "handle" else "")
    stage.drain([first])
    assert stage.effects() == [("a", 1)]


def test_no_ticket(stage: Stage) -> None:
    """A copy without the ticket does not run a retrying key: it is acked."""
    publish_twice(stage)
    take(stage, handler="transient")
    second = take(stage)
    assert second.idle
    assert stage.runs["a"] == 1
    assert state(stage) is ClaimState.RETRYING
    stage.drain()
    assert stage.runs["a"] == 2


def test_no_ticket_but_overdue(stage: Stage) -> None:
    """Past its due time and the grace, any copy takes the place of one that never came."""
    publish_twice(stage)
    worker = take(stage, "publish", "transient")  # the ack of a record waits for nothing else
    run_until(worker, "publish")
    worker.kill()                                 # its next copy is only in the outbox
    assert state(stage) is ClaimState.RETRYING
    stage.clock.advance(TAKEOVER_GRACE + timedelta(seconds=2))
    take(stage)
    assert state(stage) is ClaimState.DONE
    assert stage.runs["a"] == 2
    stage.drain()


def test_no_ticket_within_grace(stage: Stage) -> None:
    """Late by less than the grace, a copy without the ticket is acked: the other may still come."""
    publish_twice(stage)
    take(stage, handler="transient")
    stage.clock.advance(TAKEOVER_GRACE)           # the retry is due a second later than now
    take(stage)
    assert stage.runs["a"] == 1
    stage.drain()


def test_two_step_failure(stage: Stage) -> None:
    """The next copy is in the outbox from the same COMMIT that makes the claim `retrying`."""
    publish_twice(stage)
    first = take(stage, "record", "transient")
    assert (state(stage), len(stage.database.tables.outbox)) == (None, 0)
    run_until(first, "ack")
    assert (state(stage), len(stage.database.tables.outbox)) == (ClaimState.RETRYING, 1)
    take(stage)                                   # acks the other copy
    first.lose_channel()
    take(stage)                                   # acks the one that came again
    first.kill()
    stage.drain()
    assert stage.effects() == [("a", 1)]


def test_dead_acked_first(stage: Stage) -> None:
    """A dead command has its letter in the outbox when its claim turns dead, before any ack."""
    publish_twice(stage)
    first = take(stage, "ack", "permanent")
    assert state(stage) is ClaimState.DEAD
    assert len(stage.database.tables.outbox) == 1
    take(stage)                                   # acks the duplicate
    first.kill()
    stage.drain()
    assert [why for _, why in stage.letters().values()] == [DeadReason.REJECTED]


def test_blind_failure(stage: Stage) -> None:
    """Between a rollback and its record another copy gets done: nothing is recorded, then."""
    publish_twice(stage)
    first = take(stage, "begin")
    run_until(first, "lock", "transient")
    take(stage)
    assert state(stage) is ClaimState.DONE
    stage.finish(first)
    assert state(stage) is ClaimState.DONE
    assert stage.database.tables.attempts == []
    stage.drain([first])


def test_blind_failure_of_another_payload(stage: Stage) -> None:
    """The other copy is of another payload: the failed one is a conflict now, and uncounted."""
    stage.publish("a", 1)
    stage.publish("a", 2)
    first = take(stage, "begin")
    run_until(first, "lock", "transient")
    take(stage)
    stage.finish(first)
    assert stage.effects() == [("a", 2)]
    assert stage.database.tables.attempts == []
    stage.drain([first])
    assert [why for _, why in stage.letters().values()] == [DeadReason.KEY_CONFLICT]


def test_failure_never_waits(stage: Stage) -> None:
    """A record that finds the key locked waits for it, and then counts: both runs count."""
    publish_twice(stage)
    first = take(stage, "begin")
    run_until(first, "lock", "transient")         # rolled back, not recorded
    second = take(stage, "handle")                # holds the lock
    first.at("lock").open()
    assert first.gates == []                      # waits
    second.at("handle").open("transient")
    assert first.at("record")                     # the rollback let it in
    stage.finish(first)
    stage.finish(second)
    row = stage.claim()
    assert row is not None
    assert (row.state, row.attempts, len(stage.database.tables.attempts)) == (
        ClaimState.RETRYING, 2, 2)
    stage.drain([first, second])
    assert stage.runs["a"] == MAX_ATTEMPTS


def test_failure_waits_and_finds_it_done(stage: Stage) -> None:
    """The transaction it waits for commits: the failed attempt is a duplicate, and is acked."""
    publish_twice(stage)
    first = take(stage, "begin")
    run_until(first, "lock", "transient")
    second = take(stage, "handle")
    first.at("lock").open()
    stage.finish(second)
    stage.finish(first)
    assert first.idle
    assert (state(stage), stage.runs["a"]) == (ClaimState.DONE, 2)
    stage.drain([first, second])


def test_the_fleet_has_one_retry_limit(stage: Stage) -> None:
    """Copies that fail at the same time never exceed the attempts, and leave one letter."""
    message = stage.publish()
    for _ in range(MAX_ATTEMPTS + 1):
        stage.publish_again("a", message)
    workers = []
    for _ in range(MAX_ATTEMPTS + 2):
        worker = take(stage, "begin")
        run_until(worker, "lock", "transient")
        workers.append(worker)
    for worker in workers:
        stage.finish(worker)
    row = stage.claim()
    assert row is not None
    assert (row.state, row.attempts) == (ClaimState.DEAD, MAX_ATTEMPTS)
    stage.drain(workers)
    assert len(stage.letters()) == 1


def test_row_not_kept(stage: Stage) -> None:
    """The next copy was confirmed and the broker lost it: its row comes due again."""
    publish_twice(stage)
    first = take(stage, handler="transient")
    take(stage)
    [copy] = stage.copies()
    stage.break_down(copy)
    assert stage.broker.delayed == []
    assert len(stage.database.tables.outbox) == 1
    stage.drain([first])
    assert stage.effects() == [("a", 1)]
    assert stage.database.tables.outbox == {}


def test_a_doubled_next_copy_runs_once(stage: Stage) -> None:
    """The ladder may double the copy that holds the ticket: the second one is too late."""
    stage.publish()
    take(stage, handler="transient")
    [copy] = stage.copies()
    stage.double(copy)
    stage.pass_time(minutes=1)
    first = take(stage, "handle")
    take(stage)                                   # parks: the key is being run
    first.at("handle").open("transient")
    stage.finish(first)
    stage.pass_time(minutes=2)
    stage.drain()
    assert (stage.runs["a"], stage.effects()) == (3, [("a", 1)])


def test_conflict_in_the_middle_of_a_retry(stage: Stage) -> None:
    """Another payload under a retrying key dies; the claim, its ticket and its attempts stay."""
    stage.publish("a", 1)
    take(stage, handler="transient")
    before = stage.claim()
    stage.publish("a", 2)
    take(stage)
    assert stage.claim() == before
    assert [why for _, why in stage.letters().values()] == [DeadReason.KEY_CONFLICT]
    stage.drain()
    assert stage.effects() == [("a", 1)]


def test_conflicts_under_one_message_id_have_a_letter_each(stage: Stage) -> None:
    """A producer that reuses message ids loses none of its payloads."""
    stage.publish("a", 1, message_id="a")
    for amount in (2, 3, 3):
        stage.publish("a", amount, message_id="a")
    stage.drain()
    assert sorted(body for body, _ in stage.letters().values()) == [
        b'{"key":"a","amount":2}', b'{"key":"a","amount":3}']


@pytest.mark.parametrize("commits", [True, False])
def test_the_commit_of_a_killed_worker(stage: Stage, commits: bool) -> None:
    """While nobody knows, its delivery is parked; then it is a duplicate, or runs."""
    stage.publish()
    first = take(stage, "commit")
    first.orphan()
    take(stage)
    assert stage.runs["a"] == 1
    assert len(stage.broker.delayed) == 1
    stage.end_orphan(commits=commits)
    assert (state(stage) is ClaimState.DONE) == commits
    stage.drain()
    assert stage.runs["a"] == (1 if commits else 2)


def test_a_commit_without_an_answer(stage: Stage) -> None:
    """The connection is lost with the COMMIT in flight: the delivery goes back, a duplicate."""
    stage.publish()
    worker = take(stage, "commit")
    worker.at("commit").open("answer lost")
    assert stage.effects() == [("a", 1)]
    assert len(stage.broker.queues["orders"]) == 1
    stage.drain([worker])
    assert stage.runs["a"] == 1


def test_a_record_without_an_answer(stage: Stage) -> None:
    """The same for the record of a failure: it counts once, the redelivery is acked."""
    stage.publish()
    worker = take(stage, "begin")
    run_until(worker, "record", "transient")
    run_until(worker, "commit")
    worker.at("commit").open("answer lost")
    take(stage)
    row = stage.claim()
    assert row is not None
    assert (row.attempts, stage.runs["a"]) == (1, 1)
    stage.drain([worker])


def test_a_relay_killed_between_publish_and_confirm(stage: Stage) -> None:
    """The row is sent again; the second copy of the ticket finds the command done."""
    stage.publish()
    worker = take(stage, "publish", "transient")
    worker.kill()
    stage.pass_time(seconds=6)
    relay = stage.relay()
    while relay.gates[0].point != "confirm":
        relay.gates[0].open()
    relay.kill()
    stage.pass_time(minutes=2)
    stage.finish(stage.relay())
    tickets = [w.message.properties.headers.get(names.TICKET) for w in map(
        stage.copy_at, stage.copies()) if w.message.properties.headers.get(names.TICKET)]
    assert len(tickets) == 2
    assert len(set(tickets)) == 1
    stage.drain()
    assert stage.effects() == [("a", 1)]


def test_a_park_keeps_the_ticket(stage: Stage) -> None:
    """A next copy that has to wait for the key's lock stays the next copy, and uncounted."""
    stage.publish()
    take(stage, handler="transient")
    [copy] = stage.copies()
    stage.double(copy)
    stage.pass_time(minutes=1)
    before = stage.claim()
    assert before is not None
    holder = take(stage, "handle")
    take(stage)
    [parked] = map(stage.copy_at, stage.copies())
    headers = parked.message.properties.headers
    assert headers.get(names.TICKET) == str(before.ticket)
    assert headers.get(names.PARKS) == 1
    assert stage.claim() == before
    holder.kill()
    stage.drain()
    assert stage.effects() == [("a", 1)]
