"""The demonstration itself: send, kill half way, wait until all is done, gather the evidence."""

import asyncio
import itertools
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from examples.payments.demo.evidence import Evidence, Progress, diagnosis, gather, look
from examples.payments.demo.plan import Plan
from examples.payments.demo.publish import publish_all
from examples.payments.demo.screen import Screen
from examples.payments.demo.stage import Stage
from examples.payments.demo.workers import Workers

LOOK_EVERY_SECONDS = 0.3
RESENT = "what the dead worker was about to send is sent again when its minute is over"


class NotDone(Exception):
    """The work was not done in time, or a worker died of itself; the text says what was left."""


@dataclass(frozen=True)
class Performance:
    """What came of a plan.

    Args:
        effect_seconds: From the first message sent to the last effect.
        seconds: From the first message sent to the last queue empty.
    """

    evidence: Evidence
    exit_codes: list[int]
    effect_seconds: float
    seconds: float


async def perform(plan: Plan, stage: Stage, screen: Screen, limit_seconds: float) -> Performance:
    """The plan is sent and worked off by two workers, one of which is killed half way.

    Raises:
        NotDone: It took longer than `limit_seconds`, or a worker ended unasked.
    """
    logs = Path(tempfile.mkdtemp(prefix="consumer-demo-"))
    database = await asyncpg.connect(stage.database_url)
    try:
        with Workers(stage, logs) as workers:
            for _ in range(2):
                screen.say(f"worker {workers.start()} started")
            began = time.monotonic()
            last_effect = await _work_off(plan, stage, screen, workers, database, limit_seconds)
            seconds = time.monotonic() - began
            exit_codes = await asyncio.to_thread(workers.stop)
            evidence = await gather(database, stage.amqp_url)
        shutil.rmtree(logs)  # after a failure they are kept
        return Performance(evidence, exit_codes, last_effect - began, seconds)
    finally:
        await database.close()


async def _work_off(
    plan: Plan, stage: Stage, screen: Screen, workers: Workers,
    database: "asyncpg.Connection[Any]", limit_seconds: float,
) -> float:
    """All of the plan is sent and done. Returns when the last effect was seen."""
    counter = itertools.count(1)
    sent = 0

    def count_one() -> None:
        nonlocal sent
        sent = next(counter)  # producers are threads; `next` of a count is one step

    publishing = asyncio.create_task(
        asyncio.to_thread(publish_all, stage.amqp_url, plan.deliveries, count_one))
    deadline, killed, last_effect = time.monotonic() + limit_seconds, False, 0.0
    while True:
        seen = await look(database, stage.amqp_url)
        screen.show(sent, seen)
        if not killed and seen.effects >= len(plan.good) / 2:
            screen.say(f"worker {workers.kill_one()} killed with -9")
            screen.say(f"worker {workers.start()} started")
            killed = True
        if not last_effect and seen.effects >= len(plan.good):
            last_effect = time.monotonic()
            if seen.receipts >= len(plan.good) and seen.outbox:
                screen.say(RESENT)
        if publishing.done():
            await publishing
            if killed and _drained(plan, seen):
                return last_effect
        if time.monotonic() > deadline or workers.died():
            why = f"workers ended with {workers.died()}" if workers.died() else \
                f"not done after {limit_seconds:g} s: {seen}"
            raise NotDone("\n".join([why, await diagnosis(database, stage.amqp_url),
                                     workers.complaints()]))
        await asyncio.sleep(LOOK_EVERY_SECONDS)


def _drained(plan: Plan, seen: Progress) -> bool:
    """Whether nothing is left to do, as far as a quick look tells."""
    return (seen.effects >= len(plan.good) and seen.receipts >= len(plan.good)
            and seen.dead >= plan.deaths.total()
            and not seen.retrying and not seen.outbox and not seen.waiting)
