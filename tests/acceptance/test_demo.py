"""The demonstration runs, and its identities hold."""

import json

import pytest
from processes import environment, run

from consumer.testing.services import Endpoints

pytestmark = pytest.mark.acceptance


def test_the_demo_holds_its_identities(consumer_services: Endpoints) -> None:
    """It ends with 0, having killed a worker and checked every sum."""
    env = environment(consumer_services.amqp_url, consumer_services.database_url,
                      CONSUMER_MANAGEMENT_URL=consumer_services.management_url)
    printed = json.loads(run(
        ["python", "-m", "examples.payments.demo", "--commands", "400", "--json"], env, 200))
    assert printed["figures"]["commands"] == 400
    assert all(identity["holds"] for identity in printed["identities"])
    assert len(printed["identities"]) == 12
