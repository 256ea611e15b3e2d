"""Every metric: its name, help text and labels, in one place (Prometheus' text format).

What happens is counted and timed where it happens, in `Metrics`; what is, is read when somebody asks, from `Figures`:
nothing is counted twice. Labels come from enums: no peer can make a series. Names of the deployed Go node are kept
where they say what is meant (docs/metrics.md has them all).
"""

import platform
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from mailserver import __version__
from mailserver.errors import DisconnectReason, Rejection
from mailserver.metrics.counters import Count, PlainCounter, PlainHistogram
from mailserver.waku.acceptance import Verdict

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each that counts, for when it began: nobody asks for that


class RequestKind(Enum):
    """What a history request asks for."""

    TOPICS = "topics"
    BLOOM = "bloom"
    EVERYTHING = "everything"
    UNREADABLE = "unreadable"


class Outcome(Enum):
    """How a history request ended. LOST: its client was gone before the completion."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    FAILED = "failed"
    LOST = "lost"


class Direction(Enum):
    """Who dialled, or whither bytes went."""

    IN = "in"
    OUT = "out"


class ClientFamily(Enum):
    """Which program a peer says that it is, by the name in its Hello."""

    STATUS_GO = "status-go"
    NIM = "nim"
    OURS = "waku-mailserver"
    GETH = "geth"
    OTHER = "other"

    @classmethod
    def of(cls, client_id: str) -> "ClientFamily":
        """Tell by the beginning of a client id such as `statusd/v0.77.0/linux-amd64/go1.18`."""
        name = client_id.lower()
        return next((family for prefix, family in _PREFIXES.items() if name.startswith(prefix)), cls.OTHER)


_PREFIXES = {
    "status": ClientFamily.STATUS_GO,
    "nim": ClientFamily.NIM,
    "waku-mailserver": ClientFamily.OURS,
    "geth": ClientFamily.GETH,
}


class Check(Enum):
    """What is looked at to tell whether the mailserver is well."""

    STORE = "store"
    DAMAGE = "damage"
    DISK = "disk"
    CLOCK = "clock"
    COMPACTION = "compaction"
    ARCHIVE = "archive"
    PEERS = "peers"


DELAYS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LAGS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_ENVELOPE_BYTES = tuple(2.0**power for power in range(8, 21))
_PACKET_BYTES = tuple(float(1024 * 4**power) for power in range(6))

_K = TypeVar("_K", bound=Enum)
_L = TypeVar("_L", bound=tuple[str, ...])
_P = TypeVar("_P", bound=Collector)


class Metrics:
    """What is counted and timed where it happens; one for a daemon."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()  # the library's own would be shared by all of a process

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
            "Work of the store for history requests, in topics looked at, 0.3 us each.",
            "kind",
        )
        for kind in RequestKind:
            self.search_work.labels(kind.value)
        self.pages_ended_early = counter(
            "mailserver_pages_ended_early_total",
            "Answers to bloom filters that ended early, with a cursor: too much work.",
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

        # The process.
        self.loop_lag = histogram(
            "mailserver_event_loop_lag_seconds", "How late the event loop was, twice a second.", buckets=_LAGS_S
        )
        versions = {"version": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
        Info("mailserver_build", "What is running.", registry=registry).info(versions)
        ProcessCollector(registry=registry)


def count_of(counter: Counter | Gauge | Count) -> float:
    """How far a counter or gauge is."""
    if isinstance(counter, Count):
        return counter.value
    return sum(sample.value for metric in counter.collect() for sample in metric.samples)


def _by(counter: Counter, members: Iterable[_K]) -> dict[_K, Counter]:
    """The series of a counter by its label; each is there from the start, so that its first count is an increase."""
    return {member: counter.labels(member.name.lower()) for member in members}


@dataclass(frozen=True, slots=True)
class CatchupFigures:
    """How far catching up from one source is; `source` names it, `wrong` counts by reason."""

    source: str
    left_s: int
    pages: int
    fetched: int
    stored: int
    wrong: Mapping[str, int]
    is_set_aside: bool


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """What the store holds. `bytes`: of its pages in use; `file_bytes`, `wal_bytes`: of its files.

    `oldest`: when the oldest envelope was received, Unix seconds, None in an empty store.
    """

    envelopes: int
    bytes: int
    file_bytes: int
    wal_bytes: int
    oldest: int | None


@dataclass(frozen=True, slots=True)
class DiskFigures:
    """The file system of the store, in bytes; `free` is what we may use of it."""

    free: int
    size: int


@dataclass(frozen=True, slots=True)
class CompactionFigures:
    """How the nightly compaction goes. Times are Unix seconds, None for never.

    `finished_at`, `exit_code`, `rows`, `seconds`: of the last run; the first two are unknown while it is at work, and
    if it was killed. `succeeded_at`: the end of the last one that ended well. `verified_at`: when a run last found
    the archive to be equal to the store. `archive_faults`, `lost_rows`, `quarantined_rows`, `miscounted_rows`: see
    `handoff.last_run.ArchiveFigures`.
    """

    finished_at: float | None
    exit_code: int | None
    rows: int
    seconds: float
    succeeded_at: float | None
    verified_at: float | None
    is_running: bool
    has_died: bool
    archive_faults: int = 0
    lost_rows: int = 0
    quarantined_rows: int = 0
    miscounted_rows: int = 0


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """The running node, at one moment. Mappings have every member of their enum.

    `handshakes`: connections that have not said Hello. `writer_envelopes`, `writer_bytes`: what waits for the disk.
    `relay_envelopes`, `relay_bytes`: what is kept for peers. `requests_waiting`: history requests that wait for their
    turn. `refused`: connections, by reason; `exceeded`: packets and envelopes over a rate limit, by limit.
    """

    peers: Mapping[tuple[Direction, ClientFamily], int]
    max_peers: int
    handshakes: int
    network_bytes: Mapping[Direction, int]
    writer_envelopes: int
    writer_bytes: int
    relay_envelopes: int
    relay_bytes: int
    requests_waiting: int
    refused: Mapping[str, int]
    exceeded: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Figures:
    """What is, at one moment, as far as it is known.

    `problems`: what is wrong; `is_ready`: the mailserver can do its work all the same. `memory_limit`: most bytes that
    the process may take, None for as many as there are.
    """

    node: NodeFigures
    store: StoreFigures | None = None
    disk: DiskFigures | None = None
    compaction: CompactionFigures | None = None
    memory_limit: int | None = None
    problems: frozenset[Check] = frozenset()
    is_ready: bool = True
    sync: tuple[CatchupFigures, ...] = ()


class FiguresCollector(Collector):
    """What is, read whenever somebody asks. What is not known is left out."""

    def __init__(self, read: Callable[[], Figures]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Read the figures."""
        figures = self._read()
        yield from _of_node(figures.node)
        yield from _gauges(_STORE, figures.store)
        yield from _gauges(_DISK, figures.disk)
        yield from _gauges(_COMPACTION, figures.compaction)
        yield from _gauges(_MEMORY, figures)
        yield GaugeMetricFamily("mailserver_ready", "1 while the mailserver can do its work.", figures.is_ready)
        yield _labelled(
            GaugeMetricFamily,
            "mailserver_problem",
            "1 while something is wrong, by what; /ready says it in words.",
            ("check",),
            {(check.value,): check in figures.problems for check in Check},
        )
        yield from _of_sync(figures.sync)


def _of_node(figures: NodeFigures) -> Iterable[Metric]:
    yield _labelled(
        GaugeMetricFamily,
        "mailserver_peers",
        "Connected peers, by who dialled and by their program.",
        ("direction", "client"),
        {(direction.value, client.value): count for (direction, client), count in figures.peers.items()},
    )
    yield GaugeMetricFamily("p2p_peers_max", "How many peers there may be.", figures.max_peers)
    yield GaugeMetricFamily("mailserver_handshakes", "Connections in their handshake.", figures.handshakes)
    yield _labelled(
        CounterMetricFamily,
        "mailserver_network_bytes",
        "Bytes of connections with peers.",
        ("direction",),
        {(direction.value,): count for direction, count in figures.network_bytes.items()},
    )
    queues = {
        ("store",): (figures.writer_envelopes, figures.writer_bytes),
        ("relay",): (figures.relay_envelopes, figures.relay_bytes),
    }
    what = "that wait for the disk (store), or are kept for peers (relay)."
    for at, unit in enumerate(("envelopes", "bytes")):
        depths = {queue: depth[at] for queue, depth in queues.items()}
        help_text = f"{unit.capitalize()} {what}"
        yield _labelled(GaugeMetricFamily, f"mailserver_queue_{unit}", help_text, ("queue",), depths)
    yield GaugeMetricFamily(
        "mailserver_requests_waiting", "History requests that wait for their turn.", figures.requests_waiting
    )
    yield _labelled(
        CounterMetricFamily,
        "mailserver_connections_refused",
        "Connections that were not taken, by reason.",
        ("reason",),
        {(reason,): count for reason, count in figures.refused.items()},
    )
    yield _labelled(
        CounterMetricFamily,
        "waku_rate_limits_exceeded",
        "Packets, and envelopes of a topic, that were over a rate limit, by limit.",
        ("type",),
        {(limit,): count for limit, count in figures.exceeded.items()},
    )


_STORE = {
    "mailserver_store_envelopes": ("envelopes", "Envelopes in the store."),
    "mailserver_store_bytes": ("bytes", "What envelopes take on disk, indexes included."),
    "mailserver_store_file_bytes": ("file_bytes", "Size of the store file, free pages included."),
    "mailserver_store_wal_bytes": ("wal_bytes", "Size of SQLite's log beside the store file."),
    "mailserver_store_oldest_timestamp_seconds": ("oldest", "When the oldest envelope was received."),
}
_DISK = {
    "mailserver_disk_free_bytes": ("free", "Free space of the store's file system."),
    "mailserver_disk_size_bytes": ("size", "Size of the store's file system."),
}
_MEMORY = {
    "mailserver_memory_limit_bytes": ("memory_limit", "Most memory that the process may take (cgroup)."),
}
_COMPACTION = {
    "mailserver_compaction_last_run_timestamp_seconds": ("finished_at", "End of the compaction's last run."),
    "mailserver_compaction_last_exit_code": ("exit_code", "How the compaction's last run ended; 0 is well."),
    "mailserver_compaction_rows": ("rows", "Envelopes that the compaction's last run archived."),
    "mailserver_compaction_duration_seconds": ("seconds", "How long the compaction's last run took."),
    "mailserver_compaction_last_success_timestamp_seconds": ("succeeded_at", "End of the compaction's last good run."),
    "mailserver_archive_verified_timestamp_seconds": ("verified_at", "When the archive last equalled the store."),
    "mailserver_compaction_running": ("is_running", "1 while the compaction is at work."),
    "mailserver_compaction_died": ("has_died", "1 if the compaction's last run was killed."),
    "mailserver_archive_faulty_files": (
        "archive_faults",
        "Files of the archive that the compaction's last run found missing or damaged, before it mended what it could.",
    ),
    "mailserver_archive_lost_rows": (
        "lost_rows",
        "Rows that were in the archive and are lost, until an operator acknowledges it.",
    ),
    "mailserver_archive_quarantined_rows": (
        "quarantined_rows",
        "Rows of the store that were no envelopes any more and were set aside, until an operator acknowledges it.",
    ),
    "mailserver_archive_miscounted_rows": (
        "miscounted_rows",
        "Rows that the store's days have more or fewer than it has counted; such days are not deleted from it.",
    ),
}


def _gauges(table: Mapping[str, tuple[str, str]], figures: object) -> Iterable[Metric]:
    if figures is None:
        return
    for name, (attribute, help_text) in table.items():
        value = getattr(figures, attribute)
        if value is not None:
            yield GaugeMetricFamily(name, help_text, value)


def _labelled(
    family: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    help_text: str,
    labels: _L,
    values: Mapping[_L, float],
) -> Metric:
    metric = family(name, help_text, labels=labels)
    for of, value in values.items():
        metric.add_metric(of, value)
    return metric


_SYNC = {
    "mailserver_sync_left_seconds": (GaugeMetricFamily, "left_s", "Span of creation times still to be asked for."),
    "mailserver_sync_set_aside": (GaugeMetricFamily, "is_set_aside", "1 while a source is left alone: it lied."),
    "mailserver_sync_pages": (CounterMetricFamily, "pages", "Answers of a source."),
    "mailserver_sync_fetched_envelopes": (CounterMetricFamily, "fetched", "Envelopes that a source sent."),
    "mailserver_sync_stored_envelopes": (
        CounterMetricFamily,
        "stored",
        "Fetched envelopes that the store did not have.",
    ),
}


def _of_sync(sources: Iterable[CatchupFigures]) -> Iterable[Metric]:
    """Catching up from other mailservers. There are at most 16 sources."""
    by_source = {(figures.source,): figures for figures in sources}
    for name, (family, attribute, help_text) in _SYNC.items():
        values = {source: getattr(figures, attribute) for source, figures in by_source.items()}
        yield _labelled(family, name, help_text, ("source",), values)
    wrong = {
        (*source, reason): count for source, figures in by_source.items() for reason, count in figures.wrong.items()
    }
    yield _labelled(
        CounterMetricFamily,
        "mailserver_sync_wrong_envelopes",
        "Fetched envelopes that were dropped, by reason.",
        ("source", "reason"),
        wrong,
    )
