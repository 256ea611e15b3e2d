"""spark_export.full_disk: which disk an error means. Disks that are full indeed are in test_commands."""

import errno
import os
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mailserver.archive.errors import ArchiveError
from mailserver.errors import MailserverError
from spark_export.errors import DiskFull, ExportError
from spark_export.full_disk import full_disk_told

pytestmark = pytest.mark.spark

MIB = 1024 * 1024
FAILED = "org.apache.spark.SparkException: Task failed while writing rows to file:/archive/_staging/1\n"
NO_SPACE = "Caused by: java.io.IOException: No space left on device\n\tat java.base/sun.nio.ch.IOUtil.write\n"
PARQUET = (
    "\tat org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write\n\tat org.apache.parquet.Writer.end\n"
)
SPILL = "\tat org.apache.spark.storage.TimeTrackingOutputStream.write\n\tat org.apache.spark.shuffle.Writer.spill\n"
WRITES_FILES = "\tat org.apache.spark.sql.execution.datasources.FileFormatWriter$.executeTask\n"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
    return folder


def told(spark: SparkSession, archive: object, error: Exception, size: int | None = None) -> Exception:
    """What comes out of the context, if this goes wrong in it."""
    try:
        with full_disk_told(spark, str(archive), size):
            raise error
    except (MailserverError, OSError, PySparkException) as raised:
        return raised


def no_room(path: object) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@pytest.mark.parametrize(
    ("trace", "what"),
    [
        (NO_SPACE + PARQUET + WRITES_FILES, "archive"),
        (NO_SPACE + SPILL + WRITES_FILES, "scratch folder"),  # rows are sorted on their way to a file
        (FAILED + WRITES_FILES + NO_SPACE + SPILL, "scratch folder"),
        ("No space left on device\n\n" + FAILED + PARQUET + NO_SPACE + SPILL, "scratch folder"),
    ],
)
def test_trace_of_spark_tells_who_was_writing(
    spark: SparkSession, tmp_path: Path, scratch: Path, trace: str, what: str
) -> None:
    full = told(spark, f"file://{tmp_path}", PySparkException(trace), MIB)

    assert isinstance(full, DiskFull)
    assert (full.what, full.folder) == (what, scratch if what == "scratch folder" else tmp_path)
    assert full.free is not None
    assert full.free > 0
    assert full.needed == int(MIB * (0.5 if what == "scratch folder" else 1.1))


def test_error_with_a_name_tells_by_it(spark: SparkSession, tmp_path: Path, scratch: Path) -> None:
    of_archive = told(
        spark, tmp_path / "a", ArchiveError(f"cannot write {tmp_path}/a/_runs/1: No space left on device")
    )
    of_scratch = told(spark, tmp_path / "a", no_room(scratch / "tmp1" / "file"))

    assert isinstance(of_archive, DiskFull)
    assert (of_archive.what, of_archive.folder, of_archive.needed) == ("archive", tmp_path / "a", None)
    assert isinstance(of_scratch, DiskFull)
    assert (of_scratch.what, of_scratch.folder) == ("scratch folder", scratch)


def test_quota_is_a_full_disk_too(spark: SparkSession, tmp_path: Path, scratch: Path) -> None:
    full = told(
        spark, tmp_path, PySparkException(NO_SPACE.replace("No space left on device", "Disk quota exceeded") + SPILL)
    )

    assert isinstance(full, DiskFull)
    assert full.folder == scratch


@pytest.mark.parametrize(
    "error",
    [
        ExportError("cannot write beside /var/lib/mailserver.db: No space left on device"),  # says itself where
        PySparkException(NO_SPACE),  # says not who
        PySparkException("Input/output error\n" + PARQUET),
        no_room("/elsewhere"),
    ],
)
def test_other_errors_stay_as_they_are(spark: SparkSession, tmp_path: Path, scratch: Path, error: Exception) -> None:
    assert told(spark, tmp_path, error) is error


def test_archive_that_is_elsewhere_has_no_disk_of_ours(spark: SparkSession, scratch: Path) -> None:
    error = PySparkException(NO_SPACE + PARQUET)

    assert told(spark, "hdfs://host/archive", error) is error
    assert isinstance(told(spark, "hdfs://host/archive", PySparkException(NO_SPACE + SPILL)), DiskFull)


def test_what_was_told_is_not_told_again(spark: SparkSession, tmp_path: Path, scratch: Path) -> None:
    full = DiskFull("archive", tmp_path, 5 * MIB, 7 * MIB)

    assert told(spark, tmp_path, full) is full
    assert str(full) == (
        f"the disk of the archive is full: no space left on device at {tmp_path}, 5 MiB free now, about 7 MiB needed"
    )
