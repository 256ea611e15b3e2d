"""Every metric: its name, help text and labels, in one place (Prometheus' text format).

Events are counted and timed where they happen, in `Metrics`. States are read when somebody asks (`figures`), so nothing
is counted twice. Labels come from enums (`labels`), so no peer can add a series. Names of the deployed Go node are kept
where they say what is meant. docs/metrics.md lists all metrics.
"""

import platform
import sqlite3
from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from mailserver import __version__
from mailserver.errors import DisconnectReason, Rejection
from mailserver.metrics.counters import Count, PlainCounter, PlainHistogram
from mailserver.metrics.labels import ArchiveRead, Direction, IdRequestKind, Outcome, PostResult, RequestKind
from mailserver.waku.acceptance import Verdict

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, with its beginning: nobody needs it


DELAYS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LAGS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_ENVELOPE_BYTES = tuple(2.0**power for power in range(8, 21))
_PACKET_BYTES = tuple(float(1024 * 4**power) for power in range(6))

_K = TypeVar("_K", bound=Enum)
_P = TypeVar("_P", bound=Collector)


class Metrics:
    """What is counted and timed where it happens. A daemon has one of these."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()  # the library's own would be shared by the whole process

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(name, help_text, labels, registry=registry)

        def histogram(name: str, help_text: str, *labels: str, buckets: tuple[float, ...] = DELAYS_S) -> Histogram:
            return Histogram(name, help_text, labels, buckets=buckets, registry=registry)

        def plain(metric: _P) -> _P:
            registry.register(metric)
            return metric

        # Envelopes that peers send.
        received = plain(PlainCounter("waku_envelopes_received_total", "Envelopes in packets of peers."))
        self.received = received.counts[""]
        self.rejected: dict[Verdict, Counter] = _by(
            counter("waku_envelopes_rejected_total", "Envelopes that were not taken, by reason.", "reason"),
            [verdict for verdict in Verdict if verdict is not Verdict.ACCEPTED],
        )
        help_text = "Envelopes that were taken: miss if new, hit if known."
        cached = plain(PlainCounter("waku_envelopes_cached_total", help_text, "cache", ("hit", "miss")))
        self.known, self.new = cached.counts["hit"], cached.counts["miss"]
        help_text = "New envelopes of peers that were created within 5 minutes of our clock, as they claim."
        self.timely = plain(PlainCounter("mailserver_envelopes_timely_total", help_text)).counts[""]
        self.sizes = plain(PlainHistogram("waku_envelopes_size_bytes", "Sizes of new envelopes.", _ENVELOPE_BYTES))
        stored = plain(PlainCounter("mailserver_envelopes_stored_total", "New envelopes that are on disk."))
        self.stored = stored.counts[""]
        self.not_stored = counter(
            "mailserver_envelopes_failures_total", "Envelopes that could not be stored, and were not confirmed."
        )
        help_text = "From a packet of envelopes to its confirmation, after the disk."
        self.confirmation_delay = plain(PlainHistogram("mailserver_confirmation_delay_seconds", help_text, DELAYS_S))
        self.relayed = counter("mailserver_relayed_envelopes_total", "Envelopes sent to peers, each counted anew.")
        self.relay_missed = counter(
            "mailserver_relay_missed_envelopes_total", "Stored envelopes that were not relayed: relay was too slow."
        )
        self.relay_shed = counter(
            "mailserver_relay_shed_envelopes_total",
            "Live envelopes that the full pool dropped before every connected peer had been offered them.",
        )
        self.of_others = counter(
            "mailserver_others_envelopes_total",
            "New live envelopes that other mailservers on the database, or other workers, have stored.",
        )
        self.others_missed = counter(
            "mailserver_others_missed_envelopes_total",
            "Upper bound of those not relayed here: too many came, or the database could not be read.",
        )
        self.pruned = counter("mailserver_pruned_envelopes_total", "Envelopes that retention has deleted.")
        self.pruning_waiting = Gauge(
            "mailserver_pruning_waiting_envelopes",
            "Envelopes beyond the limits of retention that wait to be archived.",
            registry=registry,
        )

        # History.
        kinds = ("kind", "outcome")
        self.requests = counter("mailserver_requests_total", "History requests, by how they ended.", *kinds)
        for kind in RequestKind:
            for outcome in Outcome:
                self.requests.labels(kind.value, outcome.value)
        self.requests_rejected = _by(
            counter("mailserver_requests_rejected_total", "Rejected history requests, by reason.", "reason"), Rejection
        )
        self.search_work = counter(
            "mailserver_search_work_total",
            "Work of the store for history requests, in units of about 0.3 us.",
            "kind",
        )
        for kind in RequestKind:
            self.search_work.labels(kind.value)
        self.pages_ended_early = counter(
            "mailserver_pages_ended_early_total",
            "Answers that ended early, with a cursor: too much work.",
        )
        self.delivery_duration = histogram(
            "mailserver_delivery_duration_seconds", "From a history request to its completion.", *kinds
        )
        self.delivery_first_packet = histogram(
            "mailserver_delivery_first_packet_seconds", "From a history request to its first envelopes.", *kinds
        )
        self.delivered = counter("mailserver_delivered_envelopes_total", "Envelopes in answers.", *kinds)
        self.delivered_bytes = counter("mailserver_delivered_bytes_total", "Bytes of envelopes in answers.", *kinds)
        self.batch_size = histogram(
            "mailserver_sent_envelope_batch_size_bytes", "Sizes of the packets of answers.", buckets=_PACKET_BYTES
        )

        # Message ids.
        self.id_requests = counter("mailserver_id_requests_total", "Questions about message ids.", *kinds)
        self.id_work = counter(
            "mailserver_id_work_total", "Work of the store for questions about message ids, 0.3 us each.", "kind"
        )
        self.id_duration = histogram(
            "mailserver_id_request_duration_seconds", "From a question about message ids to its answer.", "kind"
        )
        for id_kind in IdRequestKind:
            self.id_work.labels(id_kind.value)
            self.id_duration.labels(id_kind.value)
            for outcome in Outcome:
                self.id_requests.labels(id_kind.value, outcome.value)
        self.listed_ids = counter("mailserver_listed_ids_total", "Message ids in answers.")
        self.envelopes_by_id = counter(
            "mailserver_envelopes_by_id_total", "Envelopes in answers to questions about message ids."
        )

        # History that the archive answers.
        self.delivered_archived = counter(
            "mailserver_delivered_archived_envelopes_total", "Envelopes in answers that came from the archive."
        )
        self.archive_row_groups = _by(
            counter("mailserver_history_row_groups_total", "Row groups of the archive that were read, by use.", "what"),
            ArchiveRead,
        )
        self.archive_read_seconds = counter(
            "mailserver_history_read_seconds_total", "How long the archive was read, all threads together."
        )
        self.archive_read_failures = counter(
            "mailserver_history_read_failures_total", "Requests that the archive could not answer."
        )
        lookups = counter(
            "mailserver_history_cache_lookups_total",
            "What was wanted of the archive; hit: in memory.",
            "cache",
        )
        self.archive_cache_hits, self.archive_cache_misses = lookups.labels("hit"), lookups.labels("miss")
        self.archive_cache_bytes = Gauge(
            "mailserver_history_cache_bytes", "What is kept in memory of the archive.", registry=registry
        )

        # Peers.
        connections = plain(
            PlainCounter(
                "mailserver_connections_total",
                "Peers that have connected, each time their Status came, by who dialled.",
                "direction",
                [direction.value for direction in Direction],
            )
        )
        self.connections = {direction: connections.counts[direction.value] for direction in Direction}
        self.disconnects = _by(
            counter("mailserver_disconnects_total", "Connections that ended, by reason.", "reason"), DisconnectReason
        )

        # Gateways.
        self.gateways = Gauge("mailserver_gateways", "Connected gateways.", registry=registry)
        self.communities = Gauge(
            "mailserver_communities", "Connected services for communities: `community serve`.", registry=registry
        )
        self.gateway_envelopes = counter(
            "mailserver_gateway_envelopes_total", "Live envelopes sent to gateways, each counted anew."
        )
        self.gateway_missed = counter(
            "mailserver_gateway_missed_envelopes_total",
            "Live envelopes not sent to a gateway, which was too slow: it finds them in the store.",
        )
        self.gateway_posts = _by(
            counter(
                "mailserver_gateway_posts_total",
                "Envelopes that gateways and communities have posted, by result.",
                "result",
            ),
            PostResult,
        )

        # The process.
        self.loop_lag = histogram(
            "mailserver_event_loop_lag_seconds", "How late the event loop was, twice a second.", buckets=_LAGS_S
        )
        versions = {"version": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
        Info("mailserver_build", "What is running.", registry=registry).info(versions)
        ProcessCollector(registry=registry)


def count_of(counter: Counter | Gauge | Count) -> float:
    """The value of a counter or gauge, over all its labels."""
    if isinstance(counter, Count):
        return counter.value
    return sum(sample.value for metric in counter.collect() for sample in metric.samples)


def _by(counter: Counter, members: Iterable[_K]) -> dict[_K, Counter]:
    """The series of a counter by label. Each exists from the start, so that its first count is seen as an increase."""
    return {member: counter.labels(member.name.lower()) for member in members}
