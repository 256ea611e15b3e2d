"""Whether a day of reception is in the archive, looked at before its rows are deleted here.

Names and sizes are compared with the archive's own records; no data file is opened. Rows that were set aside are
counted. A day may lie in a period of its own, in a month, or, if rows came late, in both. Rows that were left out of
it, because the archive has them on another day, are as safe as that day. Read-only.
"""

from collections.abc import Collection

from mailserver.archive.archive import Archive
from mailserver.archive.days import day_name
from mailserver.archive.errors import ArchiveBusy, ArchiveError, ArchiveFault
from mailserver.archive.files import ReadableFiles
from mailserver.archive.manifest import days_elsewhere, known_seq
from mailserver.archive.set_aside import faults_of_set_aside

FEW_PERIODS = 8
"""The files of so many periods are listed period by period; of more, in one listing of the archive. On S3, each listing
is a round trip, and a page of a thousand files."""


def check_day(files: ReadableFiles, store_id: str, day: int, seq: int) -> None:
    """Look whether an archive holds a store's rows of a day of reception, up to a `seq`.

    Args:
        day: Unix seconds / 86400.
    Raises:
        ArchiveFault: it does not, or not every file is there with its size, those of other days included that have some
            of these rows; or not every row that was set aside.
        ArchiveBusy: that cannot be told now.
    """
    archive = Archive(files)
    try:
        with files.left_alone():
            records = archive.records_of(day)
            held = known_seq(records, day, store_id)
            if held is None or held < seq:
                raise ArchiveFault(
                    f"no record in {files.where('')} says that it holds {day_name(day)} of this store up to row {seq}"
                )
            faults = [fault for record in records.values() for fault in archive.faults_of(record)]
            for fault in faults or faults_of_set_aside(files, records.values(), day).values():
                raise ArchiveFault(f"{files.where(fault.file)} {fault.cause}")
            _check_elsewhere(archive, files, day, days_elsewhere(records, day, store_id) or ())
    except (ArchiveBusy, ArchiveFault):
        raise
    except ArchiveError as error:  # what cannot be read holds nothing
        raise ArchiveFault(str(error)) from error


def _check_elsewhere(archive: Archive, files: ReadableFiles, day: int, elsewhere: Collection[int]) -> None:
    """Look at the other days that have rows of a day.

    Raises:
        ArchiveFault: one of them is in no record, or not every file of it is there with its size.
    """
    if not elsewhere:
        return
    records = archive.records_of(*elsewhere)
    if gone := set(elsewhere).difference(*(record.days for record in records.values())):
        name = day_name(min(gone))
        raise ArchiveFault(
            f"no record in {files.where('')} says that it holds {name}, which has rows of {day_name(day)}"
        )
    there = archive.sizes_of_periods() if len(records) > FEW_PERIODS else None
    for record in records.values():
        for fault in archive.faults_of(record, there=None if there is None else there.get(record.period, {})):
            raise ArchiveFault(f"{files.where(fault.file)} {fault.cause}; it has rows of {day_name(day)}")
