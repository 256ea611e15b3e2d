"""Directories and small files of an archive: on the local file system, on S3, or wherever else Hadoop can write.

The local one has what only it can give: a lock that ends with its holder, two directories exchanged in one step,
second names for files, and writes that are on disk when they return.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from mailserver.archive.access.places import S3_SCHEMES, is_on_s3
from mailserver.archive.errors import ArchiveBusy, ArchiveError
from mailserver.archive.files import LOCK_FILE, ArchiveFiles, LocalFiles, local_folder, refused
from mailserver.files import (
    lock_after_readers,
    make_folder,
    open_descriptor,
    read_holder,
    sync_folder,
    write_atomically,
    write_holder,
)
from spark_export.hadoop_storage import HadoopStorage
from spark_export.s3_storage import S3Storage

_READERS_LIMIT_S = 60.0
"""How long a mailserver may take to look at names and sizes."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h
_CANNOT_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}


class WritableFiles(ArchiveFiles, Protocol):
    """The files of an archive, to read and to change."""

    replaces_whole: bool
    """Whether `put` takes away what was in the target directory. If not, both are there until one is removed."""

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Be the one run that changes the archive; make its directory if need be."""

    def write(self, name: str, text: str) -> None:
        """Write a small file whole, or leave what was there."""

    def is_same(self, one: str, other: str) -> bool:
        """Whether two names lead to one file."""

    def remove(self, *names: str) -> None:
        """Delete files or whole directories, as far as they are there. That a file is gone is on disk at the end."""

    def put(self, source: str, target: str) -> None:
        """Move a file, or directory `source` to `target`.

        If it replaces a directory whole, what was `target` is `source` afterwards, or `source` with `.old`.
        """

    def link(self, source: str, target: str) -> bool:
        """Give each Parquet file below `source` a second name below `target`, the same but for `.parquet`.

        The names are on disk at the end.
        False where there is no such thing as a second name.
        """

    def restore(self, source: str, target: str) -> bool:
        """Give a file that has a second name its first one, `target`, on disk at the end. False if it has none."""

    def sync(self, directory: str) -> None:
        """Have every file below a directory on disk, and so the removal of directories beside it."""

    def age(self, directory: str) -> float:
        """Seconds since `touch` of a directory, or since it was made."""

    def touch(self, directory: str) -> None:
        """Start the directory's age anew."""


def open_storage(spark: SparkSession, archive: str) -> WritableFiles:
    """The storage of an archive, by the scheme of its path.

    Raises:
        ArchiveError: there is none for it.
    """
    folder = local_folder(archive)
    if folder is not None:
        return LocalStorage(folder)
    scheme, _, path = archive.partition("://")
    if scheme not in S3_SCHEMES:
        return HadoopStorage(spark, archive)
    if not is_on_s3(archive):
        raise ArchiveError(f"cannot open an archive of {scheme}: it must be s3://BUCKET/PREFIX, without credentials")
    return S3Storage(path)


class LocalStorage(LocalFiles):
    """An archive in a local directory, or in one that is mounted on every worker."""

    replaces_whole = True

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """See WritableFiles. The kernel drops the lock with the process."""
        with refused("write", self.root):
            make_folder(self.root)
        with contextlib.ExitStack() as stack:
            with refused("lock", self.root):
                descriptor = stack.enter_context(open_descriptor(self.root / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644))
                if not lock_after_readers(descriptor, _READERS_LIMIT_S):
                    raise ArchiveBusy(f"another run (pid {read_holder(descriptor)}) is at work on {self.root}")
                write_holder(descriptor)
            yield

    def write(self, name: str, text: str) -> None:
        """See WritableFiles. It is on disk at the end."""
        path = self.root / name
        with refused("write", path):
            make_folder(path.parent)
            write_atomically(path, text, 0o644)

    def is_same(self, one: str, other: str) -> bool:
        """See WritableFiles."""
        with refused("read", self.root / one):
            try:
                return (self.root / one).samefile(self.root / other)
            except FileNotFoundError:
                return False

    def remove(self, *names: str) -> None:
        """See WritableFiles."""
        for path in (self.root / name for name in names):
            with refused("remove", path):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        path.unlink()
                        sync_folder(path.parent)

    def put(self, source: str, target: str) -> None:
        """See WritableFiles. In one step where kernel and file system can exchange directories; on disk at the end."""
        old, new = self.root / target, self.root / source
        with refused("write", old):
            make_folder(old.parent)
            if not old.exists():
                new.rename(old)
            elif not _exchange(new, old):
                aside = new.with_name(f"{new.name}.old")
                old.rename(aside)
                new.rename(old)
                aside.rename(new)
            for parent in {old.parent, new.parent}:
                sync_folder(parent)

    def link(self, source: str, target: str) -> bool:
        """See WritableFiles."""
        top, copy = self.root / source, self.root / target
        with refused("write", copy):
            for file in sorted(top.rglob("*.parquet")):
                name = copy / file.relative_to(top).with_suffix("")
                name.parent.mkdir(parents=True, exist_ok=True)
                try:
                    name.hardlink_to(file)
                except FileExistsError:  # of a run that was killed here
                    continue
                except OSError as error:
                    if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
                        raise
                    shutil.rmtree(copy)
                    return False
            # Names that a power cut takes away would be rows that a reader misses without a word.
            for folder in (*(Path(name) for name, _, _ in os.walk(copy)), *self._above(copy)):
                sync_folder(folder)
        return True

    def restore(self, source: str, target: str) -> bool:
        """See WritableFiles."""
        path = self.root / target
        with refused("write", path):
            if not (self.root / source).exists():
                return False
            make_folder(path.parent)
            path.hardlink_to(self.root / source)
            sync_folder(path.parent)
        return True

    def sync(self, directory: str) -> None:
        """See WritableFiles."""
        top = self.root / directory
        with refused("write", top):
            for folder, _, files in os.walk(top):
                for name in files:
                    _sync(Path(folder, name))
                sync_folder(Path(folder))
            for above in self._above(top):
                sync_folder(above)

    def age(self, directory: str) -> float:
        """See WritableFiles."""
        with refused("read", self.root / directory):
            return time.time() - (self.root / directory).stat().st_mtime

    def touch(self, directory: str) -> None:
        """See WritableFiles."""
        path = self.root / directory
        with refused("write", path):
            if path.exists():
                os.utime(path)

    def _above(self, folder: Path) -> list[Path]:
        """The folders above a folder, up to the archive's: its name is on disk only if theirs are."""
        return [self.root / parent for parent in folder.relative_to(self.root).parents]


def _sync(path: Path) -> None:
    with open_descriptor(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two directories in one step; False if the kernel or the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))
