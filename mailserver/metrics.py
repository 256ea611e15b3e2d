"""Every metric: its name, help text and labels, in one place (Prometheus' text format).

Values are read when somebody asks, from what runs anyway: nothing is counted twice, and nothing for nobody.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry


@dataclass(frozen=True, slots=True)
class SyncFigures:
    """How far catching up from one source is; `source` names it, `wrong` counts by reason."""

    source: str
    left_s: int
    pages: int
    fetched: int
    stored: int
    wrong: Mapping[str, int]
    is_set_aside: bool


class SyncCollector(Collector):
    """Catching up from other mailservers. There are at most 16 sources."""

    def __init__(self, figures: Callable[[], Iterable[SyncFigures]]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """Read the figures."""
        left = GaugeMetricFamily(
            "mailserver_sync_left_seconds",
            "Span of creation times that a source is still to be asked for.",
            labels=["source"],
        )
        aside = GaugeMetricFamily(
            "mailserver_sync_set_aside", "1 while a source is left alone because it lied.", labels=["source"]
        )
        pages = CounterMetricFamily("mailserver_sync_pages", "Answers of a source.", labels=["source"])
        fetched = CounterMetricFamily(
            "mailserver_sync_fetched_envelopes", "Envelopes that a source sent.", labels=["source"]
        )
        stored = CounterMetricFamily(
            "mailserver_sync_stored_envelopes", "Those of them that the store did not have.", labels=["source"]
        )
        wrong = CounterMetricFamily(
            "mailserver_sync_wrong_envelopes",
            "Those of them that were dropped, by reason.",
            labels=["source", "reason"],
        )
        for source in self._figures():
            left.add_metric([source.source], source.left_s)
            aside.add_metric([source.source], source.is_set_aside)
            pages.add_metric([source.source], source.pages)
            fetched.add_metric([source.source], source.fetched)
            stored.add_metric([source.source], source.stored)
            for reason, count in source.wrong.items():
                wrong.add_metric([source.source, reason], count)
        return [left, aside, pages, fetched, stored, wrong]


def new_registry() -> CollectorRegistry:
    """A registry of ours alone: the library's own would be shared by all daemons of a process."""
    return CollectorRegistry()
