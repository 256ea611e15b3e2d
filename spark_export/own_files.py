"""What an archive says of itself as a whole, read by a run that holds its lock. A file that is damaged is set aside, as
periods' records are, and made anew from the rest:

    _archive.json      from the directories that the periods' records name
    _incidents.json    from `_damaged`, whose rows are taken in once more; what was acknowledged is forgotten

The run that finds it so says it, and the next one is as any other.
"""

from collections.abc import Iterator

from mailserver.archive.days import parse_day
from mailserver.archive.errors import ArchiveError, RecordDamaged
from mailserver.archive.faults import Fault, FaultKind
from mailserver.archive.layout import PERIOD, TOPIC_PREFIX, Layout, PartitionBy
from mailserver.archive.paths import DAMAGED, RECORDS, SETTINGS_FILE, record_of
from spark_export.incidents import INCIDENTS_FILE, Incident, Incidents
from spark_export.mending import NO_RECORD
from spark_export.publishing import WritableArchive


def read_incidents(archive: WritableArchive, now: float) -> Incidents:
    """The incidents of an archive.

    Args:
        now: Unix seconds.
    Raises:
        ArchiveError: they cannot be read or written, or a later version made them.
    """
    try:
        incidents = Incidents(archive.storage, now)
    except RecordDamaged as error:
        archive.set_damaged_aside(INCIDENTS_FILE, error)
        incidents = Incidents(archive.storage, now)
    # No file is set aside before an incident names it. So if there are none, a run was killed right here, or somebody
    # has deleted the file.
    if not incidents.all and (found := [*_of_damaged_records(archive, now), *_of_files_set_aside(archive, now)]):
        incidents.begin(found)
    return incidents


def _of_damaged_records(archive: WritableArchive, now: float) -> Iterator[Incident]:
    cause = "was damaged, and nobody knows any more whether that was acknowledged"
    names = archive.storage.names(f"{DAMAGED}/{RECORDS}")
    for period in dict.fromkeys(name.partition(".json")[0] for name in names):
        fault = Fault(period, record_of(period), FaultKind.RECORD, 0, cause)
        yield Incident(period, NO_RECORD, int(now), (), (fault,))


def _of_files_set_aside(archive: WritableArchive, now: float) -> Iterator[Incident]:
    for directory in archive.storage.names(DAMAGED):
        period = directory.removeprefix(f"{PERIOD}=")
        if period != directory:
            for run in archive.storage.names(f"{DAMAGED}/{directory}"):
                yield Incident(period, run.removeprefix("run="), int(now), _days(period), ())


def _days(period: str) -> tuple[int, ...]:
    """The day that a period is; of a month, none is known."""
    try:
        return (parse_day(period),)
    except ValueError:
        return ()


def read_layout(archive: WritableArchive, otherwise: Layout) -> Layout | None:
    """What the archive is partitioned by; None if it is new.

    Args:
        otherwise: what it is to be from now on, if it is not new, but has no file.
    Raises:
        ArchiveError: it cannot be read or written, or a later version made it; or it is damaged, and the names of its
            files do not tell.
    """
    try:
        has_none = archive.storage.read(SETTINGS_FILE) is None and bool(archive.storage.names(RECORDS))
        if not has_none:
            return archive.layout()
    except RecordDamaged as error:
        layout = _layout_of_files(archive) or otherwise  # before it is set aside: it may not tell
        archive.set_damaged_aside(SETTINGS_FILE, error)
    else:  # of a run that was killed here
        layout = _layout_of_files(archive) or otherwise
    archive.begin(layout)
    return layout


def _layout_of_files(archive: WritableArchive) -> Layout | None:
    """The layout by which the files in the periods' records are named; None if there are none."""
    damaged = [name.removesuffix(".json") for name in archive.damaged_records()]
    records = archive.records(without=damaged).values()
    found = {_layout_of(file.path.partition("/")[0]) for record in records for file in record.files}
    if len(found) > 1 or None in found:
        raise ArchiveError(
            f"{archive.url}/{SETTINGS_FILE} is damaged, and the names of the files do not tell its layout"
        )
    return found.pop() if found else None


def _layout_of(directory: str) -> Layout | None:
    """The layout that has a directory of this name, like `topic_prefix=9`; None if none has."""
    column, _, value = directory.partition("=")
    if column == "topic":
        return Layout(PartitionBy.TOPIC, 0)
    return Layout(PartitionBy.TOPIC_PREFIX, len(value)) if column == TOPIC_PREFIX and value else None
