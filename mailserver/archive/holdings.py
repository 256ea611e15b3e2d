"""Whether a day of reception is in the archive, looked at before its rows are deleted here.

Names and sizes are compared with the archive's own records; no data file is opened. A day may lie in a period of its
own, in a month, or, if rows came late, in both. Standard library only, read-only.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from mailserver.archive.archive import Archive
from mailserver.archive.days import day_name
from mailserver.archive.errors import ArchiveBusy, ArchiveError, ArchiveFault
from mailserver.archive.files import LOCK_FILE, LocalFiles
from mailserver.archive.manifest import known_seq
from mailserver.files import open_descriptor, try_lock


def check_day(folder: Path, store_id: str, day: int, seq: int) -> None:
    """Look whether the archive in a folder holds a store's rows of a day of reception, up to a `seq`.

    Args:
        day: Unix seconds / 86400.
    Raises:
        ArchiveFault: it does not, or not every file is there with its size.
        ArchiveBusy: that cannot be told now.
    """
    archive = Archive(LocalFiles(folder))
    try:
        with _left_alone(folder):
            records = archive.records_of(day)
            held = known_seq(records, day, store_id)
            if held is None or held < seq:
                raise ArchiveFault(
                    f"no record in {folder} says that it holds {day_name(day)} of this store up to row {seq}"
                )
            for record in records.values():
                if faults := archive.faults_of(record):
                    raise ArchiveFault(f"{folder / faults[0].file} {faults[0].cause}")
    except (ArchiveBusy, ArchiveFault):
        raise
    except ArchiveError as error:  # what cannot be read holds nothing
        raise ArchiveFault(str(error)) from error
    except OSError as error:
        raise ArchiveFault(f"cannot look at {error.filename or folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def _left_alone(folder: Path) -> Iterator[None]:
    """Keep runs from changing the archive; a copy of one may have no lock."""
    if not folder.is_dir():
        raise ArchiveFault(f"{folder} is not there: is its disk mounted?")
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(open_descriptor(folder / LOCK_FILE, os.O_RDONLY))
        except FileNotFoundError:
            yield
            return
        if not try_lock(descriptor, shared=True):
            raise ArchiveBusy("a run is at work on the archive")
        yield
