"""What is reported of comparisons, and of fetching everything."""

from bench.results import Sync, median_of
from bench.tables import number, table


def sync_line(sync: Sync) -> str:
    """What two stores are that are compared."""
    days = f"{sync.days} {'day' if sync.days == 1 else 'days'}"
    return f"Comparison of two stores of {sync.envelopes:,} envelopes, {days}, in one process (medians)"


def sync_table(sync: Sync) -> str:
    """One line for each difference."""
    header = ["difference", "trips", "bytes", "both sides ms", "(slowest)", "responder ms"]
    rows = [
        [
            name,
            number(median_of(run.trips for run in runs), 1),
            number(median_of(run.sent_bytes for run in runs), 1),
            number(median_of(run.seconds for run in runs), 1e3),
            f"({number(max(run.seconds for run in runs), 1e3)})",
            number(median_of(run.responding_s for run in runs), 1e3),
        ]
        for name, runs in sync.cases.items()
    ]
    return table(header, rows)


def fetch_line() -> str:
    """What the table of fetches is about."""
    return "An empty mailserver fetches everything from another, or a client lists its ids, over loopback"


def fetch_table(sync: Sync) -> str:
    """One line for each way."""
    header = ["how", "envelopes", "s", "envelopes/s", "CPU us each", "of the other"]
    rows = [
        [
            name,
            f"{run.envelopes:,}",
            number(run.seconds, 1),
            f"{run.envelopes / run.seconds:,.0f}",
            number(run.own_cpu_s / run.envelopes, 1e6),
            number(run.asked_cpu_s / run.envelopes, 1e6),
        ]
        for name, run in sync.fetches.items()
    ]
    return table(header, rows)
