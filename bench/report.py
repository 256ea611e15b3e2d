"""Results as tables for people, and as JSON for programs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from bench.results import Compaction, History, Ingest, PlainExport, Results, StoreFacts, median_of

UNKNOWN = "-"


def as_json(results: Results) -> str:
    """All runs, not only their medians."""
    return json.dumps(asdict(results), indent=2) + "\n"


def as_text(results: Results) -> str:
    """The medians, as tables."""
    environment = results.environment
    before, after = environment.load
    machine = f"Python {environment.python}, SQLite {environment.sqlite}, {environment.cpus} CPUs"
    load = f"load {before:.1f} before and {after:.1f} after"
    parts = [
        f"{environment.measured_at}, {machine}, {load}\narguments: {' '.join(environment.arguments) or 'none'}",
    ]
    if results.ingest:
        parts.append("Ingest, every packet confirmed (medians; in brackets the slowest and the fastest run)\n")
        parts[-1] += ingest_table(results.ingest)
    if results.store is not None:
        parts.append(store_line(results.store))
    if results.history:
        parts.append("History, all pages (medians)\n" + history_table(results.history))
    if results.compactions:
        parts.append("Compaction in local[2], verified and published\n" + compaction_table(results.compactions))
    parts += [plain_export_line(plain) for plain in results.plain_exports]
    return "\n\n".join(parts)


def ingest_table(rows: Iterable[Ingest]) -> str:
    """One line for each number of connections and envelopes per packet."""
    header = ["connections", "per packet", "envelopes/s", "(from - to)", "daemon CPU us/envelope", "client", "peak MB"]
    return table(header, [_ingest_cells(row) for row in rows])


def history_table(rows: Iterable[History]) -> str:
    """One line for each question."""
    header = ["request", "found", "pages", "first packet ms", "completion ms", "(slowest)", "daemon CPU ms", "peak MB"]
    return table(header, [_history_cells(row) for row in rows])


def compaction_table(rows: Iterable[Compaction]) -> str:
    """One line for each store and layout."""
    header = ["days", "by", "rows/s", "seconds", "CPU s", "start s", "peak MB", "files", "MB", "of raw"]
    header += ["topic's rows", "Spark ms", "DuckDB ms"]
    return table(header, [_compaction_cells(row) for row in rows])


def plain_export_line(plain: PlainExport) -> str:
    """What the comparison found."""
    return (
        f"One process with pyarrow, {plain.days} days: {plain.envelopes / plain.seconds:,.0f} rows/s, "
        f"{_number(plain.file_bytes, 1e-6)} MB; the store has {_number(plain.store_bytes, 1e-6)} MB"
    )


def store_line(store: StoreFacts) -> str:
    """What is to be said about the store."""
    filled = "" if store.fill_s is None else f", filled at {store.envelopes / store.fill_s:,.0f}/s"
    return (
        f"Store of {store.envelopes:,} envelopes{filled}: {_number(store.disk_bytes_per_million(), 1e-6)} MB on disk "
        f"per million; {_number(median_of(store.start_s), 1)} s from start until listening"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay cells out in columns: the first to the left, the others, which are numbers, to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _ingest_cells(row: Ingest) -> list[str]:
    rates = row.rates()
    return [
        str(row.connections),
        str(row.per_packet),
        _number(median_of(rates), 1),
        f"({_number(rates[0], 1)} - {_number(rates[-1], 1)})",
        _number(median_of(run.daemon_cpu_s for run in row.runs), 1e6 / row.envelopes),
        _number(median_of(run.client_cpu_s for run in row.runs), 1e6 / row.envelopes),
        _number(median_of(run.peak_bytes for run in row.runs), 1e-6),
    ]


def _compaction_cells(row: Compaction) -> list[str]:
    run = row.run
    return [
        str(row.days),
        row.partition_by,
        _number(row.envelopes / run.seconds, 1),
        _number(run.seconds, 1),
        _number(run.cpu_s, 1),
        _number(run.start_s, 1),
        _number(run.peak_bytes, 1e-6),
        str(run.files),
        _number(run.file_bytes, 1e-6),
        f"{run.file_bytes / run.envelope_bytes:.3f}",
        str(run.topic_rows),
        _number(run.spark_read_s, 1e3),
        _number(run.duckdb_read_s, 1e3),
    ]


def _history_cells(row: History) -> list[str]:
    return [
        row.question,
        _number(median_of(run.found for run in row.runs), 1),
        _number(median_of(run.pages for run in row.runs), 1),
        _number(median_of(run.first_s for run in row.runs), 1e3),
        _number(median_of(run.done_s for run in row.runs), 1e3),
        f"({_number(max(run.done_s for run in row.runs), 1e3)})",
        _number(median_of(run.daemon_cpu_s for run in row.runs), 1e3),
        _number(row.runs[-1].peak_bytes, 1e-6),
    ]


def _number(value: float | None, factor: float) -> str:
    """A number times a factor; with one digit behind the point below 100, if it is no whole number."""
    if value is None:
        return UNKNOWN
    scaled = value * factor
    return f"{scaled:,.0f}" if scaled >= 100 or scaled == int(scaled) else f"{scaled:.1f}"
