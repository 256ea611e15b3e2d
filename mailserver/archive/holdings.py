"""Whether a day of reception is in the archive, looked at before its rows are deleted here.

Names and sizes are compared with the archive's own records; no data file is opened. A day may lie in a period of its
own, in a month, or, if rows came late, in both. Read-only.
"""

from mailserver.archive.archive import Archive
from mailserver.archive.days import day_name
from mailserver.archive.errors import ArchiveBusy, ArchiveError, ArchiveFault
from mailserver.archive.files import ReadableFiles
from mailserver.archive.manifest import known_seq


def check_day(files: ReadableFiles, store_id: str, day: int, seq: int) -> None:
    """Look whether an archive holds a store's rows of a day of reception, up to a `seq`.

    Args:
        day: Unix seconds / 86400.
    Raises:
        ArchiveFault: it does not, or not every file is there with its size.
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
            for record in records.values():
                if faults := archive.faults_of(record):
                    raise ArchiveFault(f"{files.where(faults[0].file)} {faults[0].cause}")
    except (ArchiveBusy, ArchiveFault):
        raise
    except ArchiveError as error:  # what cannot be read holds nothing
        raise ArchiveFault(str(error)) from error
