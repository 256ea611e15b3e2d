"""What can be wrong with an archive. `str()` of each is one line for the operator.

ArchiveError
  NoArchive        there is none
  ArchiveFault           the archive does not hold what it should
  ArchiveBusy            a run is at work on it
  RecordDamaged          a record of it, or another small file that says what it is, is not whole
  ArchiveFileUnreadable  the disk, or whatever keeps a file of it, says that its bytes are not whole
"""

from mailserver.errors import MailserverError


class ArchiveError(MailserverError):
    """The archive cannot be read or written, or a later version made it."""


class NoArchive(ArchiveError):
    """There is no archive, where a command needs one."""


class ArchiveFault(ArchiveError):
    """The archive does not hold what it should."""


class ArchiveBusy(ArchiveError):
    """Another run is at work on the archive: periods may be changing their places. Nothing was changed."""


class RecordDamaged(ArchiveError):
    """A record of the archive cannot be read."""


class ArchiveFileUnreadable(ArchiveError):
    """A file of the archive is there, and its bytes cannot be had: the disk is at fault, not the way there."""
