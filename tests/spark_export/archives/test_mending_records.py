"""Records that are damaged or gone, and whole archives: what nobody knows of is named, and nothing is forgotten."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.faults import FaultKind
from mailserver.handoff.last_run import ArchivedDay, Compaction
from mailserver.store.sqlite.handoff import compaction_file, read_compaction, write_compaction
from spark_export.acknowledgement import acknowledge
from spark_export.errors import ArchiveGone, ExportError
from spark_export.merge import merge
from spark_export.verify import verify
from tests.spark_export.damage import NOW, ONE, THREE, TWO, Place, forget, lost, make_old, named, write_last_run
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    FIRST,
    SECOND,
    THIRD,
    archived,
    compact_into,
    envelopes,
    prune,
    put,
    rows_of,
)

pytestmark = pytest.mark.spark


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
    recently = {DAY + 59: last.archived[DAY + 59]}  # years later
    write_compaction(place.store, replace(last, succeeded_at=float(later), archived=recently))
    place.forget_second_names()
    forget(place, "2024-10")

    for number in (3, 4):
        report = place.run(spark, f"run-{number}", later)
        assert named(report) == [("2024-10", FaultKind.RECORD)]
        assert "lacks 90 rows of 2024-10" in str(report.faults[0])
    acknowledge(spark, str(place.archive), now=later)
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
    with pytest.raises(ExportError, match="there still is an archive"):
        acknowledge(spark, str(place.archive), now=NOW, all_is_lost=True)
    shutil.rmtree(place.archive)
    with pytest.raises(ExportError, match="there is no archive"):
        acknowledge(spark, str(place.archive), now=NOW)

    acknowledge(spark, str(place.archive), now=NOW + 1, all_is_lost=True)
    report = place.run(spark, "run-2", NOW + 2)

    assert report.rows == 90
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    assert place.covered() == {0, 1, 2}
