"""Whether a day of reception is in the archive, looked at before its rows are deleted here.

Names and sizes are compared with the archive's own records; no data file is opened. Rows that were set aside are
counted. A day may lie in a period of its own, in a month, or, if rows came late, in both. Read-only.
"""

from mailserver.archive.archive import Archive
from mailserver.archive.days import day_name
from mailserver.archive.errors import ArchiveBusy, ArchiveError, ArchiveFault
from mailserver.archive.files import ReadableFiles
from mailserver.archive.manifest import known_seq
from mailserver.archive.set_aside import faults_of_set_aside


def check_day(files: ReadableFiles, store_id: str, day: int, seq: int) -> None:
    """Look whether an archive holds a store's rows of a day of reception, up to a `seq`.

    Args:
        day: Unix seconds / 86400.
    Raises:
        ArchiveFault: it does not, or not every file is there with its size, or not every row that was set aside.
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
    except (ArchiveBusy, ArchiveFault):
        raise
    except ArchiveError as error:  # what cannot be read holds nothing
        raise ArchiveFault(str(error)) from error
