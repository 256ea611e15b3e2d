"""Rows that were set aside as no envelopes, and are gone: named, set aside again from the store, or acknowledged."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.errors import ArchiveFault
from mailserver.archive.faults import FaultKind
from mailserver.archive.holdings import check_day
from spark_export.acknowledgement import acknowledge
from spark_export.merge import merge
from spark_export.verify import verify
from tests.spark_export.damage import NOW, ONE, Place, named
from tests.spark_export.samples import (
    DAY,
    FIRST,
    archived,
    change,
    identity,
    prune,
    put,
    quarantined,
    rows_of,
)

pytestmark = pytest.mark.spark

MONTH = FIRST[:7]

LATER = NOW + 40 * 86_400
"""The month is over."""


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    """A store of one day, two of whose rows are none any more, and its archive."""
    place = Place(tmp_path)
    put(place.store, ONE)
    change(place.store, "UPDATE envelopes SET raw = x'00' WHERE seq IN (2, 5)")
    place.run(spark, "run-1")
    assert place.covered() == {0}
    check(place)
    return place


def check(place: Place) -> None:
    """As the mailserver does before it deletes rows."""
    check_day(FolderFiles(place.archive), identity(place.store), DAY, len(ONE))


def forget_set_aside(place: Place, *, last_only: bool = False) -> None:
    """Delete what was set aside, all of it or the last row."""
    if last_only:
        (file,) = (place.archive / "_quarantine").rglob("*.jsonl")
        file.write_text(file.read_text().splitlines(keepends=True)[0])
    else:
        shutil.rmtree(place.archive / "_quarantine")


@pytest.mark.parametrize("last_only", [True, False])
@pytest.mark.parametrize("merged", [True, False])
def test_rows_that_are_gone_are_named_and_set_aside_again(
    spark: SparkSession, place: Place, *, last_only: bool, merged: bool
) -> None:
    if merged:
        merge(spark, str(place.archive), now=LATER, run="merge-1")
    before = quarantined(place.archive)
    forget_set_aside(place, last_only=last_only)
    with pytest.raises(ArchiveFault, match=f"has {int(last_only)} of the 2 rows that were set aside"):
        check(place)

    report = place.run(spark, "run-2", LATER)

    assert named(report) == [(MONTH if merged else FIRST, FaultKind.MISSING)]
    assert f"_quarantine/date={FIRST}: has {int(last_only)} of the 2 rows" in report.damage
    assert quarantined(place.archive) == before
    assert (report.rows, report.quarantined, place.covered()) == (0, 0, {0})
    check(place)
    assert place.run(spark, "run-3", LATER).damage == ""
    assert archived(place.archive) == rows_of([one for seq, one in enumerate(ONE, 1) if seq not in (2, 5)])


def test_day_is_not_covered_from_when_they_are_missed(spark: SparkSession, place: Place) -> None:
    forget_set_aside(place)

    found = verify(spark, str(place.archive), now=NOW)

    assert [fault.file for fault in found.faults] == [f"_quarantine/date={FIRST}"]
    assert place.records()[FIRST].days[DAY].stores == {}
    with pytest.raises(ArchiveFault, match="no record"):
        check(place)


def test_rows_that_no_store_has_any_more_are_missed_until_they_are_acknowledged(
    spark: SparkSession, place: Place
) -> None:
    assert acknowledge(spark, str(place.archive), now=NOW).quarantined == 2
    forget_set_aside(place)
    change(place.store, "DELETE FROM envelopes WHERE seq = 5")  # without a word to what counts them
    place.run(spark, "run-2")
    assert [line["seq"] for line in quarantined(place.archive)] == [2]
    report = place.run(spark, "run-3")
    assert "has 1 of the 2 rows that were set aside" in report.damage
    assert (report.quarantined_in_all, place.records()[FIRST].days[DAY].quarantined) == (0, 2)

    known = acknowledge(spark, str(place.archive), now=NOW)

    assert [fault.cause for fault in known.set_aside_gone] == ["has 1 of the 2 rows that were set aside"]
    assert f"_quarantine/date={FIRST}: has 1 of the 2 rows that were set aside" in known.as_words()
    assert [one["file"] for one in known.as_json()["quarantined_gone"]] == [f"_quarantine/date={FIRST}"]
    report = place.run(spark, "run-4")
    assert (report.damage, report.quarantined_in_all) == ("", 0)
    assert place.records()[FIRST].days[DAY].quarantined == 1
    assert acknowledge(spark, str(place.archive), now=NOW).set_aside_gone == ()


def test_what_no_run_has_looked_for_is_not_acknowledged(spark: SparkSession, place: Place) -> None:
    forget_set_aside(place)

    assert acknowledge(spark, str(place.archive), now=NOW).set_aside_gone == ()

    with pytest.raises(ArchiveFault, match="has 0 of the 2 rows"):
        check(place)
    place.run(spark, "run-2")
    assert [line["seq"] for line in quarantined(place.archive)] == [2, 5]


def test_day_whose_rows_are_all_pruned_is_acknowledged_too(spark: SparkSession, place: Place) -> None:
    prune(place.store, before=NOW, archived={DAY: len(ONE)})
    merge(spark, str(place.archive), now=LATER, run="merge-1")
    forget_set_aside(place)
    assert "has 0 of the 2 rows" in place.run(spark, "run-2", LATER).damage

    acknowledge(spark, str(place.archive), now=LATER)

    assert place.run(spark, "run-3", LATER).damage == ""
    assert len(archived(place.archive)) == len(ONE) - 2
