"""The index beside a period's files: written and published with them, watched, and made anew; no row depends on it."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.index.check import check_index
from mailserver.archive.manifest import PeriodRecord
from mailserver.archive.paths import INDEXES, directory_of, index_of, snapshot_of
from spark_export.merge import merge
from spark_export.publishing import WritableArchive
from spark_export.storage import LocalStorage
from spark_export.verify import verify
from tests.spark_export.damage import A_WEEK, NOW, ONE, THREE, TWO, Place, flip, make_old
from tests.spark_export.samples import DAY, DAY_S, FIRST, SECOND, archived, compact_into, envelopes, prune, put, rows_of

pytestmark = pytest.mark.spark

LONG_AFTER = (DAY + 60) * DAY_S


def index_file(place: Place, record: PeriodRecord) -> Path:
    return place.archive / index_of(record.period, record.run)


def assert_indexed(place: Place) -> None:
    """Every period has an index, of its files as they are, and there is no other index."""
    records = place.records()
    for record in records.values():
        folder = place.archive / directory_of(record.period)
        with index_file(place, record).open("rb") as index:
            check_index(index, record, partial(opened, folder))
    assert set(indexes(place)) == {index_of(record.period, record.run) for record in records.values()}


def opened(folder: Path, path: str) -> BinaryIO:
    return (folder / path).open("rb")


def indexes(place: Place) -> list[str]:
    found = (place.archive / INDEXES).rglob("*")
    return sorted(str(file.relative_to(place.archive)) for file in found if file.is_file())


def forget_index(place: Place, period: str) -> None:
    """Have a period as earlier versions wrote it: without index."""
    record = place.records()[period]
    index_file(place, record).unlink()
    name = place.archive / "_records" / f"{period}.json"
    assert record.index is not None
    lines = name.read_text().partition('"index"')[0].rstrip().rstrip(",")
    name.write_text(lines + "\n}\n")
    assert place.records()[period].index is None


def test_each_day_is_published_with_its_index(place: Place) -> None:
    assert sorted(place.records()) == ["2024-10-04", "2024-10-05", "2024-10-06"]
    assert_indexed(place)


def test_index_of_a_day_that_was_replaced_stays_as_long_as_its_second_names(spark: SparkSession, place: Place) -> None:
    old = place.records()[FIRST]
    put(place.store, envelopes(5, first=400))

    place.run(spark, "run-2")
    place.run(spark, "run-3")

    assert index_file(place, old).exists()
    os.utime(place.archive / snapshot_of(old), (0, 0))
    place.run(spark, "run-4")
    assert_indexed(place)


def test_index_of_a_run_that_was_killed_is_removed(spark: SparkSession, place: Place) -> None:
    old = index_file(place, place.records()[FIRST])
    for name in ("date=2024-10-04/run=killed.index", "date=2024-12-01/run=killed.index"):
        (place.archive / INDEXES / name).parent.mkdir(exist_ok=True)
        shutil.copy(old, place.archive / INDEXES / name)

    WritableArchive(LocalStorage(place.archive)).repair()

    assert_indexed(place)


def test_merged_month_has_an_index(spark: SparkSession, place: Place) -> None:
    merge(spark, str(place.archive), now=LONG_AFTER, run="merge-1")
    make_old(place.archive / "_snapshots")

    assert merge(spark, str(place.archive), now=LONG_AFTER, run="merge-2").periods == []

    assert list(place.records()) == ["2024-10"]
    assert_indexed(place)


def damaged(file: Path) -> None:
    flip(file, file.stat().st_size // 2)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


@pytest.mark.parametrize("damage", [Path.unlink, cut, damaged])
def test_index_that_is_missing_or_damaged_is_made_anew_and_no_fault_of_the_archive(
    spark: SparkSession, place: Place, damage: Callable[[Path], None]
) -> None:
    before = place.records()
    prune(place.store, before=(DAY + 3) * DAY_S, archived={DAY: 30, DAY + 1: 60, DAY + 2: 90})
    damage(index_file(place, before[SECOND]))

    report = place.run(spark, "run-2", NOW + A_WEEK)

    assert report.damage == ""
    assert {period: record.index for period, record in place.records().items()} == {
        period: record.index for period, record in before.items()
    }
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    assert_indexed(place)


def test_verify_removes_a_damaged_index_and_the_next_compaction_makes_it_anew(
    spark: SparkSession, place: Place
) -> None:
    damaged(index_file(place, place.records()[SECOND]))

    assert not verify(spark, str(place.archive), now=NOW).faults

    assert not index_file(place, place.records()[SECOND]).exists()
    place.run(spark, "run-2")
    assert_indexed(place)


def test_index_of_a_period_that_was_mended_is_of_what_is_left(spark: SparkSession, place: Place) -> None:
    prune(place.store, before=(DAY + 3) * DAY_S, archived={DAY: 30, DAY + 1: 60, DAY + 2: 90})
    place.forget_second_names()
    place.file(SECOND).unlink()

    assert place.run(spark, "run-2").damage

    assert place.records()[SECOND].files
    place.run(spark, "run-3")
    assert_indexed(place)


def test_rows_that_are_taken_in_are_indexed(spark: SparkSession, place: Place) -> None:
    place.forget_second_names()
    file = place.file(SECOND)
    file.rename(file.with_name("by-hand.parquet"))

    place.run(spark, "run-2")
    make_old(place.archive / "_snapshots")
    place.run(spark, "run-3")

    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    assert_indexed(place)


def test_archive_of_an_earlier_version_goes_on_and_gets_its_indexes_by_a_merge(
    spark: SparkSession, place: Place
) -> None:
    merge(spark, str(place.archive), now=LONG_AFTER, run="merge-1")
    forget_index(place, "2024-10")

    assert compact_into(spark, place.archive, place.store, now=LONG_AFTER, run="run-2").damage == ""
    assert place.records()["2024-10"].index is None
    months = merge(spark, str(place.archive), now=LONG_AFTER, run="merge-2").periods

    assert [month["period"] for month in months] == ["2024-10"]
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    make_old(place.archive / "_snapshots")
    compact_into(spark, place.archive, place.store, now=LONG_AFTER, run="run-3")
    assert_indexed(place)
