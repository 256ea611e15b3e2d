"""Metrics for what happens thousands of times a second. They take a tenth of the time of the library's own.

Only the event loop's thread may use these. The library's own serve any thread by locks, which took some per cent of all
work for a packet of one envelope.
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
        """Count `amount` more."""
        self.value += amount


class PlainCounter(Collector):
    """A counter. With `label` it has a count for each of `values`, else one count, under ""."""

    def __init__(self, name: str, help_text: str, label: str = "", values: Iterable[str] = ("",)) -> None:
        self._name, self._help, self._label = name, help_text, label
        self.counts = {value: Count() for value in values}

    def collect(self) -> Iterable[Metric]:
        """The counts, for the library."""
        family = CounterMetricFamily(self._name, self._help, labels=[self._label] if self._label else [])
        for value, count in self.counts.items():
            family.add_metric([value] if self._label else [], count.value)
        return [family]


class PlainHistogram(Collector):
    """Measurements in buckets. Each bucket includes its bound; `bounds` ascend, and +Inf takes the rest."""

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...]) -> None:
        self._name, self._help, self._bounds = name, help_text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one measurement."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[Metric]:
        """The buckets, for the library."""
        names = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        return [HistogramMetricFamily(self._name, self._help, buckets=buckets, sum_value=self._sum)]
