"""Several worker processes under one supervisor: real processes, real signals."""

import os
import signal
from pathlib import Path

import pytest
from supervised import Supervised

from consumer.exit_codes import ExitCode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_all_children(tmp_path: Path, number: signal.Signals) -> None:
    with Supervised(tmp_path, "obey", "obey", "obey") as supervised:
        pids = supervised.await_notes("up", 3)
        supervised.process.send_signal(number)
        assert supervised.ended() == ExitCode.OK
        assert supervised.notes("drained") == pids
        assert [event["code"] for event in supervised.seen("child_died")] == [0, 0, 0]


def test_a_child_that_dies_is_started_again_and_its_neighbour_is_not(tmp_path: Path) -> None:
    with Supervised(tmp_path, "obey", "obey") as supervised:
        supervised.await_notes("up", 2)
        first, second = (event["child_pid"] for event in supervised.seen("child_started"))
        os.kill(first, signal.SIGKILL)
        third = supervised.await_events("child_started", 3)[2]
        assert (third["child"], third["child_pid"] != first) == (0, True)
        supervised.await_notes("up", 3)
        [died] = supervised.seen("child_died")
        assert (died["child"], died["code"], died["meaning"]) == (0, -9, "CRASHED")
        supervised.process.terminate()
        assert supervised.ended() == ExitCode.OK
        assert supervised.notes("drained") == {second, third["child_pid"]}


def test_restarts_come_later_and_later(tmp_path: Path) -> None:
    """Death number n is followed by a pause of at most base · 2ⁿ⁻¹."""
    with Supervised(tmp_path, "exit=3", base_s=0.05) as supervised:
        died = supervised.await_events("child_died", 4)[:4]
        supervised.process.terminate()
        assert supervised.ended() == ExitCode.UNAVAILABLE
        for number, event in enumerate(died):
            assert 0 <= event["restart_in_s"] <= 0.05 * 2**number + 0.01


@pytest.mark.parametrize("code", [ExitCode.USAGE, ExitCode.SCHEMA, ExitCode.TOPOLOGY])
def test_a_child_that_can_never_start_ends_all(tmp_path: Path, code: ExitCode) -> None:
    with Supervised(tmp_path, f"exit={code:d}", "obey") as supervised:
        assert supervised.ended() == code
        assert [event["child"] for event in supervised.seen("child_started")] == [0, 1]
        assert len(supervised.seen("child_died")) == 2


def test_a_child_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    with Supervised(tmp_path, "hang-once=0", grace_s=0.2, hang_s=2) as supervised:
        [hung] = supervised.await_events("child_hung", 1)
        [died] = supervised.await_events("child_died", 1)
        assert died["child_pid"] == hung["child_pid"]
        assert (died["code"], died["meaning"]) == (-9, "GRACE_EXCEEDED")
        again = supervised.await_events("child_started", 2)[1]
        supervised.wait_until(lambda: again["child_pid"] in supervised.notes("up"), "up again")
        supervised.process.terminate()
        assert supervised.ended() == ExitCode.OK


def test_a_second_signal_reaches_the_children(tmp_path: Path) -> None:
    with Supervised(tmp_path, "slow", "obey") as supervised:
        supervised.await_notes("up", 2)
        supervised.process.terminate()
        supervised.await_notes("draining", 2)
        supervised.await_events("child_died", 1)
        supervised.process.terminate()
        assert supervised.ended() == ExitCode.GRACE_EXCEEDED
        assert len(supervised.notes("drained")) == 2


def test_a_child_that_does_not_end_within_its_grace_is_killed(tmp_path: Path) -> None:
    with Supervised(tmp_path, "deaf", "obey", grace_s=0.5) as supervised:
        supervised.await_notes("up", 2)
        supervised.process.terminate()
        assert supervised.ended() == ExitCode.GRACE_EXCEEDED
        assert len(supervised.notes("drained")) == 1
        assert {event["meaning"] for event in supervised.seen("child_died")} == {
            "OK", "GRACE_EXCEEDED"}


def test_children_notice_that_the_supervisor_was_killed(tmp_path: Path) -> None:
    with Supervised(tmp_path, "obey", "obey") as supervised:
        pids = supervised.await_notes("up", 2)
        supervised.process.kill()
        assert supervised.await_notes("drained", 2) == pids
        supervised.wait_until(
            lambda: not any(supervised.is_child(pid) for pid in pids), "children gone")


def test_ctrl_c_at_a_terminal_reaches_the_children_once(tmp_path: Path) -> None:
    """A terminal signals its whole process group; the children are not in the supervisor's."""
    with Supervised(tmp_path, "obey") as supervised:
        [pid] = supervised.await_notes("up", 1)
        assert os.getpgid(pid) != os.getpgid(supervised.process.pid)
