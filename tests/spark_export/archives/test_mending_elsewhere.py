"""Rows that were left out of a day, as the archive has them on another: they are looked after with that day."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.errors import ArchiveFault
from mailserver.archive.holdings import check_day
from mailserver.store.interface import NewEnvelope
from spark_export.merge import merge
from spark_export.verify import verify
from tests.spark_export.damage import NOW
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    FIRST,
    SECOND,
    THIRD,
    archived,
    compact_into,
    envelopes,
    handed_over,
    identity,
    put,
    records_in,
    rows_of,
    visible_files,
)

pytestmark = pytest.mark.spark

ONE, THREE = envelopes(10), envelopes(10, day=DAY + 2, first=200)
LATER = NOW + 40 * DAY_S
"""The month is over."""


def again(received: list[NewEnvelope], days: int = 1) -> list[NewEnvelope]:
    """As another mailserver receives them days later."""
    return [one._replace(received=one.received + days * DAY_S) for one in received]


@pytest.fixture
def both(spark: SparkSession, store: Path, other_store: Path, archive: Path) -> tuple[Path, Path]:
    """Two stores. The second received on the second day what the first did on the first."""
    put(store, ONE, THREE)
    put(other_store, again(ONE), THREE)
    compact_into(spark, archive, store, other_store, now=NOW)
    assert archived(archive) == rows_of([*ONE, *THREE])
    assert handed_over(other_store) == {DAY + 1: 10, DAY + 2: 20}
    return store, other_store


def elsewhere(archive: Path, store: Path) -> dict[int, tuple[int, ...]]:
    """By day of reception, relative to DAY, which other days have the store's rows, as far as that is known."""
    return {
        day - DAY: tuple(one - DAY for one in said.elsewhere[identity(store)])
        for record in records_in(archive).values()
        for day, said in record.days.items()
        if identity(store) in said.elsewhere
    }


def check(archive: Path, store: Path, day: int, seq: int) -> None:
    """As the mailserver does before it deletes rows."""
    check_day(FolderFiles(archive), identity(store), day, seq)


def test_days_that_have_rows_of_others_are_written_down(
    spark: SparkSession, both: tuple[Path, Path], archive: Path
) -> None:
    store, other = both
    assert elsewhere(archive, store) == {0: (), 2: ()}
    assert elsewhere(archive, other) == {1: (0,), 2: ()}  # on the third day, the same day has them

    put(store, late := envelopes(2, day=DAY + 3, first=300))
    put(other, again(late))
    compact_into(spark, archive, store, other, now=NOW, run="run-2")

    assert elsewhere(archive, store) == {0: (), 2: (), 3: ()}
    assert elsewhere(archive, other) == {1: (0,), 2: (), 4: (3,)}  # of a store that was read in the same run


def test_what_the_archive_has_is_named_by_where_it_is_and_not_by_who_was_first(
    spark: SparkSession, store: Path, other_store: Path, archive: Path, tmp_path: Path
) -> None:
    put(store, ONE)
    compact_into(spark, archive, store, now=NOW)
    third = put(tmp_path / "c" / "mailserver.db", again(ONE, 2))
    put(other_store, again(ONE))

    compact_into(spark, archive, other_store, third, now=NOW, run="run-2")

    assert archived(archive) == rows_of(ONE)
    assert (elsewhere(archive, other_store), elsewhere(archive, third)) == ({1: (0,)}, {2: (0,)})


@pytest.mark.parametrize("merged", [True, False])
def test_row_is_not_deleted_while_the_file_that_has_it_is_missing(
    spark: SparkSession, both: tuple[Path, Path], archive: Path, *, merged: bool
) -> None:
    _, other = both
    if merged:
        merge(spark, str(archive), now=LATER, run="merge-1")
        assert elsewhere(archive, other) == {1: (0,), 2: ()}
    check(archive, other, DAY + 1, 10)

    visible_files(archive)[0].unlink()

    with pytest.raises(ArchiveFault, match="is missing"):
        check(archive, other, DAY + 1, 10)


def forget_file(archive: Path) -> None:
    """Delete a file of the first day, with its second name."""
    file = visible_files(archive)[0]
    assert file.parts[-3] == f"date={FIRST}"
    (second,) = archive.glob(f"_snapshots/date={FIRST}/*/{file.parent.name}/{file.stem}")
    for name in (file, second):
        name.unlink()


def damage_record(archive: Path) -> None:
    """Delete all of the first day but a record that is not whole."""
    for file in archive.glob(f"*/date={FIRST}/**/*"):
        if file.is_file():
            file.unlink()
    for file in visible_files(archive):
        if file.parts[-3] == f"date={FIRST}":
            file.unlink()
    (archive / "_records" / f"{FIRST}.json").write_text("{")


@pytest.mark.parametrize("damage", [forget_file, damage_record])
def test_rows_come_back_from_the_store_that_had_them_left_out(
    spark: SparkSession, both: tuple[Path, Path], archive: Path, damage: Callable[[Path], None]
) -> None:
    store, other = both
    store.unlink()  # nobody else has them
    damage(archive)

    verify(spark, str(archive), now=NOW, stores=[other])
    assert handed_over(other) == {DAY + 2: 20}  # the third day does not lean on the first
    with pytest.raises(ArchiveFault, match="no record"):
        check(archive, other, DAY + 1, 10)

    compact_into(spark, archive, other, now=NOW, run="run-2")

    assert {row["hash"] for row in archived(archive)} == {row["hash"] for row in rows_of([*ONE, *THREE])}
    assert handed_over(other) == {DAY + 1: 10, DAY + 2: 20}
    check(archive, other, DAY + 1, 10)
    assert elsewhere(archive, other)[1] in ((), (0,))


def test_where_rows_are_that_an_earlier_version_left_out_is_found_out_beginning_with_the_oldest_days(
    spark: SparkSession, both: tuple[Path, Path], archive: Path
) -> None:
    store, other = both
    put(store, envelopes(2, day=DAY + 3, first=300))
    compact_into(spark, archive, store, other, now=NOW, run="run-2")
    for file in (archive / "_records").iterdir():
        record = json.loads(file.read_text())
        for said in record["days"].values():
            del said["elsewhere"]
        file.write_text(json.dumps(record))

    compact_into(spark, archive, store, other, now=NOW, run="run-3")
    assert (elsewhere(archive, store), elsewhere(archive, other)) == ({0: ()}, {1: (0,)})
    compact_into(spark, archive, store, other, now=NOW, run="run-4")
    assert (elsewhere(archive, store), elsewhere(archive, other)) == ({0: (), 2: (), 3: ()}, {1: (0,), 2: ()})
    assert archived(archive) == rows_of([*ONE, *THREE, *envelopes(2, day=DAY + 3, first=300)])


def test_all_days_of_which_that_is_not_known_are_read_again_where_files_are_missing(
    spark: SparkSession, both: tuple[Path, Path], archive: Path
) -> None:
    _, other = both
    for period in (SECOND, THIRD):
        file = archive / "_records" / f"{period}.json"
        record = json.loads(file.read_text())
        for said in record["days"].values():
            del said["elsewhere"]
        file.write_text(json.dumps(record))
    forget_file(archive)

    verify(spark, str(archive), now=NOW, stores=[other])

    assert handed_over(other) == {}
