"""The examples do what their READMEs say, each command of which is run here."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import rabbit
from database import count, fetch
from processes import Fleet, environment, run, wait_until
from readme import shell_blocks, typed

from consumer.testing.plugin import Database, Vhost

pytestmark = pytest.mark.acceptance

PAYMENTS, WEBHOOKS = "examples.payments.app:app", "examples.webhooks.app:app"


@pytest.fixture
def fleet(consumer_vhost: Vhost, consumer_database: Database, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(environment(consumer_vhost.url, consumer_database.url), tmp_path) as fleet:
        yield fleet


@pytest.fixture
def payments(fleet: Fleet) -> Fleet:
    """The payments example is set up; nothing of it runs yet."""
    run(["python", "-m", "examples.payments.tables"], fleet.env)
    run(["consumer", "topology", "apply", PAYMENTS], fleet.env)
    return fleet


@pytest.fixture
def endpoint(payments: Fleet) -> Iterator[httpx.Client]:
    port = free_port()
    payments.start("uvicorn", "examples.payments.http:app", "--port", str(port))
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        wait_until(lambda: answers(client), "the endpoint does not answer")
        yield client


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/payments/nothing").status_code == 404
    except httpx.TransportError:
        return False


@contextmanager
def working(fleet: Fleet, amqp_url: str, queue: str, app: str, deliveries: int) -> Iterator[None]:
    """A worker runs; at the end it has dealt with so many deliveries, and nothing is left."""
    worker = fleet.worker(app)
    yield
    wait_until(lambda: fleet.settled(queue) >= deliveries, "deliveries are not settled")
    assert fleet.stop(worker) == 0
    assert not rabbit.depths(amqp_url, rabbit.lanes(queue))


def send(fleet: Fleet, type_: str, key: str, **fields: object) -> None:
    run(["consumer", "send", type_, "--json", json.dumps(fields), "--key", key], fleet.env)


def ledger(database: Database) -> list[tuple[str, int]]:
    return [tuple(row) for row in fetch(
        database.url, "SELECT order_id, amount_cents FROM ledger_entry ORDER BY id")]


def test_every_command_of_the_payments_readme_works(
    consumer_vhost: Vhost, consumer_empty_database: Database, tmp_path: Path
) -> None:
    """From nothing: two equal sends and two equal requests are one ledger entry each."""
    port, database = free_port(), consumer_empty_database
    setup, worker, endpoint, sends, look, requests, refunds, status = [
        block.replace("8000", str(port)) for block in shell_blocks("examples/payments/README.md")]
    with Fleet(environment(consumer_vhost.url, database.url), tmp_path) as fleet:
        typed(setup, fleet.env)
        fleet.start("bash", "-c", worker)
        fleet.start("bash", "-c", endpoint)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            wait_until(lambda: answers(client), "the endpoint does not answer")
        typed(sends, fleet.env)
        wait_until(lambda: count(database.url, "receipt") == 1, "no receipt")
        assert json.loads(typed(look, fleet.env)) == {
            "order_id": "o-1", "captured_cents": 1250, "refunded_cents": 0, "receipts": 1}
        typed(requests, fleet.env)
        typed(refunds, fleet.env)
        wait_until(lambda: count(database.url, "receipt") == 3, "not all receipts")
        wait_until(lambda: rabbit.depths(consumer_vhost.url, ["payments.dead"]), "no dead letter")
        assert "payments" in typed(status, fleet.env)
        # Two captures by hand, one by HTTP, and two refunds.
        wait_until(lambda: fleet.settled("payments") >= 5, "deliveries are not settled")
        assert sorted(ledger(database)) == [("o-1", -250), ("o-1", 1250), ("o-2", 900)]


def test_a_request_and_its_command_commit_together(
    payments: Fleet, endpoint: httpx.Client, consumer_vhost: Vhost, consumer_database: Database
) -> None:
    """No worker runs yet: the command waits in the outbox, once, and takes effect when one does."""
    key, payment = {"Idempotency-Key": "web-1"}, {"order_id": "o-7", "amount_cents": 900}
    for _ in range(2):
        answer = endpoint.post("/payments", json=payment, headers=key)
        assert (answer.status_code, answer.json()["status"]) == (202, "accepted")
    other = endpoint.post("/payments", json={**payment, "amount_cents": 901}, headers=key)
    assert other.status_code == 422
    assert endpoint.post("/payments", json=payment).status_code == 400
    for bad in ({"order_id": "o-7", "amount_cents": 0}, {"order_id": "o-7"}, "o-7"):
        assert endpoint.post("/payments", json=bad,
                             headers={"Idempotency-Key": "bad"}).status_code == 422
    url = consumer_database.url
    assert (count(url, "payment_request"), count(url, "consumer.outbox")) == (1, 1)

    with working(payments, consumer_vhost.url, "payments", PAYMENTS, deliveries=1):
        wait_until(lambda: count(url, "receipt") == 1, "no receipt")
    assert endpoint.get("/payments/o-7").json() == {
        "order_id": "o-7", "captured_cents": 900, "refunded_cents": 0, "receipts": 1}
    assert (ledger(consumer_database), count(url, "consumer.outbox")) == ([("o-7", 900)], 0)


def test_a_refund_never_exceeds_what_was_captured(
    payments: Fleet, consumer_vhost: Vhost, consumer_database: Database
) -> None:
    """A refund that would is rejected at once, is a dead letter, and leaves nothing behind."""
    with working(payments, consumer_vhost.url, "payments", PAYMENTS, deliveries=3):
        send(payments, "payments.capture", "c-1", order_id="o-1", amount_cents=1000)
        wait_until(lambda: len(ledger(consumer_database)) == 1, "not captured")
        send(payments, "payments.refund", "r-1", order_id="o-1", amount_cents=400)
        wait_until(lambda: len(ledger(consumer_database)) == 2, "not refunded")
        send(payments, "payments.refund", "r-2", order_id="o-1", amount_cents=601)
        wait_until(lambda: rabbit.depths(consumer_vhost.url, ["payments.dead"]), "not rejected")
        wait_until(lambda: count(consumer_database.url, "receipt") == 2, "not all receipts")

    assert ledger(consumer_database) == [("o-1", 1000), ("o-1", -400)]
    [letter] = rabbit.dead_letters(consumer_vhost.url, "payments")
    assert (letter.reason, letter.attempts) == ("rejected", 1)
    assert "more refunded than captured" in letter.error
    receipts = fetch(consumer_database.url, "SELECT amount_cents FROM receipt ORDER BY id")
    assert [row[0] for row in receipts] == [1000, -400]


def test_a_refund_that_overtakes_its_capture_waits_for_it(
    payments: Fleet, consumer_vhost: Vhost, consumer_database: Database
) -> None:
    """It fails and is tried again, until the capture has happened."""
    with working(payments, consumer_vhost.url, "payments", PAYMENTS, deliveries=3):
        send(payments, "payments.refund", "r-1", order_id="o-1", amount_cents=400)
        wait_until(lambda: count(consumer_database.url, "consumer.attempt") >= 1, "not tried")
        send(payments, "payments.capture", "c-1", order_id="o-1", amount_cents=1000)
        wait_until(lambda: count(consumer_database.url, "receipt") == 2, "not all receipts")
    assert ledger(consumer_database) == [("o-1", 1000), ("o-1", -400)]


def test_every_command_of_the_webhooks_readme_works(
    consumer_vhost: Vhost, consumer_empty_database: Database, tmp_path: Path
) -> None:
    """From nothing: a repeated delivery is one row, and so is one that no jsonb could hold."""
    setup, worker, sends = shell_blocks("examples/webhooks/README.md")
    database = consumer_empty_database
    odd = b'{"nul": "\\u0000", "exact": 1.10}'
    with Fleet(environment(consumer_vhost.url, database.url), tmp_path) as fleet:
        typed(setup, fleet.env)
        fleet.start("bash", "-c", worker)
        typed(sends, fleet.env)
        rabbit.publish(consumer_vhost.url, [
            rabbit.Publication("github.webhook", odd, "odd", {"x-github-event": "ping"})])
        wait_until(lambda: fleet.settled("webhooks") >= 3, "deliveries are not settled")
    rows = fetch(database.url, "SELECT delivery_id, event, payload::text FROM webhook ORDER BY 1")
    assert [row[0] for row in rows] == ["72d3162e-cc78-11e3-81ab-4c9367dc0958", "odd"]
    assert json.loads(rows[0][2]) == {"action": "opened", "number": 7}
    assert tuple(rows[1][1:]) == ("ping", odd.decode())


def test_a_delivery_id_with_another_payload_is_refused(
    fleet: Fleet, consumer_vhost: Vhost, consumer_database: Database
) -> None:
    """It becomes a dead letter; the row of the first stays as it is."""
    run(["python", "-m", "examples.webhooks.tables"], fleet.env)
    run(["consumer", "topology", "apply", WEBHOOKS], fleet.env)
    with working(fleet, consumer_vhost.url, "webhooks", WEBHOOKS, deliveries=2):
        for body in (b'{"n": 1}', b'{"n": 2}'):
            rabbit.publish(consumer_vhost.url,
                           [rabbit.Publication("github.webhook", body, message_id="id-1")])
            wait_until(lambda: count(consumer_database.url, "webhook") == 1, "not stored")
    [[stored]] = fetch(consumer_database.url, "SELECT payload::text FROM webhook")
    [letter] = rabbit.dead_letters(consumer_vhost.url, "webhooks")
    assert (stored, letter.reason, letter.body) == ('{"n": 1}', "key_conflict", b'{"n": 2}')
