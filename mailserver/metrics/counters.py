"""Metrics for what happens thousands of times a second, in the event loop alone: a tenth of the library's time.

The library's own count for any thread, by locks; for a packet of one envelope they took some per cent of all work.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Count:
    """How often something has happened."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """It happened so many times more."""
        self.value += amount


class PlainCounter(Collector):
    """Counts. With `label` there is one for each of its `values`, else one for ""."""

    def __init__(self, name: str, help_text: str, label: str = "", values: Iterable[str] = ("",)) -> None:
        self._name, self._help, self._label = name, help_text, label
        self.counts = {value: Count() for value in values}

    def collect(self) -> Iterable[Metric]:
        """Give the counts."""
        family = CounterMetricFamily(self._name, self._help, labels=[self._label] if self._label else [])
        for value, count in self.counts.items():
            family.add_metric([value] if self._label else [], count.value)
        return [family]


class PlainHistogram(Collector):
    """Measurements, in buckets up to and including `bounds`, which ascend; the rest is +Inf."""

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...]) -> None:
        self._name, self._help, self._bounds = name, help_text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one of this size."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[Metric]:
        """Give the buckets."""
        names = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        return [HistogramMetricFamily(self._name, self._help, buckets=buckets, sum_value=self._sum)]
