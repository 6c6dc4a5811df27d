"""Stops a queue when most of its last messages died of permanent errors: a bad deploy, most likely,
that must not dead-letter a backlog.
"""

import asyncio

import structlog

from consumer.core.brake import Brake
from consumer.handler import Registration

log = structlog.get_logger("consumer.worker")


class Brakes:
    """The brakes of one process.

    Args:
        changed: Set when one is pulled.

    Attributes:
        pulled: Queues to be paused in the whole fleet, and why.
    """

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed = changed
        self._brakes: dict[tuple[str, str], Brake] = {}
        self._alarmed: set[str] = set()  # what ends after the pull is no news
        self.pulled: dict[str, str] = {}

    def ended(self, registration: Registration, *, permanent: bool) -> None:
        """A command has ended, by a permanent error or otherwise."""
        queue, scope = which = (registration.queue, registration.scope)
        brake = self._brakes.get(which)
        if brake is None:
            brake = self._brakes[which] = Brake()
        if brake.ended(permanent) and queue not in self._alarmed:
            self._alarmed.add(queue)
            why = f"most of the last messages of handler {scope} died of permanent errors"
            log.error("brake_pulled", queue=queue, handler=scope, why=why,
                      remedy=f"see what fails, deploy a better version, consumer resume {queue}")
            self.pulled[queue] = why
            self._changed.set()

    def paused(self, queue: str) -> None:
        """The queue is paused in the whole fleet, as operators see."""
        self.pulled.pop(queue, None)

    def resumed(self, queue: str) -> None:
        """The queue is consumed again: what its handlers did before is forgotten."""
        self._alarmed.discard(queue)
        for (name, _), brake in self._brakes.items():
            if name == queue:
                brake.release()
