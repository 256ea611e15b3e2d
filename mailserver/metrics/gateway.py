"""Every metric of the gateway, which is a process of its own.

No label says who, or which topic (12/WAKU2-FILTER, "Future work").
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from mailserver.metrics.counters import PlainCounter, PlainHistogram
from mailserver.metrics.labels import ArchiveRead
from mailserver.metrics.registry import DELAYS_S


class ClientProtocol(Enum):
    """The protocol of a client's request."""

    FILTER = "filter"
    OLD_FILTER = "old_filter"
    STORE = "store"
    LIGHTPUSH = "lightpush"
    METADATA = "metadata"


class Ending(Enum):
    """Why we have ended a connection."""

    LIBP2P_FAULT = "libp2p_fault"
    NOT_ADMITTED = "not_admitted"
    TOO_MANY_CLIENTS = "too_many_clients"
    TOO_MANY_STREAMS = "too_many_streams"
    TOO_MANY_HANDSHAKES = "too_many_handshakes"
    NOT_READING = "not_reading"
    QUITTING = "quitting"


class Bridging(Enum):
    """What became of a message that a client sent."""

    SENT = "sent"
    KNOWN = "known"
    REFUSED = "refused"
    TOO_MANY = "too_many"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class GatewayFigures:
    """The state of the gateway, read when somebody asks."""

    clients: dict[str, int]
    handshakes: int
    subscribers: int
    criteria: int
    unread_bytes: int
    unindexed: int
    unindexed_periods: int
    damaged: int
    is_connected: bool
    feed_missed: int
    refused_connections: dict[str, int]


class GatewayMetrics:
    """What is counted and timed where it happens. A gateway has one of these."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def labelled(name: str, help_text: str, label: str, values: Iterable[str]) -> PlainCounter:
            metric = PlainCounter(name, help_text, label, tuple(values))
            registry.register(metric)
            return metric

        def plain(name: str, help_text: str) -> PlainCounter:
            metric = PlainCounter(name, help_text)
            registry.register(metric)
            return metric

        self.requests = Counter(
            "gateway_requests_total",
            "Requests of clients, by protocol and code.",
            ("protocol", "code"),
            registry=registry,
        )
        self.query_delay = Histogram(
            "gateway_store_query_seconds",
            "From a store query to its answer.",
            buckets=DELAYS_S,
            registry=registry,
        )
        self.query_messages = plain("gateway_store_messages_total", "Messages in answers to store queries.").counts[""]
        row_groups = Counter(
            "gateway_archive_row_groups_total",
            "Row groups of the archive that were read, by use.",
            ("what",),
            registry=registry,
        )
        self.archive_row_groups = {each: row_groups.labels(each.value) for each in ArchiveRead}
        self.archive_read_seconds = Counter(
            "gateway_archive_read_seconds_total",
            "How long the archive was read, all threads together.",
            registry=registry,
        )
        self.archive_read_failures = Counter(
            "gateway_archive_read_failures_total", "How often the archive could not be read.", registry=registry
        )
        lookups = Counter(
            "gateway_archive_cache_lookups_total",
            "What was wanted of the archive; hit: in memory.",
            ("cache",),
            registry=registry,
        )
        self.archive_cache_hits, self.archive_cache_misses = lookups.labels("hit"), lookups.labels("miss")
        self.archive_cache_bytes = Gauge(
            "gateway_archive_cache_bytes", "What is kept in memory of the archive.", registry=registry
        )
        self.pushes = plain("gateway_pushes_total", "Messages pushed to clients, each counted anew.").counts[""]
        self.dropped_pushes = plain(
            "gateway_dropped_pushes_total", "Messages that were not pushed, because their client does not read."
        ).counts[""]
        self.push_delay = PlainHistogram(
            "gateway_push_delay_seconds", "From a live envelope's arrival here to its last push.", DELAYS_S
        )
        registry.register(self.push_delay)
        self.bridged = labelled(
            "gateway_sent_messages_total",
            "Messages that clients have sent, by what became of them.",
            "result",
            (each.value for each in Bridging),
        ).counts
        self.internal_errors = plain(
            "gateway_internal_errors_total", "Requests that were not answered, by a fault of ours."
        ).counts[""]
        self.endings = labelled(
            "gateway_ended_connections_total",
            "Connections that the gateway has ended, by reason.",
            "reason",
            (each.value for each in Ending),
        ).counts


class GatewayCollector(Collector):
    """The state of the gateway as metrics."""

    def __init__(self, read: Callable[[], GatewayFigures]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Read the state."""
        figures = self._read()
        clients = GaugeMetricFamily("gateway_clients", "Connected clients, by transport.", labels=["transport"])
        for kind, count in figures.clients.items():
            clients.add_metric([kind], count)
        yield clients
        for name, help_text, value in (
            ("gateway_handshakes", "Connections in their handshake.", figures.handshakes),
            ("gateway_subscribers", "Clients with subscriptions.", figures.subscribers),
            (
                "gateway_criteria",
                "Content topics that clients have subscribed to. One that several have is one.",
                figures.criteria,
            ),
            ("gateway_unread_bytes", "Bytes sent to clients that they have not read yet.", figures.unread_bytes),
            ("gateway_unindexed_envelopes", "Envelopes in the store that are not in the index yet.", figures.unindexed),
            (
                "gateway_unindexed_archive_periods",
                "Days and months that only the archive has, and that are not in the index yet.",
                figures.unindexed_periods,
            ),
            ("gateway_damaged_envelopes", "Envelopes that were found damaged in the store.", figures.damaged),
            ("gateway_connected", "Whether the mailserver is connected to the gateway.", int(figures.is_connected)),
        ):
            yield GaugeMetricFamily(name, help_text, value)
        yield CounterMetricFamily(
            "gateway_feed_missed_envelopes", "Live envelopes that the gateway was too slow for.", figures.feed_missed
        )
        refused = CounterMetricFamily(
            "gateway_refused_connections", "Connections refused by their address, by reason.", labels=["reason"]
        )
        for reason, count in figures.refused_connections.items():
            refused.add_metric([reason], count)
        yield refused
