"""Several stores in one archive: each envelope once."""

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.handoff.archived import Archived
from mailserver.store.sqlite.backup import snapshot
from mailserver.store.sqlite.handoff import archived_file, read_archived
from mailserver.store.sqlite.store import open_store
from spark_export.errors import ExportError
from spark_export.run_report import RunReport
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    FIRST,
    MIDNIGHT,
    archived,
    compact_into,
    copy_store,
    envelope,
    envelopes,
    handed_over,
    identity,
    periods,
    put,
    records_in,
    rows_of,
    tree,
)

pytestmark = pytest.mark.spark


def test_two_stores_are_merged_and_deduplicated(
    spark: SparkSession, store: Path, other_store: Path, archive: Path
) -> None:
    put(store, envelopes(20))
    put(other_store, [put_in._replace(received=put_in.received + 1) for put_in in envelopes(30)])

    report = compact_into(spark, archive, store, other_store)

    late = [put_in._replace(received=put_in.received + 1) for put_in in envelopes(30)[20:]]
    assert archived(archive) == rows_of(envelopes(20) + late)
    assert report.rows == 30
    assert handed_over(store) == {DAY: 20}
    assert handed_over(other_store) == {DAY: 30}


def test_envelope_received_on_both_sides_of_midnight_is_archived_once(
    spark: SparkSession, store: Path, other_store: Path, archive: Path
) -> None:
    before = envelope(1, received=MIDNIGHT + DAY_S - 1)
    after = before._replace(received=MIDNIGHT + DAY_S)
    put(store, [after])
    put(other_store, [before])

    compact_into(spark, archive, store, other_store)

    assert archived(archive) == rows_of([before])
    assert periods(archive) == [FIRST]
    assert handed_over(store) == {DAY + 1: 1}
    assert handed_over(other_store) == {DAY: 1}
    before_again = tree(archive)
    compact_into(spark, archive, other_store, store, run="run-2")
    assert tree(archive) == before_again


def test_envelope_received_on_both_sides_of_midnight_in_two_runs_is_archived_once(
    spark: SparkSession, store: Path, other_store: Path, archive: Path
) -> None:
    before = envelope(1, received=MIDNIGHT + DAY_S - 1)
    after = before._replace(received=MIDNIGHT + DAY_S)
    put(store, [after])
    put(other_store, [before, envelope(2)])
    compact_into(spark, archive, store)
    assert archived(archive) == rows_of([after])

    compact_into(spark, archive, store, other_store, run="run-2")

    assert archived(archive) == rows_of([after, envelope(2)])
    assert handed_over(other_store) == {DAY: 2}


def test_stores_archived_one_after_the_other_are_deduplicated(
    spark: SparkSession, store: Path, other_store: Path, archive: Path
) -> None:
    put(store, envelopes(20))
    put(other_store, envelopes(30))
    compact_into(spark, archive, store)

    report = compact_into(spark, archive, other_store, run="run-2")

    assert archived(archive) == rows_of(envelopes(30))
    assert report.rows == 10
    assert records_in(archive)[FIRST].days[DAY].stores == {identity(store): 20, identity(other_store): 30}


def test_copy_of_a_store_is_refused(spark: SparkSession, store: Path, other_store: Path, archive: Path) -> None:
    put(store, envelopes(3))
    copy_store(store, other_store)

    with pytest.raises(ExportError, match="are the same store, or copies of one"):
        compact_into(spark, archive, store, other_store)

    assert periods(archive) == []


def test_store_put_back_from_a_backup_loses_nothing_to_numbers_that_the_archive_knows(
    spark: SparkSession, store: Path, archive: Path, tmp_path: Path
) -> None:
    before, lost, after = envelopes(4), envelopes(3, first=100), envelopes(3, first=200)
    put(store, before)
    with snapshot(store) as moment:
        moment.copy(tmp_path / "backup.db", lambda done, total: None)
    put(store, lost)
    compact_into(spark, archive, store)  # knows rows 5 to 7, which the backup has not
    with pytest.raises(ExportError, match="is a backup: start the mailserver on it once"):
        compact_into(spark, archive, tmp_path / "backup.db", run="run-2")

    store.unlink()
    archived_file(store).unlink()
    put(copy_store(tmp_path / "backup.db", store), after)  # as rows 5 to 7
    compact_into(spark, archive, store, run="run-3")

    assert archived(archive) == rows_of([*before, *lost, *after])
    said = read_archived(store)
    assert said is not None
    assert said.store_id == identity(store)
    assert said.days == {DAY: 7}


def test_store_whose_file_was_put_back_loses_nothing_to_numbers_that_the_archive_knows(
    spark: SparkSession, store: Path, archive: Path, tmp_path: Path
) -> None:
    before, lost, after = envelopes(4), envelopes(3, first=100), envelopes(3, first=200)
    put(store, before)
    was = identity(store)
    copy_store(store, tmp_path / "copy.db")
    put(store, lost)
    compact_into(spark, archive, store)  # knows rows 5 to 7, which the copy has not

    put(copy_store(tmp_path / "copy.db", store), after)  # as rows 5 to 7
    report = compact_into(spark, archive, store, run="run-2")

    assert identity(store) != was  # the record beside it says that there were more
    assert archived(archive) == rows_of([*before, *lost, *after])
    assert handed_over(store) == {DAY: 7}
    assert report.went_back == []


def test_store_that_was_put_back_with_its_records_is_told_and_loses_nothing(
    spark: SparkSession, store: Path, archive: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, lost, after = envelopes(4), envelopes(3, first=100), envelopes(3, first=200)
    put(store, before)
    was = identity(store)
    copy_store(store, tmp_path / "copy.db")
    put(store, lost)
    compact_into(spark, archive, store)
    archived_file(store).unlink()  # as all of the data directory was before this run

    async def go_on() -> None:
        """Have a mailserver that is not restarted between two runs."""
        async with open_store(copy_store(tmp_path / "copy.db", store)) as running:
            await running.put(after[:2])  # as rows 5 and 6
            told.append(compact_into(spark, archive, store, run="run-2"))
            said.append(read_archived(store))
            await running.put(after[2:])  # as row 7, the newest that the archive knows
            told.append(compact_into(spark, archive, store, run="run-3"))

    told: list[RunReport] = []
    said: list[Archived | None] = []
    asyncio.run(go_on())

    assert [report.went_back for report in told] == [[str(store)], [str(store)]]
    assert f"store went back in time store={store} seen=7 found=6" in caplog.text
    assert [one and (one.days, one.went_back_from) for one in said] == [({DAY: 6}, 7)]
    assert archived(archive) == rows_of([*before, *lost, *after])
    assert identity(store) == was
    put(store)  # a restart
    assert identity(store) != was
    assert compact_into(spark, archive, store, run="run-4").went_back == []
    assert handed_over(store) == {DAY: 7}


def test_store_named_twice_is_refused(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))

    with pytest.raises(ExportError, match="is named twice"):
        compact_into(spark, archive, store, store.parent / ".." / "a" / "mailserver.db")

    assert periods(archive) == []


@pytest.mark.usefixtures("small_groups")
def test_days_in_groups_of_their_own_are_deduplicated_too(
    spark: SparkSession, store: Path, other_store: Path, archive: Path
) -> None:
    twice = envelope(1, received=MIDNIGHT + DAY_S - 1)
    put(store, envelopes(4), [twice._replace(received=MIDNIGHT + DAY_S)])
    put(other_store, envelopes(4, first=2), [twice], envelopes(3, day=DAY + 1, first=50))

    report = compact_into(spark, archive, store, other_store)

    hashes = [row["hash"] for row in archived(archive)]
    assert len(hashes) == len(set(hashes)) == report.rows
    assert twice.received in {row["received"] for row in archived(archive, FIRST)}
    assert handed_over(store) == {DAY: 4, DAY + 1: 5}
    assert handed_over(other_store) == {DAY: 5, DAY + 1: 8}
