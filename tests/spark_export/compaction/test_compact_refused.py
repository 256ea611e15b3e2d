"""What a nightly run refuses, and what it does not publish."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import spark_export.compact as compact_module
from mailserver.archive.errors import ArchiveError
from mailserver.archive.layout import PartitionBy
from mailserver.store.sqlite.handoff import archived_file, compaction_lock
from mailserver.waku.envelope import Topic
from spark_export.errors import ExportCheckFailed, ExportError
from spark_export.pieces import Piece, PieceSource, StoreRows
from spark_export.storage import open_storage
from spark_export.writing import PieceWritten, WritingJob, write_pieces
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    FIRST,
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


Pieces = list[Piece]


@contextlib.contextmanager
def spoiled(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Pieces], Pieces]) -> Iterator[None]:
    """Let something else be written than what is meant to."""

    def write_spoiled(spark: SparkSession, job: WritingJob, pieces: Sequence[Piece]) -> list[PieceWritten]:
        return write_pieces(spark, job, spoil(list(pieces)))

    with monkeypatch.context() as patch:
        patch.setattr(compact_module, "write_pieces", write_spoiled)
        yield


def without_a_row(pieces: Pieces) -> Pieces:
    """Leave out the last row of each store."""

    def shorter(source: PieceSource) -> PieceSource:
        if isinstance(source, StoreRows):
            return replace(source, left_out=np.append(source.left_out, source.batches[-1].last_seq))
        return source

    return [replace(piece, sources=tuple(map(shorter, piece.sources))) for piece in pieces]


def with_a_row_twice(pieces: Pieces) -> Pieces:
    """Read the last row of each store twice."""

    def last(source: PieceSource) -> list[PieceSource]:
        return [last_row(source)] if isinstance(source, StoreRows) else []

    return [
        replace(piece, sources=(*piece.sources, *(row for source in piece.sources for row in last(source))))
        for piece in pieces
    ]


def of_day(spoil: Callable[[Pieces], Pieces], day: str = SECOND) -> Callable[[Pieces], Pieces]:
    """Spoil what a day has."""
    return lambda pieces: [one for piece in pieces for one in (spoil([piece]) if piece.period == day else [piece])]


def on_another_day(pieces: Pieces) -> Pieces:
    """Put the last row of the second day to the first."""
    moved = [replace(only_last(piece), period=FIRST, number=1) for piece in pieces if piece.period == SECOND]
    return [*of_day(without_a_row)(pieces), *moved]


def only_last(piece: Piece) -> Piece:
    (source,) = piece.sources
    assert isinstance(source, StoreRows)
    return replace(piece, sources=(last_row(source),))


def last_row(source: StoreRows) -> StoreRows:
    """Only that."""
    last = source.batches[-1]
    return replace(source, batches=(last._replace(first_seq=last.last_seq, rows=1),))


SPOILS: dict[str, tuple[Callable[[Pieces], Pieces], str]] = {
    "a row is lost": (of_day(without_a_row), SECOND),
    "a row stands twice": (of_day(with_a_row_twice), SECOND),
    "a day is lost": (of_day(lambda pieces: []), SECOND),
    "a row is on another day": (on_another_day, FIRST),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_what_is_written_wrongly_is_not_published(
    spark: SparkSession, store: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    day_two = [*envelopes(6, day=DAY + 1, first=50), envelope(90, received=NOON + DAY_S, created=NOON)]
    put(store, envelopes(6), day_two)
    change, day = SPOILS[spoil]

    with spoiled(monkeypatch, change), pytest.raises(ExportCheckFailed) as caught:
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

    with spoiled(monkeypatch, without_a_row), pytest.raises(ExportCheckFailed, match=FIRST):
        compact_into(spark, archive, store, run="run-2")

    after = {name: content for name, content in tree(archive).items() if not name.startswith("_staging")}
    assert after == before
    assert handed_over(store) == {DAY: 6}


@pytest.mark.usefixtures("small_groups")
def test_groups_before_the_one_that_fails_are_published(
    spark: SparkSession, store: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, envelopes(6), envelopes(6, day=DAY + 1, first=50))

    with spoiled(monkeypatch, of_day(without_a_row)), pytest.raises(ExportCheckFailed, match=SECOND):
        compact_into(spark, archive, store)

    assert periods(archive) == [FIRST]
    assert handed_over(store) == {DAY: 6}
