"""The small files that say what an archive is and what happens to it: one that is damaged ends no further run."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.errors import ArchiveError
from mailserver.archive.faults import FaultKind
from mailserver.archive.layout import Layout, PartitionBy
from spark_export.acknowledgement import acknowledge
from spark_export.errors import ArchiveGone
from spark_export.merge import merge
from spark_export.own_files import read_layout
from spark_export.publishing import WritableArchive
from spark_export.salvage import ArchiveSalvage
from spark_export.storage import LocalStorage
from spark_export.verify import verify
from tests.spark_export.damage import NOW, ONE, THREE, TWO, Killed, Place, named
from tests.spark_export.samples import DAY, DAY_S, FIRST, archived, compact_into, envelopes, prune, put, rows_of

pytestmark = pytest.mark.spark

CUT = '{"version": 1, "partit'
MIXED = Layout(PartitionBy.TOPIC_PREFIX, 2)


def kill(*_: Any) -> None:
    raise Killed


def test_damaged_file_of_incidents_is_set_aside_and_said_once(
    spark: SparkSession, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    (place.archive / "_incidents.json").write_text(CUT)

    report = place.run(spark, "run-2")

    assert named(report) == [("_incidents.json", FaultKind.DAMAGED)]
    assert "1 file of the archive is missing or damaged" in report.damage
    assert (place.archive / "_damaged" / "_incidents.json").read_text() == CUT
    assert "fault in the archive period=_incidents.json file=_incidents.json cause=" in caplog.text
    assert place.run(spark, "run-3").damage == ""
    assert place.covered() == {0, 1, 2}


@pytest.mark.parametrize("is_there", [True, False])
def test_files_that_wait_to_be_taken_in_are_found_without_their_incidents(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    """A run that finds the damage may be killed when it has set the file aside."""
    prune(place.store, before=(DAY + 2) * DAY_S, archived={DAY: 30, DAY + 1: 60})
    place.forget_second_names()
    file = place.file(FIRST)
    file.rename(file.with_name("by-hand.parquet"))
    with monkeypatch.context() as patched:
        patched.setattr(ArchiveSalvage, "take_in", kill)
        with pytest.raises(Killed):
            place.run(spark, "run-2")
    (place.archive / "_incidents.json").unlink()
    if is_there:
        (place.archive / "_incidents.json").write_text(CUT)

    report = place.run(spark, "run-3")

    assert report.losses == ()
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    assert place.run(spark, "run-4").damage == ""


def test_record_that_was_damaged_is_named_again_without_the_incidents(spark: SparkSession, place: Place) -> None:
    (place.archive / "_records" / f"{FIRST}.json").write_text(CUT)
    place.run(spark, "run-2")
    (place.archive / "_incidents.json").write_text(CUT)

    assert (FIRST, FaultKind.RECORD) in named(place.run(spark, "run-3"))

    assert [fault.period for fault in acknowledge(spark, str(place.archive), now=NOW).damaged_records] == [FIRST]
    assert place.run(spark, "run-4").damage == ""


def test_incidents_of_a_later_version_are_left_alone(spark: SparkSession, place: Place) -> None:
    (place.archive / "_incidents.json").write_text('{"version": 2}')

    with pytest.raises(ArchiveError, match="has version 2, this program knows 1"):
        place.run(spark, "run-2")

    assert (place.archive / "_incidents.json").read_text() == '{"version": 2}'
    assert not (place.archive / "_damaged").exists()


def test_loss_of_all_can_be_acknowledged_though_the_incidents_are_damaged(spark: SparkSession, place: Place) -> None:
    place.run(spark, "run-2")  # as this archive's, by the path of the copy
    for path in place.archive.iterdir():
        path.rename(place.store.parent / f"gone{path.name}")
    (place.archive / "_incidents.json").write_text(CUT)
    with pytest.raises(ArchiveGone):
        place.run(spark, "run-3")

    acknowledge(spark, str(place.archive), now=NOW + 1, all_is_lost=True)

    assert place.run(spark, "run-4", NOW + 2).rows == 90
    assert (place.archive / "_damaged" / "_incidents.json").read_text() == CUT


@pytest.mark.parametrize("partition_by", PartitionBy)
def test_damaged_settings_are_set_aside_and_made_anew_from_the_names_of_files(
    spark: SparkSession, tmp_path: Path, partition_by: PartitionBy
) -> None:
    place = Place(tmp_path / "place")
    put(place.store, ONE)
    compact_into(spark, place.archive, place.store, now=NOW, partition_by=partition_by)
    before = (place.archive / "_archive.json").read_text()
    (place.archive / "_archive.json").write_text(CUT)

    report = place.run(spark, "run-2")

    assert named(report) == [("_archive.json", FaultKind.DAMAGED)]
    assert (place.archive / "_archive.json").read_text() == before
    assert (place.archive / "_damaged" / "_archive.json").read_text() == CUT
    (place.archive / "_archive.json").unlink()  # as a run does that is killed before it has made it anew
    assert place.run(spark, "run-3").damage == ""
    assert (place.archive / "_archive.json").read_text() == before
    assert not verify(spark, str(place.archive), now=NOW).faults


def test_settings_that_nothing_tells_are_left_alone(place: Place) -> None:
    archive = WritableArchive(LocalStorage(place.archive))
    (place.archive / "_archive.json").write_text(CUT)
    record = place.archive / "_records" / f"{FIRST}.json"
    said = json.loads(record.read_text())
    for name in ("other=9/a.parquet", "topic=0x9acb0442/a.parquet"):
        said["files"][0][0] = name
        record.write_text(json.dumps(said))

        with pytest.raises(ArchiveError, match="the names of the files do not tell its layout"):
            read_layout(archive, MIXED)

    assert (place.archive / "_archive.json").read_text() == CUT
    assert archive.damage == []


def test_settings_of_an_archive_without_files_are_what_was_asked_for(place: Place) -> None:
    for record in (place.archive / "_records").iterdir():
        record.write_text(json.dumps({**json.loads(record.read_text()), "files": []}))
    (place.archive / "_records" / f"{FIRST}.json").write_text(CUT)
    (place.archive / "_archive.json").write_text(CUT)
    archive = WritableArchive(LocalStorage(place.archive))

    assert read_layout(archive, MIXED) == MIXED

    assert [fault.file for fault in archive.damage] == ["_archive.json"]
    assert archive.layout() == MIXED


@pytest.mark.parametrize("has_second_names", [True, False])
def test_damaged_journal_is_set_aside_and_nothing_that_it_spoke_of_is_lost(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, *, has_second_names: bool
) -> None:
    """The first day's files are in place when the run is killed, but its record is not, and the second day waits."""
    prune(place.store, before=(DAY + 2) * DAY_S, archived={DAY: 30, DAY + 1: 60})
    late = [*envelopes(6, first=300), *envelopes(6, day=DAY + 1, first=400)]
    put(place.store, late)
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "touch", kill)
        with pytest.raises(Killed):
            place.run(spark, "run-2")
    if not has_second_names:
        place.forget_second_names()
    journal = "_staging/run-2-0/publish.json"
    (place.archive / journal).write_text(CUT)

    report = place.run(spark, "run-3")

    assert (journal, FaultKind.DAMAGED) in named(report)
    assert (place.archive / "_damaged" / journal).read_text() == CUT
    assert report.losses == ()
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE, *late])
    assert place.run(spark, "run-4").damage == ""
    assert not list((place.archive / "_staging").iterdir())


def test_damaged_journal_of_a_merge_leaves_its_days(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(WritableArchive, "_publish", kill)
        with pytest.raises(Killed):
            merge(spark, str(place.archive), now=NOW + 30 * DAY_S, run="merge-1")
    (place.archive / "_staging" / "merge-1-0" / "publish.json").write_text(CUT)

    report = merge(spark, str(place.archive), now=NOW + 30 * DAY_S, run="merge-2")

    assert [fault.file for fault in report.faults] == ["_staging/merge-1-0/publish.json"]
    assert (place.archive / "_damaged" / "_staging" / "merge-1-0" / "publish.json").read_text() == CUT
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    assert place.run(spark, "run-2").damage == ""
