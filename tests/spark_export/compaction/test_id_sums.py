"""Sums of ids in the indexes that real compactions write: of the archive, only what differs is read to compare it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.layout import Layout
from mailserver.archive.manifest import encode_record
from mailserver.archive.paths import record_of
from mailserver.archive.reading.by_id import ItemsOfTime
from mailserver.archive.reading.id_sums import Span
from mailserver.archive.reading.source import ArchiveSource
from mailserver.catchup.archived import compare_with_archive
from mailserver.catchup.compared import Compared
from mailserver.metrics.registry import Metrics
from mailserver.store.sqlite.store import open_store
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.bloom import FULL_INTEREST
from spark_export import reindexing
from spark_export.merge import merge
from spark_export.publishing import WritableArchive
from spark_export.reindexing import make_missing_indexes
from spark_export.storage import open_storage
from tests.spark_export.archives.test_reindexing import LONG_AFTER, assert_indexed
from tests.spark_export.compaction.test_compact_killed import Killed, dying
from tests.spark_export.damage import ONE, THREE, TWO, Place
from tests.spark_export.samples import DAY, DAY_S, envelopes, put

pytestmark = pytest.mark.spark

ALL = len([*ONE, *TWO, *THREE])


def compared(place: Place) -> tuple[Compared, list[int]]:
    """Compare store and archive; also return of how many envelopes ids were made, each time that some were."""
    read: list[int] = []

    class Counted(ArchiveSource):
        async def newest_items(self, network_topic: str, times: Sequence[Span], most: int) -> ItemsOfTime:
            part = await super().newest_items(network_topic, times, most)
            read.append(len(part.items))
            return part

    async def compare() -> Compared:
        source = Counted(
            FolderFiles(place.archive), at_once=2, cache_bytes=2**20, is_expected=lambda: True, metrics=Metrics()
        )
        acceptance = Acceptance(Requirements(0.0, FULL_INTEREST))
        try:
            async with open_store(place.store) as store:
                return await compare_with_archive(
                    store,
                    source,
                    acceptance,
                    lambda: float(LONG_AFTER),
                    since=(DAY - 1) * DAY_S,
                    until=LONG_AFTER,
                    takes=False,
                    show=lambda _: None,
                )
        finally:
            source.close()

    return asyncio.run(compare()), read


def forget_sums(place: Place) -> None:
    """Have all periods as the version before wrote them: with an index, and without sums."""
    for record in place.records().values():
        assert record.index is not None
        assert record.index.sums is not None
        before = replace(record, index=replace(record.index, sums=None))
        (place.archive / record_of(record.period)).write_text(encode_record(before))


def with_sums(place: Place) -> list[str]:
    return [period for period, record in place.records().items() if record.index and record.index.sums]


def make_indexes(spark: SparkSession, place: Place, run: str) -> None:
    archive = WritableArchive(open_storage(spark, str(place.archive)))
    layout = archive.layout()
    assert isinstance(layout, Layout)
    make_missing_indexes(spark, archive, layout, archive.records(), run)


def test_only_what_is_not_archived_yet_is_read_after_a_compaction_and_a_merge(
    spark: SparkSession, place: Place
) -> None:
    whole, read = compared(place)
    assert (whole.archived, whole.missing, whole.unarchived, sum(read)) == (ALL, 0, 0, 0)

    merge(spark, str(place.archive), now=LONG_AFTER, run="merge-1")
    put(place.store, envelopes(2, day=DAY + 5, first=700))
    merged, read = compared(place)

    assert list(place.records()) == with_sums(place) == ["2024-10"]
    assert (merged.archived, merged.missing, merged.unarchived, sum(read)) == (ALL, 0, 2, 0)


def test_archive_of_the_version_before_goes_on_and_gets_its_sums_some_at_a_time(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_sums(place)
    monkeypatch.setattr(reindexing, "SUMS_AT_ONCE", 2)

    without, read = compared(place)
    assert (without.archived, without.missing, without.unarchived, sum(read)) == (ALL, 0, 0, ALL)
    make_indexes(spark, place, "run-2")
    assert with_sums(place) == sorted(place.records())[1:]
    make_indexes(spark, place, "run-3")

    assert with_sums(place) == sorted(place.records())
    assert_indexed(place)
    whole, read = compared(place)
    assert (whole, sum(read)) == (without, 0)


def test_kill_while_sums_are_added_costs_time_only(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = compared(place)
    forget_sums(place)
    steps = [(reindexing, "write_period_index"), (WritableArchive, "sync_index"), (WritableArchive, "replace_record")]
    periods = len(place.records())
    for at in range(len(steps) * periods):
        with dying(monkeypatch, steps, at), pytest.raises(Killed):
            make_indexes(spark, place, f"killed-{at}")
        assert compared(place)[0] == expected
        if at >= len(steps):  # the first was finished in this run: from now on it is not made anew
            break
    make_indexes(spark, place, "run-2")

    assert with_sums(place) == sorted(place.records())
    WritableArchive(open_storage(spark, str(place.archive))).repair()
    assert_indexed(place)
    assert compared(place) == (expected, [])
