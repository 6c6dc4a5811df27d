"""What became of messages and commands, by queue and by handler."""

from collections.abc import Collection

from consumer.outcome import DeadReason, ParkReason, RequeueReason
from consumer.telemetry.labels import AttemptOutcome, DeadlineResult, Met
from consumer.telemetry.series import Catalogue

LATENCIES_S = (.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10)
"""Of OpenTelemetry's messaging metrics
(https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/)."""

AGES_S = (*LATENCIES_S, 30, 60, 120, 300, 900, 1800, 3600, 7200, 21600, 43200, 86400)
"""Those, and on to a day: work can wait long."""

_GROUP_SIZES = (1, 2, 5, 10, 20, 30, 40, 50)


class WorkMetrics:
    """Recording is cheap, never blocks and is allowed in any thread.

    Labels are names of queues and handlers and members of enums, so their number is bounded:
    nothing that a message carries may be passed for a name.
    """

    def __init__(
        self, make: Catalogue, handlers: Collection[str], queues: Collection[str]
    ) -> None:
        self._originals = make.counter("originals", "First attempts begun.", "handler")
        self._attempts = make.counter(
            "attempts", "Attempts that ended, first ones and retries.", "handler", "outcome")
        self._recovered = make.counter("recovered", "Retries that succeeded.", "handler")
        self._deadlines = make.counter(
            "deadlines", "Commands ended within or after their deadline.", "handler", "result")
        self._met = make.counter(
            "idempotency", "What deliveries met under their key.", "handler", "result")
        self._success = make.histogram(
            "success_seconds", "From arrival in the worker to settlement.", "handler",
            buckets=LATENCIES_S)
        self._refusal = make.histogram(
            "refusal_seconds", "Time until a delivery was refused without an attempt.",
            "handler", "reason", buckets=LATENCIES_S)
        self._groups = make.histogram(
            "group_size", "Commands in one transaction.", "handler", buckets=_GROUP_SIZES)
        self._parks = make.counter("parks", "Deliveries postponed.", "queue", "reason")
        self._dead = make.counter("dead_letters", "Messages given up.", "queue", "reason")
        self._requeues = make.counter("requeues", "Deliveries given back.", "queue", "reason")
        self._in_flight = make.gauge("in_flight", "Deliveries being worked on.", "queue")
        self._ages = make.histogram(
            "message_age_seconds", "Age of messages when their attempt begins.", "queue",
            buckets=AGES_S)
        for per_handler in (self._originals, self._recovered):
            per_handler.make(handlers)
        self._attempts.make(handlers, AttemptOutcome)
        self._deadlines.make(handlers, DeadlineResult)
        self._met.make(handlers, Met)
        self._parks.make(queues, ParkReason)
        self._dead.make(queues, DeadReason)
        self._requeues.make(queues, RequeueReason)

    def original(self, handler: str) -> None:
        """The first attempt at a command begins."""
        self._originals[handler,].inc()

    def attempt(self, handler: str, outcome: AttemptOutcome) -> None:
        """An attempt has ended, the first or a retry."""
        self._attempts[handler, outcome].inc()

    def recovered(self, handler: str) -> None:
        """A retry has succeeded."""
        self._recovered[handler,].inc()

    def within_deadline(self, handler: str, within: bool) -> None:
        """A command that has a deadline is done or dead, before or after it."""
        self._deadlines[handler, DeadlineResult.MET if within else DeadlineResult.MISSED].inc()

    def met(self, handler: str, result: Met) -> None:
        """What a delivery met under its key."""
        self._met[handler, result].inc()

    def succeeded(self, handler: str, seconds: float) -> None:
        """An attempt that took so long has succeeded."""
        self._success[handler,].observe(max(0.0, seconds))

    def refused(self, handler: str, reason: ParkReason | DeadReason, seconds: float) -> None:
        """A delivery was parked or refused without an attempt, so long after its work began.

        Apart from the successes, so that fast rejections do not make them look fast.
        """
        self._refusal[handler, reason].observe(max(0.0, seconds))

    def grouped(self, handler: str, size: int) -> None:
        """So many commands went into one transaction."""
        self._groups[handler,].observe(size)

    def parked(self, queue: str, reason: ParkReason) -> None:
        """A delivery was postponed without an attempt."""
        self._parks[queue, reason].inc()

    def dead(self, queue: str, reason: DeadReason) -> None:
        """A message was given up."""
        self._dead[queue, reason].inc()

    def requeued(self, queue: str, reason: RequeueReason) -> None:
        """A delivery was given back to the broker."""
        self._requeues[queue, reason].inc()

    def in_flight(self, queue: str, n: int) -> None:
        """So many deliveries of a queue are being worked on now."""
        self._in_flight[queue,].set(n)

    def queued(self, queue: str, age_s: float) -> None:
        """An attempt begins at a message so old. Ages below 0, of a clock ahead, count as 0."""
        self._ages[queue,].observe(max(0.0, age_s))
