"""The command line against a real broker and database."""

import json
import signal
import subprocess
import sysconfig
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from database import count, fetch
from processes import Fleet, environment, wait_until

from consumer.exit_codes import ExitCode
from consumer.testing.plugin import Database, Vhost
from consumer.testing.services import Endpoints

pytestmark = pytest.mark.acceptance

APP = """
from sqlalchemy import text
from consumer import App, Command, Context, Handler, Queue

class Capture(Command, type="payments.capture"):
    order_id: str

class CaptureHandler(Handler[Capture]):
    name = "payments.capture"
    queue = "payments"

    async def handle(self, command: Capture, context: Context) -> None:
        await context.session.execute(text("INSERT INTO captured VALUES (:o)"),
                                      {"o": command.order_id})

    def key(self, command: Capture) -> object:
        return command.order_id

app = App("shop", handlers=[CaptureHandler], prefix="shop")
more = App("shop", handlers=[CaptureHandler], queues=[Queue("mails")], prefix="shop")
"""


@dataclass
class Cli:
    """The command line, in the folder of the app."""

    folder: Path
    env: dict[str, str]

    def __call__(self, *arguments: str, stdin: bytes = b"", **env: str
                 ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [str(Path(sysconfig.get_path("scripts")) / "consumer"), *arguments], cwd=self.folder,
            env=self.env | env, input=stdin, capture_output=True, timeout=120, check=False)
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def json(self, *arguments: str) -> Any:
        """What a command that ended with 0 has printed."""
        done = self(*arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def queue(self, name: str = "payments") -> dict[str, Any]:
        """The status of a queue."""
        [found] = [q for q in self.json("status", "--json")["queues"] if q["queue"] == name]
        return dict(found)


@pytest.fixture
def cli(consumer_vhost: Vhost, consumer_database: Database, consumer_services: Endpoints,
        tmp_path: Path) -> Cli:
    (tmp_path / "shop.py").write_text(APP)
    fetch(consumer_database.url, "CREATE TABLE captured (order_id text)")
    more = {"CONSUMER_MANAGEMENT_URL": consumer_services.management_url,
            "CONSUMER_HEARTBEAT": "0.2", "PYTHONPATH": str(tmp_path)}
    return Cli(tmp_path, environment(consumer_vhost.url, consumer_database.url, **more))


@pytest.fixture
def applied(cli: Cli) -> Cli:
    """The topology of the app is applied."""
    assert cli("topology", "apply", "shop:app").returncode == 0
    return cli


@pytest.fixture
def fleet(applied: Cli) -> Iterator[Fleet]:
    logs = applied.folder / "logs"
    logs.mkdir()
    with Fleet(applied.env, logs) as fleet:
        yield fleet


def states(findings: list[dict[str, Any]]) -> set[str]:
    return {finding["state"] for finding in findings}


def test_check_finds_what_apply_mends(cli: Cli, consumer_database: Database) -> None:
    before = cli("topology", "check", "shop:app", "--json")
    assert before.returncode == ExitCode.FAILED
    assert states(json.loads(before.stdout)) == {"missing", "unbound"}
    applied = cli.json("topology", "apply", "shop:app", "--json")
    assert {"payments", "payments.replay", "payments.dead"} <= {item["name"] for item in applied}
    assert count(consumer_database.url, "consumer.topology") == len(applied)
    after = cli.json("topology", "check", "shop:app", "--json")
    assert states(after) == {"declared"}
    assert cli("topology", "apply", "shop:app").returncode == 0, "a second time is as once"
    more = cli("topology", "check", "shop:more")
    assert more.returncode == ExitCode.FAILED
    assert "mails" in more.stdout


def test_apply_refuses_a_queue_that_is_there_otherwise(
    cli: Cli, consumer_vhost: Vhost, consumer_database: Database
) -> None:
    pika = pytest.importorskip("pika")
    with pika.BlockingConnection(pika.URLParameters(consumer_vhost.url)) as connection:
        connection.channel().queue_declare("payments", durable=True,
                                           arguments={"x-queue-type": "classic"})
    done = cli("topology", "apply", "shop:app")
    assert done.returncode == ExitCode.TOPOLOGY
    assert done.stderr.startswith("error: queue 'payments' exists with ")
    assert done.stderr.count("\n") == 1
    assert count(consumer_database.url, "consumer.topology") == 0


def test_without_tables_operators_are_told_what_to_run(
    cli: Cli, consumer_empty_database: Database
) -> None:
    for command in (["status"], ["pause", "payments"], ["topology", "apply", "shop:app"]):
        done = cli(*command, CONSUMER_DATABASE_URL=consumer_empty_database.url)
        assert done.returncode == ExitCode.SCHEMA
        assert "consumer db upgrade" in done.stderr


def test_commands_are_sent_once_each(applied: Cli) -> None:
    body = {"order_id": "a"}
    (applied.folder / "body.json").write_text(json.dumps(body))
    ways: list[Callable[[], subprocess.CompletedProcess[str]]] = [
        lambda: applied("send", "payments.capture", "--prefix", "shop", "--json", json.dumps(body)),
        lambda: applied("send", "payments.capture", "--app", "shop:app", "--file", "body.json"),
        lambda: applied("send", "payments.capture", "--app", "shop:app",
                        stdin=json.dumps(body).encode()),
        lambda: applied("send", "payments.capture", "--app", "shop:app", "--lines", "--output",
                        "json", stdin=b'{"order_id": "b"}\n\n{"order_id": "c"}\n'),
    ]
    done = [way() for way in ways]
    assert [d.returncode for d in done] == [0] * 4
    assert [d.stderr for d in done] == [""] * 4
    assert done[1].stdout.split()[-1] == "a"
    assert [json.loads(line)["key"] for line in done[3].stdout.splitlines()] == ["b", "c"]
    assert applied.queue()["ready"] == 5


def test_nothing_is_sent_where_one_line_is_wrong(applied: Cli) -> None:
    done = applied("send", "payments.capture", "--app", "shop:app", "--lines",
                   stdin=b'{"order_id": "a"}\n{"order": "b"}\n')
    assert done.returncode == ExitCode.USAGE
    assert "line 2" in done.stderr
    assert applied.queue()["ready"] == 0


def test_a_type_no_queue_takes_is_warned_about(applied: Cli) -> None:
    done = applied("send", "payments.captur", "--prefix", "shop", "--json", "{}")
    assert done.returncode == ExitCode.OK
    assert done.stderr.startswith("warning: shop.unroutable has grown by 1")
    assert applied.json("status", "--json")["unroutable"] == {"shop.unroutable": 1}


def test_an_exchange_that_is_not_there_is_an_error(cli: Cli) -> None:
    done = cli("send", "payments.capture", "--prefix", "shop", "--json", "{}")
    assert done.returncode == ExitCode.TOPOLOGY
    assert "consumer topology apply" in done.stderr


def test_a_worker_does_what_was_sent_and_drains(
    applied: Cli, fleet: Fleet, consumer_database: Database
) -> None:
    worker = fleet.worker("shop:app", "--processes", "2", "--grace", "20")
    wait_until(lambda: applied.queue()["workers"] == 2, "two workers")
    for _ in range(2):  # the second is a duplicate
        applied("send", "payments.capture", "--app", "shop:app", "--json", '{"order_id": "a"}')
    wait_until(lambda: count(consumer_database.url, "captured") == 1, "captured")
    listening = [e["port"] for e in fleet.lines() if e.get("event") == "health_listening"]
    assert len(listening) == 2
    with urllib.request.urlopen(f"http://127.0.0.1:{listening[0]}/ready", timeout=10) as answer:
        assert json.load(answer) == {"ready": True, "reasons": {}}
    wait_until(lambda: applied.queue()["ready"] == 0, "nothing ready")
    assert fleet.stop(worker) == ExitCode.OK
    assert applied.queue()["workers"] == 0
    assert count(consumer_database.url, "captured") == 1


def test_a_pause_holds_for_all_workers_until_it_is_ended(
    applied: Cli, fleet: Fleet, consumer_database: Database
) -> None:
    first = applied("pause", "payments", "--reason", "provider is down")
    again = applied("pause", "payments", "--reason", "other")
    assert (first.returncode, first.stderr, again.returncode) == (0, "", 0)
    assert "provider is down" in again.stdout
    fleet.worker("shop:app")
    wait_until(lambda: applied.queue()["workers"] == 1, "a worker")
    applied("send", "payments.capture", "--app", "shop:app", "--json", '{"order_id": "a"}')
    paused = applied.queue()
    assert (paused["ready"], paused["paused"]["reason"]) == (1, "provider is down")
    assert applied("resume", "payments").returncode == 0
    wait_until(lambda: count(consumer_database.url, "captured") == 1, "captured")
    assert applied.queue()["paused"] is None
    log = fetch(consumer_database.url,
                "SELECT action, actor, reason FROM consumer.audit_log ORDER BY at")
    assert [(row["action"], row["reason"]) for row in log] == [
        ("queue.pause", "provider is down"), ("queue.resume", "")]
    assert all("@" in row["actor"] for row in log)


def test_a_pause_of_an_unknown_queue_is_warned_about(applied: Cli) -> None:
    done = applied("pause", "paymets")
    assert done.returncode == ExitCode.OK
    assert done.stderr.startswith("warning: ")


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_a_worker_without_its_topology_ends_at_once(cli: Cli, options: list[str]) -> None:
    done = cli("worker", "shop:app", *options)
    assert done.returncode == ExitCode.TOPOLOGY
    assert "consumer topology apply" in done.stderr


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_a_worker_with_a_wrong_queue_ends_at_once(applied: Cli, options: list[str]) -> None:
    done = applied("worker", "shop:app", "--queue", "paymets", *options)
    assert done.returncode == ExitCode.USAGE
    assert "'paymets'" in done.stderr


def test_watching_goes_on_until_it_is_interrupted(applied: Cli) -> None:
    with subprocess.Popen(
        [str(Path(sysconfig.get_path("scripts")) / "consumer"), "status", "--json", "--watch",
         "--every", "0.2"], cwd=applied.folder, env=applied.env, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        times = [json.loads(watching.stdout.readline())["at"] for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 128 + signal.SIGINT
        assert watching.stderr.read() == b""
    assert times[0] < times[1]
