"""Tells the operator which disk is full: the archive's, or that of temporary files."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mailserver.archive.files import local_folder
from mailserver.errors import MailserverError
from mailserver.files import NO_ROOM
from spark_export.errors import DiskFull

SCRATCH_PER_BYTE = 0.5
"""Bytes of temporary files for each byte of envelopes: keys, to be compared with others."""

ARCHIVE_PER_BYTE = 1.1
"""Bytes of the archive's files for each byte of envelopes: ciphertext does not compress, and hashes come on top."""

_NO_ROOM = re.compile("|".join(re.escape(os.strerror(number)) for number in sorted(NO_ROOM)))
_WRITER = re.compile(
    r"^\s*at org\.apache\.(?:"
    r"(?P<archive>parquet|hadoop\.fs)"
    r"|(?P<scratch>spark\.(?:storage|shuffle|io|unsafe|memory|util\.collection))"
    r")\.",
    re.MULTILINE,
)
"""Who was writing, by a trace of the JVM. The first match counts: code that writes files may be sorting their rows."""


@contextlib.contextmanager
def full_disk_told(spark: SparkSession, archive: str, size: int | None = None) -> Iterator[None]:
    """If what is done in the context fails because a disk is full, say which disk.

    Args:
        archive: its path or URL.
        size: how many bytes of envelopes are being written; None if that is not known.
    Raises:
        DiskFull: in place of the error that says only "No space left on device".
    """
    try:
        yield
    except DiskFull:
        raise
    except (MailserverError, OSError, PySparkException, Py4JError) as error:
        words = [found.end() for found in _NO_ROOM.finditer(str(error))]
        full = _which(error, words, _local(archive), _scratch(spark), size) if words else None
        if full is None:
            raise
        raise full from error


def _which(
    error: Exception, words: Sequence[int], archive: Path | None, scratch: Path, size: int | None
) -> DiskFull | None:
    """Which of the two is full; None if neither is: the disk of a store may be, and then the error names the store.

    Args:
        words: where in the error's text its words for a full disk end.
    """
    text = str(error)
    if isinstance(error, (PySparkException, Py4JError)):
        # After the words comes the trace of the code that met with it.
        writers = filter(None, (_WRITER.search(text, end) for end in reversed(words)))
        writer = next(writers, None)
        if writer is None:
            return None
        is_scratch = writer["scratch"] is not None
    else:
        is_scratch = isinstance(error, OSError) and scratch in Path(str(error.filename)).parents
        if not is_scratch and (archive is None or str(archive) not in text):
            return None
    if is_scratch:
        return _full("scratch folder", scratch, size, SCRATCH_PER_BYTE)
    return None if archive is None else _full("archive", archive, size, ARCHIVE_PER_BYTE)


def _full(what: str, folder: Path, size: int | None, per_byte: float) -> DiskFull:
    return DiskFull(what, folder, _free(folder), None if size is None else int(size * per_byte))


def _local(archive: str) -> Path | None:
    """The folder of an archive; None if it is elsewhere."""
    folder = local_folder(archive)
    return None if folder is None else folder.absolute()


def _scratch(spark: SparkSession) -> Path:
    """Where Spark puts temporary files, by its own rules."""
    folders = os.environ.get("SPARK_LOCAL_DIRS") or spark.conf.get("spark.local.dir", None) or tempfile.gettempdir()
    return Path(folders.split(",")[0])


def _free(folder: Path) -> int | None:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize
