"""What a nightly run refuses, and what it does not publish."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_export.compact as compact_module
from mailserver.archive.errors import ArchiveError
from mailserver.archive.layout import Layout, PartitionBy
from mailserver.store.sqlite.handoff import archived_file, compaction_lock
from mailserver.waku.envelope import Topic
from spark_export import load
from spark_export.errors import ExportCheckFailed, ExportError
from spark_export.storage import open_storage
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    FIRST,
    MIDNIGHT,
    NEWS,
    NOON,
    SECOND,
    archived,
    compact_into,
    envelope,
    envelopes,
    handed_over,
    periods,
    put,
    rows_of,
    tree,
    visible_files,
)

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"partition_by": PartitionBy.TOPIC}, {"partition_by": PartitionBy.TOPIC_PREFIX}),
        ({"partition_by": PartitionBy.TOPIC_PREFIX}, {"partition_by": PartitionBy.TOPIC}),
        ({"prefix_digits": 1}, {"prefix_digits": 2}),
        ({"partition_by": PartitionBy.TOPIC}, {"prefix_digits": 1}),
    ],
)
def test_another_layout_is_refused(
    spark: SparkSession, store: Path, archive: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    put(store, envelopes(3))
    compact_into(spark, archive, store, **first)
    put(store, envelopes(3, first=50))
    before = tree(archive)

    with pytest.raises(ExportError, match=r"is partitioned by .* cannot be changed"):
        compact_into(spark, archive, store, run="run-2", **second)

    assert tree(archive) == before


def test_layout_stays_when_topics_become_many(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))
    compact_into(spark, archive, store)
    topics = [Topic(number.to_bytes(4, "big")) for number in range(301)]
    put(store, [envelope(number, received=NOON + DAY_S, topic=topic) for number, topic in enumerate(topics)])

    compact_into(spark, archive, store, run="run-2")

    assert {file.parent.name.partition("=")[0] for file in visible_files(archive)} == {"topic"}


def test_second_run_at_once_on_an_archive_is_refused(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))

    with (
        open_storage(spark, str(archive)).locked(),
        pytest.raises(ArchiveError, match=r"another run \(pid \d+\) is at work"),
    ):
        compact_into(spark, archive, store)

    assert periods(archive) == []
    compact_into(spark, archive, store)
    assert archived(archive) == rows_of(envelopes(3))


def test_second_run_at_once_on_a_store_is_refused(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))

    with compaction_lock(store), pytest.raises(ExportError, match=r"another compaction \(pid \d+\) reads this store"):
        compact_into(spark, archive, store)

    assert periods(archive) == []
    compact_into(spark, archive, store)
    assert archived(archive) == rows_of(envelopes(3))


def test_foreign_directories_are_refused(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))
    (archive / f"date={FIRST}").mkdir(parents=True)

    with pytest.raises(ArchiveError, match="is not an archive of ours"):
        compact_into(spark, archive, store)


def test_archive_of_a_later_version_is_left_alone(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))
    compact_into(spark, archive, store)
    settings = archive / "_archive.json"
    settings.write_text(settings.read_text().replace('"version": 1', '"version": 2'))
    put(store, envelopes(3, first=50))
    before = tree(archive)

    with pytest.raises(ArchiveError, match="has version 2, this program knows 1"):
        compact_into(spark, archive, store, run="run-2")

    assert tree(archive) == before


def test_missing_store_is_named(spark: SparkSession, store: Path, archive: Path) -> None:
    with pytest.raises(ExportError, match=r"cannot open the store .*mailserver\.db: there is none"):
        compact_into(spark, archive, store)

    assert not store.exists()


def test_handover_that_cannot_be_written_is_named(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))
    archived_file(store).mkdir()

    with pytest.raises(ExportError, match="cannot read "):
        compact_into(spark, archive, store)


@contextlib.contextmanager
def spoiled(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[DataFrame], DataFrame]) -> Iterator[None]:
    """Let something else be written than what is meant to."""
    write = load.write_staged

    def write_staged(frame: DataFrame, layout: Layout, path: str, *, rows: int, size: int) -> None:
        write(spoil(frame), layout, path, rows=rows, size=size)

    with monkeypatch.context() as patch:
        patch.setattr(compact_module, "write_staged", write_staged)
        yield


SPOILS: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "a row is lost": (lambda frame: frame.where(F.col("created") != NOON), SECOND),
    "a row stands twice": (lambda frame: frame.unionByName(frame.where(F.col("created") == NOON)), SECOND),
    "a day is lost": (lambda frame: frame.where(F.col("date") != SECOND), SECOND),
    "a row is another": (
        lambda frame: frame.withColumn(
            "hash", F.when(F.col("created") == NOON, F.regexp_replace("hash", "^0x.", "0xg")).otherwise(F.col("hash"))
        ),
        SECOND,
    ),
    "a row is shorter": (
        lambda frame: frame.withColumn(
            "raw", F.when(F.col("created") == NOON, F.lit(b"short")).otherwise(F.col("raw"))
        ),
        SECOND,
    ),
    "a row is on another day": (
        lambda frame: frame.withColumn("date", F.when(F.col("created") == NOON, F.lit(FIRST)).otherwise(F.col("date"))),
        FIRST,
    ),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_what_is_written_wrongly_is_not_published(
    spark: SparkSession, store: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    day_two = [*envelopes(6, day=DAY + 1, first=50), envelope(90, received=NOON + DAY_S, created=NOON)]
    put(store, envelopes(6), day_two)
    change_frame, day = SPOILS[spoil]

    with spoiled(monkeypatch, change_frame), pytest.raises(ExportCheckFailed) as caught:
        compact_into(spark, archive, store)

    assert caught.value.day == day
    assert day in str(caught.value)
    assert periods(archive) == []
    assert handed_over(store) == {}

    if spoil == "a day is lost":  # it costs seconds, and nothing differs
        compact_into(spark, archive, store, run="run-2")
        assert archived(archive) == rows_of(envelopes(6) + day_two)
        assert list((archive / "_staging").iterdir()) == []


def test_day_whose_new_rows_fail_the_check_stays_as_it_was(
    spark: SparkSession, store: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, envelopes(6))
    compact_into(spark, archive, store)
    put(store, envelopes(6, first=50))
    before = {name: content for name, content in tree(archive).items() if not name.startswith("_staging")}

    kept = F.col("hash") != "0x" + envelope(0, received=MIDNIGHT).hash.hex()
    with spoiled(monkeypatch, lambda frame: frame.where(kept)), pytest.raises(ExportCheckFailed, match=FIRST):
        compact_into(spark, archive, store, run="run-2")

    after = {name: content for name, content in tree(archive).items() if not name.startswith("_staging")}
    assert after == before
    assert handed_over(store) == {DAY: 6}


@pytest.mark.usefixtures("small_groups")
def test_groups_before_the_one_that_fails_are_published(
    spark: SparkSession, store: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, envelopes(6), envelopes(6, day=DAY + 1, first=50))

    kept = (F.col("date") == FIRST) | (F.col("topic") != "0x" + NEWS.hex())
    with spoiled(monkeypatch, lambda frame: frame.where(kept)), pytest.raises(ExportCheckFailed, match=SECOND):
        compact_into(spark, archive, store)

    assert periods(archive) == [FIRST]
    assert handed_over(store) == {DAY: 6}
