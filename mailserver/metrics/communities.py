"""Every metric of `community serve`, which is a process of its own.

The only label that others have chosen is the id of a community, which is public. There are as many as an operator has
joined or made, 1,000 at most. No label says how a community is called, what its channels are, or who its peers are.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from mailserver.communities.progress import CommunityProgress, CommunityRole, WeekState


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """The state of the service. `announce_s`: how often links are announced; `memory_bytes`: of the torrent process."""

    communities: tuple[CommunityProgress, ...]
    is_connected: bool
    announce_s: float
    torrent_restarts: int
    torrent_memory_bytes: int


def communities_registry(read: Callable[[], ServiceFigures]) -> CollectorRegistry:
    """All metrics of the service.

    Args:
        read: returns its present state.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(CommunitiesCollector(read))
    return registry


class CommunitiesCollector(Collector):
    """The state of the service as metrics."""

    def __init__(self, read: Callable[[], ServiceFigures]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Read the state."""
        figures = self._read()
        served = GaugeMetricFamily("community_served", "Communities that are served, by role.", labels=["role"])
        for role in CommunityRole:
            served.add_metric([role.value], sum(each.role is role for each in figures.communities))
        yield served
        for name, help_text, value in (
            ("community_connected", "1 while the mailserver is connected.", figures.is_connected),
            (
                "community_announce_interval_seconds",
                "How often the magnet link of a community that we own is announced.",
                figures.announce_s,
            ),
            ("community_torrent_memory_bytes", "Memory of the torrent process.", figures.torrent_memory_bytes),
        ):
            yield GaugeMetricFamily(name, help_text, value)
        yield CounterMetricFamily(
            "community_torrent_restarts",
            "How often the torrent process has died, and was started again.",
            figures.torrent_restarts,
        )
        yield from _states(figures.communities)
        for name, family, help_text, value_of in _OF_EACH:
            metric = family(name, help_text, labels=["community", "role"])
            for each in figures.communities:
                if (figure := value_of(each)) is not None:
                    metric.add_metric([each.id, each.role.value], figure)
            yield metric


def _states(communities: Iterable[CommunityProgress]) -> Iterable[Metric]:
    labels = ["community", "role", "state"]
    weeks = GaugeMetricFamily(
        "community_ranges", "Weeks that have history archives, by how far they are.", labels=labels
    )
    archives = GaugeMetricFamily(
        "community_archives", "History archives that the newest index of a member lists, by state.", labels=labels
    )
    for each in communities:
        states = [week.states() for week in each.weeks]
        for state in WeekState:
            weeks.add_metric([each.id, each.role.value, state.value], sum(of[state] for of in states))
        for name, count in each.archives.items():
            archives.add_metric([each.id, each.role.value, name], count)
    yield from (weeks, archives)


_OF_EACH: tuple[
    tuple[str, type[GaugeMetricFamily | CounterMetricFamily], str, Callable[[CommunityProgress], float | None]],
    ...,
] = (
    ("community_problem", GaugeMetricFamily, "1 while something is wrong.", lambda each: bool(each.problem)),
    (
        "community_seeding",
        GaugeMetricFamily,
        "1 while its torrent is offered to peers. Absent before there is one, and while it is switched off.",
        lambda each: each.is_seeding,
    ),
    (
        "community_late_ranges",
        GaugeMetricFamily,
        "Weeks that have ended, and have no history archive yet.",
        lambda each: each.late_weeks,
    ),
    (
        "community_newest_timestamp_seconds",
        GaugeMetricFamily,
        "The end of the newest week that the owner has archived, or the member has fetched.",
        lambda each: each.newest,
    ),
    (
        "community_announced_timestamp_seconds",
        GaugeMetricFamily,
        "When its newest magnet link was posted.",
        lambda each: each.announced_at,
    ),
    (
        "community_fetched_timestamp_seconds",
        GaugeMetricFamily,
        "When peers last got something of its weeks from us, as its owner. Absent before that.",
        lambda each: each.fetched_at,
    ),
    (
        "community_peers",
        GaugeMetricFamily,
        "BitTorrent peers that are connected for its torrent.",
        lambda each: each.peers,
    ),
    (
        "community_uploaded_bytes",
        CounterMetricFamily,
        "Bytes of its torrents that were sent to peers.",
        lambda each: each.uploaded,
    ),
    (
        "community_downloaded_bytes",
        CounterMetricFamily,
        "Bytes of its torrents that were taken from peers.",
        lambda each: each.downloaded,
    ),
)
"""Name, kind, meaning, and what it is of a community; None: nothing is said."""
