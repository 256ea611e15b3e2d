"""What is reported of a store in PostgreSQL beside one in a file."""

from bench.history_results import HistoryRun
from bench.postgres_results import BothIngest, DayRetention, PostgresComparison, StoreSide
from bench.results import median_of
from bench.tables import UNKNOWN, number, table


def postgres_text(measured: PostgresComparison) -> str:
    """The medians, as tables."""
    file, database = measured.sides
    return (
        f"PostgreSQL {measured.server} beside the mailservers, by a Unix socket. Ingest, every packet confirmed "
        f"(medians; in brackets the slowest and the fastest run)\n{ingest_table(measured.ingests)}\n\n"
        f"History, all pages, of {file.envelopes:,} envelopes of {file.days} days (medians)\n"
        f"{history_table(file, database)}\n{side_line(file)}\n{side_line(database)}\n\n"
        f"Deleting a day (medians; in brackets the slowest)\n{retention_table(measured.retentions)}"
    )


def ingest_table(ingests: tuple[BothIngest, ...]) -> str:
    """One line for each set of mailservers."""
    header = ["mailservers", "connections", "per packet", "envelopes/s", "(from - to)", "CPU us/envelope", "server's"]
    rows = []
    for ingest in ingests:
        rates = ingest.rates()
        each = [1e6 * run.daemons_cpu_s / ingest.envelopes for run in ingest.runs]
        server = [1e6 * run.server_cpu_s / ingest.envelopes for run in ingest.runs]
        rows.append(
            [
                ingest.name,
                f"{ingest.connections}",
                f"{ingest.per_packet}",
                number(median_of(rates), 1),
                f"({number(rates[0], 1)} - {number(rates[-1], 1)})",
                number(median_of(each), 1),
                number(median_of(server), 1) if any(server) else UNKNOWN,
            ]
        )
    return table([*header, "peak MB"], [[*row, _peak(ingest)] for row, ingest in zip(rows, ingests, strict=True)])


def history_table(file: StoreSide, database: StoreSide) -> str:
    """One line for each question: completion from both, and how many times as long PostgreSQL takes."""
    header = ["request", "found", "pages", "a file ms", "PostgreSQL ms", "times", "first packet ms", "PostgreSQL's"]
    rows = []
    for ours, theirs in zip(file.questions, database.questions, strict=True):
        both = [[run.done_s for run in each.runs] for each in (ours, theirs)]
        first = [median_of(run.first_s for run in each.runs) for each in (ours, theirs)]
        done = [median_of(times) for times in both]
        times = None if not done[0] or done[1] is None else done[1] / done[0]
        rows.append(
            [
                ours.question,
                number(median_of(run.found for run in ours.runs), 1),
                number(median_of(run.pages for run in ours.runs), 1),
                *(number(each, 1e3) for each in done),
                number(times, 1),
                *(number(each, 1e3) for each in first),
            ]
        )
    return table(header, rows)


def side_line(side: StoreSide) -> str:
    """What a store takes."""
    line = (
        f"{side.name}: {number(side.disk_bytes / side.envelopes, 1)} bytes on disk an envelope, indexes included; "
        f"{number(_daemon_cpu_s(side), 1)} s of the mailserver's CPU for all questions, "
        f"{number(_peak_bytes(side), 1e-6)} MB of memory at most"
    )
    if side.server_bytes:
        line += f"; PostgreSQL: {number(side.server_cpu_s, 1)} s of CPU, warm-up included, "
        line += f"{number(side.server_bytes, 1e-6)} MB (PSS)"
    return line


def retention_table(retentions: tuple[DayRetention, ...]) -> str:
    """One line for each engine."""
    rows = [
        [
            each.name,
            f"{each.envelopes:,}",
            number(median_of(each.seconds), 1e3),
            f"({number(max(each.seconds, default=None), 1e3)})",
            number(each.longest_s, 1e3),
        ]
        for each in retentions
    ]
    return table(["store", "envelopes a day", "ms a day", "(slowest)", "longest batch ms"], rows)


def _runs(side: StoreSide) -> list[HistoryRun]:
    return [run for question in side.questions for run in question.runs]


def _daemon_cpu_s(side: StoreSide) -> float:
    return sum(run.daemon_cpu_s or 0.0 for run in _runs(side))


def _peak_bytes(side: StoreSide) -> int:
    return max((run.peak_bytes or 0 for run in _runs(side)), default=0)


def _peak(ingest: BothIngest) -> str:
    return number(median_of(run.peak_bytes for run in ingest.runs), 1e-6)
