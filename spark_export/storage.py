"""Directories and small files of an archive: on the local file system, or wherever else Hadoop can write.

The local one has what only it can give: a lock that ends with its holder, two directories exchanged in one step,
second names for files, and writes that are on disk when they return. Data files are Spark's business on both.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from mailserver.archive.errors import ArchiveBusy, ArchiveError, Unreadable
from mailserver.files import (
    lock_after_readers,
    make_folder,
    open_descriptor,
    read_holder,
    sync_folder,
    write_atomically,
    write_holder,
)
from spark_export.session import root_cause

LOCK_FILE = "_lock"

_DISK_FAULTS = {errno.EIO, errno.EBADMSG, errno.EUCLEAN}
_HADOOP_FAULTS = ("ChecksumException", "BlockMissingException")
"""What says that bytes are lost or wrong. Anything else, as a network that is down, says nothing of the file."""

_READERS_LIMIT_S = 60.0
"""How long a mailserver may take to look at names and sizes."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h
_CANNOT_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}


class Storage(Protocol):
    """Names are relative to the archive. Every method raises ArchiveError for what the file system refuses."""

    url: str
    """The archive, as Spark takes it."""

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Be the one run that changes the archive; make its directory if need be."""

    def read(self, name: str) -> str | None:
        """A small file's text, None if there is none."""

    def write(self, name: str, text: str) -> None:
        """Write a small file whole, or leave what was there."""

    def names(self, directory: str) -> list[str]:
        """What is in a directory, sorted; nothing if there is none."""

    def files(self, directory: str) -> dict[str, int]:
        """The size of each file below a directory, by its path there; nothing if there is none.

        What begins with a dot or an underscore is left out, as Parquet readers do.
        """

    def size(self, name: str) -> int | None:
        """The size of a file, None if there is none."""

    def digest(self, name: str) -> str:
        """SHA-256 of a file's bytes, in hex.

        Raises:
            Unreadable: the file is damaged.
        """

    def is_same(self, one: str, other: str) -> bool:
        """Whether two names lead to one file."""

    def remove(self, name: str) -> None:
        """Delete a file or a whole directory, if it is there."""

    def put(self, source: str, target: str) -> None:
        """Make directory `source` be `target`; what was `target` is `source` afterwards, or `source` with `.old`."""

    def link(self, source: str, target: str) -> bool:
        """Give each Parquet file below `source` a second name below `target`, the same but for `.parquet`.

        The names are on disk at the end.
        False where there is no such thing as a second name.
        """

    def restore(self, source: str, target: str) -> bool:
        """Give a file that has a second name its first one, `target`, on disk at the end. False if it has none."""

    def sync(self, directory: str) -> None:
        """See to it that every file below a directory is on disk, and no directory beside it that was removed."""

    def age(self, directory: str) -> float:
        """Seconds since `touch` of a directory, or since it was made."""

    def touch(self, directory: str) -> None:
        """Let the directory's age begin now."""


def open_storage(spark: SparkSession, archive: str) -> Storage:
    """The storage of an archive, by the scheme of its path."""
    parts = urlsplit(archive)
    if parts.scheme in ("", "file") and not parts.netloc:
        return LocalStorage(Path(unquote(parts.path) if parts.scheme else archive))
    return HadoopStorage(spark, archive)


class LocalStorage:
    """An archive in a local directory, or in one that is mounted on every worker."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.url = f"file://{self._root}"  # as Hadoop takes it: not percent-encoded

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """See Storage. The kernel drops the lock with the process."""
        with _refused("write", self._root):
            make_folder(self._root)
        with contextlib.ExitStack() as stack:
            with _refused("lock", self._root):
                descriptor = stack.enter_context(open_descriptor(self._root / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644))
                if not lock_after_readers(descriptor, _READERS_LIMIT_S):
                    raise ArchiveBusy(f"another run (pid {read_holder(descriptor)}) is at work on {self._root}")
                write_holder(descriptor)
            yield

    def read(self, name: str) -> str | None:
        """See Storage."""
        with _refused("read", self._root / name):
            try:
                return (self._root / name).read_text(encoding="utf-8")
            except FileNotFoundError:
                return None

    def write(self, name: str, text: str) -> None:
        """See Storage. It is on disk at the end."""
        path = self._root / name
        with _refused("write", path):
            make_folder(path.parent)
            write_atomically(path, text, 0o644)

    def names(self, directory: str) -> list[str]:
        """See Storage."""
        with _refused("read", self._root / directory):
            try:
                return sorted(os.listdir(self._root / directory))  # noqa: PTH208 - names are all that is wanted
            except FileNotFoundError:
                return []

    def files(self, directory: str) -> dict[str, int]:
        """See Storage."""
        top = self._root / directory
        found = {}
        with _refused("read", top):
            for folder, folders, names in os.walk(top, onerror=_unless_gone):
                folders[:] = [name for name in folders if _is_data(name)]
                for name in filter(_is_data, names):
                    path = Path(folder, name)
                    found[str(path.relative_to(top))] = path.stat().st_size
        return found

    def size(self, name: str) -> int | None:
        """See Storage."""
        with _refused("read", self._root / name):
            try:
                return (self._root / name).stat().st_size
            except FileNotFoundError:
                return None

    def digest(self, name: str) -> str:
        """See Storage."""
        path = self._root / name
        with _refused("read", path):
            try:
                with path.open("rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                if error.errno in _DISK_FAULTS:
                    raise Unreadable(f"cannot read {path}: {error.strerror}") from error
                raise

    def is_same(self, one: str, other: str) -> bool:
        """See Storage."""
        with _refused("read", self._root / one):
            try:
                return (self._root / one).samefile(self._root / other)
            except FileNotFoundError:
                return False

    def remove(self, name: str) -> None:
        """See Storage."""
        path = self._root / name
        with _refused("remove", path):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def put(self, source: str, target: str) -> None:
        """See Storage. In one step where kernel and file system can exchange directories; on disk at the end."""
        old, new = self._root / target, self._root / source
        with _refused("write", old):
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
        """See Storage."""
        top, copy = self._root / source, self._root / target
        with _refused("write", copy):
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
        """See Storage."""
        path = self._root / target
        with _refused("write", path):
            if not (self._root / source).exists():
                return False
            make_folder(path.parent)
            path.hardlink_to(self._root / source)
            sync_folder(path.parent)
        return True

    def sync(self, directory: str) -> None:
        """See Storage."""
        top = self._root / directory
        with _refused("write", top):
            for folder, _, files in os.walk(top):
                for name in files:
                    _sync(Path(folder, name))
                sync_folder(Path(folder))
            for above in self._above(top):
                sync_folder(above)

    def age(self, directory: str) -> float:
        """See Storage."""
        with _refused("read", self._root / directory):
            return time.time() - (self._root / directory).stat().st_mtime

    def touch(self, directory: str) -> None:
        """See Storage."""
        path = self._root / directory
        with _refused("write", path):
            if path.exists():
                os.utime(path)

    def _above(self, folder: Path) -> list[Path]:
        """Whose names a folder's own depends on: those above it, up to the archive's."""
        return [self._root / parent for parent in folder.relative_to(self._root).parents]


class HadoopStorage:
    """An archive on any file system that Spark is set up for.

    Object stores have no rename: there `put` copies, and a reader of directories may see a day half done. Its lock is
    a file, which a killed run leaves behind.
    """

    def __init__(self, spark: SparkSession, url: str) -> None:
        context = spark.sparkContext
        self.url = url.rstrip("/")
        # Spark has no other way to its file systems.
        java: Any = context._jvm  # noqa: SLF001
        self._jvm = java
        self._configuration: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001
        with _java_refused("open", url):
            self._files = self._path("").getFileSystem(self._configuration)
            qualified = self._files.makeQualified(self._path(""))
            self._context = java.org.apache.hadoop.fs.FileContext.getFileContext(qualified.toUri(), self._configuration)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """See Storage."""
        holder = f"pid {os.getpid()} on {os.uname().nodename}"
        with _java_refused("lock", self.url):
            self._files.mkdirs(self._path(""))
            try:
                stream = self._files.create(self._path(LOCK_FILE), False)
            except Py4JJavaError as error:
                held = self.read(LOCK_FILE)
                if held is None:
                    raise
                raise ArchiveBusy(
                    f"another run ({held}) is at work on {self.url}; if it was killed, delete {LOCK_FILE} there"
                ) from error
            self._fill(stream, holder)
        try:
            yield
        finally:
            self.remove(LOCK_FILE)

    def read(self, name: str) -> str | None:
        """See Storage."""
        with _java_refused("read", name):
            if not self._files.exists(self._path(name)):
                return None
            stream = self._files.open(self._path(name))
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write(self, name: str, text: str) -> None:
        """See Storage."""
        temporary = self._path(f"{name}.tmp")
        overwrite = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        with _java_refused("write", name):
            self._fill(self._files.create(temporary, True), text)
            options = self._jvm.java.lang.reflect.Array.newInstance(overwrite.OVERWRITE.getClass(), 1)
            options[0] = overwrite.OVERWRITE
            self._context.rename(temporary, self._path(name), options)

    def names(self, directory: str) -> list[str]:
        """See Storage."""
        with _java_refused("read", directory):
            if not self._files.exists(self._path(directory)):
                return []
            return sorted(entry.getPath().getName() for entry in self._files.listStatus(self._path(directory)))

    def files(self, directory: str) -> dict[str, int]:
        """See Storage."""
        found: dict[str, int] = {}
        with _java_refused("read", directory):
            if not self._files.exists(self._path(directory)):
                return found
            top = self._files.getFileStatus(self._path(directory)).getPath().toString()
            entries = self._files.listFiles(self._path(directory), True)
            while entries.hasNext():
                entry = entries.next()
                name = entry.getPath().toString().removeprefix(f"{top}/")
                if all(map(_is_data, name.split("/"))):
                    found[name] = entry.getLen()
        return found

    def size(self, name: str) -> int | None:
        """See Storage."""
        with _java_refused("read", name):
            if not self._files.exists(self._path(name)):
                return None
            return int(self._files.getFileStatus(self._path(name)).getLen())

    def digest(self, name: str) -> str:
        """See Storage."""
        with _java_refused("read", name):
            stream = self._files.open(self._path(name))
            try:
                return str(self._jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(stream))
            except Py4JJavaError as error:
                cause = root_cause(error)
                if any(fault in cause for fault in _HADOOP_FAULTS):
                    raise Unreadable(f"cannot read {name}: {cause}") from error
                raise
            finally:
                stream.close()

    def is_same(self, one: str, other: str) -> bool:
        """See Storage: there are no second names."""
        return one == other

    def remove(self, name: str) -> None:
        """See Storage."""
        with _java_refused("remove", name):
            self._files.delete(self._path(name), True)

    def put(self, source: str, target: str) -> None:
        """See Storage."""
        aside = f"{source}.old"
        with _java_refused("write", target):
            self._files.mkdirs(self._path(target).getParent())
            if self._files.exists(self._path(target)):
                self._rename(target, aside)
            self._rename(source, target)

    def link(self, source: str, target: str) -> bool:
        """See Storage: there are no second names."""
        del source, target
        return False

    def restore(self, source: str, target: str) -> bool:
        """See Storage: there are no second names."""
        del source, target
        return False

    def sync(self, directory: str) -> None:
        """See Storage: what is closed is kept."""

    def age(self, directory: str) -> float:
        """See Storage."""
        with _java_refused("read", directory):
            changed = self._files.getFileStatus(self._path(directory)).getModificationTime()
        return time.time() - float(changed) / 1000

    def touch(self, directory: str) -> None:
        """See Storage."""
        with _java_refused("write", directory):
            if self._files.exists(self._path(directory)):
                self._files.setTimes(self._path(directory), int(time.time() * 1000), -1)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.url}/{name}" if name else self.url)

    def _rename(self, source: str, target: str) -> None:
        if not self._files.rename(self._path(source), self._path(target)):
            raise ArchiveError(f"cannot rename {source} to {target} in {self.url}")

    @staticmethod
    def _fill(stream: Any, text: str) -> None:
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()


@contextlib.contextmanager
def _refused(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArchiveError(f"cannot {what} {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _java_refused(what: str, name: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise ArchiveError(f"cannot {what} {name}: {root_cause(error)}") from error


def _is_data(name: str) -> bool:
    return not name.startswith((".", "_"))


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


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
