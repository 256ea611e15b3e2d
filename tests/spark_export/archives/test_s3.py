"""Whole runs on S3: what they leave there is what they leave in a folder, and what they say is the same."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mailserver.archive.access.bucket import LEASE_S, LEASES, BucketFiles
from mailserver.archive.access.places import files_of
from mailserver.archive.archive import Archive, existing_layout
from mailserver.archive.errors import ArchiveError
from mailserver.archive.faults import FaultKind
from mailserver.archive.holdings import check_day
from mailserver.archive.layout import PartitionBy
from mailserver.archive.manifest import decode_record, encode_record
from mailserver.archive.paths import RECORDS, index_of
from mailserver.data_dir.folder import load_or_make_key
from mailserver.store.interface import Query
from mailserver.store.sqlite.handoff import read_archived, write_archived
from mailserver.waku.bloom import FULL_INTEREST
from spark_export.acknowledgement import acknowledge
from spark_export.errors import ArchiveGone
from spark_export.inspection import read_contents
from spark_export.merge import merge
from spark_export.read import read_archive
from spark_export.report import gather
from spark_export.verify import verify
from tests.integration.daemons import run_command, running_daemon
from tests.s3 import FakeS3, fake_s3
from tests.spark_export.samples import (
    COLUMNS,
    DAY,
    DAY_S,
    FIRST,
    NEWS,
    SECOND,
    SPORT,
    compact_into,
    copy_store,
    envelopes,
    handed_over,
    identity,
    put,
    records_in,
    rows_of,
    tree,
)
from tests.store.samples import EVER, answer, raws

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROOT = Path(__file__).parents[3]
NEXT_MONTH = DAY + 40
NOW = NEXT_MONTH * DAY_S
DAY_ONE, DAY_TWO, LATE = envelopes(12), envelopes(12, day=DAY + 1, first=100), envelopes(6, first=200)
SETTINGS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL")


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[FakeS3]:
    """A bucket that the tasks of the Spark of all tests know, too: it started long before. One for all tests, because
    Spark starts workers of their own for each environment."""
    with pytest.MonkeyPatch.context() as patch, fake_s3(patch) as fake:
        for name in SETTINGS:
            patch.setitem(spark.sparkContext.environment, name, os.environ[name])
        yield fake


@pytest.fixture
def s3(server: FakeS3) -> FakeS3:
    """The bucket, empty."""
    server.hold({})
    return server


class Both:
    """An archive on S3 and one in a folder, of the same store."""

    def __init__(self, spark: SparkSession, s3: FakeS3, folder: Path) -> None:
        self.spark = spark
        self.s3 = s3
        self.archives = [s3.url, str(folder / "archive")]
        self.stores = [folder / "a" / "mailserver.db", folder / "b" / "mailserver.db"]
        put(self.stores[0])
        copy_store(*self.stores)

    def put(self, *groups: object) -> None:
        for store in self.stores:
            put(store, *groups)  # type: ignore[arg-type]

    def compact(self, run: str) -> None:
        for archive, store in zip(self.archives, self.stores, strict=True):
            by = PartitionBy.TOPIC_PREFIX
            assert compact_into(self.spark, archive, store, now=NOW, run=run, partition_by=by).damage == ""

    def assert_same(self) -> None:
        """Byte for byte; but a folder has second names, and for a day the indexes of what they lead to."""
        records = records_in(Path(self.archives[1])).values()
        indexes = {index_of(record.period, record.run) for record in records}

        def counts(name: str) -> bool:
            top = name.split("/", maxsplit=1)[0]
            return name in indexes if top == "_index" else top not in ("_runs", "_lock", "_snapshots")

        folder = {name: content for name, content in tree(Path(self.archives[1])).items() if counts(name)}
        there = {name: content for name, content in self.s3.objects().items() if counts(name)}
        assert sorted(there) == sorted(folder)
        for name, content in folder.items():
            assert there[name] == (without_second_names(content) if name.startswith(RECORDS) else content), name
        assert handed_over(self.stores[0]) == handed_over(self.stores[1])


def without_second_names(record: bytes) -> bytes:
    """The record of a period of which no file has a second name."""
    return encode_record(replace(decode_record(record.decode(), "record"), snapshot=False)).encode()


@pytest.fixture
def both(spark: SparkSession, s3: FakeS3, tmp_path: Path) -> Both:
    return Both(spark, s3, tmp_path)


def test_archive_on_s3_is_the_one_in_a_folder(both: Both, spark: SparkSession) -> None:
    both.put(DAY_ONE)
    both.compact("run-1")
    both.put(LATE, DAY_TWO)
    both.compact("run-2")
    both.assert_same()

    for archive, store in zip(both.archives, both.stores, strict=True):
        assert merge(spark, archive, now=NOW, run="merge-1", stores=[store]).damage == ""
    both.assert_same()
    assert {name.split("/")[0] for name in both.s3.objects()} == {
        "_archive.json",
        "_index",
        "_records",
        "_runs",
        "date=2024-10",
    }

    verified = verify(spark, both.s3.url, now=NOW, stores=both.stores[:1])
    assert (verified.rows, verified.faults, verified.losses) == (30, (), ())
    report = gather(spark, both.s3.url, NOW)
    assert (report.archive, [(day.date, day.envelopes) for day in report.days]) == (
        both.s3.url,
        [(FIRST, 18), (SECOND, 12)],
    )
    files = files_of(both.s3.url)
    assert files is not None
    for day, seq in handed_over(both.stores[0]).items():
        check_day(files, identity(both.stores[0]), day, seq)


def found(spark: SparkSession, s3: FakeS3, **wanted: Any) -> list[dict[str, Any]]:
    """What `read_archive` reads, without the day."""
    rows = read_archive(spark, s3.url, columns=COLUMNS, **wanted).collect()
    return sorted((row.asDict() for row in rows), key=lambda row: (row["topic"], row["created"], row["hash"]))


@pytest.mark.parametrize("by", [*PartitionBy])
def test_rows_are_read_from_s3(spark: SparkSession, s3: FakeS3, store: Path, by: PartitionBy) -> None:
    put(store, DAY_ONE, DAY_TWO)
    compact_into(spark, s3.url, store, now=NOW, partition_by=by)

    assert found(spark, s3) == rows_of([*DAY_ONE, *DAY_TWO])
    news = [one for one in DAY_ONE if one.topic == NEWS]
    s3.fetched.clear()
    assert found(spark, s3, topics=NEWS, start=DAY * DAY_S, end=(DAY + 1) * DAY_S) == rows_of(news)
    assert 0 < s3.fetched[".parquet"] < sum(map(len, s3.objects().values())) / 2
    chosen = read_archive(spark, s3.url, topics=[SPORT], columns=("size", "date")).collect()
    assert {tuple(row.asDict()) for row in chosen} == {("size", "date")}
    assert len(chosen) == sum(one.topic == SPORT for one in [*DAY_ONE, *DAY_TWO])
    assert found(spark, s3, topics=b"none") == []


def test_damage_on_s3_is_found_mended_and_acknowledged(spark: SparkSession, s3: FakeS3, store: Path) -> None:
    put(store, DAY_ONE, DAY_TWO)
    compact_into(spark, s3.url, store, now=NOW)
    sound = s3.objects()
    lost, damaged = (next(name for name in sound if name.startswith(f"date={day}")) for day in (FIRST, SECOND))
    content = bytearray(sound[damaged])
    content[len(content) // 2] ^= 0x10
    s3.hold({**{name: one for name, one in sound.items() if name != lost}, damaged: bytes(content)})

    faults = {fault.file: fault.kind for fault in verify(spark, s3.url, now=NOW, stores=[store]).faults}
    assert faults == {lost: FaultKind.MISSING, damaged: FaultKind.DAMAGED}
    assert handed_over(store) == {}

    report = compact_into(spark, s3.url, store, now=NOW, run="run-2")
    assert {fault.file for fault in report.faults} == {lost, damaged}
    assert (report.losses, report.damage != "") == ((), True)
    assert found(spark, s3) == rows_of([*DAY_ONE, *DAY_TWO])
    (aside,) = (name for name in s3.objects() if name.startswith("_damaged/"))
    assert s3.objects()[aside] == content
    again = compact_into(spark, s3.url, store, now=NOW, run="run-3")
    assert (again.damage, again.periods) == ("", [])
    assert acknowledge(spark, s3.url, now=NOW).losses == ()


def test_file_that_cannot_be_fetched_is_not_taken_for_damaged(spark: SparkSession, s3: FakeS3, store: Path) -> None:
    put(store, DAY_ONE)
    compact_into(spark, s3.url, store, now=NOW)
    archive = Archive(BucketFiles(s3.root))
    (record,) = archive.records().values()
    files = tuple(replace(file, sha256="") for file in record.files)
    record, layout = replace(record, files=files), existing_layout(archive)
    assert read_contents(spark, archive, layout, record, files).faults == ()

    with s3.denying(), pytest.raises(PySparkException, match="AWS Error ACCESS_DENIED"):
        read_contents(spark, archive, layout, record, files)


def test_index_that_is_missing_or_damaged_is_made_anew(spark: SparkSession, s3: FakeS3, store: Path) -> None:
    put(store, DAY_ONE, DAY_TWO)
    compact_into(spark, s3.url, store, now=NOW)
    sound = s3.objects()
    one, other = (name for name in sound if name.startswith("_index/"))
    s3.hold({**{name: content for name, content in sound.items() if name != one}, other: bytes(len(sound[other]))})

    assert verify(spark, s3.url, now=NOW).faults == ()
    assert other not in s3.objects()
    assert compact_into(spark, s3.url, store, now=NOW, run="run-2").damage == ""

    assert {name: s3.objects()[name] for name in (one, other)} == {name: sound[name] for name in (one, other)}


@pytest.mark.parametrize("scheme", ["s3", "s3a"])  # the second is what earlier versions wrote down
def test_bucket_that_has_lost_its_archive_is_not_taken_for_a_new_one(
    spark: SparkSession, s3: FakeS3, store: Path, scheme: str
) -> None:
    put(store, DAY_ONE)
    compact_into(spark, s3.url, store, now=NOW)
    archived = read_archived(store)
    assert archived is not None
    assert archived.archive == s3.url
    write_archived(store, replace(archived, archive=f"{scheme}://{s3.root}"))
    s3.hold({})

    with pytest.raises(ArchiveError, match=f"there is no archive at {s3.url}"):
        verify(spark, s3.url)
    with pytest.raises(ArchiveGone, match=f"there is no archive at {s3.url}, but the record beside"):
        compact_into(spark, s3.url, store, now=NOW, run="run-2")
    assert s3.objects() == {}


def test_run_that_gets_sigkill_is_done_by_the_next(spark: SparkSession, s3: FakeS3, store: Path) -> None:
    """As a process of its own, whose tasks take the credentials from its environment."""
    put(store, DAY_ONE, DAY_TWO)
    url = s3.url

    command = [sys.executable, "-m", "tests.spark_export.killed_run", str(store), url, "run-1", "put"]
    killed = subprocess.run(command, cwd=ROOT, start_new_session=True, capture_output=True, check=False, timeout=120)

    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert {name.split("/")[0] for name in s3.objects()} >= {LEASES, "_staging", f"date={FIRST}"}
    with pytest.raises(ArchiveError, match=r"another run .* is at work on s3://"):
        compact_into(spark, url, store, now=NOW, run="run-2")
    s3.age(LEASES, LEASE_S + 1)
    assert compact_into(spark, url, store, now=NOW, run="run-2").damage == ""
    assert {record.run for record in Archive(BucketFiles(s3.root)).records().values()} == {"run-1-0"}
    assert read_archive(spark, url).count() == 24


def number_after(word: str, line: str) -> int:
    """The number that a line of the log has after this."""
    return int(line.partition(word)[2].partition(" ")[0])


def test_daemon_prunes_and_answers_from_the_bucket_that_the_job_wrote(
    spark: SparkSession, s3: FakeS3, store: Path
) -> None:
    everything = [one for day in range(4) for one in envelopes(12, day=DAY + day, first=100 * day)]
    put(store, everything)
    load_or_make_key(store.parent)
    compact_into(spark, s3.url.replace("s3:", "s3a:"), store, now=NOW)

    with running_daemon(store.parent, "--archive", s3.url, "--retention-days", "2") as daemon:
        daemon.wait_for_line("history is answered from the archive, too")
        pruned = daemon.wait_for_line("pruned envelopes=")
        ask = ("request", daemon.enode, "--from", 1, "--all", "--limit", 7, "--format", "raw")
        found = run_command(*ask)
        of_topic = run_command(*ask, "--topic", "0x" + NEWS.hex())
        with s3.denying():
            denied = run_command(*ask)
        again = run_command(*ask)
        daemon.wait_for_line("request outcome=failed")
        log = daemon.log

    newest_first = answer(everything, Query(*EVER, FULL_INTEREST))
    gone = number_after("envelopes=", pruned)
    assert gone >= 12
    assert found.stdout.split() == [raw.hex() for raw in raws(newest_first)], found.stderr + log
    assert of_topic.stdout.split() == [one.raw.hex() for one in newest_first if one.topic == NEWS]
    assert "the store could not answer" in denied.stderr
    (told,) = (line for line in log.splitlines() if "archive cannot be read error=" in line)
    assert "ACCESS_DENIED" in told
    assert again.stdout == found.stdout
    archived = sum(number_after("archived=", line) for line in log.splitlines() if "archived=" in line)
    assert archived >= 2 * gone  # both times


def test_worker_without_credentials_is_told_in_one_line(
    spark: SparkSession, s3: FakeS3, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(spark.sparkContext.environment, "AWS_ACCESS_KEY_ID")
    monkeypatch.setitem(spark.sparkContext.environment, "AWS_EC2_METADATA_DISABLED", "true")
    put(store, DAY_ONE)

    with pytest.raises(ArchiveError, match=f"cannot write {s3.url}/_staging/.*ACCESS_DENIED") as caught:
        compact_into(spark, s3.url, store, now=NOW)

    assert "\n" not in str(caught.value)
