"""mailserver.archive.index: what is written of rows stands in the fragment and in the index."""

from hashlib import sha256
from io import BytesIO

import numpy as np
import pyarrow as pa
import pytest

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index.layout import KEYS_ROW_BYTES, TRAILER, decode_directory, decode_head, directory_offset
from mailserver.archive.index.writer import FragmentWriter, IndexWriter, RowGroupColumns
from tests.archive.index.indexes import ROWS, Row, columns, footer, fragment, index_of, row


def test_head_says_where_topics_and_row_groups_are() -> None:
    data = fragment(ROWS, 25)

    head = decode_head(data)

    assert head.group_ends.tolist() == [25, 50, 60]
    assert head.topics["topic"].tolist() == [2, 5, 9]
    assert head.topic_ends.tolist() == [20, 40, 60]
    assert head.groups["created_min"].tolist() == [1000, 1000, 1003]
    assert head.groups["created_max"].tolist() == [1006] * 3
    assert head.topics[["created_min", "created_max"]].tolist() == [(1000, 1006)] * 3
    assert head.created == (1000, 1006)
    assert head.footer == footer([25, 25, 10])
    assert all(head.groups["raw_bytes"] >= np.array([250, 250, 100]))
    assert len(data) == head.head_bytes + head.bulk_bytes


def test_bulk_has_the_keys_of_each_row_group_with_their_digest() -> None:
    data = fragment(ROWS, 25)
    head = decode_head(data)

    at = head.head_bytes + head.keys_at + 25 * KEYS_ROW_BYTES
    keys = data[at : at + 25 * KEYS_ROW_BYTES]

    assert np.frombuffer(keys, "<i8", 25).tolist() == [created for _, created, _ in ROWS[25:50]]
    assert np.frombuffer(keys, "<u4", 25, 8 * 25).tolist() == [100 + number for number in range(25)]
    assert keys[12 * 25 :] == b"".join(one for _, _, one in ROWS[25:50])
    assert head.groups["digest"][1].tobytes() == sha256(keys).digest()[:16]


def test_text_and_bytes_give_the_same_fragment() -> None:
    assert fragment(ROWS, 7) == fragment(ROWS, 7, as_text=False)


@pytest.mark.parametrize(
    "rows",
    [
        [row(2, 5, 1), row(1, 5, 2)],
        [row(1, 5, 1), row(1, 4, 2)],
        sorted([row(1, 5, 1), row(1, 5, 2)], reverse=True),
        [row(1, 5, 1), row(1, 5, 1)],
    ],
    ids=["topic", "time", "hash", "twice"],
)
def test_rows_that_are_not_in_order_are_refused(rows: list[Row]) -> None:
    with pytest.raises(ArchiveFault, match="not in the order"):
        fragment(rows, 10)


def test_footer_of_other_row_groups_is_refused() -> None:
    writer = FragmentWriter()
    writer.add(columns(ROWS[:10]))

    with pytest.raises(ArchiveFault, match="row groups"):
        writer.finish(footer([10, 5]))
    with pytest.raises(ArchiveFault, match="rows instead of"):
        writer.finish(footer([9]))


@pytest.mark.parametrize(
    "spoilt",
    [
        columns(ROWS[:5])._replace(topics=pa.array(["0x12"] * 5)),
        columns(ROWS[:5])._replace(topics=pa.array(["0x1234567g"] * 5)),
        columns(ROWS[:5])._replace(topics=pa.array(["1234567890"] * 5)),
        columns(ROWS[:5])._replace(hashes=pa.array([None] * 5, pa.string())),
        columns(ROWS[:5])._replace(created=pa.array([1, 2, None, 4, 5], pa.int64())),
        columns(ROWS[:5])._replace(created=pa.array([1, 2], pa.int64())),
        RowGroupColumns(*(column.slice(0, 0) for column in columns(ROWS[:5]))),
    ],
)
def test_columns_that_are_not_of_envelopes_are_refused(spoilt: RowGroupColumns) -> None:
    with pytest.raises(ArchiveFault):
        FragmentWriter().add(spoilt)


def test_index_has_its_fragments_and_says_where() -> None:
    fragments = {"topic_prefix=0/a": fragment(ROWS[:30], 10), "topic_prefix=0/b": fragment(ROWS[30:], 20)}

    file, record = index_of(fragments)

    content = file.getvalue()
    assert record.bytes == len(content)
    at = directory_offset(content[-TRAILER.size :], len(content))
    entries = decode_directory(content[at:], at, bytes.fromhex(record.sha256))
    assert [(entry.path, entry.rows, entry.topics) for entry in entries] == [
        ("topic_prefix=0/a", 30, (2, 5)),
        ("topic_prefix=0/b", 30, (5, 9)),
    ]
    for entry, one in zip(entries, fragments.values(), strict=True):
        head = content[entry.head_at : entry.head_at + entry.head_bytes]
        assert head + content[entry.bulk_at : entry.bulk_at + entry.bulk_bytes] == one
        assert sha256(head).digest() == entry.digest


def test_file_without_rows_is_refused() -> None:
    with pytest.raises(ArchiveFault, match="a file has no rows"):
        FragmentWriter().finish(footer([1]))


def test_index_takes_no_cut_fragment() -> None:
    with pytest.raises(ArchiveFault, match="cut off"):
        IndexWriter(BytesIO()).add("a", fragment(ROWS, 10)[:-1])
