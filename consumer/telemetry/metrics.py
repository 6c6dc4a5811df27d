"""Metrics of a worker process, for Prometheus. docs/metrics.md explains each."""

from collections.abc import Collection

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder

from consumer.telemetry.dependencies import DependencyMetrics
from consumer.telemetry.series import Catalogue, Registry
from consumer.telemetry.work import LATENCIES_S, WorkMetrics


class Metrics(WorkMetrics, DependencyMetrics):
    """All metrics of one process, in a registry of their own: one object per process.

    Recording takes about a microsecond, never blocks and is allowed in any thread.

    Args:
        handlers: Scopes of the handlers; their counters are exposed from the start, at 0.
        queues: Names of the queues, likewise.
        dependencies: Names of the dependencies, likewise.
    """

    def __init__(
        self, *, handlers: Collection[str] = (), queues: Collection[str] = (),
        dependencies: Collection[str] = (),
    ) -> None:
        self._registry = Registry()
        make = Catalogue(self._registry)
        WorkMetrics.__init__(self, make, handlers, queues)
        DependencyMetrics.__init__(self, make, dependencies)
        self._pool_wait = make.histogram(
            "pool_wait_seconds", "Time a delivery waited in the worker for a transaction.",
            buckets=LATENCIES_S)
        self._outbox_pending = make.gauge("outbox_pending", "Outbox rows that wait to be sent.")
        self._outbox_lag = make.gauge(
            "outbox_lag_seconds", "Age of the oldest outbox row that waits to be sent.")
        self._outbox_parked = make.gauge(
            "outbox_parked", "Outbox rows that are not sent before somebody intervenes.")
        ProcessCollector(registry=self._registry)

    def pool_waited(self, seconds: float) -> None:
        """A delivery in hand has waited so long for one of its queue's transactions."""
        self._pool_wait[()].observe(max(0.0, seconds))

    def outbox(self, pending: int, oldest_age_s: float, parked: int) -> None:
        """How the outbox of the whole fleet is now; the age is 0 where nothing waits."""
        self._outbox_pending[()].set(pending)
        self._outbox_lag[()].set(max(0.0, oldest_age_s))
        self._outbox_parked[()].set(parked)

    def render(self) -> tuple[bytes, str]:
        """All metrics in Prometheus' text format, and its content type. Reads `/proc`."""
        encode, content_type = choose_encoder("")
        return encode(self._registry), content_type
