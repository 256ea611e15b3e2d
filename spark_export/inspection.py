"""Whether an archive is what its records say: names and sizes of all files, and contents, period by period.

Nothing is changed here: `spark_export.mending` mends what is found.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mailserver.archive.archive import Archive
from mailserver.archive.days import day_name, month_of
from mailserver.archive.errors import ArchiveFileUnreadable
from mailserver.archive.faults import Fault, FaultKind
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.layout import PERIOD, Layout
from mailserver.archive.manifest import FileRecord, PeriodRecord
from mailserver.archive.paths import directory_of, record_of
from mailserver.archive.set_aside import faults_of_set_aside
from mailserver.handoff.last_run import ArchivedDay
from mailserver.units import SECONDS_PER_DAY
from spark_export.frames import read_files
from spark_export.session import root_cause
from spark_export.written import Written, together

_NOT_THE_FILE = (
    "OutOfMemory",
    "java.net.",
    "AccessDenied",
    "AccessControl",
    "No space left",
    "Permission denied",
    "AWS Error",
)
"""Causes that say nothing about the file that was read: a sound file must not be taken for a damaged one."""

LEAD_S = SECONDS_PER_DAY + 2 * 3600
"""A period is read again this long before its time is up: the next nightly run might be too late."""


def names_and_sizes(archive: Archive, records: Mapping[str, PeriodRecord]) -> list[Fault]:
    """Compare every name and every size with the records, and count the rows that were set aside: no data file is
    opened."""
    there = archive.sizes_of_periods()
    faults = [fault for record in records.values() for fault in _of_period(archive, record, there)]
    for name in archive.files.names(""):
        period = name.removeprefix(f"{PERIOD}=")
        if period != name and period not in records:
            faults += _unrecorded(period, there.get(period, {})) or [
                Fault(period, name, FaultKind.UNRECORDED, 0, "is in no record")
            ]
    for period in sorted(archive.forgotten(records) - {fault.period for fault in faults}):
        cause = "is missing, and so are the files: only their second names are left"
        faults.append(Fault(period, record_of(period), FaultKind.RECORD, 0, cause))
    return [*faults, *faults_of_set_aside(archive.files, records.values()).values()]


def days_gone(records: Iterable[PeriodRecord], found: Mapping[int, ArchivedDay]) -> dict[int, ArchivedDay]:
    """Of days that were found in the archive before, what the records no longer mention, not even as lost."""
    there: dict[int, tuple[int, int]] = {}
    for record in records:
        for day, said in record.days.items():
            rows, size = there.get(day, (0, 0))
            there[day] = rows + said.fingerprint.rows + said.lost_rows, size + said.fingerprint.bytes + said.lost_bytes
    gone = {}
    for day, known in found.items():
        rows, size = there.get(day, (0, 0))
        if rows < known.rows:
            gone[day] = ArchivedDay(known.rows - rows, max(0, known.bytes - size))
    return gone


def months_gone(records: Iterable[PeriodRecord], found: Mapping[str, int]) -> dict[str, int]:
    """How many rows of each month the records no longer mention, not even as lost."""
    there: Counter[str] = Counter()
    for record in records:
        for day, said in record.days.items():
            there[month_of(day)] += said.fingerprint.rows + said.lost_rows
    return {month: rows - there[month] for month, rows in found.items() if there[month] < rows}


def _of_period(archive: Archive, record: PeriodRecord, there: Mapping[str, Mapping[str, int]]) -> list[Fault]:
    found, recorded = there.get(record.period, {}), {file.path for file in record.files}
    unknown = {path: size for path, size in found.items() if path not in recorded}
    return [*archive.faults_of(record, there=found), *_unrecorded(record.period, unknown)]


def _unrecorded(period: str, files: Mapping[str, int]) -> list[Fault]:
    return [
        Fault(period, f"{directory_of(period)}/{path}", FaultKind.UNRECORDED, 0, "is in no record")
        for path in sorted(files)
    ]


@dataclass(frozen=True, slots=True)
class Contents:
    """What reading some files of a period found: the files that are as recorded, what is in them, and the faults."""

    good: tuple[FileRecord, ...]
    written: Written
    faults: tuple[Fault, ...]


def read_contents(
    spark: SparkSession,
    archive: Archive,
    layout: Layout,
    record: PeriodRecord,
    files: Sequence[FileRecord],
    *,
    decode: bool = False,
) -> Contents:
    """Read every byte of these files of a period, and compare each with the record.

    Args:
        decode: decode every row, even of files whose bytes are unchanged.
    """
    faults = []
    for file in files:
        name = f"{directory_of(record.period)}/{file.path}"
        try:
            if file.sha256 and (found := archive.files.digest(name)) != file.sha256:
                cause = f"is damaged: its bytes have SHA-256 {found[:16]}.. instead of {file.sha256[:16]}.."
                faults.append(_damaged(record, file, cause))
        except ArchiveFileUnreadable as error:
            faults.append(_damaged(record, file, f"cannot be read: {error}"))
    faulty = {fault.file for fault in faults}
    rest = [file for file in files if f"{directory_of(record.period)}/{file.path}" not in faulty]
    if not decode and len(rest) == len(record.files) and all(file.sha256 for file in rest):
        return Contents(record.files, _as_recorded(record), ())
    contents = _decoded(spark, archive, layout, record, rest)
    return replace(contents, faults=(*faults, *contents.faults))


def _decoded(
    spark: SparkSession, archive: Archive, layout: Layout, record: PeriodRecord, files: Sequence[FileRecord]
) -> Contents:
    """Read every row of these files.

    If these are all files of the period, and each by itself is as recorded, but together they do not have what the days
    should have, nobody knows which are wrong: all of them count as faulty.
    """
    written = _read(spark, archive, layout, record, files)
    if isinstance(written, Written) and not (faults := _differences(record, files, written)):
        return _if_days_are_right(record, files, written)
    if len(files) == 1:
        cause = written if isinstance(written, str) else faults[0].cause
        return Contents((), Written({}, {}, ()), (_damaged(record, files[0], cause),))
    parts = [_decoded(spark, archive, layout, record, [file]) for file in files]
    good = tuple(file for part in parts for file in part.good)
    contents = _if_days_are_right(record, good, together([part.written for part in parts]))
    return replace(contents, faults=(*contents.faults, *(fault for part in parts for fault in part.faults)))


def _if_days_are_right(record: PeriodRecord, files: Sequence[FileRecord], written: Written) -> Contents:
    if len(files) == len(record.files) and (cause := _days_differ(record, written)):
        return Contents((), Written({}, {}, ()), tuple(_damaged(record, file, cause) for file in files))
    return Contents(tuple(files), written, ())


def _as_recorded(record: PeriodRecord) -> Written:
    days = {day: said for day, said in record.days.items() if said.fingerprint.rows}
    return Written(
        {day: said.fingerprint for day, said in days.items()},
        {day: (said.created_min, said.created_max) for day, said in days.items()},
        record.files,
    )


def periods_to_read(records: Mapping[str, PeriodRecord], within_s: float, now: float) -> list[PeriodRecord]:
    """The periods to read in this run, so that each is read again before its last reading is `within_s` old.

    The work is spread over the runs: if all periods were read in one night, each later run reads some of them,
    beginning with those that were read longest ago.
    """
    # A reading in the future, made while the clock was ahead, does not count.
    read_at = {period: said.verified_at if said.verified_at <= now else 0 for period, said in records.items()}
    waiting = sorted(
        (r for r in records.values() if r.files), key=lambda record: (read_at[record.period], record.period)
    )
    since_last = now - max(read_at.values(), default=0)
    interval = min(since_last, float(SECONDS_PER_DAY))
    # How many bytes to read now, so that with equal work in each run every period is read in time.
    budget = total = 0.0
    left = {record.period: read_at[record.period] + within_s - LEAD_S - now for record in waiting}
    for record in waiting:
        total += _bytes(record)
        budget = max(budget, total if left[record.period] <= 0 else total * interval / (left[record.period] + interval))
    chosen = []
    total = 0.0
    for record in waiting:
        total += _bytes(record)
        if total <= budget or left[record.period] <= 0:
            chosen.append(record)
    return chosen


def _bytes(record: PeriodRecord) -> int:
    return sum(file.bytes for file in record.files)


def _read(
    spark: SparkSession, archive: Archive, layout: Layout, record: PeriodRecord, files: Sequence[FileRecord]
) -> Written | str:
    """What is in these files, or why they cannot be read.

    Raises:
        PySparkException, Py4JError: the cause is not in the files.
    """
    if not files:
        return Written({}, {}, ())
    names = [f"{directory_of(record.period)}/{file.path}" for file in files]
    try:
        return read_files(spark, archive, layout, names).get(record.period, Written({}, {}, ()))
    except (PySparkException, Py4JError) as error:
        cause = root_cause(error)
        if any(word in cause for word in _NOT_THE_FILE):
            raise
        spark.range(1).count()  # raises if Spark itself has failed, and not the file
        return f"cannot be read: {cause}"


def _differences(record: PeriodRecord, files: Sequence[FileRecord], written: Written) -> list[Fault]:
    there = {file.path: file for file in written.files}  # files without rows are not in it
    faults = []
    for file in files:
        found = there.get(file.path)
        if found is None:
            faults.append(_damaged(record, file, f"has no rows instead of {file.rows}"))
        elif (found.bytes, found.rows) != (file.bytes, file.rows):
            cause = f"has {found.bytes} bytes and {found.rows} rows instead of {file.bytes} and {file.rows}"
            faults.append(_damaged(record, file, cause))
    if strange := sorted(written.days.keys() - record.days.keys()):
        names = ", ".join(map(day_name, strange))
        faults += [_damaged(record, file, f"has rows of {names}") for file in files]
    return faults


def _days_differ(record: PeriodRecord, written: Written) -> str:
    """How the days that were read differ from those that were recorded, "" if they do not."""
    for day, said in record.days.items():
        found = written.days.get(day, Fingerprint())
        if found != said.fingerprint:
            return f"{day_name(day)} has {found} instead of {said.fingerprint}"
    return ""


def _damaged(record: PeriodRecord, file: FileRecord, cause: str) -> Fault:
    return Fault(record.period, f"{directory_of(record.period)}/{file.path}", FaultKind.DAMAGED, file.rows, cause)
