"""`consumer audit` as it stands in somebody's CI: a program, its exit code, its output."""

import json
import os
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from database import fetch
from processes import PROJECT, environment

from consumer.exit_codes import ExitCode
from consumer.testing.plugin import Database, Vhost
from consumer.testing.services import Endpoints

pytestmark = pytest.mark.acceptance

NESTED, MENDED = "examples.nested_retries.app:app", "examples.nested_retries.app:mended"
PAYMENTS, WEBHOOKS = "examples.payments.app:app", "examples.webhooks.app:app"
BARE = {name: value for name, value in os.environ.items() if not name.startswith("CONSUMER_")}


def audit(*arguments: str, env: Mapping[str, str] = BARE) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(Path(sysconfig.get_path("scripts")) / "consumer"), "audit", *arguments], cwd=PROJECT,
        env=env, capture_output=True, text=True, timeout=120, check=False)


def codes(report: dict[str, Any], severity: str = "violation") -> list[str]:
    return [f["code"] for f in report["findings"] if f["severity"] == severity]


@pytest.fixture
def env(consumer_vhost: Vhost, consumer_database: Database, consumer_services: Endpoints
        ) -> dict[str, str]:
    return environment(consumer_vhost.url, consumer_database.url,
                       CONSUMER_MANAGEMENT_URL=consumer_services.management_url)


def test_nested_retries_are_27_attempts_and_a_failure() -> None:
    done = audit(NESTED)
    assert (done.returncode, done.stderr) == (ExitCode.FAILED, "")
    assert "3 \u00d7 3 \u00d7 3 = 27" in done.stdout
    assert "violation: orders.charge: 27 attempts" in done.stdout
    report = json.loads(audit(NESTED, "--json").stdout)
    assert (report["ok"], codes(report)) == (False, ["retries_multiply"])
    assert report["queues"][0]["handlers"][0]["paths"][0]["attempts"] == 27


def test_nested_retries_pass_once_they_are_mended_or_accepted() -> None:
    mended = audit(MENDED)
    assert mended.returncode == ExitCode.OK
    assert "shop: 0 violations, 0 warnings" in mended.stdout
    assert audit(NESTED, "--limit", "27").returncode == ExitCode.OK


@pytest.mark.parametrize("app", [PAYMENTS, WEBHOOKS])
def test_the_other_examples_pass(app: str) -> None:
    done = audit(app)
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")


def test_on_the_applied_topology_everything_is_checked_and_fine(env: dict[str, str]) -> None:
    before = audit(PAYMENTS, env=env)
    assert before.returncode == ExitCode.OK
    assert "not checked: queue payments: it does not exist" in before.stdout
    consumer = str(Path(sysconfig.get_path("scripts")) / "consumer")
    subprocess.run([consumer, "topology", "apply", PAYMENTS], cwd=PROJECT, env=env, check=True,
                   capture_output=True, timeout=120)
    done = audit(PAYMENTS, "--json", env=env)
    assert done.returncode == ExitCode.OK, done.stdout
    report = json.loads(done.stdout)
    assert report["not_checked"] == []
    assert codes(report, "note") == ["statement_timeout", "hand_over", "hand_over"]


def test_a_statement_timeout_that_outlasts_attempts_is_a_violation(
    env: dict[str, str], consumer_database: Database
) -> None:
    fetch(consumer_database.url,
          f"ALTER DATABASE \"{consumer_database.name}\" SET statement_timeout = '30s'")
    done = audit(PAYMENTS, "--json", env=env)
    assert done.returncode == ExitCode.FAILED
    report = json.loads(done.stdout)
    assert codes(report) == ["statement_timeout"] * 3
    assert report["statement_timeout_seconds"] == 30.0
    assert audit(PAYMENTS, "--offline", env=env).returncode == ExitCode.OK


def test_an_app_that_does_not_exist_is_a_usage_error() -> None:
    done = audit("examples.payments.app:nothing")
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("error: ")
