"""What can go wrong with a run, besides the archive itself (`mailserver.archive.errors`). `ExportError` is a
`MailserverError`. `str()` is one line for the operator.

ExportError
  ExportCheckFailed    what was written is not what was read: nothing of it is published
  MailserverFirst      the mailserver must be started on the store once, before a run can read it
  ArchiveGone          there was an archive, and there is none any more
  ArchiveDamaged       the run has done its work, and found the archive damaged, or rows of it lost
  HoldingsError        what is held of one community cannot be read: the other communities go on
  DiskFull             there is no room left: says where, how much there is, and how much it takes
"""

from pathlib import Path

from mailserver.errors import MailserverError
from mailserver.units import size_text

CHECK_FAILED = "check failed for "


class ExportError(MailserverError):
    """The export failed; what was there is unchanged."""


class ExportCheckFailed(ExportError):
    """A day of the archive is not what it should be.

    Args:
        day: ISO date of reception, or the name of a merged period.
        what: what differs.
    """

    def __init__(self, day: str, what: str) -> None:
        super().__init__(day, what)
        self.day = day
        self.what = what

    def __str__(self) -> str:
        return f"{CHECK_FAILED}{self.day}: {self.what}"


class DiskFull(ExportError):
    """A disk is full.

    Args:
        what: "archive" or "scratch folder".
        folder: where it is.
        free: bytes that are free there now, None if that is not known.
        needed: about how many bytes the run has to write there, None if that is not known.
    """

    def __init__(self, what: str, folder: Path, free: int | None, needed: int | None) -> None:
        super().__init__(what, folder, free, needed)
        self.what = what
        self.folder = folder
        self.free = free
        self.needed = needed

    def __str__(self) -> str:
        said = f"the disk of the {self.what} is full: no space left on device at {self.folder}"
        if self.free is not None:
            said += f", {size_text(self.free)} free now"
        if self.needed is not None:
            said += f", about {size_text(self.needed)} needed"
        return said


class MailserverFirst(ExportError):
    """A store cannot be read before the mailserver was started on it once: it is an earlier version's, or a backup."""


class ArchiveGone(ExportError):
    """There is no archive where a store's record says that there was one."""


class ArchiveDamaged(ExportError):
    """The run is complete, but files of the archive are missing or damaged, or rows that were in it are lost."""


class HoldingsError(ExportError):
    """The holdings of a community cannot be read."""
