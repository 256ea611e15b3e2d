"""Results as tables for people, and as JSON for programs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from bench.communities_report import communities_text
from bench.gateway_report import gateway_text
from bench.history_results import History
from bench.postgres_report import postgres_text
from bench.results import (
    ArchiveHistory,
    Busy,
    Compaction,
    Flood,
    FloodPhase,
    Handshakes,
    Idle,
    Ingest,
    PlainExport,
    Relay,
    Results,
    StoreFacts,
    StoreHistory,
    median_of,
    percentile,
)
from bench.sync_report import fetch_line, fetch_table, sync_line, sync_table
from bench.tables import UNKNOWN, number, table


def as_json(results: Iterable[Results]) -> str:
    """All runs, not only their medians: a list with an object for each mailserver."""
    return json.dumps([asdict(each) for each in results], indent=2) + "\n"


def as_text(results: Results) -> str:
    """The medians, as tables."""
    environment = results.environment
    before, after = environment.load
    machine = f"Python {environment.python}, SQLite {environment.sqlite}, {environment.cpus} CPUs"
    load = f"load {before:.1f} before and {after:.1f} after"
    measured = f"mailserver: {environment.mailserver}; arguments: {' '.join(environment.arguments) or 'none'}"
    parts = [
        f"{environment.measured_at}, {machine}, {load}\n{measured}",
    ]
    if results.ingest:
        parts.append("Ingest, every packet confirmed (medians; in brackets the slowest and the fastest run)\n")
        parts[-1] += ingest_table(results.ingest)
    for history in results.histories:
        if history.store is not None:
            parts.append(store_line(history.store))
        parts.append("History, all pages (medians)\n" + history_table(history.questions))
    if len(results.histories) > 1:
        parts.append("Completion by envelopes in the store, ms (medians)\n" + growth_table(results.histories))
    if results.busy:
        parts.append(
            "History while envelopes are posted (medians of the runs' p50 and p99; max: of all runs together)\n"
        )
        parts[-1] += busy_table(results.busy)
    if results.relays:
        parts.append("Relay, every peer got each once (medians; latency: of single envelopes, all runs together)\n")
        parts[-1] += relay_table(results.relays)
    if results.handshakes:
        parts.append(
            "Handshakes, Status included, each of another peer (medians; in brackets the slowest and fastest)\n"
        )
        parts[-1] += handshakes_table(results.handshakes)
    if results.idle:
        parts.append("Idle connections (medians; in brackets the run with the least for each and that with the most)\n")
        parts[-1] += idle_table(results.idle)
    parts += [flood_line(flood) + "\n" + flood_table(flood.phases) for flood in results.floods]
    if results.compactions:
        parts.append(
            "Compaction in local[2], verified and published (medians; files are the first run's)\n"
            + compaction_table(results.compactions)
        )
    parts += [plain_export_line(plain) for plain in results.plain_exports]
    parts += [f"{archive_lines(archive)}\n{archive_table(archive)}" for archive in results.archives]
    for sync in results.syncs:
        parts += [f"{sync_line(sync)}\n{sync_table(sync)}", f"{fetch_line()}\n{fetch_table(sync)}"]
    parts += map(gateway_text, results.gateways)
    parts += map(communities_text, results.communities)
    if results.postgres is not None:
        parts.append(postgres_text(results.postgres))
    return "\n\n".join(parts)


def ingest_table(rows: Iterable[Ingest]) -> str:
    """One line for each number of connections and envelopes per packet."""
    header = ["connections", "per packet", "envelopes/s", "(from - to)", "daemon CPU us/envelope", "client", "peak MB"]
    return table(header, [_ingest_cells(row) for row in rows])


def history_table(rows: Iterable[History]) -> str:
    """One line for each question."""
    header = ["request", "found", "pages", "first packet ms", "completion ms", "(slowest)", "daemon CPU ms", "peak MB"]
    return table(header, [_history_cells(row) for row in rows])


def growth_table(histories: Sequence[StoreHistory]) -> str:
    """One line for each question, one column for each store."""
    sizes = [UNKNOWN if each.store is None else f"{each.store.envelopes:,}" for each in histories]
    rows = [
        [row[0].question, *(number(median_of(run.done_s for run in each.runs), 1e3) for each in row)]
        for row in zip(*(each.questions for each in histories), strict=True)
    ]
    return table(["request", *sizes], rows)


def busy_table(rows: Iterable[Busy]) -> str:
    """One line for each store."""
    header = [
        "request",
        "in the store",
        "posted/s",
        "confirmed/s",
        "seconds",
        "daemon CPU s",
        "answers",
        "found in one",
    ]
    header += ["first packet ms p50", "p99", "max", "completion ms p50", "p99", "max", "peak MB"]
    return table(header, [_busy_cells(row) for row in rows])


def relay_table(rows: Iterable[Relay]) -> str:
    """One line for each interest."""
    header = ["wanted", "peers", "deliveries/s", "(from - to)", "confirmed/s", "daemon CPU us/delivery", "peers' CPU"]
    header += ["median peer ms p50", "p99", "last peer ms p50", "p99", "peak MB"]
    return table(header, [_relay_cells(row) for row in rows])


def handshakes_table(rows: Iterable[Handshakes]) -> str:
    """One line for each number of dialers."""
    header = ["dialers", "processes", "handshakes/s", "(from - to)", "seconds", "daemon CPU s"]
    header += ["daemon CPU us/handshake", "dialers'", "peak MB"]
    return table(header, [_handshakes_cells(row) for row in rows])


def idle_table(rows: Iterable[Idle]) -> str:
    """One line for each number of connections."""
    header = ["connections", "kB each", "(from - to)", "MB without", "MB with", "connected in s", "daemon CPU s"]
    header += ["idle s", "daemon CPU s"]
    return table(header, [_idle_cells(row) for row in rows])


def flood_line(flood: Flood) -> str:
    """Which flood it was."""
    until = "slowed" if flood.tolerance_s is None else f"slowed for {flood.tolerance_s:g} s, then disconnected"
    return (
        f"Flood by {flood.peers} peers, packets of {flood.per_packet}, {until}: {flood.offered:,.0f} envelopes/s "
        f"offered, {flood.allowed:,.0f}/s allowed"
    )


def flood_table(phases: Iterable[FloodPhase]) -> str:
    """One line for each phase."""
    header = ["", "flood/s", "disconnects", "daemon CPU %", "peak MB", "answers", "ms p50", "p99", "max"]
    header += ["confirmations", "ms p50", "p99", "max"]
    return table(header, [_flood_cells(phase) for phase in phases])


def compaction_table(rows: Iterable[Compaction]) -> str:
    """One line for each store and layout."""
    header = ["days", "by", "rows/s", "(from - to)", "seconds", "CPU s", "start s", "peak MB", "files", "MB", "of raw"]
    header += ["topic's rows", "Spark ms", "DuckDB ms", "2nd night's rows", "rows/s", "seconds"]
    return table(header, [_compaction_cells(row) for row in rows])


def plain_export_line(plain: PlainExport) -> str:
    """What the comparison found."""
    return (
        f"One process with pyarrow, {plain.days} days: {plain.envelopes / plain.seconds:,.0f} rows/s, "
        f"{number(plain.file_bytes, 1e-6)} MB; the store has {number(plain.store_bytes, 1e-6)} MB"
    )


def archive_lines(archive: ArchiveHistory) -> str:
    """What is to be said about an archive, and about those who do not ask it."""
    alone, beside = (", ".join(_times_cells(times_s)[1:]) for times_s in (archive.alone_s, archive.beside_s))
    peak, without = number(archive.peak_bytes, 1e-6), number(archive.without_bytes, 1e-6)
    return (
        f"Archive of {archive.envelopes:,} envelopes, {archive.days} {'day' if archive.days == 1 else 'days'}, "
        f"{number(archive.file_bytes, 1e-6)} MB, none of them in the store (medians)\n"
        f"{peak} MB of memory at most, {without} MB without it; one topic of the store, ms p50, p99, max: "
        f"{alone} alone, {beside} beside {archive.readers} readers of the archive"
    )


def archive_table(archive: ArchiveHistory) -> str:
    """One line for each question."""
    header = ["request", "found", "pages", "first packet ms", "completion ms", "(slowest)", "daemon CPU ms"]
    header += ["cold: completion ms", "(slowest)"]
    rows = [
        [*_history_cells(warm)[:-1], *_history_cells(cold)[4:6]]
        for warm, cold in zip(archive.warm, archive.cold, strict=True)
    ]
    return table(header, rows)


def store_line(store: StoreFacts) -> str:
    """What is to be said about the store."""
    filled = "" if store.fill_s is None else f", filled at {store.envelopes / store.fill_s:,.0f}/s"
    return (
        f"Store of {store.envelopes:,} envelopes, {store.days} {'day' if store.days == 1 else 'days'}{filled}: "
        f"{number(store.disk_bytes_per_million(), 1e-6)} MB on disk per million; "
        f"{number(median_of(store.start_s), 1e3)} ms from start until listening, "
        f"{number(median_of(store.start_cpu_s), 1e3)} ms of CPU (medians)"
    )


def _ingest_cells(row: Ingest) -> list[str]:
    rates = row.rates()
    return [
        str(row.connections),
        str(row.per_packet),
        number(median_of(rates), 1),
        f"({number(rates[0], 1)} - {number(rates[-1], 1)})",
        number(median_of(run.daemon_cpu_s for run in row.runs), 1e6 / row.envelopes),
        number(median_of(run.client_cpu_s for run in row.runs), 1e6 / row.envelopes),
        number(median_of(run.peak_bytes for run in row.runs), 1e-6),
    ]


def _busy_cells(row: Busy) -> list[str]:
    return [
        row.question,
        UNKNOWN if row.envelopes is None else f"{row.envelopes:,}",
        number(row.rate, 1),
        number(median_of(run.confirmed / run.seconds for run in row.runs), 1),
        number(median_of(run.seconds for run in row.runs), 1),
        number(median_of(run.daemon_cpu_s for run in row.runs), 1),
        number(median_of(len(run.done_s) for run in row.runs), 1),
        number(median_of(run.found / len(run.done_s) for run in row.runs), 1),
        *_times_of_runs_cells([run.first_s for run in row.runs]),
        *_times_of_runs_cells([run.done_s for run in row.runs]),
        number(median_of(run.peak_bytes for run in row.runs), 1e-6),
    ]


def _times_of_runs_cells(runs_s: Sequence[Sequence[float]]) -> list[str]:
    """In milliseconds the medians of the runs' medians and of their 99th percentiles, and the longest of all."""
    medians = [number(median_of(percentile(times_s, share) for times_s in runs_s), 1e3) for share in (0.5, 0.99)]
    return [*medians, number(max(map(max, runs_s)), 1e3)]


def _relay_cells(row: Relay) -> list[str]:
    rates = row.rates()
    medians_s = [seconds for run in row.runs for seconds in run.median_s]
    lasts_s = [seconds for run in row.runs for seconds in run.last_s]
    return [
        "everything" if row.interest is None else f"{row.interest} topics",
        str(row.peers),
        number(median_of(rates), 1),
        f"({number(rates[0], 1)} - {number(rates[-1], 1)})",
        number(median_of(row.envelopes / run.confirmed_s for run in row.runs), 1),
        number(median_of(run.daemon_cpu_s and run.daemon_cpu_s / run.deliveries for run in row.runs), 1e6),
        number(median_of(run.receivers_cpu_s / run.deliveries for run in row.runs), 1e6),
        number(percentile(medians_s, 0.5), 1e3),
        number(percentile(medians_s, 0.99), 1e3),
        number(percentile(lasts_s, 0.5), 1e3),
        number(percentile(lasts_s, 0.99), 1e3),
        number(median_of(run.peak_bytes for run in row.runs), 1e-6),
    ]


def _handshakes_cells(row: Handshakes) -> list[str]:
    rates = row.rates()
    return [
        str(row.dialers),
        str(row.processes),
        number(median_of(rates), 1),
        f"({number(rates[0], 1)} - {number(rates[-1], 1)})",
        number(median_of(run.seconds for run in row.runs), 1),
        number(median_of(run.daemon_cpu_s for run in row.runs), 1),
        number(median_of(run.daemon_cpu_s for run in row.runs), 1e6 / row.handshakes),
        number(median_of(run.dialers_cpu_s for run in row.runs), 1e6 / row.handshakes),
        number(median_of(run.peak_bytes for run in row.runs), 1e-6),
    ]


def _idle_cells(row: Idle) -> list[str]:
    each = row.bytes_each()
    return [
        str(row.connections),
        number(median_of(each), 1e-3),
        f"({number(each[0], 1e-3)} - {number(each[-1], 1e-3)})",
        number(median_of(run.before_bytes for run in row.runs), 1e-6),
        number(median_of(run.after_bytes for run in row.runs), 1e-6),
        number(median_of(run.seconds for run in row.runs), 1),
        number(median_of(run.daemon_cpu_s for run in row.runs), 1),
        number(median_of(run.idle_s for run in row.runs), 1),
        number(median_of(run.idle_cpu_s for run in row.runs), 1),
    ]


def _flood_cells(phase: FloodPhase) -> list[str]:
    return [
        phase.name,
        number(phase.flood / phase.seconds, 1),
        str(phase.disconnects),
        number(phase.daemon_cpu_s / phase.seconds, 100),
        number(phase.peak_bytes, 1e-6),
        *_times_cells(phase.answers_s),
        *_times_cells(phase.confirmations_s),
    ]


def _times_cells(times_s: Sequence[float]) -> list[str]:
    """How many there were, and in milliseconds the median, the 99th percentile and the longest."""
    return [str(len(times_s)), *(number(percentile(times_s, share), 1e3) for share in (0.5, 0.99, 1))]


def _compaction_cells(row: Compaction) -> list[str]:
    runs, first = row.runs, row.runs[0]
    rates = sorted(row.envelopes / run.seconds for run in runs)
    return [
        str(row.days),
        row.partition_by,
        number(median_of(rates), 1),
        f"({number(rates[0], 1)} - {number(rates[-1], 1)})",
        number(median_of(run.seconds for run in runs), 1),
        number(median_of(run.cpu_s for run in runs), 1),
        number(median_of(run.start_s for run in runs), 1),
        number(median_of(run.peak_bytes for run in runs), 1e-6),
        str(first.files),
        number(first.file_bytes, 1e-6),
        f"{first.file_bytes / first.envelope_bytes:.3f}",
        str(first.topic_rows),
        number(median_of(run.spark_read_s for run in runs), 1e3),
        number(median_of(run.duckdb_read_s for run in runs), 1e3),
        str(first.night_rows),
        number(median_of(run.night_rows / run.night_s for run in runs), 1),
        number(median_of(run.night_s for run in runs), 1),
    ]


def _history_cells(row: History) -> list[str]:
    return [
        row.question,
        number(median_of(run.found for run in row.runs), 1),
        number(median_of(run.pages for run in row.runs), 1),
        number(median_of(run.first_s for run in row.runs), 1e3),
        number(median_of(run.done_s for run in row.runs), 1e3),
        f"({number(max(run.done_s for run in row.runs), 1e3)})",
        number(median_of(run.daemon_cpu_s for run in row.runs), 1e3),
        number(row.runs[-1].peak_bytes, 1e-6),
    ]
