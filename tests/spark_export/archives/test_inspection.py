"""spark_export.inspection: whose turn it is to be read again, and what is no fault of a file.

What reading finds is in test_mending.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from mailserver.archive.archive import Archive
from mailserver.archive.errors import ArchiveError, ArchiveFileUnreadable
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.layout import Layout, PartitionBy
from mailserver.archive.manifest import DayRecord, FileRecord, PeriodRecord
from spark_export.hadoop_storage import HadoopStorage
from spark_export.inspection import LEAD_S, periods_to_read, read_contents

A_DAY = 86_400
A_WEEK = 7 * A_DAY
NOW = 2_000_000_000


def records(verified_at: Sequence[int], sizes: Sequence[int] = ()) -> dict[str, PeriodRecord]:
    """Periods named by number, of 100 bytes unless `sizes` says otherwise."""
    made = {}
    for number, moment in enumerate(verified_at):
        size = sizes[number] if sizes else 100
        day = DayRecord(Fingerprint(1, size, number), 0, 0, {}, 0)
        files = (FileRecord("topic_prefix=9/part", size, 1),)
        made[f"{number:03}"] = PeriodRecord(f"{number:03}", "run", {number: day}, files, verified_at=moment)
    return made


def turns(found: dict[str, PeriodRecord], *, now: float = NOW, within_s: float = A_WEEK) -> list[str]:
    return [record.period for record in periods_to_read(found, within_s, now)]


def test_what_was_never_read_is_read_at_once() -> None:
    assert turns(records([0, NOW - 60, 0])) == ["000", "002"]


def test_reading_that_is_yet_to_come_is_none() -> None:
    assert turns(records([NOW + 1, NOW - 60])) == ["000"]


def test_everything_is_read_where_nothing_may_be_older_than_the_run() -> None:
    assert turns(records([NOW, NOW - 60]), within_s=0) == ["001", "000"]


def test_period_without_files_is_never_read() -> None:
    assert turns({"000": PeriodRecord("000", "run", {}, ())}) == []


@pytest.mark.parametrize("sizes", [[], [100 * (number % 7 + 1) for number in range(30)]])
@pytest.mark.parametrize("day_s", [A_DAY, A_DAY // 4])
def test_each_is_read_again_in_time_and_no_night_has_all_of_the_work(sizes: list[int], day_s: int) -> None:
    found = records([NOW] * 30, sizes)
    total = sum(file.bytes for record in found.values() for file in record.files)
    most = 0
    for run in range(1, 4 * A_WEEK // day_s):
        now = NOW + run * day_s
        read = turns(found, now=now)
        for period in read:
            assert now - found[period].verified_at <= A_WEEK
            found |= {period: PeriodRecord(period, "run", found[period].days, found[period].files, verified_at=now)}
        most = max(most, sum(file.bytes for period in read for file in found[period].files))
        assert all(now + day_s - record.verified_at <= A_WEEK for record in found.values())

    assert most < total / 3


def test_next_nightly_run_would_be_too_late_for_what_is_read_now() -> None:
    assert LEAD_S > A_DAY
    assert turns(records([NOW - A_WEEK + LEAD_S, NOW])) == ["000"]


@pytest.fixture
def unreachable(spark: SparkSession) -> Iterator[Archive]:
    """An archive on a machine where nothing listens."""
    retries = "ipc.client.connect.max.retries"
    configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - there is no other way to it
    configuration.set(retries, "0")
    yield Archive(HadoopStorage(spark, "hdfs://127.0.0.1:1/archive"))
    configuration.unset(retries)


@pytest.mark.spark
@pytest.mark.parametrize("sha256", ["", "12" * 32])
def test_file_on_a_machine_that_cannot_be_reached_is_not_taken_for_damaged(
    spark: SparkSession, unreachable: Archive, sha256: str
) -> None:
    (record,) = records([0]).values()
    files = [replace(file, sha256=sha256) for file in record.files]

    with pytest.raises((Py4JJavaError, ArchiveError), match="Connection refused") as caught:
        read_contents(
            spark, unreachable, Layout(PartitionBy.TOPIC_PREFIX, 1), replace(record, files=tuple(files)), files
        )

    assert not isinstance(caught.value, ArchiveFileUnreadable)
