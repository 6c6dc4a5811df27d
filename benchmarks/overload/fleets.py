"""The worker processes of a run, of this framework or of Celery."""

import asyncio
from typing import Any, Protocol

import asyncpg

from benchmarks.overload import broker, tables
from benchmarks.overload.celery_app import DELAY_QUEUES, QUEUE
from benchmarks.overload.place import Place
from benchmarks.overload.plan import NAIVE_CONCURRENCY, PROCESSES
from benchmarks.overload.programs import SCRIPTS, Programs
from benchmarks.overload.records import Refusal

APP = "benchmarks.overload.app:app"
_LADDER = [f"consumer.delay.{level:02}" for level in range(24)]


class Fleet(Protocol):
    """Four worker processes and what they leave behind."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its programs."""

    def start(self, place: Place, programs: Programs) -> None:
        """What the workers need is in place, and they have been started. Blocks."""

    async def ended(self, place: Place, database: "asyncpg.Connection[Any]") -> int:
        """How many commands have come to an end, by a quick look."""

    async def refusals(self, place: Place, database: "asyncpg.Connection[Any]") -> list[Refusal]:
        """What was given up. The workers must have ended."""

    async def waiting(self, place: Place, database: "asyncpg.Connection[Any]") -> frozenset[str]:
        """Keys of the commands still to be done. The workers must have ended."""


class ConsumerFleet:
    """`consumer worker` with a supervisor and its children.

    Args:
        log_level: Parks are counted from lines of level `info`; where nothing parks, `warning`
            leaves more time for calls.
    """

    names = ("workers",)

    def __init__(self, log_level: str) -> None:
        self._log_level = log_level

    def start(self, place: Place, programs: Programs) -> None:
        consumer = str(SCRIPTS / "consumer")
        programs.run(place.environment, consumer, "db", "upgrade")
        programs.run(place.environment, consumer, "topology", "apply", APP)
        programs.start("workers", place.environment, consumer, "worker", APP,
                       "--processes", str(PROCESSES), "--grace", "10",
                       "--log-level", self._log_level)

    async def ended(self, place: Place, database: "asyncpg.Connection[Any]") -> int:
        done, _ = await tables.ended(database)
        return done + await asyncio.to_thread(broker.depth, place.amqp_url, f"{QUEUE}.dead")

    async def refusals(self, place: Place, database: "asyncpg.Connection[Any]") -> list[Refusal]:
        return broker.dead_letters(place.amqp_url, QUEUE)

    async def waiting(self, place: Place, database: "asyncpg.Connection[Any]") -> frozenset[str]:
        queues = [QUEUE, f"{QUEUE}.replay", *_LADDER, "consumer.unroutable"]
        return broker.keys(place.amqp_url, queues) | await tables.unsent(database)


class CeleryFleet:
    """As many Celery workers, with threads.

    Processes that each do one task at a time would hold no more than four calls open together,
    which is what slots do. Threads give Celery the same concurrency as the naive policy of ours.
    """

    names = tuple(f"celery-{number}" for number in range(PROCESSES))

    def start(self, place: Place, programs: Programs) -> None:
        for name in self.names:
            programs.start(
                name, place.environment, str(SCRIPTS / "celery"),
                "-A", "benchmarks.overload.celery_app", "worker",
                "--pool=threads", f"--concurrency={NAIVE_CONCURRENCY}", "--loglevel=WARNING",
                "--without-gossip", "--without-mingle", "--without-heartbeat", "-n", f"{name}@%h")

    async def ended(self, place: Place, database: "asyncpg.Connection[Any]") -> int:
        return sum(await tables.ended(database))

    async def refusals(self, place: Place, database: "asyncpg.Connection[Any]") -> list[Refusal]:
        return [Refusal(*row) for row in await tables.refusals(database)]

    async def waiting(self, place: Place, database: "asyncpg.Connection[Any]") -> frozenset[str]:
        return broker.keys(place.amqp_url, [QUEUE, *DELAY_QUEUES])
