"""One run: all is started, the provider slows down and recovers, the evidence is gathered."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from benchmarks.overload import broker, tables
from benchmarks.overload.celery_app import QUEUE
from benchmarks.overload.fleets import CeleryFleet, ConsumerFleet, Fleet
from benchmarks.overload.place import Place, place
from benchmarks.overload.plan import HEALTHY_SECONDS, PROCESSES, SLOW_SECONDS, RunPlan
from benchmarks.overload.programs import Programs
from benchmarks.overload.records import (
    Records,
    Times,
    read_parks,
    read_provider,
    read_publications,
)
from consumer.testing.services import Endpoints

WARM_UP_RATE, WARM_UP_COMMANDS = 40, 200
READY_SECONDS, DRAIN_SECONDS, LOOK_SECONDS, HEAD_START_SECONDS = 60, 20, 5, 2.0
Say = Callable[[str], None]


class Run:
    """One run under way.

    Args:
        folder: An empty folder for what the programs write.
    """

    def __init__(self, plan: RunPlan, place: Place, programs: Programs, folder: Path,
                 provider: httpx.AsyncClient, database: "asyncpg.Connection[Any]",
                 say: Say) -> None:
        self._plan, self._place, self._programs, self._folder = plan, place, programs, folder
        self._provider, self._database, self._say = provider, database, say
        self._fleet: Fleet = CeleryFleet() if plan.configuration.celery else ConsumerFleet(
            "info" if plan.configuration.protected else "warning")

    async def perform(self) -> Records:
        """All of it, from the first worker started to the evidence gathered.

        Raises:
            RuntimeError: A program failed or was not ready in time.
        """
        await tables.create(self._database)
        await asyncio.to_thread(self._fleet.start, self._place, self._programs)
        await self._ready()
        await self._warm_up()
        times = await self._phases()
        await self._drain(round(self._plan.rate * self._plan.phases.total) + WARM_UP_COMMANDS)
        await asyncio.to_thread(self._programs.stop, *self._fleet.names, "provider")
        return await self._gather(times)

    async def _ready(self) -> None:
        """Every process consumes."""
        deadline = time.monotonic() + READY_SECONDS
        while await asyncio.to_thread(broker.consumers, self._place.amqp_url, QUEUE) < PROCESSES:
            self._programs.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{PROCESSES} workers do not consume within {READY_SECONDS} s")
            await asyncio.sleep(0.2)

    async def _warm_up(self) -> None:
        """Every process has opened its connections and done some work, which is not measured."""
        self._generate("warm-up", WARM_UP_RATE, WARM_UP_COMMANDS / WARM_UP_RATE, time.time())
        await asyncio.to_thread(self._programs.wait, "warm-up", READY_SECONDS)
        await self._drain(WARM_UP_COMMANDS)

    def _generate(self, name: str, rate: float, seconds: float, start: float) -> None:
        """The generator runs, and will have written NAME.jsonl when it ends."""
        self._programs.module(
            name, self._place.environment, "benchmarks.overload.generator",
            "--rate", str(rate), "--seconds", str(seconds), "--start", str(start),
            "--run", f"{self._plan.name}-{name}", "--output", str(self._folder / f"{name}.jsonl"),
            *(["--celery"] if self._plan.configuration.celery else []))

    async def _phases(self) -> Times:
        plan, phases = self._plan, self._plan.phases
        start = time.time() + HEAD_START_SECONDS
        self._generate("generator", plan.rate, phases.total, start)
        await self._follow("healthy", start + phases.before)
        slowed = await self._serve_in(
            SLOW_SECONDS if plan.configuration.slows else HEALTHY_SECONDS)
        await self._follow("slow", start + phases.before + phases.slow)
        restored = await self._serve_in(HEALTHY_SECONDS)
        end = start + phases.total
        await self._follow("restored", end)
        await asyncio.to_thread(self._programs.wait, "generator", 60)
        return Times(start, slowed, restored, end)

    async def _serve_in(self, seconds: float) -> float:
        """Calls take so long from now on. Returns when that began."""
        answer = await self._provider.put("/service", content=str(seconds))
        at: float = answer.raise_for_status().json()["at"]
        return at

    async def _follow(self, phase: str, until: float) -> None:
        """Wait, and say every few seconds how far things are."""
        while (left := until - time.time()) > LOOK_SECONDS:
            self._programs.check()
            await self._tell(phase)
            await asyncio.sleep(LOOK_SECONDS)
        await asyncio.sleep(max(0.0, left))

    async def _tell(self, phase: str) -> None:
        done, _ = await tables.ended(self._database)
        load = (await self._provider.get("/load")).json()
        self._say(f"{self._plan.name}: {phase}, {done} done, "
                  f"{load['queued'] + load['executing']} calls at the provider")

    async def _drain(self, published: int) -> None:
        """So many commands have ended, or the time for it is over."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline:
            if await self._fleet.ended(self._place, self._database) >= published:
                break
            await asyncio.sleep(0.5)
        await self._tell("waited for the last")

    async def _gather(self, times: Times) -> Records:
        calls, samples = read_provider(self._folder / "provider.jsonl")
        return Records(
            times, read_publications(self._folder / "generator.jsonl"), calls, samples,
            await tables.completions(self._database),
            await self._fleet.refusals(self._place, self._database),
            await self._fleet.waiting(self._place, self._database),
            read_parks([self._programs.log(name) for name in self._fleet.names]))


async def perform(plan: RunPlan, services: Endpoints, folder: Path, say: Say) -> Records:
    """One run, on a virtual host and a database of its own; nothing of it is left but `folder`.

    Args:
        folder: An empty folder for logs.
        say: Called with a line every few seconds.

    Raises:
        RuntimeError: A program failed or was not ready in time.
    """
    with place(services) as where, Programs(folder) as programs:
        programs.module(
            "provider", where.environment, "benchmarks.overload.provider_server",
            "--variant", plan.variant, "--output", str(folder / "provider.jsonl"))
        address = f"http://127.0.0.1:{await _port(programs)}"
        environment = {**where.environment, "OVERLOAD_PROVIDER_URL": address,
                       "OVERLOAD_CONFIGURATION": plan.configuration.name}
        database = await asyncpg.connect(where.database_url)
        try:
            async with httpx.AsyncClient(base_url=address, trust_env=False) as provider:
                run = Run(plan, replace(where, environment=environment), programs, folder,
                          provider, database, say)
                return await run.perform()
        finally:
            await database.close()


async def _port(programs: Programs) -> int:
    """Where the provider listens: the first thing it prints."""
    deadline = time.monotonic() + READY_SECONDS
    while not (said := programs.log("provider").read_text()).endswith("\n"):
        programs.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"the provider does not listen within {READY_SECONDS} s")
        await asyncio.sleep(0.05)
    return int(said)
