"""What the compaction is compared with: one process that reads SQLite and writes Parquet with pyarrow, a day at a time.

The same rows, columns, order, compression and partitions; no verification, no publishing.
"""

import sqlite3
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mailserver.archive.days import day_name
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.units import SECONDS_PER_DAY
from spark_export.decode import StoredRows, decode_rows, sound_rows
from spark_export.parquet_file import ROW_GROUP_BYTES
from spark_export.source import BATCH_ROWS

_SELECT = "SELECT seq, received, created, topic, hash, raw FROM envelopes WHERE seq > ? ORDER BY seq LIMIT ?"
_ORDER = [("topic", "ascending"), ("created", "ascending"), ("hash", "ascending")]


def export_plainly(store: Path, to: Path, rows: int) -> None:
    """Write every envelope of a store that received them in order of time."""
    connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    held: list[pa.RecordBatch] = []
    day = None
    for first in range(0, rows, BATCH_ROWS):
        stored = connection.execute(_SELECT, (first, BATCH_ROWS)).fetchall()
        for batch_day, part in groupby(stored, lambda row: row[1] // SECONDS_PER_DAY):
            if day is not None and batch_day != day:
                _write(held, to, day)
                held = []
            day = batch_day
            held.append(_rows(list(part)))
    if day is not None:
        _write(held, to, day)
    connection.close()


def _rows(stored: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    seqs, *columns = zip(*stored, strict=True)
    decoded = decode_rows(StoredRows(*columns), DEFAULT_NETWORK_TOPIC)
    return sound_rows(decoded, pa.repeat("a store", len(stored)), pa.array(seqs, pa.int64()))


def _write(batches: Sequence[pa.RecordBatch], to: Path, day: int) -> None:
    table = pa.Table.from_batches(batches).sort_by(_ORDER)
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
            use_dictionary=["topic", "ttl", "pow", "size", "store"],
        )
