"""spark_export.parquet_file: what a file of the archive looks like, and what is no such file."""

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mailserver.archive.errors import ArchiveError
from mailserver.archive.layout import Layout, PartitionBy
from mailserver.waku.envelope import Topic
from spark_export.parquet_file import ROW_GROUP_BYTES, ROWS, decode, encode, read_row_groups, row_group_ends, row_groups
from tests.spark_export.samples import NEWS, SPORT, envelope, rows_of

PREFIX, TOPIC = Layout(PartitionBy.TOPIC_PREFIX, 1), Layout(PartitionBy.TOPIC, 0)
NAME = {PREFIX: "date=2024-10-04/topic_prefix=9/part-0", TOPIC: "date=2024-10-04/topic=0x9acb0442/part-0"}
LAYOUTS = pytest.mark.parametrize("layout", [PREFIX, TOPIC], ids=str)


def table(*sizes: int, topic: Topic = NEWS) -> pa.Table:
    """Sorted rows, of envelopes with so many bytes of data."""
    return pa.Table.from_pylist(rows_of(envelope(at, size=size, topic=topic) for at, size in enumerate(sizes)), ROWS)


def test_row_groups_have_about_a_megabyte_of_envelopes() -> None:
    rows = table(*[1000] * 3000)

    ends = row_group_ends(rows)

    sizes = rows.column("size").to_pylist()
    groups = [sum(sizes[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    assert ends[-1] == 3000
    assert len(groups) == 3
    assert all(abs(size - ROW_GROUP_BYTES) < 2000 for size in groups[:-1])


@pytest.mark.parametrize(
    ("sizes", "ends"), [([10], [1]), ([3 * ROW_GROUP_BYTES], [1]), ([ROW_GROUP_BYTES] * 2, [1, 2])]
)
def test_row_group_has_a_row_at_least(sizes: list[int], ends: list[int]) -> None:
    assert row_group_ends(table(*sizes)) == ends


@LAYOUTS
def test_what_is_read_is_what_was_written(layout: Layout) -> None:
    rows = table(0, 10, 5000, 70_000)

    data = encode(rows, layout, [1, 3, 4])

    assert decode(data, layout, NAME[layout]).equals(rows)
    assert read_row_groups(pa.BufferReader(data), layout, NAME[layout], [0, 2]).equals(
        pa.concat_tables([rows.slice(0, 1), rows.slice(3, 1)])
    )


@LAYOUTS
def test_file_of_an_earlier_version_has_nulls_in_later_columns(layout: Layout) -> None:
    rows = table(10, 20)
    sink = pa.BufferOutputStream()
    pq.write_table(rows.drop_columns(["store", "seq", "muid", *(["topic"] if layout == TOPIC else [])]), sink)

    found = decode(sink.getvalue(), layout, NAME[layout])

    assert found.drop_columns("muid").equals(rows.drop_columns("muid"))
    assert found.schema == ROWS
    assert [found.column(name).null_count for name in ("store", "seq", "muid")] == [2, 2, 2]


@LAYOUTS
def test_file_says_how_it_is_sorted_and_what_each_row_group_has(layout: Layout) -> None:
    rows = table(10, 20, 30)

    data = encode(rows, layout, [2, 3])

    footer = pq.read_metadata(pa.BufferReader(data))
    names = footer.schema.names
    sorting = [names[column.column_index] for column in footer.row_group(0).sorting_columns]
    assert sorting == [name for name in ("topic", "created", "hash") if name != layout.column]
    created = rows.column("created").to_pylist()
    sizes = [size for size, _, _ in row_groups(data, layout, NAME[layout])]
    assert [(topics, times) for _, topics, times in row_groups(data, layout, NAME[layout])] == [
        (("0x9acb0442", "0x9acb0442"), (min(part), max(part))) for part in (created[:2], created[2:])
    ]
    assert all(size > 50 for size in sizes)


def test_bloom_filter_tells_what_a_file_has_not(tmp_path: object) -> None:
    rows = table(*[10] * 500)
    file = f"{tmp_path}/file.parquet"
    pq.write_table(rows, file)
    with open(file, "wb") as out:  # noqa: PTH123
        out.write(encode(rows, PREFIX, [500]))

    def groups_without(text: str) -> list[bool]:
        found = duckdb.execute("SELECT bloom_filter_excludes FROM parquet_bloom_probe(?, 'hash', ?)", [file, text])
        return [excluded for (excluded,) in found.fetchall()]

    assert groups_without(rows.column("hash")[7].as_py()) == [False]
    others = [envelope(at, size=10, topic=SPORT).hash.hex() for at in range(1000, 1100)]
    assert sum(groups_without("0x" + other) == [True] for other in others) > 70


def test_damaged_page_and_what_is_no_file_are_named() -> None:
    data = bytearray(encode(table(*[1000] * 5), PREFIX, [5]))
    data[len(data) // 2] ^= 1

    for damaged in (bytes(data), b"PAR1 nothing PAR1", b""):
        with pytest.raises(ArchiveError, match=r"^date=2024-10-04/topic_prefix=9/part-0 cannot be read: ") as caught:
            decode(pa.py_buffer(damaged), PREFIX, NAME[PREFIX])
        assert "\n" not in str(caught.value)


def test_file_with_other_columns_is_named() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table(10).drop_columns("raw"), sink)

    with pytest.raises(ArchiveError, match="cannot be read"):
        decode(sink.getvalue(), PREFIX, NAME[PREFIX])
