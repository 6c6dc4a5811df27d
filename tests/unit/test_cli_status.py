"""What `consumer status` and `consumer topology check` show of what they found."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from rich.console import Console, RenderableType

from consumer.app import App
from consumer.broker.check import Finding, State
from consumer.broker.depths import Depth
from consumer.cli import findings, overview
from consumer.cli.known import work_queues
from consumer.cli.overview import Overview
from consumer.cli.status import as_dict, rendered
from consumer.core.topology import plan
from consumer.settings import Settings
from consumer.store.backlog import RowStatus, Waiting
from consumer.store.topology import DeclaredObject, RecordedObject
from consumer.store.workers import LiveWorker, Pause, QueueUse, WorkerInfo

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def recorded(prefix: str, queues: Mapping[str, list[str]]) -> list[RecordedObject]:
    """What `topology apply` records."""
    topology = plan(prefix, queues)
    objects = [("exchange", e.name) for e in topology.exchanges]
    objects += [("queue", q.name) for q in topology.queues]
    objects += [("binding", f"{b.exchange} -[{b.routing_key}]-> {b.destination}")
                for b in topology.bindings]
    return [RecordedObject(DeclaredObject(kind, name, {}), "4.3.6", NOW) for kind, name in objects]


def worker(**queues: list[QueueUse]) -> LiveWorker:
    return LiveWorker(WorkerInfo(uuid4(), "host", 1, NOW, queues, "1"), 2.04)


def waiting(status: RowStatus, destination: str, count: int, age_s: float = 0) -> Waiting:
    return Waiting(status, "", destination, count, NOW - timedelta(seconds=age_s), 0.0)


STORED = overview._Stored(
    recorded("shop", {"payments": ["payments.capture", "payments.refund"], "mails": ["mail"]}),
    [worker(payments=[QueueUse("live", 2, 5), QueueUse("replay", 1, 1)]),
     worker(payments=[QueueUse("live", 2, 7)], mails=[])],
    {"payments": Pause("payments", "ann@host", "[red]why", NOW - timedelta(minutes=3))},
    [waiting(RowStatus.KEPT, "payments", 3), waiting(RowStatus.KEPT, "payments.replay", 4),
     waiting(RowStatus.SCHEDULED, "payments.refund", 10), waiting(RowStatus.SCHEDULED, "mail", 20),
     waiting(RowStatus.PENDING, "payments", 100, 7.5), waiting(RowStatus.PENDING, "mail", 1, 3),
     waiting(RowStatus.PARKED, "payments.capture", 2, 90)],
)
DEPTHS = {"payments": Depth(11, 2), "payments.replay": Depth(12, 1), "payments.dead": Depth(13, 0),
          "mails": None, "mails.replay": None, "mails.dead": None, "shop.unroutable": Depth(6, 0)}


@pytest.fixture
def now() -> Overview:
    return overview._overview(STORED, DEPTHS, None, NOW)


def text_of(shown: RenderableType) -> str:
    out = StringIO()
    Console(file=out, width=200).print(shown)
    return out.getvalue()


def test_counts_come_from_broker_heartbeats_and_outbox(now: Overview) -> None:
    found = json.loads(json.dumps(as_dict(now)))
    mails, payments = found["queues"]
    assert payments == {
        "queue": "payments", "ready": 11, "in_flight": 13, "delayed": 17, "dead": 13, "replay": 12,
        "consumers": 2, "workers": 2,
        "paused": {"by": "ann@host", "reason": "[red]why", "since": "2030-01-02T03:01:05+00:00"},
        "resting": []}
    assert (mails["delayed"], mails["workers"], mails["paused"]) == (20, 1, None)
    assert found["outbox"]["pending"] == {"count": 101, "oldest_seconds": 7.5}
    assert found["outbox"]["parked"] == {"count": 2, "oldest_seconds": 90.0}
    assert found["unroutable"] == {"shop.unroutable": 6}


def test_what_the_broker_does_not_tell_is_unknown_and_not_zero(now: Overview) -> None:
    mails = as_dict(now)["queues"][0]
    assert [mails[count] for count in ("ready", "dead", "replay", "consumers")] == [None] * 4
    assert text_of(rendered(now)).splitlines()[1].split() == ["mails", "?", "0", "20", *"???", "1"]


def test_people_see_names_and_reasons_as_they_are(now: Overview) -> None:
    shown = text_of(rendered(now))
    assert "payments: paused by ann@host, 3 min ago: [red]why\n" in shown
    assert "outbox: 101 pending (oldest 8 s), 2 parked (oldest 2 min)" in shown
    assert "shop.unroutable: 6 that no queue takes" in shown


def test_queues_on_record_in_use_and_paused_are_known() -> None:
    assert work_queues(STORED.recorded) == ["mails", "payments"]
    more = overview._Stored(STORED.recorded, [worker(other=[])],
                            {"third": Pause("third", "a", "", NOW)}, [])
    assert overview._queues(more, None) == ["mails", "other", "payments", "third"]
    assert overview._queues(more, App("empty")) == []


def test_a_type_may_look_like_an_arrow() -> None:
    odd = recorded("shop", {"payments": ["a]-> b -[c"]})
    assert overview._recorded_routes(odd, ["payments"]) == {"payments": ["a]-> b -[c"]}


def test_without_queues_the_way_to_some_is_shown() -> None:
    shown = text_of(rendered(Overview([], {}, [], [], NOW)))
    assert "consumer topology apply" in shown


def test_settings_do_not_show_their_secrets() -> None:
    assert "s3cret" not in repr(Settings(amqp_url="amqp://a:s3cret@h/"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("everything", "rows"), [(False, 3), (True, 4)])
def test_the_delay_ladder_is_one_row_unless_asked_for(
    everything: bool, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        Finding("queue", "payments", State.DECLARED),
        Finding("queue", "shop.delay.00", State.MISSING, remedy="apply"),
        Finding("queue", "shop.delay.01", State.MISSING, remedy="apply"),
        Finding("queue", "shop.delay.02", State.DIFFERENT, "x-message-ttl", "400", "1", "delete"),
    ]
    findings.print_findings(found, prefix="shop", everything=everything)
    header, *lines, summary = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["object", "name", "state"]
    assert len(lines) == rows
    assert any("x-message-ttl" in line and "400" in line for line in lines)
    assert ("2 objects of shop.delay.*" in "".join(lines)) != everything
    assert summary == "1 declared, 2 missing, 1 different"


@pytest.mark.parametrize(("state", "fine"), [
    (State.DECLARED, True), (State.UNCHECKED, True), (State.MISSING, False),
    (State.DIFFERENT, False), (State.UNBOUND, False), (State.POLICY, False)])
def test_only_what_is_known_to_be_wrong_is_a_failure(state: State, fine: bool) -> None:
    assert findings.is_fine(Finding("queue", "q", state)) is fine


def test_a_dictionary_of_nothing_is_complete() -> None:
    found: dict[str, Any] = as_dict(Overview([], {}, [], [], NOW))
    assert found["outbox"]["pending"] == {"count": 0, "oldest_seconds": None}
    assert found["at"] == "2030-01-02T03:04:05+00:00"
