"""Days merged into months: what is merged, by whom it is read meanwhile, and what a kill leaves."""

import dataclasses
import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from mailserver.archive.errors import ArchiveError
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.layout import PartitionBy
from mailserver.archive.manifest import known_seq
from spark_export import merge as merge_module
from spark_export.errors import ExportCheckFailed
from spark_export.hadoop_storage import HadoopStorage
from spark_export.merge import merge
from spark_export.pieces import Piece
from spark_export.read import read_archive
from spark_export.run_report import RunReport
from spark_export.storage import LocalStorage, WritableFiles
from spark_export.verify import verify
from spark_export.writing import PieceWritten, WritingJob, write_pieces
from tests.spark_export.moments import Moments, copy_folder
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    archived,
    compact_into,
    copy_store,
    envelopes,
    identity,
    periods,
    prune,
    put,
    records_in,
    rows_of,
    rows_of_file,
    tree,
    visible_files,
)

pytestmark = pytest.mark.spark

NEXT_MONTH = DAY + 28
"""2024-11-01."""

NOW = (NEXT_MONTH + 2) * DAY_S

LAST_MONTH = [*envelopes(12), *envelopes(12, day=DAY + 1, first=100), *envelopes(12, day=DAY + 2, first=200)]
THIS_MONTH = envelopes(12, day=NEXT_MONTH, first=300)
CHANGES = ("write", "remove", "put", "link", "sync", "touch")


class Killed(BaseException):
    """What no code catches."""


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days of a month that is over and one of the present one, and their store."""
    folder = tmp_path_factory.mktemp("merge")
    put(folder / "mailserver.db", LAST_MONTH, THIS_MONTH)
    compact(spark, folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of both: `archive` and `mailserver.db`. Second names stay names of the same files."""
    return copy_folder(made, tmp_path / "copy")


def compact(spark: SparkSession, folder: Path, run: str = "run-1") -> RunReport:
    return compact_into(
        spark,
        folder / "archive",
        folder / "mailserver.db",
        now=NOW,
        run=run,
        partition_by=PartitionBy.TOPIC_PREFIX,
        prefix_digits=1,
    )


def merged(spark: SparkSession, folder: Path, run: str = "merge-1") -> list[str]:
    """Merge; say which months were."""
    return [period["period"] for period in merge(spark, str(folder / "archive"), now=NOW, run=run).periods]


def fingerprint(folder: Path) -> Fingerprint:
    records = records_in(folder / "archive").values()
    return Fingerprint.sum(record.fingerprint for record in records)


def read(spark: SparkSession, folder: Path) -> list[str]:
    """The hashes that `read_archive` finds."""
    return sorted(row["hash"] for row in read_archive(spark, str(folder / "archive")).select("hash").collect())


def hashes(put_in: Any) -> list[str]:
    return sorted("0x" + one.hash.hex() for one in put_in)


def test_months_that_are_over_are_merged(spark: SparkSession, folder: Path) -> None:
    archive, before = folder / "archive", fingerprint(folder)
    files = len(visible_files(archive))

    months = merged(spark, folder)

    assert months == ["2024-10"]
    assert periods(archive) == ["2024-10", "2024-11-01"]
    assert archived(archive) == rows_of([*LAST_MONTH, *THIS_MONTH])
    assert fingerprint(folder) == before
    assert len(visible_files(archive)) < files
    assert sorted(file.name for file in (archive / "_records").iterdir()) == ["2024-10.json", "2024-11-01.json"]
    assert not list((archive / "_staging").iterdir())
    assert not verify(spark, str(archive)).faults


def test_merged_files_are_sorted_by_topic_and_time(spark: SparkSession, folder: Path) -> None:
    merged(spark, folder)

    for prefix in (folder / "archive" / "date=2024-10").iterdir():
        (file,) = prefix.iterdir()
        rows = duckdb.connect().execute(f"SELECT topic, created, hash FROM '{file}'").fetchall()
        assert rows == sorted(rows)


def test_second_merge_has_nothing_to_do(spark: SparkSession, folder: Path) -> None:
    merged(spark, folder)
    before = tree(folder / "archive")

    assert merged(spark, folder, "merge-2") == []

    assert tree(folder / "archive") == before


def test_compaction_after_a_merge_has_nothing_to_do(spark: SparkSession, folder: Path) -> None:
    merged(spark, folder)
    before = tree(folder / "archive")

    report = compact(spark, folder, "run-2")

    assert report.periods == []
    assert tree(folder / "archive") == before


def test_present_month_is_not_merged(spark: SparkSession, folder: Path) -> None:
    months = merge(spark, str(folder / "archive"), now=(NEXT_MONTH - 1) * DAY_S, run="merge-1").periods

    assert months == []
    assert periods(folder / "archive") == ["2024-10-04", "2024-10-05", "2024-10-06", "2024-11-01"]


def test_late_rows_of_a_merged_day_are_merged_later(spark: SparkSession, folder: Path) -> None:
    merged(spark, folder)
    late = envelopes(6, day=DAY + 1, first=400)
    put(folder / "mailserver.db", late)

    compact(spark, folder, "run-2")
    between = periods(folder / "archive"), archived(folder / "archive"), read(spark, folder)
    months = merged(spark, folder, "merge-2")

    everything = [*LAST_MONTH, *THIS_MONTH, *late]
    assert between == (["2024-10", "2024-10-05", "2024-11-01"], rows_of(everything), hashes(everything))
    assert months == ["2024-10"]
    assert periods(folder / "archive") == ["2024-10", "2024-11-01"]
    assert archived(folder / "archive") == rows_of(everything)
    assert not verify(spark, str(folder / "archive")).faults
    assert compact(spark, folder, "run-3").periods == []


def test_store_that_brings_nothing_to_a_merged_day_is_remembered(spark: SparkSession, folder: Path) -> None:
    merged(spark, folder)
    for number in (2, 3):  # twice: each of them leaves a record without files, which a merge takes in
        other = put(folder / f"{number}.db", LAST_MONTH[:1])
        stores = copy_store(folder / "mailserver.db", folder / f"copy-{number}" / "mailserver.db"), other

        compact_into(spark, folder / "archive", *stores, now=NOW, run=f"run-{number}")

        records = records_in(folder / "archive")
        assert known_seq(records, DAY, identity(other)) == 1
        merged(spark, folder, f"merge-{number}")
        records = records_in(folder / "archive")
        assert known_seq(records, DAY, identity(other)) == 1
    assert archived(folder / "archive") == rows_of([*LAST_MONTH, *THIS_MONTH])


def test_killed_before_any_change_nothing_is_lost(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = [*LAST_MONTH, *THIS_MONTH]
    moments = Moments(folder, tmp_path)
    with monkeypatch.context() as patched:
        moments.watch(patched, [(LocalStorage, name) for name in CHANGES])
        merged(spark, folder)
    moments.note()

    for at, moment in enumerate(moments.folders):
        assert read(spark, moment) == hashes(everything), at
        assert set(hashes(everything)) <= {row["hash"] for row in archived(moment / "archive")}, at
        for again in (merged, compact):
            copy = copy_folder(moment, tmp_path / f"{at}-{again.__name__}")

            again(spark, copy, "run-2")

            assert archived(copy / "archive") == rows_of(everything), at
            assert read(spark, copy) == hashes(everything), at
            assert not list((copy / "archive" / "_staging").iterdir()), at
    assert moments.steps > len(CHANGES)


def test_wrong_month_is_not_published(spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_less(spark: SparkSession, job: WritingJob, pieces: Sequence[Piece]) -> list[PieceWritten]:
        return write_pieces(spark, job, [dataclasses.replace(piece, sources=piece.sources[1:]) for piece in pieces])

    before = tree(folder / "archive")
    with monkeypatch.context() as patched:
        patched.setattr(merge_module, "write_pieces", write_less)
        with pytest.raises(
            ExportCheckFailed, match=r"^check failed for 2024-10: its days have rows=36 .*rows=28"
        ) as caught:
            merged(spark, folder)

    assert caught.value.day == "2024-10"
    assert {name: text for name, text in tree(folder / "archive").items() if not name.startswith("_staging/")} == before
    assert merged(spark, folder, "merge-2") == ["2024-10"]
    assert archived(folder / "archive") == rows_of([*LAST_MONTH, *THIS_MONTH])


def test_merge_needs_an_archive(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive at"):
        merge(spark, str(tmp_path / "none"), now=NOW, run="merge-1")

    assert not (tmp_path / "none").exists()


def test_two_runs_at_once_are_refused(spark: SparkSession, folder: Path) -> None:
    with LocalStorage(folder / "archive").locked(), pytest.raises(ArchiveError, match="another run"):
        merged(spark, folder)


def test_readers_see_all_rows_at_any_moment(
    spark: SparkSession, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    late = envelopes(3, day=DAY + 1, first=400)
    lawful = {tuple(hashes([*LAST_MONTH, *THIS_MONTH])), tuple(hashes([*LAST_MONTH, *THIS_MONTH, *late]))}
    stop, problems, reads = threading.Event(), list[str](), list[int]()

    def read_on() -> None:
        while not stop.is_set():
            try:
                found = tuple(read(spark, folder))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what the test is about
                problems.append(repr(error))
                return
            reads.append(len(found))
            if found not in lawful:
                problems.append(f"{len(found)} rows")

    readers = [threading.Thread(target=read_on) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        put(folder / "mailserver.db", late)
        compact(spark, folder, "run-2")  # replaces a day
        merged(spark, folder)
        again = envelopes(3, day=DAY + 1, first=500)
        lawful.add(tuple(hashes([*LAST_MONTH, *THIS_MONTH, *late, *again])))
        put(folder / "mailserver.db", again)
        compact(spark, folder, "run-3")  # puts a day beside the month
        merged(spark, folder, "merge-2")  # replaces the month
    finally:
        stop.set()
        for reader in readers:
            reader.join()

    assert problems == []
    assert len(reads) >= len(readers)


def meddle_after(
    monkeypatch: pytest.MonkeyPatch, storage: WritableFiles, change: str, name: str, meddle: Callable[[], None]
) -> None:
    """Let `meddle` happen once, right after that change of what has that name."""
    real, pending = getattr(storage, change), [meddle]

    def changed(*arguments: Any) -> Any:
        done = real(*arguments)
        if arguments[1 if change == "put" else 0] == name and pending:
            pending.pop()()
        return done

    monkeypatch.setattr(storage, change, changed)
    monkeypatch.setattr(merge_module, "open_storage", lambda session, path: storage)


def opened(spark: SparkSession, kind: str, archive: Path) -> WritableFiles:
    """A lock file is all that Hadoop's lock is; the local one leaves its own behind."""
    if kind == "local":
        return LocalStorage(archive)
    (archive / "_lock").unlink()
    return HadoopStorage(spark, f"file://{archive}")


def remove(file: Path) -> None:
    file.unlink()


def truncate(file: Path) -> None:
    os.truncate(file, 100)


def replace(file: Path) -> None:
    file.unlink()
    file.write_bytes(b"something else")


def written_hashes(folder: Path) -> set[str]:
    """What is in any whole file, wherever it lies."""
    files = [file for file in (folder / "archive").rglob("part-*") if file.suffix == ".parquet"]
    return {row["hash"] for file in files if file.stat().st_size > 100 for row in rows_of_file(file)}


@pytest.mark.parametrize(
    ("kind", "change", "name", "damage"),
    [
        ("local", "put", "date=2024-10", remove),
        ("local", "write", "_records/2024-10.json", truncate),
        ("local", "put", "_staging/replaced/date=2024-10-06/run=run-1-0", replace),
        ("hadoop", "put", "date=2024-10", truncate),
        ("hadoop", "put", "_staging/replaced/date=2024-10-06/run=run-1-0", remove),
    ],
)
def test_days_are_kept_while_their_month_is_not_what_was_written(
    spark: SparkSession,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    change: str,
    name: str,
    damage: Callable[[Path], None],
) -> None:
    archive = folder / "archive"
    prune(folder / "mailserver.db", before=NEXT_MONTH * DAY_S, archived={DAY: 12, DAY + 1: 24, DAY + 2: 36})
    with monkeypatch.context() as patched:
        storage = opened(spark, kind, archive)
        meddle_after(patched, storage, change, name, lambda: damage(min(archive.glob("date=2024-10/*/*"))))

        report = merge(spark, str(archive), now=NOW, run="merge-1")

    assert "2024-10" in {fault.period for fault in report.faults}
    assert report.damage
    assert set(hashes([*LAST_MONTH, *THIS_MONTH])) <= written_hashes(folder)
    compact(spark, folder, "run-2")
    assert archived(archive) == rows_of([*LAST_MONTH, *THIS_MONTH])
    assert compact(spark, folder, "run-3").damage == ""


@pytest.mark.parametrize("kind", ["local", "hadoop"])
def test_a_months_old_files_are_kept_while_the_new_ones_are_not_what_was_written(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    archive, late = folder / "archive", envelopes(6, day=DAY + 1, first=400)
    merged(spark, folder)
    put(folder / "mailserver.db", late)
    compact(spark, folder, "run-2")
    prune(folder / "mailserver.db", before=NEXT_MONTH * DAY_S, archived={DAY: 54, DAY + 1: 54, DAY + 2: 54})
    everything = [*LAST_MONTH, *THIS_MONTH, *late]
    with monkeypatch.context() as patched:
        storage = opened(spark, kind, archive)
        meddle_after(patched, storage, "put", "date=2024-10", lambda: shutil.rmtree(archive / "date=2024-10"))

        report = merge(spark, str(archive), now=NOW, run="merge-2")

    assert {fault.period for fault in report.faults} >= {"2024-10"}
    shutil.rmtree(archive / "_snapshots")  # what has other names is no help
    assert set(hashes(everything)) <= written_hashes(folder)
    compact(spark, folder, "run-3")
    assert archived(archive) == rows_of(everything)
    assert compact(spark, folder, "run-4").damage == ""


def test_month_whose_file_changes_before_it_is_published_is_not(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, staged = folder / "archive", "_staging/merge-1-0/data"
    with monkeypatch.context() as patched:
        storage = LocalStorage(archive)
        meddle_after(patched, storage, "sync", staged, lambda: truncate(min((archive / staged).glob("date=*/*/*"))))
        with pytest.raises(ExportCheckFailed, match=r"check failed for 2024-10: .* has 100 bytes instead of"):
            merge(spark, str(archive), now=NOW, run="merge-1")

    assert periods(archive) == ["2024-10-04", "2024-10-05", "2024-10-06", "2024-11-01"]
    assert merged(spark, folder, "merge-2") == ["2024-10"]
    assert archived(archive) == rows_of([*LAST_MONTH, *THIS_MONTH])


def test_change_that_a_killed_run_had_verified_is_not_made_where_its_files_are_damaged(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed() -> None:
        raise Killed

    archive, staged = folder / "archive", "_staging/merge-1-0"
    with monkeypatch.context() as patched:
        meddle_after(patched, LocalStorage(archive), "write", f"{staged}/publish.json", killed)
        with pytest.raises(Killed):
            merge(spark, str(archive), now=NOW, run="merge-1")
    truncate(min((archive / staged).glob("data/date=*/*/*")))

    assert merged(spark, folder, "merge-2") == ["2024-10"]

    assert archived(archive) == rows_of([*LAST_MONTH, *THIS_MONTH])


def test_second_names_outlive_a_day_while_the_month_is_not_as_recorded(spark: SparkSession, folder: Path) -> None:
    archive = folder / "archive"
    prune(folder / "mailserver.db", before=NEXT_MONTH * DAY_S, archived={DAY: 12, DAY + 1: 24, DAY + 2: 36})
    merged(spark, folder)
    for old in archive.glob("_snapshots/date=2024-10-*/run=*"):
        os.utime(old, (1000, 1000))
    for file in sorted(archive.glob("date=2024-10/*/*")):
        truncate(file)

    report = merge(spark, str(archive), now=NOW, run="merge-2")

    assert {fault.period for fault in report.faults} == {"2024-10"}
    assert len(list(archive.glob("_snapshots/date=2024-10-*/run=*"))) == 3
    compact(spark, folder, "run-2")
    assert archived(archive) == rows_of([*LAST_MONTH, *THIS_MONTH])
    assert compact(spark, folder, "run-3").damage == ""
    assert not list(archive.glob("_snapshots/date=2024-10-*/run=run-1-0"))


def test_month_whose_place_has_files_of_no_record_is_not_merged(spark: SparkSession, folder: Path) -> None:
    strange = folder / "archive" / "date=2024-10" / "topic_prefix=9" / "by-hand.parquet"
    strange.parent.mkdir(parents=True)
    shutil.copy(min((folder / "archive").glob("date=2024-10-04/*/*")), strange)

    report = merge(spark, str(folder / "archive"), now=NOW, run="merge-1")

    assert [fault.file for fault in report.faults] == ["date=2024-10/topic_prefix=9/by-hand.parquet"]
    assert report.periods == []
    assert strange.exists()
