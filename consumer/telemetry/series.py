"""Labelled time series, kept at hand so that recording is a look-up and an addition."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

M = TypeVar("M", bound=MetricWrapperBase)


class Series(dict[tuple[str, ...], M]):
    """The time series of one metric by their label values; `series[values]` makes what is missing.

    Safe to use in any thread: two that make the same series at once get the same one.
    """

    def __init__(self, metric: M) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, values: tuple[str, ...]) -> M:
        # A metric without labels is its own only series.
        made = self[values] = self._metric.labels(*values) if values else self._metric
        return made

    def make(self, *values: Iterable[str]) -> None:
        """A series for each combination of `values`, given per label, is exposed from now on.

        A counter that first appears at 1 shows no increase, so those whose labels are known begin
        at 0 (https://prometheus.io/docs/practices/instrumentation/#avoid-missing-metrics).
        """
        for combination in product(*values):
            self.__missing__(combination)


class Registry(CollectorRegistry):
    """Exposes no `_created` series: they would double the counters and nothing here reads them.

    The library's own switch for this is one for the whole process, the application included.
    """

    def collect(self) -> Iterable[Metric]:
        """All metrics with their present values."""
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples
                              if sample.name != f"{metric.name}_created"]
            yield metric


class Catalogue:
    """Makes the metrics of one registry, with the project's prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, meaning: str, *labels: str) -> Series[Counter]:
        """A counter `consumer_<name>_total`."""
        return Series(Counter(f"consumer_{name}", meaning, labels, registry=self._registry))

    def gauge(self, name: str, meaning: str, *labels: str) -> Series[Gauge]:
        """A gauge `consumer_<name>` with labels."""
        return Series(Gauge(f"consumer_{name}", meaning, labels, registry=self._registry))

    def histogram(
        self, name: str, meaning: str, *labels: str, buckets: Sequence[float]
    ) -> Series[Histogram]:
        """A histogram `consumer_<name>`; `buckets` are upper bounds."""
        return Series(Histogram(f"consumer_{name}", meaning, labels, registry=self._registry,
                                buckets=buckets))
