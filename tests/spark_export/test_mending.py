"""A damaged archive: it is named, nothing of it counts as archived, and mending loses nothing more."""

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from mailserver.archive.archive import Archive
from mailserver.archive.faults import FaultKind
from mailserver.archive.layout import PartitionBy
from mailserver.archive.manifest import PeriodRecord, lost_of
from mailserver.handoff.last_run import ArchivedDay, ArchiveFigures, Compaction
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.handoff import compaction_file, read_archived, read_compaction, write_compaction
from spark_export import load
from spark_export.acknowledgement import acknowledge
from spark_export.errors import ArchiveGone, ExportCheckFailed, ExportError
from spark_export.mending import Mending
from spark_export.merge import merge
from spark_export.read import read_archive
from spark_export.recording import recorded
from spark_export.run_report import RunReport, archived_days
from spark_export.storage import LocalStorage
from spark_export.verify import verify
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    NEWS,
    archived,
    compact_into,
    envelope,
    envelopes,
    prune,
    put,
    rows_of,
    rows_of_file,
    tree,
    visible_files,
)

pytestmark = pytest.mark.spark

NOW = (DAY + 10) * DAY_S
A_WEEK = 8 * DAY_S
FIRST, SECOND, THIRD = "2024-10-04", "2024-10-05", "2024-10-06"
ONE, TWO, THREE = envelopes(30), envelopes(30, day=DAY + 1, first=100), envelopes(30, day=DAY + 2, first=200)


class Killed(BaseException):
    """The end of a run."""


class Place:
    """A store of three days, and their archive."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "mailserver.db"
        self.archive = folder / "archive"

    def copy(self, to: Path) -> "Place":
        shutil.copytree(self.store.parent, to)
        for second in to.glob("archive/_snapshots/date=*/run=*/*/*"):  # a copy of the content would be another file
            first = to / "archive" / second.parts[-4] / second.parts[-2] / f"{second.name}.parquet"
            second.unlink()
            second.hardlink_to(first)
        return Place(to)

    def run(self, spark: SparkSession, name: str, now: float = NOW) -> RunReport:
        return compact_into(spark, self.archive, self.store, now=now, run=name)

    def files(self, period: str) -> list[Path]:
        return [file for file in visible_files(self.archive) if file.parts[-3] == f"date={period}"]

    def file(self, period: str) -> Path:
        """The file that holds topic NEWS."""
        (file,) = (self.archive / f"date={period}").glob(f"topic*={NEWS.hex()[0]}/*")
        return file

    def forget_second_names(self) -> None:
        shutil.rmtree(self.archive / "_snapshots")

    def records(self) -> dict[str, PeriodRecord]:
        return Archive(LocalStorage(self.archive)).records()

    def covered(self) -> set[int]:
        """The days of which the mailserver may delete rows, relative to DAY."""
        handover = read_archived(self.store)
        assert handover is not None
        return {day - DAY for day in handover.days}

    def set_aside(self) -> list[Path]:
        return sorted(file for file in (self.archive / "_damaged").rglob("*") if file.is_file())


def flip(file: Path, offset: int | None = None) -> None:
    """Turn one bit, by default in the middle of the file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if offset is None else offset] ^= 0x10
    with file.open("r+b") as same:  # second names lead to the same bytes
        same.write(content)


@pytest.fixture(scope="module")
def sound(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("mending") / "place")
    put(place.store, ONE, TWO, THREE)
    compact_into(
        spark, place.archive, place.store, now=NOW, run="run-1", partition_by=PartitionBy.TOPIC_PREFIX, prefix_digits=1
    )
    return place


@pytest.fixture
def place(sound: Place, tmp_path: Path) -> Place:
    return sound.copy(tmp_path / "place")


def named(report: RunReport) -> list[tuple[str, FaultKind]]:
    return [(fault.period, fault.kind) for fault in report.faults]


def lost(report: RunReport) -> dict[str, int]:
    return {loss.as_json()["day"]: loss.rows for loss in report.losses}


def test_day_that_was_deleted_and_a_turned_bit_are_named_and_archived_again_from_the_store(
    spark: SparkSession, place: Place
) -> None:
    place.forget_second_names()
    shutil.rmtree(place.archive / f"date={FIRST}")
    flip(place.file(SECOND))

    report = place.run(spark, "run-2", NOW + A_WEEK)

    assert {period for period, _ in named(report)} == {FIRST, SECOND}
    assert (SECOND, FaultKind.DAMAGED) in named(report)
    assert "missing or damaged" in report.damage
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    assert report.losses == ()
    assert place.covered() == {0, 1, 2}
    assert len(place.set_aside()) == 1
    again = place.run(spark, "run-3", NOW + A_WEEK)
    assert (again.damage, again.rows) == ("", 0)
    assert not verify(spark, str(place.archive), now=NOW + A_WEEK).faults


def test_what_is_gone_is_not_covered_before_it_is_mended(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: Any) -> None:
        raise Killed

    place.forget_second_names()
    shutil.rmtree(place.archive / f"date={FIRST}")
    flip(place.file(SECOND))
    monkeypatch.setattr(Mending, "mend", kill)

    with pytest.raises(Killed):
        place.run(spark, "run-2", NOW + A_WEEK)

    assert place.covered() == {2}
    with pytest.raises(Killed):  # nor by a run whose turn it is not to read that day
        place.run(spark, "run-3", NOW + A_WEEK + 60)
    assert place.covered() == {2}


def test_rows_that_are_lost_stay_named_until_they_are_acknowledged(spark: SparkSession, place: Place) -> None:
    place.forget_second_names()
    prune(place.store, before=(DAY + 2) * DAY_S, archived={DAY: 30, DAY + 1: 60})
    shutil.rmtree(place.archive / f"date={FIRST}")

    reports = [place.run(spark, f"run-{number}") for number in (2, 3)]

    for report in reports:
        assert lost(report) == {FIRST: 30}
        assert "30 rows that were in the archive are lost" in report.damage
    assert {file for loss in reports[1].losses for file in loss.files} == {str(f) for f in gone_files(reports[0])}
    assert archived(place.archive) == rows_of([*TWO, *THREE])

    said = acknowledge(spark, str(place.archive), now=NOW)

    assert [loss.rows for loss in said.losses] == [30]
    report = place.run(spark, "run-4")
    assert report.damage == ""
    (incident,) = json.loads((place.archive / "_incidents.json").read_text())["incidents"]
    assert (incident["acknowledged_at"], incident["lost_rows"]) == (NOW, 30)
    assert acknowledge(spark, str(place.archive), now=NOW + 1).losses == ()


def gone_files(report: RunReport) -> list[str]:
    return [fault.file for fault in report.faults if fault.kind is FaultKind.MISSING]


def many_envelopes() -> list[NewEnvelope]:
    """Enough for several row groups of a megabyte, all received on the first day."""
    return [envelope(number, received=DAY * DAY_S + number, size=1000) for number in range(6000)]


def test_every_whole_row_of_a_damaged_file_and_what_the_store_has_are_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "ROW_GROUP_BYTES", 1024 * 1024)
    place = Place(tmp_path / "place")
    many = many_envelopes()
    put(place.store, many)
    place.run(spark, "run-1")
    place.forget_second_names()
    prune(place.store, before=DAY * DAY_S + 5500, archived={DAY: 5500})
    file = place.files(FIRST)[0]
    groups = pq.ParquetFile(file).metadata.num_row_groups
    flip(file, file.stat().st_size // 3)

    report = place.run(spark, "run-2", NOW + A_WEEK)

    rows = archived(place.archive)
    assert groups > 2
    assert {row["hash"] for row in rows} <= {row["hash"] for row in rows_of(many)}
    assert len(rows) > 3000  # of which the store had 500
    assert len(rows) + sum(lost(report).values()) == 6000


def test_missing_files_come_back_by_their_second_names(spark: SparkSession, place: Place) -> None:
    prune(place.store, before=(DAY + 2) * DAY_S, archived={DAY: 30, DAY + 1: 60})
    before = tree(place.archive, without=("_records", "_runs", "_lock", "_incidents.json"))
    shutil.rmtree(place.archive / f"date={FIRST}")

    report = place.run(spark, "run-2")

    assert {period for period, _ in named(report)} == {FIRST}
    assert report.losses == ()
    assert tree(place.archive, without=("_records", "_runs", "_lock", "_incidents.json")) == before
    assert place.covered() == {2}  # as before: no other day is in the store
    assert place.run(spark, "run-3").damage == ""


def test_files_that_verify_stay_as_they_are(spark: SparkSession, place: Place) -> None:
    prune(place.store, before=(DAY + 2) * DAY_S, archived={DAY: 30, DAY + 1: 60})
    whole = [file for file in place.files(FIRST) if file != place.file(FIRST)]
    assert whole
    before = [(file.stat().st_ino, file.read_bytes()) for file in whole]
    content = place.file(FIRST).read_bytes()
    name = place.file(FIRST)
    truncate = content[: len(content) // 2]
    place.forget_second_names()
    name.write_bytes(truncate)

    report = place.run(spark, "run-2")

    assert [(file.stat().st_ino, file.read_bytes()) for file in whole] == before
    (aside,) = place.set_aside()
    assert aside.read_bytes() == truncate
    rows = rows_of(ONE)
    kept = {row["hash"] for row in archived(place.archive, FIRST)}
    assert kept == {row["hash"] for row in rows if not row["topic"].startswith("0x9")}
    assert lost(report) == {FIRST: sum(row["topic"].startswith("0x9") for row in rows)}
    read = {row["hash"] for row in read_archive(spark, str(place.archive)).select("hash").collect()}
    assert read == {row["hash"] for row in archived(place.archive)}

    # The operator puts the file back from a copy: its rows are taken in, and nothing is lost any more.
    name.parent.mkdir(exist_ok=True)
    name.write_bytes(content)
    report = place.run(spark, "run-3")
    assert [kind for _, kind in named(report)] == [FaultKind.UNRECORDED]
    assert report.losses == ()
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    assert place.run(spark, "run-4").damage == ""


def test_directory_without_a_record_and_a_record_that_is_not_whole_lose_nothing(
    spark: SparkSession, place: Place
) -> None:
    prune(place.store, before=(DAY + 2) * DAY_S, archived={DAY: 30, DAY + 1: 60})
    (place.archive / "_records" / f"{FIRST}.json").unlink()
    (place.archive / "_records" / f"{SECOND}.json").write_text('{"version": 1')

    report = place.run(spark, "run-2")

    assert {period for period, _ in named(report)} == {FIRST, SECOND}
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    assert sorted(place.records()) == [FIRST, SECOND, THIRD]
    assert place.run(spark, "run-3").losses == ()


def test_record_that_was_damaged_stays_named_until_it_is_acknowledged(spark: SparkSession, place: Place) -> None:
    prune(place.store, before=(DAY + 2) * DAY_S, archived={DAY: 30, DAY + 1: 60})
    (place.archive / "_records" / f"{SECOND}.json").write_text('{"version": 1')
    place.forget_second_names()
    place.file(SECOND).unlink()  # nobody can tell that it was there
    place.run(spark, "run-2")

    again = place.run(spark, "run-3")

    assert named(again) == [(SECOND, FaultKind.RECORD)]
    assert again.archive_figures().faults == 1
    assert f"records of the archive were damaged ({SECOND})" in again.damage
    assert verify(spark, str(place.archive), now=NOW).faults == tuple(again.faults)
    month = merge(spark, str(place.archive), now=(DAY + 60) * DAY_S, run="merge-1")
    assert [period["period"] for period in month.periods] == ["2024-10"]  # what is there is whole
    assert named(month) == named(again)
    said = acknowledge(spark, str(place.archive), now=NOW)
    assert said.damaged_records == tuple(again.faults)
    assert f"_records/{SECOND}.json" in said.as_words()[1]
    assert place.run(spark, "run-4").damage == ""

    strange = place.archive / f"date={SECOND}" / "topic_prefix=9" / "by-hand.parquet"
    strange.parent.mkdir(parents=True)
    shutil.copy(place.set_aside()[-1], strange)
    assert named(place.run(spark, "run-5")) == [(SECOND, FaultKind.UNRECORDED)]


def forget(place: Place, period: str) -> None:
    """Delete what a period has, and all that is said of it, but for second names."""
    shutil.rmtree(place.archive / f"date={period}")
    (place.archive / "_records" / f"{period}.json").unlink()


def write_last_run(place: Place) -> None:
    """As the command does at its end."""
    with recorded([place.store], lambda error: (1, str(error))) as recording:
        report: Mapping[str, Any] = {"archive": LocalStorage(place.archive).url, "rows": 0, "bytes": 0, "days": []}
        recording.succeeded(report, archived_days(place.records()), ArchiveFigures())


def make_old(folder: Path) -> None:
    """So old that what is not needed any more would be deleted."""
    for name in folder.glob("date=*/run=*"):
        os.utime(name, (0, 0))


@pytest.mark.parametrize("is_merged", [False, True])
def test_second_names_of_what_no_record_speaks_of_are_taken_in(
    spark: SparkSession, place: Place, *, is_merged: bool
) -> None:
    later = (DAY + 60) * DAY_S
    prune(place.store, before=(DAY + 3) * DAY_S, archived={DAY: 30, DAY + 1: 60, DAY + 2: 90})
    if is_merged:
        merge(spark, str(place.archive), now=later, run="merge-1")
        for day in (FIRST, SECOND, THIRD):  # as a day later
            shutil.rmtree(place.archive / "_snapshots" / f"date={day}")
    forget(place, period := "2024-10" if is_merged else FIRST)
    make_old(place.archive / "_snapshots")

    assert [(fault.period, fault.kind) for fault in verify(spark, str(place.archive), now=later).faults] == [
        (period, FaultKind.RECORD)
    ]
    report = place.run(spark, "run-2", later)

    assert (period, FaultKind.RECORD) in named(report)
    assert f"records of the archive were damaged ({period})" in report.damage
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    assert named(place.run(spark, "run-3", later)) == [(period, FaultKind.RECORD)]  # nobody knows how many there were
    acknowledge(spark, str(place.archive), now=later)
    assert place.run(spark, "run-3", later).damage == ""
    merge(spark, str(place.archive), now=later, run="merge-2")
    assert sorted(place.records()) == ["2024-10"]
    assert place.run(spark, "run-4", later).damage == ""


@pytest.mark.parametrize("is_pruned", [False, True])
def test_day_that_no_record_speaks_of_any_more_is_lost_and_not_forgotten(
    spark: SparkSession, place: Place, *, is_pruned: bool
) -> None:
    place.run(spark, "run-2")
    write_last_run(place)
    if is_pruned:
        prune(place.store, before=(DAY + 2) * DAY_S, archived={DAY: 30, DAY + 1: 60})
    place.forget_second_names()
    forget(place, FIRST)

    reports = [place.run(spark, "run-3")]
    write_last_run(place)
    reports.append(place.run(spark, "run-4"))

    assert named(reports[0]) == [(FIRST, FaultKind.MISSING)]
    assert "lacks 30 rows of 2024-10-04" in str(reports[0].faults[0])
    assert named(reports[1]) == []
    if not is_pruned:
        assert [lost(report) for report in reports] == [{}, {}]
        assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
        return
    assert [lost(report) for report in reports] == [{FIRST: 30}, {FIRST: 30}]
    assert {loss.files for loss in reports[1].losses} == {(f"_records/{FIRST}.json",)}
    acknowledge(spark, str(place.archive), now=NOW + 1)
    assert place.run(spark, "run-5").damage == ""
    assert archived(place.archive) == rows_of([*TWO, *THREE])


def test_month_of_long_ago_that_no_record_speaks_of_is_named_until_it_is_acknowledged(
    spark: SparkSession, place: Place
) -> None:
    later = (DAY + 60) * DAY_S
    prune(place.store, before=(DAY + 3) * DAY_S, archived={DAY: 30, DAY + 1: 60, DAY + 2: 90})
    recent = envelopes(5, day=DAY + 59, first=700)
    put(place.store, recent)
    merge(spark, str(place.archive), now=later, run="merge-1")
    place.run(spark, "run-2", later)
    write_last_run(place)
    last = read_compaction(place.store)
    assert last is not None
    write_compaction(place.store, replace(last, archived={DAY + 59: last.archived[DAY + 59]}))  # years later
    place.forget_second_names()
    forget(place, "2024-10")

    for number in (3, 4):
        report = place.run(spark, f"run-{number}", later)
        assert named(report) == [("2024-10", FaultKind.RECORD)]
        assert "lacks 90 rows of 2024-10" in str(report.faults[0])
    acknowledge(spark, str(place.archive), now=int(time.time()) + 10)
    assert place.run(spark, "run-5", later).damage == ""
    assert archived(place.archive) == rows_of(recent)


def test_archive_that_was_put_back_from_an_older_copy_lacks_what_came_later(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    late = envelopes(10, first=300)
    older = place.copy(tmp_path / "older")
    put(place.store, late)
    place.run(spark, "run-2")
    write_last_run(place)
    assert place.covered() == {0, 1, 2}
    prune(place.store, before=(DAY + 1) * DAY_S, archived={DAY: 100})
    shutil.rmtree(place.archive)
    older.archive.rename(place.archive)

    report = place.run(spark, "run-3")

    assert named(report) == [(FIRST, FaultKind.MISSING)]
    assert lost(report) == {FIRST: 10}
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])


def test_second_names_that_are_damaged_or_empty_are_kept_and_stop_no_run(spark: SparkSession, place: Place) -> None:
    forget(place, FIRST)
    forget(place, SECOND)
    names = {
        day: [path for path in (place.archive / "_snapshots" / f"date={day}").rglob("*") if path.is_file()]
        for day in (FIRST, SECOND)
    }
    for path in names[FIRST]:
        path.unlink()
    damaged = max(names[SECOND], key=lambda path: path.stat().st_size)
    damaged.write_bytes(content := damaged.read_bytes()[:-100])
    make_old(place.archive / "_snapshots")
    prune(place.store, before=(DAY + 1) * DAY_S + 60 * 20, archived={DAY + 1: 90})

    for number in (2, 3):
        report = place.run(spark, f"run-{number}")
        assert set(named(report)) == {(FIRST, FaultKind.RECORD), (SECOND, FaultKind.RECORD)}

    assert content in [path.read_bytes() for path in place.set_aside()]
    assert {row["hash"] for row in archived(place.archive)} >= {row["hash"] for row in rows_of([*TWO[20:], *THREE])}


def test_archive_that_was_not_mounted_and_is_put_back_from_an_older_copy_has_lost_nothing(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    older = place.copy(tmp_path / "older")
    put(place.store, envelopes(10, first=300))
    place.run(spark, "run-2")
    write_last_run(place)
    shutil.rmtree(place.archive)
    with pytest.raises(ArchiveGone):
        place.run(spark, "run-3")
    (older.archive / "_records" / f"{SECOND}.json").unlink()
    shutil.rmtree(older.archive / f"date={SECOND}")
    shutil.rmtree(older.archive / "_snapshots")
    older.archive.rename(place.archive)

    report = place.run(spark, "run-4")

    assert set(named(report)) == {(FIRST, FaultKind.MISSING), (SECOND, FaultKind.MISSING)}
    assert lost(report) == {}
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE, *envelopes(10, first=300)])
    assert place.run(spark, "run-5").damage == ""


def test_day_of_two_stores_that_is_gone_comes_back_from_both(spark: SparkSession, tmp_path: Path) -> None:
    place, other = Place(tmp_path / "place"), tmp_path / "other" / "mailserver.db"
    put(place.store, ONE, THREE)
    put(other, more := envelopes(20, first=400))
    compact_into(spark, place.archive, place.store, other, now=NOW, run="run-1")
    write_last_run(place)
    shutil.copy(compaction_file(place.store), compaction_file(other))
    place.forget_second_names()
    forget(place, FIRST)

    report = compact_into(spark, place.archive, place.store, other, now=NOW, run="run-2")

    assert named(report) == [(FIRST, FaultKind.MISSING)]
    assert lost(report) == {}
    assert archived(place.archive) == rows_of([*ONE, *more, *THREE])


def test_what_another_store_has_on_another_day_is_archived_again(spark: SparkSession, tmp_path: Path) -> None:
    place, other = Place(tmp_path / "place"), tmp_path / "other" / "mailserver.db"
    put(place.store, ONE, TWO)
    late = [one._replace(received=one.received + 3 * DAY_S) for one in ONE]
    put(other, late)
    compact_into(spark, place.archive, place.store, other, now=NOW, run="run-1")
    prune(place.store, before=(DAY + 1) * DAY_S, archived={DAY: 30})
    place.forget_second_names()
    shutil.rmtree(place.archive / f"date={FIRST}")

    compact_into(spark, place.archive, place.store, other, now=NOW, run="run-2")

    assert {row["hash"] for row in archived(place.archive)} == {row["hash"] for row in rows_of([*ONE, *TWO])}


def test_months_that_are_merged_twice_within_a_day_miss_nothing(spark: SparkSession, place: Place) -> None:
    later = (DAY + 60) * DAY_S
    merge(spark, str(place.archive), now=later, run="merge-1")
    put(place.store, envelopes(5, first=500))
    place.run(spark, "run-2", later)
    merge(spark, str(place.archive), now=later, run="merge-2")
    merge(spark, str(place.archive), now=later, run="merge-3")

    assert place.run(spark, "run-3", later).damage == ""


def test_damaged_record_of_a_day_that_the_last_run_knew_loses_nothing(spark: SparkSession, place: Place) -> None:
    write_last_run(place)
    prune(place.store, before=(DAY + 2) * DAY_S, archived={DAY: 30, DAY + 1: 60})
    (place.archive / "_records" / f"{SECOND}.json").write_text('{"version": 1')

    report = place.run(spark, "run-2")

    assert (SECOND, FaultKind.RECORD) in named(report)
    assert lost(report) == {}
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    acknowledge(spark, str(place.archive), now=NOW)
    assert place.run(spark, "run-3").damage == ""


def test_rows_that_were_set_aside_and_whose_record_is_lost_are_not_counted_below_zero(
    spark: SparkSession, place: Place
) -> None:
    acknowledge(spark, str(place.archive), now=NOW)
    incidents = place.archive / "_incidents.json"
    text = incidents.read_text()
    incidents.write_text(text.replace('"quarantined_acknowledged": 0', '"quarantined_acknowledged": 5'))

    assert place.run(spark, "run-2").quarantined_in_all == 0
    assert acknowledge(spark, str(place.archive), now=NOW).quarantined == 0
    shutil.rmtree(place.archive / "_records")
    for directory in place.archive.glob("date=*"):
        shutil.rmtree(directory)
    acknowledge(spark, str(place.archive), now=NOW, all_is_lost=True)
    assert json.loads(incidents.read_text())["quarantined_acknowledged"] == 0


def test_what_another_archive_had_is_not_missed(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    write_last_run(place)
    prune(place.store, before=(DAY + 1) * DAY_S, archived={DAY: 30})

    report = compact_into(spark, tmp_path / "another", place.store, now=NOW, run="run-2")
    again = compact_into(spark, tmp_path / "another", place.store, now=NOW, run="run-3")

    assert (report.damage, again.damage) == ("", "")


def test_rows_that_are_not_archived_again_yet_are_not_covered_by_a_later_mending(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: Any) -> None:
        raise Killed

    place.forget_second_names()
    shutil.rmtree(place.archive / f"date={FIRST}")
    with monkeypatch.context() as patched:
        patched.setattr("spark_export.compact.plan_groups", kill)
        with pytest.raises(Killed):
            place.run(spark, "run-2")
        strange = place.archive / f"date={FIRST}" / "topic_prefix=9" / "by-hand.parquet"
        strange.parent.mkdir(parents=True)
        shutil.copy(place.file(SECOND), strange)
        with pytest.raises(Killed):
            place.run(spark, "run-3")

    assert 0 not in place.covered()
    assert place.run(spark, "run-4").losses == ()
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])


def test_month_that_was_merged_is_mended_by_days(spark: SparkSession, place: Place) -> None:
    later = (DAY + 60) * DAY_S
    merge(spark, str(place.archive), now=later, run="merge-1")
    place.forget_second_names()
    prune(place.store, before=(DAY + 1) * DAY_S, archived={DAY: 30})
    (file,) = (place.archive / "date=2024-10").glob("topic_prefix=9/*")
    file.unlink()

    report = place.run(spark, "run-2", later)

    assert {period for period, _ in named(report)} == {"2024-10"}
    gone = [row for row in rows_of(ONE) if row["topic"].startswith("0x9")]
    assert lost(report) == {FIRST: len(gone)}
    assert archived(place.archive) == [
        row for row in rows_of([*ONE, *TWO, *THREE]) if row["hash"] not in {one["hash"] for one in gone}
    ]
    assert place.covered() == {1, 2}
    merge(spark, str(place.archive), now=later, run="merge-2")
    assert lost_of(place.records().values()) == {DAY: (len(gone), sum(row["size"] for row in gone))}
    assert lost(place.run(spark, "run-3", later)) == {FIRST: len(gone)}


def test_month_and_its_late_day_are_mended_together(spark: SparkSession, place: Place) -> None:
    later, late = (DAY + 60) * DAY_S, envelopes(30, day=DAY + 1, first=300)
    merge(spark, str(place.archive), now=later, run="merge-1")
    put(place.store, late)
    place.run(spark, "run-2", later)
    place.forget_second_names()
    prune(place.store, before=(DAY + 1) * DAY_S, archived={DAY: 30})
    (file,) = (place.archive / "date=2024-10").glob("topic_prefix=9/*")
    file.rename(file.with_name("by-hand.parquet"))
    os.truncate(place.file(SECOND), 100)

    report = place.run(spark, "run-3", later)

    assert {period for period, _ in named(report)} == {"2024-10", SECOND}
    assert report.losses == ()
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE, *late])
    assert place.run(spark, "run-4", later).damage == ""


def test_rows_that_go_missing_as_they_are_taken_in_are_taken_in_again(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalStorage.put

    def put_and_removed(storage: LocalStorage, source: str, target: str) -> None:
        real(storage, source, target)
        if "taken-in" in source and target == f"date={FIRST}":
            place.file(FIRST).unlink()

    prune(place.store, before=(DAY + 2) * DAY_S, archived={DAY: 30, DAY + 1: 60})
    place.forget_second_names()
    place.file(FIRST).rename(place.file(FIRST).with_name("by-hand.parquet"))
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "put", put_and_removed)
        with pytest.raises(ExportCheckFailed, match=f"check failed for {FIRST}: .* is missing"):
            place.run(spark, "run-2")

    assert place.run(spark, "run-3").losses == ()

    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    assert place.run(spark, "run-4").damage == ""


@pytest.mark.parametrize("run", [verify, merge])
def test_what_a_verification_or_merge_finds_gone_is_covered_no_more(
    spark: SparkSession, place: Place, run: Callable[..., object]
) -> None:
    place.run(spark, "run-2")  # of the archive in this folder
    place.forget_second_names()
    before = read_archived(place.store)
    assert before is not None
    assert DAY in before.days
    place.file(FIRST).unlink()
    more = {"run": "merge-1"} if run is merge else {}

    run(spark, str(place.archive), now=(DAY + 60) * DAY_S, stores=[place.store], **more)

    after = read_archived(place.store)
    assert after is not None
    assert after.days == {day: seq for day, seq in before.days.items() if day != DAY}
    assert after.verified_at == before.verified_at


def test_record_of_another_archive_is_left_alone_by_a_verification(
    spark: SparkSession, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    before = read_archived(place.store)  # of the archive that this one is a copy of
    assert before is not None

    verify(spark, str(place.archive), now=NOW, stores=[place.store])

    assert read_archived(place.store) == before
    assert "not corrected, it is of another archive" in caplog.text


def test_nothing_is_merged_where_a_record_is_damaged(spark: SparkSession, place: Place) -> None:
    (place.archive / "_records" / f"{SECOND}.json").write_text('{"version": 1')
    before = tree(place.archive)

    report = merge(spark, str(place.archive), now=(DAY + 60) * DAY_S, run="merge-1")

    assert named(report) == [(SECOND, FaultKind.RECORD)]
    assert report.periods == []
    assert tree(place.archive) == before
    place.file(FIRST).unlink()
    report = merge(spark, str(place.archive), now=(DAY + 60) * DAY_S, run="merge-2")
    assert set(named(report)) == {(SECOND, FaultKind.RECORD), (FIRST, FaultKind.MISSING)}
    assert report.periods == []


def test_what_a_month_whose_record_is_damaged_has_merged_is_not_forgotten(spark: SparkSession, place: Place) -> None:
    later = (DAY + 60) * DAY_S
    merge(spark, str(place.archive), now=later, run="merge-1")
    days = {f"date={day}" for day in (FIRST, SECOND, THIRD)}
    assert days <= {name.name for name in (place.archive / "_snapshots").iterdir()}
    (place.archive / "_records" / "2024-10.json").write_text('{"version": 1')

    verified = verify(spark, str(place.archive), now=later)
    merged = merge(spark, str(place.archive), now=later, run="merge-2")

    month = [("2024-10", FaultKind.RECORD)]
    assert [(fault.period, fault.kind) for fault in verified.faults] == named(merged) == month
    place.run(spark, "run-2", later)
    acknowledge(spark, str(place.archive), now=later)
    assert place.run(spark, "run-3", later).damage == ""
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])


def test_merge_leaves_a_damaged_month_alone_and_names_it(spark: SparkSession, place: Place) -> None:
    place.forget_second_names()
    place.file(FIRST).unlink()

    report = merge(spark, str(place.archive), now=(DAY + 60) * DAY_S, run="merge-1")

    assert [(fault.period, fault.rows) for fault in report.faults] == [(FIRST, 20)]
    assert sorted(place.records()) == [FIRST, SECOND, THIRD]


@pytest.mark.parametrize("remains", [False, True])
def test_archive_that_is_not_mounted_is_refused_and_covers_nothing(
    spark: SparkSession, place: Place, tmp_path: Path, *, remains: bool
) -> None:
    compact_into(spark, place.archive, place.store, now=NOW, run="run-2")
    last = Compaction(1.0, 2.0, 0, succeeded_at=2.0, archived={DAY: ArchivedDay(30, 300)})
    write_compaction(place.store, last)  # as the command does
    place.archive.rename(tmp_path / "elsewhere")
    if remains:
        place.archive.mkdir()

    for _ in range(2):
        with pytest.raises(ArchiveGone, match="is its disk mounted"):
            place.run(spark, "run-3")
        assert place.covered() == set()
    assert not list(place.archive.glob("*")) if remains else not place.archive.exists()

    shutil.rmtree(place.archive, ignore_errors=True)
    (tmp_path / "elsewhere").rename(place.archive)
    assert place.run(spark, "run-4").damage == ""
    assert place.covered() == {0, 1, 2}


def test_new_archive_begins_once_an_operator_has_said_that_all_is_lost(spark: SparkSession, place: Place) -> None:
    with pytest.raises(ExportError, match="is not lost as a whole"):
        acknowledge(spark, str(place.archive), now=NOW, all_is_lost=True)
    shutil.rmtree(place.archive)
    with pytest.raises(ExportError, match="there is no archive"):
        acknowledge(spark, str(place.archive), now=NOW)

    acknowledge(spark, str(place.archive), now=NOW + 1, all_is_lost=True)
    report = place.run(spark, "run-2", NOW + 2)

    assert report.rows == 90
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    assert place.covered() == {0, 1, 2}


def test_contents_are_read_again_by_turns_within_a_week(spark: SparkSession, place: Place) -> None:
    for day in range(1, 9):
        place.run(spark, f"run-{day}", NOW + day * DAY_S)
        ages = [NOW + day * DAY_S - record.verified_at for record in place.records().values()]
        assert max(ages) <= 7 * DAY_S
    assert len({record.verified_at for record in place.records().values()}) > 1  # not all in one night


def test_mending_that_is_killed_before_any_change_is_done_by_the_next_run(
    spark: SparkSession, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prune(place.store, before=(DAY + 2) * DAY_S, archived={DAY: 30, DAY + 1: 60})
    place.forget_second_names()
    file = place.file(FIRST)
    shutil.copy(file, file.with_name("by-hand.parquet"))
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:100])
    real = {name: getattr(LocalStorage, name) for name in ("write", "put", "link", "remove", "sync", "touch")}

    def dying(at: int) -> None:
        calls = itertools.count()

        def wrapped(change: Callable[..., Any]) -> Callable[..., Any]:
            def step(*args: Any, **options: Any) -> Any:
                if next(calls) == at:
                    raise Killed
                return change(*args, **options)

            return step

        for name, change in real.items():
            monkeypatch.setattr(LocalStorage, name, wrapped(change))

    outcomes = set()
    for at in itertools.count():
        case = Place(shutil.copytree(place.store.parent, tmp_path / str(at)))
        dying(at)
        try:
            case.run(spark, "run-2")
        except Killed:
            kept = {row["hash"] for found in case.archive.rglob("*.parquet") for row in whole_rows(found)}
            assert kept == {row["hash"] for row in rows_of([*ONE, *TWO, *THREE])}
            outcomes.add(archived_well(case))
            dying(-1)
            report = case.run(spark, "run-3")
        else:
            break
        finally:
            dying(-1)
        assert report.losses == ()
        assert archived(case.archive) == rows_of([*ONE, *TWO, *THREE])
        assert sorted(path.stat().st_size for path in case.set_aside()) == sorted([100, size])
        assert lost_of(case.records().values()) == {}
        assert case.run(spark, "run-4").damage == ""
    assert at > 12
    assert outcomes == {False, True}


def whole_rows(file: Path) -> list[dict[str, Any]]:
    return [] if file.stat().st_size == 100 else rows_of_file(file)


def archived_well(case: Place) -> bool:
    """Whether readers of directories see what they should."""
    files = [file for file in visible_files(case.archive) if file.name != "by-hand.parquet"]
    return sum(len(whole_rows(file)) for file in files) == 90


def test_records_of_earlier_versions_are_read_and_get_digests(spark: SparkSession, place: Place) -> None:
    for file in (place.archive / "_records").iterdir():
        record = json.loads(file.read_text())
        del record["verified_at"]
        record["files"] = [entry[:3] for entry in record["files"]]
        for day in record["days"].values():
            del day["lost"], day["stores_before"]
        file.write_text(json.dumps(record))

    assert place.run(spark, "run-2").damage == ""

    for record in place.records().values():
        assert record.verified_at == NOW
        assert all(len(file.sha256) == 64 for file in record.files)
    assert place.covered() == {0, 1, 2}


def test_archive_of_one_directory_per_topic_is_mended(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    put(place.store, ONE)
    compact_into(spark, place.archive, place.store, run="run-1", partition_by=PartitionBy.TOPIC)
    prune(place.store, before=DAY * DAY_S + 60 * 15, archived={DAY: 15})
    place.forget_second_names()
    news, other = sorted(place.files(FIRST))[:2]
    content = news.read_bytes()
    news.with_name("by-hand.parquet").write_bytes(content)
    news.unlink()
    gone = {row["hash"] for row in rows_of_file(other)} & {row["hash"] for row in rows_of(ONE[:15])}
    other.unlink()

    report = place.run(spark, "run-2")

    assert lost(report) == {FIRST: len(gone)}
    assert {row["hash"] for row in rows_of(ONE)} - {row["hash"] for row in archived(place.archive)} == gone
    assert archived(place.archive) == [row for row in rows_of(ONE) if row["hash"] not in gone]
