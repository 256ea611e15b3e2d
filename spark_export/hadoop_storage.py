"""An archive wherever Hadoop can write."""

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Collection, Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from mailserver.archive.errors import ArchiveBusy, ArchiveError, ArchiveFileUnreadable
from mailserver.archive.files import LOCK_FILE, count_lines, is_data
from spark_export.session import root_cause

log = logging.getLogger(__name__)

_HADOOP_FAULTS = ("ChecksumException", "BlockMissingException")
"""What says that bytes are lost or wrong. Anything else, such as a network that is down, says nothing about the
file."""


class HadoopStorage:
    """An archive on any file system that Spark is set up for.

    Where that is an object store, `put` copies, and a reader of directories may see a day half done. Its lock is a
    file, which a killed run leaves behind. Somebody may delete it while its run is at work, and another run begin: so
    before each change a run looks whether the lock is still its own.
    """

    replaces_whole = True

    def __init__(self, spark: SparkSession, url: str) -> None:
        context = spark.sparkContext
        self.url = url.rstrip("/")
        self._lock: str | None = None  # what is in our lock, while we hold it
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
        holder = f"pid {os.getpid()} on {os.uname().nodename}, {secrets.token_hex(4)}"
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
            try:
                self._fill(stream, holder)
            except Py4JJavaError:
                self._files.delete(self._path(LOCK_FILE), False)  # it says nobody's name
                raise
        self._lock = holder
        try:
            yield
        finally:
            self._lock = None
            self._give_back(holder)

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

    def read_each(self, names: Collection[str]) -> Iterator[tuple[str, str | None]]:
        """See Storage."""
        for name in names:
            yield name, self.read(name)

    def write(self, name: str, text: str) -> None:
        """See Storage."""
        self._check_lock()
        with _java_refused("write", name):
            self._fill(self._files.create(self._path(f"{name}.tmp"), True), text)
            self._rename(f"{name}.tmp", name, overwrite=True)

    def names(self, directory: str) -> list[str]:
        """See Storage."""
        with _java_refused("read", directory):
            if not self._files.exists(self._path(directory)):
                return []
            return sorted(entry.getPath().getName() for entry in self._files.listStatus(self._path(directory)))

    def sizes(self, directory: str) -> dict[str, int]:
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
                if all(map(is_data, name.split("/"))):
                    found[name] = entry.getLen()
        return found

    def size(self, name: str) -> int | None:
        """See Storage."""
        with _java_refused("read", name):
            if not self._files.exists(self._path(name)):
                return None
            return int(self._files.getFileStatus(self._path(name)).getLen())

    def chunks(self, name: str) -> Iterator[bytes]:
        """See Storage."""
        yield (self.read(name) or "").encode()

    def lines(self, name: str) -> int:
        """See Storage."""
        return count_lines(self.chunks(name))

    def digest(self, name: str) -> str:
        """See Storage."""
        with _java_refused("read", name):
            stream = self._files.open(self._path(name))
            try:
                return str(self._jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(stream))
            except Py4JJavaError as error:
                cause = root_cause(error)
                if any(fault in cause for fault in _HADOOP_FAULTS):
                    raise ArchiveFileUnreadable(f"cannot read {name}: {cause}") from error
                raise
            finally:
                stream.close()

    def is_same(self, one: str, other: str) -> bool:
        """See Storage: there are no second names."""
        return one == other

    def remove(self, *names: str) -> None:
        """See Storage."""
        self._check_lock()
        for name in names:
            with _java_refused("remove", name):
                if not self._files.delete(self._path(name), True) and self._files.exists(self._path(name)):
                    raise ArchiveError(f"cannot remove {name} in {self.url}: it is still there")

    def put(self, source: str, target: str) -> None:
        """See Storage."""
        self._check_lock()
        with _java_refused("write", target):
            self._files.getFileStatus(self._path(source))  # raises if there is none: `target` stays what it was
            self._files.mkdirs(self._path(target).getParent())
            if self._files.exists(self._path(target)):
                self._rename(target, f"{source}.old")
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

    def _rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Give a file or directory another name. Unlike `FileSystem.rename`, it never goes below a directory that has
        that name."""
        how = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        options = self._jvm.java.lang.reflect.Array.newInstance(how.NONE.getClass(), 1)
        options[0] = how.OVERWRITE if overwrite else how.NONE
        self._context.rename(self._path(source), self._path(target), options)

    def _check_lock(self) -> None:
        """Make sure that the lock is still ours, if we took one.

        Raises:
            ArchiveError: it is not.
        """
        if self._lock is not None and self.read(LOCK_FILE) != self._lock:
            raise ArchiveError(
                f"the lock of {self.url} was deleted or taken over: another run may be at work, so this one has "
                "stopped; what it had published stays"
            )

    def _give_back(self, holder: str) -> None:
        """Delete the lock, unless it is another run's now. How the run has ended is worth more than a lock that stays:
        the next run says what to do about it."""
        try:
            if self.read(LOCK_FILE) == holder:
                self.remove(LOCK_FILE)
            else:
                log.error("lock was taken over archive=%s", self.url)
        except (ArchiveError, Py4JError) as error:
            log.warning("lock not given back archive=%s cause=%r", self.url, str(error))

    @staticmethod
    def _fill(stream: Any, text: str) -> None:
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()


@contextlib.contextmanager
def _java_refused(what: str, name: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise ArchiveError(f"cannot {what} {name}: {root_cause(error)}") from error
