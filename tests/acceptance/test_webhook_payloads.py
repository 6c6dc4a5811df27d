"""Real webhook payloads, from two languages, through workers that are killed: each stored once."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import npm
import pytest
import rabbit
from database import Gate, count, fetch
from processes import PROJECT, Fleet, environment, run, wait_until

from consumer.testing.plugin import Database, Vhost

pytestmark = pytest.mark.acceptance

APP = "examples.webhooks.app:app"
PAYLOADS, COPIES, KILLS = 329, 3, 5
QUEUES = rabbit.lanes("webhooks")
WORKERS, CONNECTIONS = 3, 2  # workers, and transactions at once in each


@pytest.fixture(scope="module")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return npm.installed(tmp_path_factory.mktemp("npm"),
                         "@octokit/webhooks-examples@7.6.1", "amqplib@2.3.1")


@pytest.fixture
def payloads(node_modules: Path) -> list[dict[str, Any]]:
    events = json.loads(
        (node_modules / "@octokit/webhooks-examples/api.github.com/index.json").read_text("utf-8"))
    found = [example for event in events for example in event["examples"]]
    assert len(found) == PAYLOADS
    return found


@pytest.fixture
def fleet(consumer_vhost: Vhost, consumer_database: Database, tmp_path: Path) -> Iterator[Fleet]:
    env = environment(consumer_vhost.url, consumer_database.url)
    run(["python", "-m", "examples.webhooks.tables"], env)
    run(["consumer", "topology", "apply", APP], env)
    with Fleet(env, tmp_path) as fleet:
        yield fleet


def publish_with_pika(amqp_url: str, payloads: list[dict[str, Any]]) -> None:
    copies = [rabbit.Publication(
        "github.webhook", json.dumps(payload).encode(), message_id=f"pika-{number}-{index}",
        headers={"idempotency-key": f"webhook-{index}"},
    ) for index, payload in enumerate(payloads) for number in range(COPIES)]
    random.Random(1).shuffle(copies)
    assert rabbit.publish(amqp_url, copies) == PAYLOADS * COPIES


def publish_with_amqplib(
    env: dict[str, str], payloads: list[dict[str, Any]], node_modules: Path, folder: Path
) -> None:
    (folder / "payloads.json").write_text(json.dumps(payloads))
    script = PROJECT / "tests/acceptance/publish.cjs"
    printed = run(["node", str(script), str(folder / "payloads.json"), str(COPIES), "1"],
                  {**env, "NODE_PATH": str(node_modules)})
    assert int(printed) == PAYLOADS * COPIES


def kill_in_mid_transaction(fleet: Fleet, gate: Gate) -> None:
    """A worker dies between its claim and its COMMIT, and another takes its place."""
    # So many connections that each of the workers has at least one of them.
    certain = CONNECTIONS * (WORKERS - 1) + 1
    wait_until(lambda: gate.waiting() >= certain, "some worker is not about to store anything")
    fleet.kill(fleet.running[0])
    fleet.worker(APP)


def work_off(fleet: Fleet, amqp_url: str) -> None:
    """Nothing is left to do: all workers have drained, and gave nothing back."""
    while True:
        wait_until(lambda: not rabbit.depths(amqp_url, QUEUES), "messages are left", 120)
        assert {fleet.stop(process) for process in list(fleet.running)} == {0}
        if not rabbit.depths(amqp_url, QUEUES):
            return
        fleet.worker(APP)


def test_every_payload_is_stored_exactly_once(
    fleet: Fleet, consumer_vhost: Vhost, consumer_database: Database,
    payloads: list[dict[str, Any]], node_modules: Path, tmp_path: Path,
) -> None:
    """329 payloads, sent by pika and by amqplib three times each, five workers killed: 329 rows."""
    with Gate(consumer_database.url, "webhook") as gate:
        for _ in range(WORKERS):
            fleet.worker(APP)
        publish_with_pika(consumer_vhost.url, payloads)
        publish_with_amqplib(dict(fleet.env), payloads, node_modules, tmp_path)
        for _ in range(KILLS):
            kill_in_mid_transaction(fleet, gate)
            gate.let_pass()
    work_off(fleet, consumer_vhost.url)

    rows = fetch(consumer_database.url, "SELECT delivery_id, payload::text FROM webhook")
    assert Counter(row[0] for row in rows) == Counter(f"webhook-{n}" for n in range(PAYLOADS))
    for delivery_id, payload in rows:
        assert json.loads(payload) == payloads[int(delivery_id.removeprefix("webhook-"))]
    assert not rabbit.depths(consumer_vhost.url, ["webhooks.dead"])
    assert count(consumer_database.url, "consumer.attempt") == 0

