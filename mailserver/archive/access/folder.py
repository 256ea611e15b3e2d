"""An archive in a local folder, or in one that is mounted."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mailserver.archive.errors import ArchiveBusy, ArchiveFault, ArchiveFileUnreadable
from mailserver.archive.files import LOCK_FILE, MAX_RECORD_BYTES, FileVersion, LocalFiles, refused, text_of
from mailserver.files import open_descriptor, try_lock

_OF_ONE_FILE = frozenset(
    {errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO}
)
"""Why a file cannot be read while others can: the disk under it, its permissions, or what it is. Anything else, such as
a network that is down, or too many open files, is no fault of the file's."""


class FolderFiles(LocalFiles):
    """An archive in a folder, for whoever looks into it. It is a `mailserver.archive.files.ReadableFiles`."""

    absence = "is its disk mounted?"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._top = str(self.root)  # to join paths takes as long as to open a file

    def where(self, name: str) -> str:
        """See ReadableFiles."""
        return str(self.root / name)

    def opened(self, name: str) -> Any:
        """See ReadableFiles. It is never mapped into memory."""
        import pyarrow as pa  # noqa: PLC0415 - it takes 50 MB, and pruning does without

        return pa.OSFile(f"{self._top}/{name}")

    def read(self, name: str) -> str | None:
        """See ReadableFiles."""
        with refused("read", self.root / name):
            try:
                with (self.root / name).open("rb") as file:
                    return text_of(file.read(MAX_RECORD_BYTES + 1), self.where(name))
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno in _OF_ONE_FILE:
                    raise ArchiveFileUnreadable(f"cannot read {self.where(name)}: {error.strerror}") from error
                raise

    def state(self, directory: str) -> FileVersion | None:
        """See ReadableFiles."""
        with refused("read", self.root / directory):
            try:
                return _version((self.root / directory).stat())
            except FileNotFoundError:
                return None

    def versions(self, directory: str) -> dict[str, FileVersion]:
        """See ReadableFiles."""
        found: dict[str, FileVersion] = {}
        with refused("read", self.root / directory):
            try:
                entries = os.scandir(self.root / directory)
            except FileNotFoundError:
                return found
            with entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # a run has removed it
                        found[entry.name] = _version(_status(entry))
        return found

    @contextlib.contextmanager
    def left_alone(self) -> Iterator[None]:
        """See ReadableFiles. Runs wait at the lock meanwhile; a copy of an archive may have none."""
        with contextlib.ExitStack() as stack:
            with refused("look at", self.root):
                if not self.root.is_dir():
                    raise ArchiveFault(f"{self.root} is not there: {self.absence}")
                try:
                    descriptor = stack.enter_context(open_descriptor(self.root / LOCK_FILE, os.O_RDONLY))
                except FileNotFoundError:
                    is_ours = True
                else:
                    is_ours = try_lock(descriptor, shared=True)
            if not is_ours:
                raise ArchiveBusy("a run is at work on the archive")
            yield


def _status(entry: "os.DirEntry[str]") -> os.stat_result:
    """The status of a file; of a link whose file cannot be had, that of the link, which is a name all the same."""
    try:
        return entry.stat()
    except OSError:
        if not entry.is_symlink():
            raise
        return entry.stat(follow_symlinks=False)


def _version(status: os.stat_result) -> FileVersion:
    # Whoever puts a damaged file back in its place may set its time back, too, as `cp -p` does: but not that of change.
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns
