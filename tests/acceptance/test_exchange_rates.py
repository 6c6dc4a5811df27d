"""The example of a dependency does what its README says, each command of which is run here."""

import json
import re
import socket
from pathlib import Path

import httpx
import pytest
import rabbit
from database import count, fetch
from processes import Fleet, environment, wait_until
from readme import shell_blocks, typed

from consumer.testing.plugin import Database, Vhost

pytestmark = pytest.mark.acceptance

README = "examples/exchange_rates/README.md"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False


def test_every_command_of_the_exchange_rates_readme_works(
    consumer_vhost: Vhost, consumer_empty_database: Database, tmp_path: Path
) -> None:
    """From nothing: four invoices are priced once each though the provider refuses one request; an
    unknown currency is dead after one attempt, and a command that is too late without any.
    """
    port, database = str(free_port()), consumer_empty_database.url
    setup, provider, worker, sends, dying, look, fares = [
        block.replace("9001", port) for block in shell_blocks(README)]
    env = environment(consumer_vhost.url, database, RATES_URL=f"http://127.0.0.1:{port}")
    with Fleet(env, tmp_path) as fleet:
        typed(setup, env)
        fleet.start("bash", "-c", provider)
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/requests"), "no provider")
        fleet.start("bash", "-c", worker)
        typed(sends, env)
        typed(dying, env)
        wait_until(lambda: count(database, "priced_invoice") == 4, "not all are priced")
        wait_until(lambda: rabbit.depths(consumer_vhost.url, ["invoices.dead"])
                   == {"invoices.dead": 2}, "not both are dead")
        asked = json.loads(typed(look, env))
        assert "rates" in typed(fares, env)

    rows = fetch(database, "SELECT invoice_id, currency, cents FROM priced_invoice ORDER BY 1")
    assert [tuple(row) for row in rows] == [
        ("i-1", "USD", 1100), ("i-2", "GBP", 1700), ("i-3", "JPY", 480_000), ("i-4", "USD", 4400)]
    assert sorted(request["status"] for request in asked) == [200, 200, 200, 200, 404, 429]
    assert all(0 < int(request["x-timeout-ms"]) <= 2000 and request["x-deadline-ms"].isdigit()
               for request in asked)
    died = {letter.reason: letter.attempts
            for letter in rabbit.dead_letters(consumer_vhost.url, "invoices")}
    assert set(died) == {"permanent", "deadline"}
    assert died["deadline"] == 0
    decisions = [row[0] for row in fetch(
        database, "SELECT decision FROM consumer.attempt WHERE outcome = 'failed'")]
    dead, retried = sorted(decisions)
    assert "the handler's classifier: the provider has no rate" in dead
    assert float(re.findall(r"[\d.]+", retried)[0]) >= 2, "Retry-After is a minimum"
