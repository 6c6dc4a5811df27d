"""Workers that share the slots of a meter, and what a test asks of them."""

from datetime import timedelta

import httpx
from harness import Site
from metered import LONG, Meter
from worker_programs import Program, Programs


class Fleet:
    """Worker processes that share the slots of a meter."""

    def __init__(self, site: Site, started: Programs, meter: Meter, limit: int) -> None:
        self.site, self.meter, self.limit = site, meter, limit
        self._programs, self.workers = started, list[Program]()

    async def grow(self, number: int, *options: str) -> None:
        """So many workers more, each of which has begun to live."""
        self.workers += [await self._programs.worker(
            "metered:app", *options, METER_PORT=str(self.meter.port), METER_LIMIT=str(self.limit))
            for _ in range(number)]
        await self.live(len(self.workers))

    async def live(self, number: int) -> None:
        await self.site.until(lambda: self.counts(
            "SELECT count(*) FROM consumer.worker", number), f"{number} workers live")

    async def counts(self, query: str, number: int) -> bool:
        return bool(await self.site.database.fetchval(query) == number)

    async def held(self) -> dict[int, int]:
        """Slots by the process that holds them."""
        rows = await self.site.database.fetch(
            "SELECT pid, held FROM consumer.slot_share JOIN consumer.worker w ON w.id = worker")
        return {row["pid"]: row["held"] for row in rows}

    async def spread(self, expected: list[int]) -> bool:
        """Whether so many slots are held by the members, the fewest first."""
        return sorted((await self.held()).values()) == expected

    async def busy(self, number: int) -> None:
        """So many calls are in flight, and no more however often shares are renewed."""
        await self.site.until(lambda: self.meter.in_flight == number, f"{number} calls in flight")
        await self.renewed()
        assert self.meter.in_flight == number

    async def answered(self, calls: int) -> None:
        """So many calls have ended."""
        until = self.meter.answered + calls
        self.meter.answer(calls)
        await self.site.until(lambda: self.meter.answered == until, f"{calls} calls have ended")

    async def renewed(self) -> None:
        """Every worker has renewed its share three times."""
        pids = [worker.process.pid for worker in self.workers]
        for _ in range(3):
            now = await self.site.database.fetchval("SELECT clock_timestamp()")

            async def later(now: object = now) -> bool:
                return bool(await self.site.database.fetchval(
                    "SELECT bool_and(lease_until > $1::timestamptz + $2::interval)"
                    " FROM consumer.slot_share JOIN consumer.worker w ON w.id = worker"
                    " WHERE pid = ANY ($3)", now, LONG + timedelta(seconds=15), pids))

            await self.site.until(later, "shares are renewed")

    async def all_done(self, count: int) -> None:
        self.meter.answer(2 * count)
        await self.site.until(lambda: self.counts(
            "SELECT count(*) FROM consumer.claim WHERE state = 'done'", count), "all are done", 40)
        assert len(await self.site.effects()) == count
        assert self.meter.most <= self.limit


async def beats(site: Site, times: int = 3) -> None:
    """Every worker has had time to do what it does again and again."""
    for _ in range(times):
        before = await site.database.fetchval("SELECT max(heartbeat_at) FROM consumer.worker")

        async def beaten(before: object = before) -> bool:
            return bool(await site.database.fetchval(
                "SELECT min(heartbeat_at) > $1 FROM consumer.worker", before))

        await site.until(beaten, "workers live")


async def unready(worker: Program) -> dict[str, str]:
    """Why a worker is not ready; nothing if it is."""
    [line] = worker.logged("health_listening")
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"http://127.0.0.1:{line['port']}/ready")
    return dict(answer.json()["reasons"])
