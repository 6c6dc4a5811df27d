"""The handler and the commands of the README work as they stand there."""

import asyncio
import re
import subprocess
from pathlib import Path

import pytest
from database import count, fetch
from processes import PROJECT, Fleet, environment, wait_until
from readme import shell_blocks
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from consumer import Outbox
from consumer.app import load
from consumer.testing.plugin import Database, Vhost

pytestmark = pytest.mark.acceptance

README = (PROJECT / "README.md").read_text("utf-8")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder that holds the README's handler as shop.py."""
    [handler, *_] = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.py").write_text(handler, "utf-8")
    return tmp_path


def commands() -> list[str]:
    """What the README types after the services are there, but for the worker itself."""
    [block] = [block for block in shell_blocks("README.md") if "consumer db upgrade" in block]
    return [line for line in block.splitlines()
            if not line.startswith(("consumer services", "consumer worker"))]


def test_the_handler_of_the_readme_takes_effect_once(
    shop: Path, consumer_vhost: Vhost, consumer_database: Database, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its commands run as printed, the send twice; its web snippet sends the same key again."""
    env = environment(consumer_vhost.url, consumer_database.url, PYTHONPATH=str(shop))
    url = consumer_database.url
    fetch(url, "CREATE TABLE ledger (order_id text, cents int)")
    upgrade, apply, send, status = commands()
    for line in (upgrade, apply, send, send, status):
        done = subprocess.run(["bash", "-c", line], cwd=shop, env=env, capture_output=True,
                              text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    asyncio.run(send_from_elsewhere(shop, url, monkeypatch))
    (tmp_path / "logs").mkdir()
    with Fleet(env, tmp_path / "logs") as fleet:
        fleet.worker("shop:app", "--processes", "2")
        wait_until(lambda: fleet.settled("payments") == 3, "three deliveries settled")
    assert [tuple(row) for row in fetch(url, "SELECT * FROM ledger")] == [("o-1", 1250)]
    assert count(url, "consumer.claim") == 1


async def send_from_elsewhere(shop: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's last lines of Python: the same command, from another transaction."""
    monkeypatch.chdir(shop)
    app = load("shop:app")
    [capture] = [registration.command for registration in app.registrations]
    engine = create_async_engine(url)
    async with AsyncSession(engine) as session, session.begin():
        await Outbox(session).send(capture(order_id="o-1", amount_cents=1250), key="o-1")
    await engine.dispose()
