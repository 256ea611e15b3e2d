"""Damage that a merge or a verification finds, and months that are mended."""

import os
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.faults import FaultKind
from mailserver.archive.fingerprint import MODULUS
from mailserver.archive.manifest import lost_of
from mailserver.store.sqlite.handoff import read_archived
from spark_export.acknowledgement import acknowledge
from spark_export.merge import merge
from spark_export.verify import verify
from tests.spark_export.damage import NOW, ONE, THREE, TWO, Place, lost, named
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    FIRST,
    SECOND,
    THIRD,
    archived,
    envelopes,
    prune,
    put,
    rows_of,
    tree,
)

pytestmark = pytest.mark.spark


def test_months_that_are_merged_twice_within_a_day_miss_nothing(spark: SparkSession, place: Place) -> None:
    later = (DAY + 60) * DAY_S
    merge(spark, str(place.archive), now=later, run="merge-1")
    put(place.store, envelopes(5, first=500))
    place.run(spark, "run-2", later)
    merge(spark, str(place.archive), now=later, run="merge-2")
    merge(spark, str(place.archive), now=later, run="merge-3")

    assert place.run(spark, "run-3", later).damage == ""


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
    checksum = sum(int(row["hash"][2:18], 16) for row in gone) % MODULUS
    assert lost_of(place.records().values()) == {DAY: (len(gone), sum(row["size"] for row in gone), checksum)}
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
    assert "not corrected, it belongs to another archive" in caplog.text


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
