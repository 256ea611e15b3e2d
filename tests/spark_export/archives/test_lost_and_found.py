"""Rows that the archive has lost and a store brings back: they are no longer named, and no others pass for them."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.manifest import Lost
from mailserver.store.sqlite.handoff import archived_file
from spark_export.found_again import found_by_day
from tests.spark_export.damage import NOW, ONE, THREE, TWO, Place, lost
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    FIRST,
    archived,
    change,
    compact_into,
    copy_store,
    envelopes,
    identity,
    prune,
    put,
    rows_of,
)

pytestmark = pytest.mark.spark

OTHERS = envelopes(30, first=500)


@pytest.fixture
def backup(place: Place, tmp_path: Path) -> Path:
    """A copy of the store from before it deleted the first day, which the archive has lost since."""
    copy = copy_store(place.store, tmp_path / "backup.db")
    prune(place.store, before=(DAY + 1) * DAY_S, archived={DAY: 30})
    place.forget_second_names()
    for file in place.files(FIRST):
        file.unlink()
    return copy


def restore(backup: Path) -> None:
    """Give a backup an identity, as the mailserver does."""
    change(backup, "DELETE FROM identity")
    put(backup)


def test_all_that_a_restored_store_brings_back_is_no_longer_lost(
    spark: SparkSession, place: Place, backup: Path
) -> None:
    assert lost(place.run(spark, "run-2")) == {FIRST: 30}
    restore(backup)

    report = compact_into(spark, place.archive, backup, now=NOW, run="run-3")

    assert report.losses == ()
    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE])
    assert compact_into(spark, place.archive, backup, now=NOW, run="run-4").damage == ""


def test_what_a_restored_store_has_only_some_of_stays_lost_in_full(
    spark: SparkSession, place: Place, backup: Path
) -> None:
    place.run(spark, "run-2")
    prune(backup, before=DAY * DAY_S + 15 * 60, archived={DAY: 15})
    restore(backup)

    report = compact_into(spark, place.archive, backup, now=NOW, run="run-3")

    assert lost(report) == {FIRST: 30}  # nobody can tell whether these are some of them
    assert archived(place.archive) == rows_of([*ONE[15:], *TWO, *THREE])


def test_what_the_same_store_has_some_of_is_no_longer_lost(spark: SparkSession, place: Place, backup: Path) -> None:
    prune(backup, before=DAY * DAY_S + 15 * 60, archived={DAY: 15})
    backup.replace(place.store)

    report = place.run(spark, "run-2")

    assert lost(report) == {FIRST: 15}
    assert archived(place.archive) == rows_of([*ONE[15:], *TWO, *THREE])


@pytest.mark.parametrize("later", [0, 80])
def test_rows_that_have_the_numbers_of_lost_ones_do_not_pass_for_them(
    spark: SparkSession, place: Place, backup: Path, tmp_path: Path, later: int
) -> None:
    """A store is put back to its beginning, with all that is beside it, and goes on: perhaps beyond where it was."""
    assert lost(place.run(spark, "run-2")) == {FIRST: 30}
    was = identity(backup)
    store = put(tmp_path / "beginning" / "mailserver.db")
    change(store, "UPDATE identity SET id = ?", was)
    archived_file(place.store).unlink()
    copy_store(store, place.store)
    put(place.store, OTHERS, envelopes(later, day=DAY + 3, first=600))

    report = place.run(spark, "run-3")

    assert identity(place.store) == was
    assert lost(report) == {FIRST: 30}
    assert archived(place.archive, FIRST) == rows_of(OTHERS)
    assert lost(place.run(spark, "run-4")) == {FIRST: 30}


HASHES = [f"0x{number:016x}" for number in (1, 2, 4, 8)]


@pytest.mark.parametrize(
    ("rows", "lost", "found"),
    [
        ([("a", 0, False), ("a", 1, False)], Lost(2, 20, 3), Fingerprint(2, 20, 3)),  # all that is new
        ([("a", 0, False), ("a", 1, False)], Lost(2, 20, 5), Fingerprint()),
        (
            [("a", 0, False), ("b", 1, False), ("b", 2, False)],
            Lost(2, 20, 6),
            Fingerprint(2, 20, 6),
        ),  # all of one store
        ([("a", 0, True), ("a", 1, True), ("a", 2, False)], Lost(2, 20, 3), Fingerprint(2, 20, 3)),  # by their numbers
        ([("a", 0, True), ("a", 1, False)], Lost(3, 30, 7), Fingerprint(1, 10, 1)),
        ([("a", 0, True), ("a", 1, True)], Lost(1, 10, 4), Fingerprint()),
        ([("a", 0, True), ("a", 1, True)], Lost(1, 10, None), Fingerprint(1, 10, 3)),  # as an earlier version lost it
        ([("a", 0, False), ("a", 1, False)], Lost(2, 20, None), Fingerprint(2, 20, 3)),
        ([(None, 0, True)], Lost(2, 20, 9), Fingerprint(1, 10, 1)),
    ],
)
def test_what_is_found_again_is_told_by_checksum_or_by_number(
    spark: SparkSession, rows: list[tuple[str | None, int, bool]], lost: Lost, found: Fingerprint
) -> None:
    of_day = [(DAY, store, HASHES[number], 10, was_archived) for store, number, was_archived in rows]
    elsewhere = (DAY + 1, "a", HASHES[3], 10, True)
    frame = spark.createDataFrame([*of_day, elsewhere], "day int, store string, hash string, size int, known boolean")

    assert found_by_day(frame, F.col("size"), F.col("known"), {DAY: lost}) == {DAY: found}
