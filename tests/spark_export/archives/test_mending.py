"""A damaged archive: it is named, nothing of it counts as archived, and mending loses nothing more."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from mailserver.archive.faults import FaultKind
from mailserver.archive.layout import PartitionBy
from mailserver.archive.manifest import lost_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.interface import NewEnvelope
from spark_export.acknowledgement import acknowledge
from spark_export.errors import ExportCheckFailed
from spark_export.mending import Mending
from spark_export.read import read_archive
from spark_export.run_report import RunReport
from spark_export.storage import LocalStorage
from spark_export.verify import verify
from tests.spark_export.damage import A_WEEK, NOW, ONE, THREE, TWO, Killed, Place, flip, lost, named
from tests.spark_export.moments import Moments
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    FIRST,
    SECOND,
    archived,
    compact_into,
    envelope,
    prune,
    put,
    rows_of,
    rows_of_file,
    tree,
    visible_files,
)

pytestmark = pytest.mark.spark


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


def test_every_whole_row_of_a_damaged_file_and_what_the_store_has_are_kept(spark: SparkSession, tmp_path: Path) -> None:
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
    files = [pq.ParquetFile(file).read(["hash", "seq"]) for file in visible_files(place.archive)]
    assert place.records()[FIRST].network_topic == DEFAULT_NETWORK_TOPIC
    arrived = {row["hash"]: row["seq"] for found in files for row in found.to_pylist()}
    assert arrived.items() <= {"0x" + one.hash.hex(): seq for seq, one in enumerate(many, 1)}.items()


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
    assert place.records()[FIRST].network_topic == DEFAULT_NETWORK_TOPIC
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


def test_contents_are_read_again_by_turns_within_a_week(spark: SparkSession, place: Place) -> None:
    for day in range(1, 9):
        place.run(spark, f"run-{day}", NOW + day * DAY_S)
        ages = [NOW + day * DAY_S - record.verified_at for record in place.records().values()]
        assert max(ages) <= 7 * DAY_S
    assert len({record.verified_at for record in place.records().values()}) > 1  # not all in one night


def test_mending_that_is_killed_before_any_change_is_done_by_the_next_run(
    spark: SparkSession, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run, and what there was before each of its changes: that is what a run leaves that is killed then."""
    prune(place.store, before=(DAY + 2) * DAY_S, archived={DAY: 30, DAY + 1: 60})
    place.forget_second_names()
    file = place.file(FIRST)
    shutil.copy(file, file.with_name("by-hand.parquet"))
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:100])
    moments = Moments(place.store.parent, tmp_path)
    with monkeypatch.context() as patched:
        moments.watch(patched, [(LocalStorage, name) for name in ("write", "put", "link", "remove", "sync", "touch")])
        place.run(spark, "run-2")

    outcomes = set()
    for case in map(Place, moments.folders):
        kept = {row["hash"] for found in case.archive.rglob("*.parquet") for row in whole_rows(found)}
        assert kept == {row["hash"] for row in rows_of([*ONE, *TWO, *THREE])}
        outcomes.add(archived_well(case))
        report = case.run(spark, "run-3")
        assert report.losses == ()
        assert archived(case.archive) == rows_of([*ONE, *TWO, *THREE])
        assert sorted(path.stat().st_size for path in case.set_aside()) == sorted([100, size])
        assert lost_of(case.records().values()) == {}
        assert case.run(spark, "run-4").damage == ""
    assert moments.steps > 12
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
