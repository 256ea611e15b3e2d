"""Figures as metrics: read when somebody asks for metrics, so that nothing is counted twice."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mailserver.metrics.figures import CatchupFigures, Figures, NodeFigures
from mailserver.metrics.labels import Check

_L = TypeVar("_L", bound=tuple[str, ...])


class FiguresCollector(Collector):
    """Figures, read whenever somebody asks. Unknown ones are left out."""

    def __init__(self, read: Callable[[], Figures]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Read the figures, for the library."""
        figures = self._read()
        yield from _of_node(figures.node)
        yield from _gauges(_STORE, figures.store)
        yield from _gauges(_DATABASE, figures.database)
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
_DATABASE = {
    "mailserver_database_connections": ("connections", "Connections to PostgreSQL, of all its users."),
    "mailserver_database_connections_max": ("max_connections", "How many connections PostgreSQL takes."),
    "mailserver_database_lock_waits": ("lock_waits", "Connections that wait for a lock of the store's."),
    "mailserver_database_notification_queue_ratio": (
        "notification_queue",
        "How full PostgreSQL's queue of notifications is; 1 is full.",
    ),
    "mailserver_database_partitions": ("partitions", "Days that have a partition of their own."),
    "mailserver_others_waiting_envelopes": (
        "others_waiting",
        "Live envelopes of other mailservers on the database that were heard of and not read yet, at most.",
    ),
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
