"""Pausing and draining: what has begun is finished, what has not goes back as it came."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import gated
import pytest
from harness import FAST, SCHEMA, Site, effect
from postbox import post
from worker_programs import Program, Programs, programs

from consumer import App, Command, Context, Handler
from consumer.exit_codes import ExitCode
from consumer.store import workers

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent


class Print(Command, type="office.print"):
    pass


class Printer(Handler[Print]):
    """Prints while there is paper."""

    name, queue, options = "office.print", "office", FAST

    def __init__(self) -> None:
        self.begun, self.paper = asyncio.Event(), asyncio.Event()

    async def handle(self, command: Print, context: Context) -> None:
        await effect(context)
        self.begun.set()
        await self.paper.wait()


async def test_a_paused_queue_is_left_alone_until_it_is_resumed(site: Site) -> None:
    """What was in flight is finished, what comes later stays in the queue, and the process is ready
    all the same. Resumed, all is done.
    """
    printer = Printer()
    app = App("office", handlers=[printer])
    await site.prepare(app)
    async with site.worker(app) as worker:
        await site.publish(post("office.print", {}, "K0"))
        await site.until(printer.begun.is_set, "the first has begun")
        assert await workers.pause(
            site.database, SCHEMA, "office", actor="ada", reason="no paper")
        await site.until(lambda: site.logged("consuming_stopped", why="pause"), "nobody consumes")
        await site.publish(*(post("office.print", {}, f"K{number}") for number in range(1, 6)))
        printer.paper.set()
        await site.until(lambda: site.settled(why="done") == 1, "the first is finished")
        assert await worker.unready() == {}
        assert (await site.depth("office")).ready == 5
        assert len(await site.effects()) == 1
        assert await workers.resume(
            site.database, SCHEMA, "office", actor="ada", reason="paper is here")
        await site.until(lambda: site.settled(why="done") == 6, "all are done")
    assert len(await site.effects()) == 6
    assert len(site.logged("consuming_stopped", queue="office")) == 2, "the pause and the end"


@pytest.fixture
async def gate(site: Site, tmp_path: Path) -> AsyncIterator[Programs]:
    """21 commands wait, and workers of an app that finishes none before the gate is open."""
    await site.prepare(gated.app)
    await site.publish(*(post("gate.pass", {}, f"K{number}") for number in range(21)))
    async with programs(site, HERE, tmp_path) as started:
        yield started


async def drained(site: Site, program: Program, begun: Path) -> None:
    """The first handler has begun, the worker was told to end, and gave back what had not."""
    await site.until(begun.exists, "the first has begun")
    program.send(signal.SIGTERM)

    async def given_back() -> bool:
        return (await site.depth("gate")).ready == 20

    await site.until(given_back, "the others are back")


async def test_sigterm_finishes_what_has_begun_and_gives_back_the_rest(
    site: Site, gate: Programs, tmp_path: Path
) -> None:
    """Exit code 0; one effect; the others are back untouched: no claim, no attempt, the same bytes,
    marked as redelivered and no more.
    """
    program = await gate.worker("gated:app", GATE_FOLDER=str(tmp_path))
    await drained(site, program, tmp_path / "begun")
    (tmp_path / "open").touch()
    assert await program.ended() == ExitCode.OK
    assert await site.effects() == [("gate.pass", "K0", "")]
    assert await site.claims() == {"K0": ("done", 1)}
    assert await site.database.fetchval("SELECT count(*) FROM consumer.attempt") == 0
    assert await site.database.fetchval("SELECT count(*) FROM consumer.worker") == 0
    left = await site.taken("gate")
    assert [found.headers["idempotency-key"] for found in left] == [f"K{n}" for n in range(1, 21)]
    for found in left:
        assert found.redelivered
        assert found.body == b"{}"
        assert {name for name in found.headers if not name.startswith("x-")} == {"idempotency-key"}
        assert found.properties.type == "gate.pass"


async def test_work_that_outlasts_the_grace_is_rolled_back(
    site: Site, gate: Programs, tmp_path: Path
) -> None:
    """Exit code 6; no effect, no claim, no attempt; all messages are back in the queue."""
    program = await gate.worker("gated:app", "--grace", "0.5", GATE_FOLDER=str(tmp_path))
    await drained(site, program, tmp_path / "begun")
    assert await program.ended() == ExitCode.GRACE_EXCEEDED
    await nothing_has_happened(site)


async def test_a_second_sigterm_cuts_the_grace_short(
    site: Site, gate: Programs, tmp_path: Path
) -> None:
    """With ten minutes of grace, the second signal ends it as the end of the grace would."""
    program = await gate.worker("gated:app", "--grace", "600", GATE_FOLDER=str(tmp_path))
    await drained(site, program, tmp_path / "begun")
    program.send(signal.SIGTERM)
    assert await program.ended() == ExitCode.GRACE_EXCEEDED
    await nothing_has_happened(site)


async def nothing_has_happened(site: Site) -> None:
    assert await site.effects() == []
    assert await site.claims() == {}
    assert await site.database.fetchval("SELECT count(*) FROM consumer.attempt") == 0
    assert len(await site.taken("gate")) == 21
