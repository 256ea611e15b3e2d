"""Rows, and the fragments and indexes of them."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from mailserver.archive.index.writer import FragmentWriter, IndexWriter, RowGroupColumns, footer_of
from mailserver.archive.manifest import IndexRecord

Row = tuple[bytes, int, bytes]


def row(topic: int, created: int, number: int) -> Row:
    return topic.to_bytes(4, "big"), created, sha256(number.to_bytes(4, "big")).digest()


ROWS = sorted(row(topic, 1000 + number % 7, 100 * topic + number) for topic in (2, 5, 9) for number in range(20))


def columns(rows: Sequence[Row], *, as_text: bool = True) -> RowGroupColumns:
    topics, created, hashes = zip(*rows, strict=True)
    return RowGroupColumns(
        pa.array(["0x" + topic.hex() for topic in topics] if as_text else topics),
        pa.array(created, pa.int64()),
        pa.array(["0x" + one.hex() for one in hashes] if as_text else hashes),
        pa.array([100 + number for number, _ in enumerate(rows)], pa.int32()),
    )


def footer(row_counts: Sequence[int]) -> bytes:
    collected: list[pq.FileMetaData] = []
    file = BytesIO()
    table = pa.table({"raw": [b"x" * 10] * max(row_counts)})
    with pq.ParquetWriter(file, table.schema, use_dictionary=False, metadata_collector=collected) as writer:
        for count in row_counts:
            writer.write_table(table.slice(0, count))
    content = file.getvalue()
    found = footer_of(collected[0])
    assert content.endswith(found)
    return found


def fragment(rows: Sequence[Row], group_rows: int, *, as_text: bool = True) -> bytes:
    writer = FragmentWriter()
    groups = [rows[at : at + group_rows] for at in range(0, len(rows), group_rows)]
    for group in groups:
        writer.add(columns(group, as_text=as_text))
    return writer.finish(footer([*map(len, groups)]))


def index_of(fragments: Mapping[str, bytes]) -> tuple[BytesIO, IndexRecord]:
    file = BytesIO()
    writer = IndexWriter(file)
    for path, one in fragments.items():
        writer.add(path, one)
    return file, writer.finish()
