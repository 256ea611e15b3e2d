"""Whether `verify` finds whatever is wrong with an archive, and says where."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from mailserver.archive.errors import ArchiveError
from mailserver.archive.faults import FaultKind
from mailserver.archive.layout import PartitionBy
from spark_export.merge import merge
from spark_export.schema import ENVELOPES
from spark_export.storage import LocalStorage
from spark_export.verify import verify
from tests.spark_export.samples import DAY, DAY_S, NEWS, SPORT, compact_into, envelopes, put, tree

pytestmark = pytest.mark.spark

FIRST, SECOND, MONTH = "2024-10-04", "2024-10-05", "2024-09"
ROWS = 3 * 30
SAID = ("_runs", "_lock", "_records", "_incidents.json")


@pytest.fixture(scope="module")
def sound(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A month and two days."""
    folder = tmp_path_factory.mktemp("verify")
    days = [envelopes(30, day=day, first=100 * number) for number, day in enumerate((DAY - 10, DAY, DAY + 1))]
    store = put(folder / "mailserver.db", *days)
    compact_into(spark, folder / "archive", store, partition_by=PartitionBy.TOPIC_PREFIX, prefix_digits=1)
    merge(spark, str(folder / "archive"), now=(DAY + 10) * DAY_S, run="merge-1")
    return folder / "archive"


@pytest.fixture
def archive(sound: Path, tmp_path: Path) -> Path:
    """A copy, to do harm to."""
    return shutil.copytree(sound, tmp_path / "archive", ignore=shutil.ignore_patterns("_snapshots"))


def data_file(archive: Path, period: str, topic: bytes = NEWS) -> Path:
    """The file that holds a topic."""
    (file,) = (archive / f"date={period}" / f"topic_prefix={topic.hex()[0]}").iterdir()
    return file


def flip(file: Path, offset: int) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= 0x10
    file.write_bytes(content)


def faults_of(spark: SparkSession, archive: Path) -> list[tuple[str, str]]:
    """What is wrong, by period; the rest was looked at, and nothing was changed but what is said of it."""
    before = tree(archive, without=SAID)

    verification = verify(spark, str(archive))

    assert tree(archive, without=SAID) == before
    assert (verification.periods, verification.rows) == (3, ROWS)
    return [(fault.period, str(fault)) for fault in verification.faults]


def test_sound_archive_has_no_faults(spark: SparkSession, archive: Path) -> None:
    assert faults_of(spark, archive) == []


def test_missing_file_is_found(spark: SparkSession, archive: Path) -> None:
    data_file(archive, FIRST).unlink()

    ((period, fault),) = faults_of(spark, archive)
    assert period == FIRST
    assert fault.startswith(f"date={FIRST}/topic_prefix=9/part-")
    assert fault.endswith(": is missing")


def test_missing_period_is_found(spark: SparkSession, archive: Path) -> None:
    shutil.rmtree(archive / f"date={MONTH}")

    faults = faults_of(spark, archive)
    assert {period for period, _ in faults} == {MONTH}
    assert len(faults) == 2


def test_file_too_many_is_found(spark: SparkSession, archive: Path) -> None:
    file = data_file(archive, SECOND)
    shutil.copy(file, file.with_name("copy.parquet"))

    assert faults_of(spark, archive) == [(SECOND, f"date={SECOND}/topic_prefix=9/copy.parquet: is in no record")]


@pytest.mark.parametrize("left", [0, 3, 200, -1, -100])
def test_truncated_file_is_found(spark: SparkSession, archive: Path, left: int) -> None:
    file = data_file(archive, FIRST)
    file.write_bytes(file.read_bytes()[:left])

    assert {period for period, _ in faults_of(spark, archive)} == {FIRST}


@pytest.mark.parametrize("column", ENVELOPES.fieldNames())
def test_one_wrong_bit_in_any_column_is_found(spark: SparkSession, archive: Path, column: str) -> None:
    file = data_file(archive, MONTH)
    group = pq.ParquetFile(file).metadata.row_group(0)
    (chunk,) = (group.column(n) for n in range(group.num_columns) if group.column(n).path_in_schema == column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    flip(file, start + chunk.total_compressed_size - 3)  # in the data of its last page

    ((period, fault),) = faults_of(spark, archive)
    assert period == MONTH
    assert "\n" not in fault


def test_file_of_another_day_is_found(spark: SparkSession, archive: Path) -> None:
    shutil.copyfile(data_file(archive, SECOND), data_file(archive, FIRST))

    faults = faults_of(spark, archive)
    assert {period for period, _ in faults} == {FIRST}


def test_file_of_another_directory_is_found(spark: SparkSession, archive: Path) -> None:
    one, other = data_file(archive, FIRST, NEWS), data_file(archive, FIRST, SPORT)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)

    assert {period for period, _ in faults_of(spark, archive)} == {FIRST}


def test_file_without_rows_is_found(spark: SparkSession, archive: Path) -> None:
    file = data_file(archive, FIRST)
    pq.write_table(pq.read_table(file, partitioning=None).slice(0, 0), file)

    assert {period for period, _ in faults_of(spark, archive)} == {FIRST}


def test_directory_in_no_record_is_found(spark: SparkSession, archive: Path) -> None:
    shutil.copytree(archive / f"date={FIRST}", archive / "date=2024-10-06")

    faults = faults_of(spark, archive)
    assert [period for period, _ in faults] == ["2024-10-06"] * 2
    assert all(fault.endswith(": is in no record") for _, fault in faults)


def test_every_fault_is_named(spark: SparkSession, archive: Path) -> None:
    data_file(archive, FIRST).unlink()
    data_file(archive, SECOND).write_bytes(b"")
    (archive / "date=2023").mkdir()

    assert {period for period, _ in faults_of(spark, archive)} == {FIRST, SECOND, "2023"}


def test_archive_of_one_directory_per_topic_is_verified(spark: SparkSession, tmp_path: Path) -> None:
    store = put(tmp_path / "mailserver.db", envelopes(30))
    compact_into(spark, tmp_path / "archive", store, partition_by=PartitionBy.TOPIC)
    sound = verify(spark, str(tmp_path / "archive"))
    file = next((tmp_path / "archive" / f"date={FIRST}" / f"topic=0x{NEWS.hex()}").iterdir())
    file.rename(file.parent.with_name(f"topic=0x{SPORT.hex()}") / file.name)

    faults = verify(spark, str(tmp_path / "archive")).faults

    assert not sound.faults
    assert {fault.period for fault in faults} == {FIRST}


def test_damaged_record_is_named_and_hides_no_other_fault(spark: SparkSession, archive: Path) -> None:
    record = archive / "_records" / f"{FIRST}.json"
    record.write_text(json.dumps({"version": 1}))
    gone = next((archive / f"date={SECOND}").rglob("*.parquet"))
    gone.unlink()

    verification = verify(spark, str(archive))

    assert [(fault.file, fault.kind) for fault in verification.faults] == [
        (f"_records/{FIRST}.json", FaultKind.RECORD),
        (str(gone.relative_to(archive)), FaultKind.MISSING),
    ]
    assert all(fault.advice in "\n".join(verification.as_words()) for fault in verification.faults)
    assert json.loads(record.read_text()) == {"version": 1}  # the next compaction sets it aside


def test_verification_waits_for_no_other_run(spark: SparkSession, archive: Path) -> None:
    with LocalStorage(archive).locked(), pytest.raises(ArchiveError, match=r"another run \(pid \d+\) is at work"):
        verify(spark, str(archive))


def test_nothing_is_verified_where_there_is_no_archive(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive"):
        verify(spark, str(tmp_path / "none"))

    assert not (tmp_path / "none").exists()
