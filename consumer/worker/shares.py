"""This process's shares of the fleet's slots, renewed as long as it lives."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from uuid import UUID

import structlog

from consumer.core.slots import SlotWish
from consumer.dependency import Dependency
from consumer.errors import SerializationConflict, StoreUnavailable
from consumer.ports import SlotStore
from consumer.settings import lease
from consumer.worker.describe import describe
from consumer.worker.slots import SlotRoom

log = structlog.get_logger("consumer.worker")

_SELDOMEST_S = 2.0


class Shares:
    """Renews the shares of one process.

    A share is held until its lease is over: long enough that no call can outlast it, for none
    begins that could.

    Args:
        heartbeat: Time between heartbeats of workers.
        now: Monotonic seconds.
    """

    def __init__(
        self, store: SlotStore, dependencies: Iterable[Dependency], room: SlotRoom, worker: UUID,
        heartbeat: timedelta, now: Callable[[], float],
    ) -> None:
        self._store, self._room, self._worker, self._now = store, room, worker, now
        self._limits = {d.name: d.max_in_flight_fleet for d in dependencies
                        if d.max_in_flight_fleet is not None}
        self._alive = lease(heartbeat)
        self._every_s = min(_SELDOMEST_S, heartbeat.total_seconds())

    async def run(self) -> None:
        """Renew until cancelled."""
        while self._limits:
            await self.renew()
            await asyncio.sleep(self._every_s)

    async def renew(self) -> None:
        """The shares are those the store gives now.

        Where it fails, no more slots are used than were in flight, and those until the end of the
        lease: it may have given the rest to others.
        """
        if not self._limits:
            return
        wishes = [SlotWish(name, limit, self._room.report(name),
                           self._alive + self._room.held_for(name))
                  for name, limit in self._limits.items()]
        asked_s = self._now()
        try:
            shares = await self._store.renew(self._worker, wishes)
        except (StoreUnavailable, SerializationConflict) as error:
            log.warning("shares_not_renewed", error=describe(error))
            return
        except Exception:
            log.exception("defect")  # the loop must not end: shares that are not renewed lapse
            return
        for wish, share in zip(wishes, shares, strict=True):
            self._room.grant(wish.dependency, share, asked_s + wish.lease.total_seconds())

    async def leave(self) -> None:
        """Others can have the shares at once, unless something is still in flight here."""
        if not self._limits or any(self._room.in_flight(name) for name in self._limits):
            return
        try:
            await self._store.leave(self._worker)
        except (StoreUnavailable, SerializationConflict) as error:
            log.warning("shares_not_given_back", error=describe(error))
