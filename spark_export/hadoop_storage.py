"""An archive wherever Hadoop can write."""

import contextlib
import os
import time
from collections.abc import Collection, Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from mailserver.archive.errors import ArchiveBusy, ArchiveError, Unreadable
from mailserver.archive.files import LOCK_FILE, count_lines, is_data
from spark_export.session import root_cause

_HADOOP_FAULTS = ("ChecksumException", "BlockMissingException")
"""What says that bytes are lost or wrong. Anything else, such as a network that is down, says nothing about the
file."""


class HadoopStorage:
    """An archive on any file system that Spark is set up for.

    Where that is an object store, `put` copies, and a reader of directories may see a day half done. Its lock is a
    file, which a killed run leaves behind.
    """

    replaces_whole = True

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

    def read_each(self, names: Collection[str]) -> Iterator[tuple[str, str | None]]:
        """See Storage."""
        for name in names:
            yield name, self.read(name)

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

    def lines(self, name: str) -> int:
        """See Storage."""
        return count_lines([(self.read(name) or "").encode()])

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

    def remove(self, *names: str) -> None:
        """See Storage."""
        for name in names:
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
def _java_refused(what: str, name: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise ArchiveError(f"cannot {what} {name}: {root_cause(error)}") from error
