"""What the compaction is compared with: one process that reads SQLite and writes Parquet with pyarrow, a day at a time.

The same rows, columns, order, compression and partitions; no verification, no publishing.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from mailserver.store.schema import SECONDS_PER_DAY
from spark_export.days import day_name
from spark_export.load import ROW_GROUP_BYTES
from spark_export.schema import ENVELOPES, STORED_ENVELOPES
from spark_export.source import BATCH_ROWS, decode_row

_SELECT = "SELECT received, created, topic, hash, raw FROM envelopes WHERE seq > ? ORDER BY seq LIMIT ?"
_ORDER = [("topic", "ascending"), ("created", "ascending"), ("hash", "ascending")]


def export_plainly(store: Path, to: Path, rows: int) -> None:
    """Write every envelope of a store that received them in order of time."""
    connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    schema = to_arrow_schema(ENVELOPES)
    columns = STORED_ENVELOPES.fieldNames()[3:]
    arrow = pa.schema([to_arrow_schema(STORED_ENVELOPES).field(name) for name in columns])
    held: list[pa.RecordBatch] = []
    day = None
    for first in range(0, rows, BATCH_ROWS):
        decoded = [decode_row(*row) for row in connection.execute(_SELECT, (first, BATCH_ROWS))]
        for batch_day, part in _by_day(decoded, columns.index("received")):
            if day is not None and batch_day != day:
                _write(pa.Table.from_batches(held).select(schema.names), to, day)
                held = []
            day = batch_day
            arrays = [pa.array(column, kind) for column, kind in zip(zip(*part, strict=True), arrow.types, strict=True)]
            held.append(pa.RecordBatch.from_arrays(arrays, schema=arrow))
    if day is not None:
        _write(pa.Table.from_batches(held).select(schema.names), to, day)
    connection.close()


def _by_day(rows: Sequence[tuple[object, ...]], received_at: int) -> Iterator[tuple[int, Sequence[tuple[object, ...]]]]:
    days: dict[int, list[tuple[object, ...]]] = {}
    for row in rows:
        received = row[received_at]
        assert isinstance(received, int)
        days.setdefault(received // SECONDS_PER_DAY, []).append(row)
    yield from days.items()


def _write(table: pa.Table, to: Path, day: int) -> None:
    table = table.sort_by(_ORDER)
    prefixes = pa.compute.utf8_slice_codeunits(table["topic"], 2, 3)
    per_group = ROW_GROUP_BYTES * table.num_rows // table.nbytes
    for prefix in prefixes.unique().to_pylist():
        folder = to / f"date={day_name(day)}" / f"topic_prefix={prefix}"
        folder.mkdir(parents=True)
        pq.write_table(
            table.filter(pa.compute.equal(prefixes, prefix)),
            folder / "part-0.parquet",
            row_group_size=per_group,
            compression="zstd",
            compression_level=1,
            use_dictionary=["topic", "ttl", "pow", "size"],
        )
