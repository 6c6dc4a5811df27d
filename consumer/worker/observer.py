"""Counts what became of each delivery, once it is settled: metrics, recent counts, brakes."""

from collections.abc import Sequence

from consumer.outcome import (
    Ack,
    AckReason,
    DeadLetter,
    DeadReason,
    Delay,
    Outcome,
    ParkReason,
    Requeue,
)
from consumer.ports import Clock
from consumer.telemetry.labels import AttemptOutcome, Met
from consumer.telemetry.metrics import Metrics
from consumer.worker.brakes import Brakes
from consumer.worker.gate import Gate
from consumer.worker.intake import Item
from consumer.worker.requests import Request

_REPEATED = (AckReason.DUPLICATE, AckReason.SUPERSEDED, AckReason.DEAD)


class Observer:
    """Sees every settled delivery of a process."""

    def __init__(self, gate: Gate, metrics: Metrics, clock: Clock, brakes: Brakes) -> None:
        self._gate, self._metrics, self._clock, self._brakes = gate, metrics, clock, brakes

    def taken(self, batch: Sequence[Item]) -> None:
        """An executor begins with these."""
        self._metrics.pool_waited(self._clock.monotonic() - batch[0].arrived_s)
        first = batch[0].read
        if isinstance(first, Request):
            self._metrics.grouped(first.registration.scope, len(batch))

    def settled(self, item: Item, outcome: Outcome) -> None:
        """`outcome` has happened to the delivery."""
        match outcome:
            case Ack():
                self._acked(item, outcome)
            case Delay():
                self._metrics.parked(item.delivery.queue, outcome.why)
                self._refused(item, outcome.why)
                if outcome.why is ParkReason.CLAIMED_ELSEWHERE:
                    self._met(item, Met.IN_PROGRESS)
            case DeadLetter():
                self._metrics.dead(item.delivery.queue, outcome.why)
                self._refused(item, outcome.why)
                if outcome.why is DeadReason.DEADLINE:
                    self._in_time(item, outcome.why)
                if outcome.why is DeadReason.KEY_CONFLICT:
                    self._met(item, Met.CONFLICT)
            case Requeue():
                self._metrics.requeued(item.delivery.queue, outcome.why)

    def _acked(self, item: Item, ack: Ack) -> None:
        request = item.read
        if not isinstance(request, Request):
            return
        if ack.why in _REPEATED:
            self._met(item, Met.DUPLICATE)
        if ack.dead is not None:
            self._metrics.dead(item.delivery.queue, ack.dead)
            if not ack.attempt:
                self._refused(item, ack.dead)
        if ack.why is AckReason.DONE or ack.dead is not None:
            self._in_time(item, ack.dead)
        if ack.attempt:
            self._attempted(item, request, ack)

    def _attempted(self, item: Item, request: Request, ack: Ack) -> None:
        scope, succeeded, now_s = request.registration.scope, ack.why is AckReason.DONE, \
            self._clock.monotonic()
        self._met(item, Met.NEW if ack.attempt == 1 else Met.RETRY)
        self._gate.ended(request, succeeded=succeeded)
        if ack.attempt == 1:
            self._aged(item)
        if succeeded:
            self._metrics.attempt(scope, AttemptOutcome.SUCCEEDED)
            self._metrics.succeeded(scope, now_s - item.arrived_s)
            if ack.attempt > 1:
                self._metrics.recovered(scope)
        if succeeded or ack.dead is not None:
            self._brakes.ended(request.registration, permanent=ack.dead is DeadReason.PERMANENT)

    def _in_time(self, item: Item, dead: DeadReason | None) -> None:
        """A command has ended: before its deadline, if it has one, or not."""
        request = item.read
        if isinstance(request, Request) and request.expires_s is not None:
            within = dead is not DeadReason.DEADLINE \
                and self._clock.monotonic() <= request.expires_s
            self._metrics.within_deadline(request.registration.scope, within)

    def _aged(self, item: Item) -> None:
        """How long it has waited, by the producer's word."""
        sent = item.delivery.message.properties.timestamp
        if sent is not None:
            waited_s = self._clock.now().timestamp() - sent
            self._metrics.queued(item.delivery.queue, max(0.0, waited_s))

    def _met(self, item: Item, result: Met) -> None:
        if isinstance(item.read, Request):
            self._metrics.met(item.read.registration.scope, result)

    def _refused(self, item: Item, why: ParkReason | DeadReason) -> None:
        if isinstance(item.read, Request):
            self._metrics.refused(item.read.registration.scope, why,
                                  self._clock.monotonic() - item.arrived_s)
