"""Every error of the export. `str()` is one line for the operator.

ExportError
  ExportCheckFailed    what was written is not what was read: nothing of it is published
  Unreadable           the disk, or what keeps the file, says that its bytes are not whole
  RecordDamaged        a record of the archive is not whole
  ArchiveGone          there was an archive, and there is none any more
  ArchiveDamaged       the run has done its work, and found the archive damaged, or rows of it lost
"""


class ExportError(Exception):
    """The export could not be done; what was there is as it was."""


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
        return f"check failed for {self.day}: {self.what}"


class Unreadable(ExportError):
    """A file of the archive is there, and its bytes cannot be had: the disk is at fault, not the way there."""


class RecordDamaged(ExportError):
    """A record of the archive cannot be read."""


class ArchiveGone(ExportError):
    """There is no archive where a store's record says that there was one."""


class ArchiveDamaged(ExportError):
    """The run is complete, but files of the archive are missing or damaged, or rows that were in it are lost."""
