"""Rows that are no longer envelopes, which a run has set aside as lines of text: whether all of them are still there.

    _quarantine/date=2026-11-20/STORE_ID.jsonl    a line for each row; what a disk has damaged is a line, too
    _quarantine/date=2026-11-20/STORE_ID.2.jsonl  more of them

They are in no data file. So these lines are all that is left of them, once a store has deleted its rows.
"""

from collections.abc import Iterable

from mailserver.archive.days import day_name
from mailserver.archive.faults import Fault, FaultKind
from mailserver.archive.files import ArchiveFiles
from mailserver.archive.layout import PERIOD
from mailserver.archive.manifest import PeriodRecord
from mailserver.archive.paths import QUARANTINE


def set_aside_of(day: int) -> str:
    """Where the rows of a day of reception are that were set aside."""
    return f"{QUARANTINE}/{PERIOD}={day_name(day)}"


def rows_set_aside(files: ArchiveFiles, day: int) -> int:
    """How many rows of a day are there, of all stores.

    Raises:
        ArchiveError: that cannot be read.
    """
    folder = set_aside_of(day)
    return sum(files.lines(f"{folder}/{name}") for name in files.names(folder) if name.endswith(".jsonl"))


def faults_of_set_aside(
    files: ArchiveFiles, records: Iterable[PeriodRecord], only: int | None = None
) -> dict[int, Fault]:
    """The days of which fewer rows are there than these records say, and what is wrong with each. A day may lie in two
    of them: then the sum of both counts.

    Args:
        only: the day to look at; all by default.
    Raises:
        ArchiveError: what is there cannot be read.
    """
    said: dict[int, list[tuple[str, int]]] = {}
    for record in records:
        for day, one in record.days.items():
            if one.quarantined > 0 and only in (None, day):
                said.setdefault(day, []).append((record.period, one.quarantined))
    faults = {}
    for day, parts in sorted(said.items()):
        rows, found = sum(rows for _, rows in parts), rows_set_aside(files, day)
        if found < rows:
            cause = f"has {found} of the {rows} rows that were set aside"
            faults[day] = Fault(parts[0][0], set_aside_of(day), FaultKind.MISSING, rows, cause)
    return faults
