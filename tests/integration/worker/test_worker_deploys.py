"""Deploys: old and new versions side by side, on messages and on schemas of either."""

import asyncio
from datetime import timedelta
from pathlib import Path

import gated
import pytest
from harness import FAST, Site, effect
from postbox import Post, post
from pydantic import ConfigDict
from worker_programs import programs

from consumer import App, Command, Context, Handler
from consumer.errors import SchemaError
from consumer.exit_codes import ExitCode
from consumer.store.schema import REVISION

pytestmark = pytest.mark.integration


class CaptureV1(Command, type="payments.capture"):
    model_config = ConfigDict(extra="forbid")
    order: str


class CaptureV2(Command, type="payments.capture"):
    order: str
    currency: str


class Refund(Command, type="payments.refund"):
    order: str


class CapturingV1(Handler[CaptureV1]):
    name, queue, options = "payments.capture", "payments", FAST

    async def handle(self, command: CaptureV1, context: Context) -> None:
        await effect(context, "v1")


class CapturingV2(Handler[CaptureV2]):
    name, queue, options = "payments.capture", "payments", FAST

    async def handle(self, command: CaptureV2, context: Context) -> None:
        await effect(context, "v2")


class Refunding(Handler[Refund]):
    name, queue, options = "payments.refund", "payments", FAST

    async def handle(self, command: Refund, context: Context) -> None:
        await effect(context, "v2")


V1 = App("payments", handlers=[CapturingV1])
V2 = App("payments", handlers=[CapturingV2, Refunding])


def of_both_versions() -> list[Post]:
    return [
        *(post("payments.capture", {"order": "o"}, f"old {n}") for n in range(5)),
        *(post("payments.capture", {"order": "o", "currency": "EUR"}, f"new {n}")
          for n in range(5)),
        *(post("payments.refund", {"order": "o"}, f"refund {n}") for n in range(5))]


async def test_during_a_rolling_deploy_nothing_dies(site: Site) -> None:
    """The old worker meets a new command type and commands with a new required field, the new one
    may meet old ones: each waits until it comes to a worker that knows it; none dies.
    """
    await site.prepare(V2)  # the topology goes first
    await site.publish(*of_both_versions())
    async with site.worker(V1):
        await site.until(lambda: site.settled(why="invalid") >= 5, "the new field is met")
        await site.until(lambda: site.settled(why="unknown_type") >= 5, "the new type is met")
        async with site.worker(V2):
            await site.until(lambda: site.settled(why="done") >= 6, "the new version works")
    async with site.worker(V2):
        await site.until(lambda: site.settled(why="done") == 15, "all are done", 40)
    versions = {key: version for _, key, version in await site.effects()}
    assert len(await site.effects()) == len(versions) == 15
    assert all(version == ("v1" if key.startswith("old") else "v2")
               for key, version in versions.items())
    assert site.logged("settled", outcome="deadletter") == []
    assert await site.database.fetchval("SELECT count(*) FROM consumer.attempt") == 0


async def test_without_a_new_version_they_die_after_the_grace_for_deploys(site: Site) -> None:
    """Parked first, then dead with the reason, without an attempt and without a claim."""
    app = App("payments", handlers=[CapturingV1], deploy_grace=timedelta(seconds=1))
    await site.prepare(V2)
    await site.publish(*of_both_versions())
    async with site.worker(app):
        await site.until(lambda: site.settled(outcome="deadletter") == 10, "ten have died")
        assert site.settled(outcome="delay") >= 10, "none died at once"
    letters = {str(letter.headers["idempotency-key"]): letter
               for letter in await site.taken("payments.dead")}
    assert {letter.reason for letter in letters.values()} == {"invalid", "unknown_type"}
    assert letters["new 0"].headers["consumer-dead-error"] == (
        "currency: Extra inputs are not permitted")
    assert letters["new 0"].body == b'{"order": "o", "currency": "EUR"}'
    assert set(await site.claims()) == {f"old {n}" for n in range(5)}


async def test_a_newer_schema_is_worked_with_while_it_allows_that(site: Site) -> None:
    """A later revision that names this code's as compatible changes nothing for a worker."""
    await site.prepare(V1)
    await site.database.execute(
        "UPDATE consumer.schema_info SET revision = '9999', oldest_code = $1", REVISION)
    await site.publish(post("payments.capture", {"order": "o"}, "K"))
    async with site.worker(V1):
        await site.until(lambda: site.settled(why="done") == 1, "it is done")


async def test_a_schema_that_excludes_this_code_is_refused(site: Site, tmp_path: Path) -> None:
    """The worker ends before it consumes anything, with the exit code for it and one line that
    says what to do.
    """
    await site.prepare(gated.app)
    await site.database.execute(
        "UPDATE consumer.schema_info SET revision = '9999', oldest_code = '9998'")
    await site.publish(post("gate.pass", {}, "K"))
    async with programs(site, Path(gated.__file__).parent, tmp_path) as started:
        program = await started.worker("gated:app")
        assert await program.ended() == ExitCode.SCHEMA
        assert "deploy a newer release" in program.log.read_text("utf-8").splitlines()[-1]
    assert len(await site.taken("gate")) == 1
    with pytest.raises(SchemaError, match="works with code from 9998 on"):
        async with site.worker(gated.app) as worker:
            await asyncio.wait({worker.task}, timeout=20)
