"""spark_export.writing: what one task does, in this process; whole runs are in the tests of compact and merge."""

import dataclasses
import gc
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mailserver.archive.errors import ArchiveError
from mailserver.archive.index.check import check_index
from mailserver.archive.layout import Layout, PartitionBy
from mailserver.archive.manifest import PeriodRecord
from mailserver.archive.paths import index_of, staged_data
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from spark_export import writing
from spark_export.errors import ExportCheckFailed, ExportError
from spark_export.parquet_file import ROWS as COLUMNS
from spark_export.parquet_file import encode
from spark_export.pieces import Batch, FileRows, Piece, PieceSource, StoreRows, pieces_of_files
from spark_export.task_files import TaskFiles
from spark_export.tasks import without_collector
from spark_export.writing import (
    WritingJob,
    by_period,
    group_spans,
    index_piece,
    write_indexes,
    write_period_index,
    write_piece,
)
from spark_export.written import contents, together
from tests.spark_export.samples import CHAT, DAY, FIRST, NEWS, SPORT, archived, change, envelopes, put, rows_of, tree

PREFIX, TOPIC = Layout(PartitionBy.TOPIC_PREFIX, 1), Layout(PartitionBy.TOPIC, 0)
ROWS = envelopes(60)


@pytest.fixture
def stored(store: Path) -> StoreRows:
    put(store, list(reversed(ROWS)))
    return StoreRows(0, "id of the store", str(store), DAY, (batch(1, 60),), np.array([], np.int64))


def batch(first_seq: int, last_seq: int) -> Batch:
    rows = last_seq - first_seq + 1
    return Batch(first_seq, last_seq, rows, 500 * rows)


def job(archive: Path, layout: Layout = PREFIX, run: str = "run-1") -> WritingJob:
    return WritingJob(f"file://{archive}", layout, run)


def data_of(archive: Path, run: str = "run-1") -> Path:
    return archive / staged_data(run)


def piece(*sources: PieceSource, number: int = 0) -> Piece:
    return Piece(FIRST, number, sources)


@pytest.mark.parametrize(
    ("layout", "folders"),
    [
        (PREFIX, ["topic_prefix=9", "topic_prefix=f"]),
        (TOPIC, ["topic=0x9a000001", "topic=0x9acb0442", "topic=0xf0c5341e"]),
    ],
)
def test_piece_has_a_sorted_file_in_each_of_its_directories(
    archive: Path, stored: StoreRows, layout: Layout, folders: list[str]
) -> None:
    written = write_piece(job(archive, layout), piece(stored, number=7))

    name = "part-00007-run-1.c000.zstd.parquet"
    assert [file.path for file in written.found.files] == [f"{folder}/{name}" for folder in folders]
    assert archived(data_of(archive)) == rows_of(ROWS)
    for file in written.found.files:
        path = data_of(archive) / f"date={FIRST}" / file.path
        assert file.bytes == path.stat().st_size
        assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        rows = pq.ParquetFile(path).read(["created", "hash"]).to_pylist()
        assert file.rows == len(rows)
    days, created = contents(pa.Table.from_pylist(rows_of(ROWS), COLUMNS))
    assert (written.found.days, written.found.created) == (days, created)
    others = {file.relative_to(archive) for file in archive.rglob("*") if file.is_file()}
    assert {file for file in others if "data" not in file.parts} == {Path(written.fragments.name)}


def test_order_of_arrival_is_in_the_files(archive: Path, stored: StoreRows) -> None:
    write_piece(job(archive), piece(stored))

    files = data_of(archive).rglob("*.parquet")
    found = [row for file in files for row in pq.ParquetFile(file).read(["store", "seq", "hash"]).to_pylist()]
    assert {row["store"] for row in found} == {"id of the store"}
    in_order = sorted(found, key=lambda row: row["seq"])
    assert [row["hash"] for row in in_order] == ["0x" + row.hash.hex() for row in reversed(ROWS)]


def test_same_piece_is_the_same_files(archive: Path, stored: StoreRows, tmp_path: Path) -> None:
    written = [write_piece(job(folder), piece(stored)) for folder in (archive, archive, tmp_path / "other")]

    assert written[0] == written[1] == written[2]
    assert tree(data_of(archive)) == tree(data_of(tmp_path / "other"))


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """The collector's runs, each of which begins and ends: every few objects."""
    told: list[str] = []

    def tell(phase: str, _: dict[str, int]) -> None:
        told.append(phase)

    before = gc.get_threshold()
    gc.callbacks.append(tell)
    gc.set_threshold(10)
    yield told
    gc.set_threshold(*before)
    gc.callbacks.remove(tell)


def test_collector_does_not_look_through_the_rows_of_a_piece(
    archive: Path, stored: StoreRows, collections: list[str]
) -> None:
    collections.clear()

    write_piece(job(archive), piece(stored))

    # With the first and the last step, it is on; else it would run some hundred times.
    assert collections.count("start") < 10
    assert gc.isenabled()


def test_collector_is_on_again_after_a_piece_that_failed(archive: Path, stored: StoreRows) -> None:
    missing = dataclasses.replace(stored, address=str(archive / "none"))

    with pytest.raises(ExportError):
        write_piece(job(archive), piece(missing))

    assert gc.isenabled()


def test_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with without_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_piece_without_rows_has_no_file(archive: Path, stored: StoreRows) -> None:
    written = write_piece(job(archive), piece(dataclasses.replace(stored, left_out=np.arange(1, 61))))

    assert (written.found.files, written.found.days) == ((), {})
    assert not archive.exists()


def test_rows_that_are_no_envelopes_are_left_out_and_told(archive: Path, stored: StoreRows) -> None:
    change(Path(stored.address), "UPDATE envelopes SET raw = x'00' WHERE seq = 5")

    written = write_piece(job(archive), piece(stored))

    assert [row.seq for row in written.faulty] == [5]
    assert len(archived(data_of(archive))) == 59


def published(archive: Path, stored: StoreRows, layout: Layout = PREFIX) -> list[FileRows]:
    """The rows as a day of the archive, in its directory."""
    written = write_piece(job(archive, layout), piece(stored))
    (data_of(archive) / f"date={FIRST}").rename(archive / f"date={FIRST}")
    return [FileRows(f"date={FIRST}/{file.path}", file.sha256) for file in written.found.files]


@pytest.mark.parametrize("layout", [PREFIX, TOPIC], ids=str)
def test_files_of_the_archive_are_written_again(archive: Path, stored: StoreRows, layout: Layout) -> None:
    sources = published(archive, stored, layout)

    written = write_piece(job(archive, layout, "run-2"), piece(*sources))

    assert archived(data_of(archive, "run-2")) == rows_of(ROWS)
    assert sum(file.rows for file in written.found.files) == 60


@pytest.mark.parametrize("layout", [PREFIX, TOPIC], ids=str)
def test_row_groups_are_told_with_their_ranges_and_read_by_a_span_of_keys(
    archive: Path, stored: StoreRows, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "row_group_ends", lambda rows: [*range(7, rows.num_rows, 7), rows.num_rows])
    files = published(archive, stored, layout)
    rows = rows_of(ROWS)
    middle = rows[len(rows) // 2]
    key = middle["topic"], middle["created"]

    groups = [group for file in files for group in group_spans(job(archive, layout), file)]
    parts = []
    for number, span in enumerate([(None, key), (key, None)]):
        sources = [
            FileRows(file.name, groups=tuple(group.number for group in groups if group.file == file.name), span=span)
            for file in files
        ]
        parts.append(write_piece(job(archive, layout, f"part-{number}"), piece(*sources)))

    assert sorted(topic for group in groups for topic in group.topics)[:: len(groups) * 2 - 1] == [
        rows[0]["topic"],
        rows[-1]["topic"],
    ]
    assert all(group.first <= group.last for group in groups)
    below, above = (archived(data_of(archive, f"part-{number}")) for number in (0, 1))
    assert below + above == rows
    assert above[0] == middle
    assert together([part.found for part in parts]).days == contents(pa.Table.from_pylist(rows, COLUMNS))[0]


def test_file_whose_bytes_are_others_is_not_decoded(archive: Path, stored: StoreRows) -> None:
    source, _ = published(archive, stored)
    path = archive / source.name
    path.write_bytes(path.read_bytes()[:-9] + bytes(9))

    for attempt in (lambda: write_piece(job(archive), piece(source)), lambda: group_spans(job(archive), source)):
        with pytest.raises(ArchiveError, match=rf"^{source.name} is damaged: its bytes have another SHA-256"):
            attempt()


def test_file_that_does_not_come_back_as_it_was_written_ends_the_task(
    archive: Path, stored: StoreRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode_others(rows: pa.Table, layout: Layout, ends: list[int]) -> pa.Buffer:
        other = rows.column("ttl").to_numpy().copy()
        other[3] += 1
        return encode(rows.set_column(4, rows.schema.field("ttl"), pa.array(other)), layout, ends)

    monkeypatch.setattr(writing, "encode", encode_others)

    with pytest.raises(
        ExportCheckFailed, match=rf"^check failed for {FIRST}: topic_prefix=9/part-.* does not come back"
    ):
        write_piece(job(archive), piece(stored))


def test_row_that_stands_twice_ends_the_task(archive: Path, stored: StoreRows) -> None:
    with pytest.raises(
        ExportCheckFailed, match=rf"^check failed for {FIRST}: topic.* not in the order of topic, time and"
    ):
        write_piece(job(archive), piece(stored, dataclasses.replace(stored, batches=(batch(60, 60),))))


@pytest.mark.parametrize("layout", [PREFIX, TOPIC], ids=str)
def test_index_of_a_period_is_of_the_files_of_all_its_pieces(archive: Path, stored: StoreRows, layout: Layout) -> None:
    halves = [dataclasses.replace(stored, batches=(half,)) for half in (batch(1, 30), batch(31, 60))]
    pieces = [write_piece(job(archive, layout), piece(half, number=number)) for number, half in enumerate(halves)]

    written = by_period(reversed(pieces))[FIRST]
    index_record = write_indexes(job(archive, layout), reversed(pieces))[FIRST]

    assert written == together([one.found for one in pieces])
    name = index_of(FIRST, "run-1")
    record = PeriodRecord(FIRST, "run-1", {}, written.files, index=index_record, network_topic=DEFAULT_NETWORK_TOPIC)
    with (archive / name).open("rb") as index:
        check_index(index, record, lambda path: (data_of(archive) / f"date={FIRST}" / path).open("rb"))

    # From the files alone it is the same.
    before = (archive / name).read_bytes()
    (data_of(archive) / f"date={FIRST}").rename(archive / f"date={FIRST}")
    again = [index_piece(job(archive, layout, "again"), one, has_muids=True) for one in pieces_of_files(record)]
    found = write_period_index(TaskFiles(job(archive).url), job(archive, layout, "again"), FIRST, "run-1", again)
    assert found == index_record
    assert (archive / name).read_bytes() == before


def test_period_without_rows_has_no_index(archive: Path, stored: StoreRows) -> None:
    nothing = write_piece(job(archive), piece(dataclasses.replace(stored, left_out=np.arange(1, 61))))

    assert (by_period([nothing]), write_indexes(job(archive), [nothing])) == ({}, {})
    assert not archive.exists()


def test_topics_of_one_prefix_are_in_one_file(archive: Path, stored: StoreRows) -> None:
    written = write_piece(job(archive), piece(stored))

    nine, _ = written.found.files
    topics = pq.ParquetFile(data_of(archive) / f"date={FIRST}" / nine.path).read(["topic"]).column("topic")
    assert topics.unique().to_pylist() == ["0x" + topic.hex() for topic in (CHAT, NEWS)]
    assert SPORT.hex().startswith("f")
