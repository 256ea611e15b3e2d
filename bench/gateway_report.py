"""What is reported of a gateway."""

from bench.gateway_results import (
    GatewayResults,
    IdleClientsRun,
    LightHandshakesRun,
    MessageHistory,
    Pushes,
    Queries,
    SentRun,
)
from bench.results import median_of, percentile
from bench.tables import number, table


def gateway_text(results: GatewayResults) -> str:
    """Its tables."""
    parts = [
        "Gateway: pushes, from post to client (medians; in brackets the slowest and the fastest run; times: of single\n"
        "envelopes, all runs together)\n" + table(_PUSHES, [_pushes_cells(row) for row in results.pushes]),
        _history_line(results.history)
        + "\n"
        + table(_QUERIES, [_query_cells(row) for row in results.history.questions]),
        "Gateway: handshakes (medians)\n" + table(_HANDSHAKES, [_handshakes_cells(results.handshakes)]),
        "Gateway: memory of clients (medians)\n" + table(_IDLE, [_idle_cells(results.idle)]),
        "Gateway: messages that clients send, each stored (medians; times: all runs together)\n"
        + table(_SENT, [_sent_cells(results.sent)]),
    ]
    return "\n\n".join(parts)


_PUSHES = ["to", "clients", "muxer", "offered/s", "pushes/s", "(from - to)", "dropped", "gateway CPU us/push"]
_PUSHES += ["daemon's", "clients'", "ms p50", "p99", "max", "MB", "peak MB"]
_QUERIES = ["query", "clients", "found", "answers", "ms p50", "p99", "max", "gateway CPU ms"]
_HANDSHAKES = ["handshakes", "handshakes/s", "gateway CPU us", "clients'"]
_IDLE = ["clients", "MB without", "MB idle", "kB each", "MB subscribed", "kB each"]
_SENT = ["messages", "clients", "messages/s", "ms p50", "p99", "max", "gateway CPU us", "daemon's"]


def _times_cells(times_s: list[float]) -> list[str]:
    """In milliseconds the median, the 99th percentile and the longest."""
    return [number(percentile(times_s, share), 1e3) for share in (0.5, 0.99, 1)]


def _pushes_cells(row: Pushes) -> list[str]:
    rates = row.rates()
    return [
        row.name,
        f"{row.clients:,}",
        row.muxer,
        number(row.offered, 1),
        number(median_of(rates), 1),
        f"({number(rates[0], 1)} - {number(rates[-1], 1)})",
        number(sum(run.dropped for run in row.runs), 1),
        number(median_of(run.gateway_cpu_s / run.pushes for run in row.runs), 1e6),
        number(median_of(run.daemon_cpu_s / run.pushes for run in row.runs), 1e6),
        number(median_of(run.clients_cpu_s / run.pushes for run in row.runs), 1e6),
        *_times_cells([seconds for run in row.runs for seconds in run.late_s]),
        number(median_of(run.memory_bytes for run in row.runs), 1e-6),
        number(max(run.peak_bytes for run in row.runs), 1e-6),
    ]


def _history_line(history: MessageHistory) -> str:
    return (
        f"Gateway: store queries of 100 messages (all runs together; CPU: medians), {history.envelopes:,} envelopes, "
        f"indexed at {history.envelopes / history.indexed_s:,.0f}/s, index of {number(history.index_bytes, 1e-6)} MB, "
        f"peak {number(history.peak_bytes, 1e-6)} MB"
    )


def _query_cells(row: Queries) -> list[str]:
    times_s = [seconds for run in row.runs for seconds in run.times_s]
    return [
        row.question,
        str(row.clients),
        number(median_of(run.found / len(run.times_s) for run in row.runs), 1),
        str(len(times_s)),
        *_times_cells(times_s),
        number(median_of(run.gateway_cpu_s / len(run.times_s) for run in row.runs), 1e3),
    ]


def _handshakes_cells(runs: tuple[LightHandshakesRun, ...]) -> list[str]:
    return [
        str(runs[0].handshakes),
        number(median_of(run.handshakes / run.seconds for run in runs), 1),
        number(median_of(run.gateway_cpu_s / run.handshakes for run in runs), 1e6),
        number(median_of(run.clients_cpu_s / run.handshakes for run in runs), 1e6),
    ]


def _idle_cells(runs: tuple[IdleClientsRun, ...]) -> list[str]:
    return [
        f"{runs[0].clients:,}",
        number(median_of(run.before_bytes for run in runs), 1e-6),
        number(median_of(run.idle_bytes for run in runs), 1e-6),
        number(median_of((run.idle_bytes - run.before_bytes) / run.clients for run in runs), 1e-3),
        number(median_of(run.subscribed_bytes for run in runs), 1e-6),
        number(median_of((run.subscribed_bytes - run.before_bytes) / run.clients for run in runs), 1e-3),
    ]


def _sent_cells(runs: tuple[SentRun, ...]) -> list[str]:
    messages = len(runs[0].times_s)
    return [
        f"{messages:,}",
        str(runs[0].clients),
        number(median_of(len(run.times_s) / run.seconds for run in runs), 1),
        *_times_cells([seconds for run in runs for seconds in run.times_s]),
        number(median_of(run.gateway_cpu_s / messages for run in runs), 1e6),
        number(median_of(run.daemon_cpu_s / messages for run in runs), 1e6),
    ]
