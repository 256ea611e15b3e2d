"""How the last run of the compaction went, and what is in the archive, for people and for the daemon.

JSON. A run writes it when it begins, and again when it ends; a run that was killed leaves "started, not finished" and
no lock. It decides nothing: `handoff.archived` says what may be pruned. The engine keeps it (`store.sqlite.handoff`).
Standard library only: the compaction imports this module.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from reprlib import repr as shown
from types import MappingProxyType
from typing import Any

from mailserver.errors import MailserverError
from mailserver.handoff.json_records import (
    Record,
    count_of,
    day_of,
    day_text,
    field_of,
    number_of,
    number_or_none,
)

VERSION = 1

MAX_ARCHIVED_DAYS = 62
"""For how many days of reception, the latest ones, the record says what is in the archive: two months, for a chart."""

MAX_ARCHIVED_MONTHS = 240
"""For how many months, the latest ones, it says how many rows are in the archive, so that a loss is noticed."""

MAX_ERROR_CHARS = 1000

EXIT_DAMAGED = 3
"""Exit code of a run that has done its work, but has found the archive damaged, or rows of it lost."""


class CompactionRecordError(MailserverError):
    """The record cannot be read or understood. `str()` is one line for the operator."""


class CompactionState(Enum):
    """The state of the last run. The values are for programs."""

    NEVER = "never"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DAMAGED = "damaged"
    """It has done its work; files of the archive are missing or damaged, or rows that were in it are lost."""
    FAILED = "failed"
    DIED = "died"
    """It was killed, or the machine stopped: it began, did not finish, and holds no lock."""


ENDS = {0: CompactionState.SUCCEEDED, EXIT_DAMAGED: CompactionState.DAMAGED}
"""The state of a run that came to its end, by its exit code; with any other code it is FAILED."""


@dataclass(frozen=True, slots=True)
class ArchivedDay:
    """What the archive holds of one day of reception: rows, and bytes of their envelopes."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ArchiveFigures:
    """What is wrong with the archive, as the last run that came to its end found it.

    Args:
        faults: files that it found missing or damaged; those that could be mended are.
        lost_rows: rows that were archived and are gone, which no operator has acknowledged.
        quarantined_rows: rows that were no longer envelopes and were set aside, which no operator has acknowledged.
        miscounted_rows: by how many rows the days of the store differ from what the store has counted.
    """

    faults: int = 0
    lost_rows: int = 0
    quarantined_rows: int = 0
    miscounted_rows: int = 0


@dataclass(frozen=True, slots=True)
class Compaction:
    """One run of the compaction, the last that had this store's lock. Times are Unix seconds.

    Args:
        finished_at: None while it is at work, and for ever if it was killed; so is `exit_code`.
        error: why it failed, or what is wrong with the archive, in one line; "" if all is well.
        rows: envelopes that it put into the archive, from all its stores; 0 if it failed, like the next two.
        bytes: of the files that it wrote.
        days: of reception that it wrote.
        report: the run's report, as `spark-export compact` prints it, without long lists; empty if it failed.
        succeeded_at: the end of the last run that did its work: this one or an earlier one, damaged or not.
        archived: by day (Unix seconds / 86400), the last MAX_ARCHIVED_DAYS in the archive as the last successful run
            found it, whatever stores they are from.
        archived_months: by month of reception ("2026-11"), how many rows it had; the last MAX_ARCHIVED_MONTHS.
        archived_in: the URL of that archive; "" in the records of earlier versions.
        archive: what is wrong with it, in numbers.
        damage: which of its files are missing or damaged and how many rows are lost, in one line, as the last run that
            did its work found it; "" if nothing is.
    """

    started_at: float
    finished_at: float | None = None
    exit_code: int | None = None
    error: str = ""
    rows: int = 0
    bytes: int = 0
    days: int = 0
    seconds: float = 0.0
    report: Mapping[str, Any] = field(default_factory=dict)
    succeeded_at: float | None = None
    archived: Mapping[int, ArchivedDay] = field(default_factory=dict)
    archived_months: Mapping[str, int] = field(default_factory=dict)
    archived_in: str = ""
    archive: ArchiveFigures = ArchiveFigures()
    damage: str = ""


def encode_compaction(compaction: Compaction) -> dict[str, object]:
    """The record as a JSON object."""
    return {
        "version": VERSION,
        "started_at": compaction.started_at,
        "finished_at": compaction.finished_at,
        "exit_code": compaction.exit_code,
        "error": compaction.error[:MAX_ERROR_CHARS],
        "rows": compaction.rows,
        "bytes": compaction.bytes,
        "days": compaction.days,
        "seconds": compaction.seconds,
        "succeeded_at": compaction.succeeded_at,
        "archived": {
            day_text(day): [archived.rows, archived.bytes]
            for day, archived in sorted(compaction.archived.items())[-MAX_ARCHIVED_DAYS:]
        },
        "archived_months": dict(sorted(compaction.archived_months.items())[-MAX_ARCHIVED_MONTHS:]),
        "archived_in": compaction.archived_in,
        "archive": asdict(compaction.archive),
        "damage": compaction.damage[:MAX_ERROR_CHARS],
        "report": dict(compaction.report),
    }


def decode_compaction(record: Record) -> Compaction:
    """The record that `encode_compaction` made.

    Raises:
        ValueError: it is something else.
    """
    archived = field_of(record, "archived", dict)
    if len(archived) > MAX_ARCHIVED_DAYS:
        raise ValueError(f"archived has {len(archived)} days, more than {MAX_ARCHIVED_DAYS}")
    exit_code = record.get("exit_code")
    finished_at = number_or_none(record, "finished_at")
    if (exit_code is None) != (finished_at is None):
        raise ValueError("finished_at and exit_code do not go together")
    error = field_of(record, "error", str)
    return Compaction(
        started_at=number_of("started_at", record.get("started_at")),
        finished_at=finished_at,
        exit_code=None if exit_code is None else count_of("exit_code", exit_code),
        error=error,
        rows=count_of("rows", record.get("rows")),
        bytes=count_of("bytes", record.get("bytes")),
        days=count_of("days", record.get("days")),
        seconds=number_of("seconds", record.get("seconds")),
        report=MappingProxyType(field_of(record, "report", dict)),
        succeeded_at=number_or_none(record, "succeeded_at"),
        archived=MappingProxyType({day_of(text): _archived_day(text, value) for text, value in archived.items()}),
        archived_months=_months(record),
        archived_in=field_of(record, "archived_in", str) if "archived_in" in record else "",
        archive=_figures(record),
        # Earlier versions had one line for error and damage.
        damage=field_of(record, "damage", str) if "damage" in record else error if exit_code == EXIT_DAMAGED else "",
    )


def _months(record: Record) -> Mapping[str, int]:
    if "archived_months" not in record:  # written by an earlier version
        return MappingProxyType({})
    months = field_of(record, "archived_months", dict)
    if len(months) > MAX_ARCHIVED_MONTHS:
        raise ValueError(f"archived_months has {len(months)} months, more than {MAX_ARCHIVED_MONTHS}")
    return MappingProxyType({day_text(day_of(f"{month}-01"))[:7]: count_of(month, n) for month, n in months.items()})


def _figures(record: Record) -> ArchiveFigures:
    if "archive" not in record:  # written by an earlier version
        return ArchiveFigures()
    said = field_of(record, "archive", dict)
    return ArchiveFigures(**{one.name: count_of(one.name, said.get(one.name)) for one in fields(ArchiveFigures)})


def _archived_day(day: str, value: object) -> ArchivedDay:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{day} is {shown(value)}")
    return ArchivedDay(*(count_of(day, number) for number in value))
