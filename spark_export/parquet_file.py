"""One Parquet file of the archive: its columns, row groups and encoding. pyarrow writes it and reads it back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from mailserver.archive.errors import ArchiveError
from mailserver.archive.layout import Layout
from spark_export.schema import ENVELOPES

ROWS = to_arrow_schema(ENVELOPES)
"""What a task holds: the columns of ENVELOPES. A file may lack the one that its directory names."""

ORDER = ("topic", "created", "hash")

ROW_GROUP_BYTES = 1024 * 1024
"""About how many bytes of envelopes a row group has. A reader of one topic decodes at least one row group, in 0.5 to
0.8 ms. With 3 MiB it would take 1.4 ms, with 18 MiB 4.3 ms, and with 0.6 MiB 0.5 ms, but then footers are half as large
again. Neither the size nor the time of a scan by DuckDB differs much: 590, 590, 591.7 and 592.5 bytes a row for 18, 3,
1 and 0.6 MiB."""

_FALSE_POSITIVES = 0.1
_FEW_VALUES = ("topic", "ttl", "pow", "size", "store")
_WITHOUT_RANGES = ("raw", "muid")
_FILTERED = ("hash", "muid", "topic")
_EACH_ANOTHER = ("hash", "muid")
"""Of these, no two rows of a file have the same."""


def row_group_ends(rows: pa.Table) -> list[int]:
    """After which row each row group of a file ends, by the sizes of its envelopes."""
    sizes = rows.column("size").to_numpy().cumsum(dtype=np.int64)
    numbers = (sizes - 1) // ROW_GROUP_BYTES
    return [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), rows.num_rows]


def encode(rows: pa.Table, layout: Layout, ends: Sequence[int]) -> pa.Buffer:
    """Make a file of rows of one directory, which are sorted by ORDER.

    Args:
        rows: ROWS, at least one.
        ends: after which row each row group ends.
    """
    bounds = list(zip([0, *ends], ends, strict=False))
    in_file = rows.drop_columns(layout.column) if layout.column in rows.column_names else rows
    names = in_file.column_names
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        in_file.schema,
        # The cheapest level: it finds the little that there is to find in ciphertext, and hex digits.
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in _FEW_VALUES if name in names],
        write_statistics=[name for name in names if name not in _WITHOUT_RANGES],
        write_page_checksum=True,
        store_schema=False,  # Parquet's own schema says it all
        sorting_columns=[pq.SortingColumn(names.index(name)) for name in ORDER if name in names],
        bloom_filter_options={
            name: {"ndv": _most_values(in_file, name, bounds), "fpp": _FALSE_POSITIVES}
            for name in _FILTERED
            if name in names
        },
    ) as writer:
        for start, end in bounds:
            writer.write_table(in_file.slice(start, end - start), row_group_size=end - start)
    return sink.getvalue()


def decode(data: pa.Buffer, layout: Layout, name: str) -> pa.Table:
    """Read every page of a file; ROWS.

    Args:
        name: where the file is, by its path: in the directory of its partition.
    Raises:
        ArchiveError: it is no file of an archive.
    """
    return read_row_groups(pa.BufferReader(data), layout, name, None)


def read_row_groups(file: pa.NativeFile, layout: Layout, name: str, groups: Sequence[int] | None) -> pa.Table:
    """Read some row groups of a file, or all; ROWS, in one chunk.

    Args:
        name: as for `decode`.
    Raises:
        ArchiveError: it is no file of an archive.
    """
    with damage_named(name):
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        names = [one for one in ROWS.names if one != layout.column]
        if groups is None:
            rows = parquet.read(columns=names, use_threads=False)
        else:
            rows = parquet.read_row_groups(groups, columns=names, use_threads=False)
        if layout.column in ROWS.names:
            topic = pa.scalar(partition_of(name), pa.string())
            rows = rows.append_column(layout.column, pa.repeat(topic, rows.num_rows))
        for field in ROWS:
            if field.nullable and field.name not in rows.column_names:  # an earlier version wrote the file
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows.select(ROWS.names).cast(ROWS).combine_chunks()


def row_groups(data: pa.Buffer, layout: Layout, name: str) -> list[tuple[int, tuple[str, str], tuple[int, int]]]:
    """What the footer says of each row group: bytes of its envelopes, first and last topic, first and last time of
    creation.

    Args:
        name: as for `decode`.
    Raises:
        ArchiveError: it is no file of an archive.
    """
    with damage_named(name):
        return described(pq.read_metadata(pa.BufferReader(data)), layout, name)


def described(footer: pq.FileMetaData, layout: Layout, name: str) -> list[tuple[int, tuple[str, str], tuple[int, int]]]:
    """What `row_groups` says, from a footer that was read."""
    columns = {one: number for number, one in enumerate(footer.schema.names)}
    found = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        created, topics = group.column(columns["created"]).statistics, (partition_of(name), partition_of(name))
        if layout.column not in ROWS.names:
            topic = group.column(columns["topic"]).statistics
            topics = topic.min, topic.max
        found.append((group.column(columns["raw"]).total_uncompressed_size, topics, (created.min, created.max)))
    return found


def partition_of(name: str) -> str:
    """The value that the name of a file's directory has."""
    return name.split("/")[-2].partition("=")[2]


@contextmanager
def damage_named(name: str) -> Iterator[None]:
    """Raise ArchiveError for what pyarrow cannot decode."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, AttributeError) as error:
        raise ArchiveError(f"{name} cannot be read: {str(error).partition(chr(10))[0]}") from error


def _most_values(rows: pa.Table, name: str, bounds: Sequence[tuple[int, int]]) -> int:
    """The number of different values that a column has in the row group that has the most."""
    if name in _EACH_ANOTHER:
        return max(end - start for start, end in bounds)
    return max(len(rows.column(name).slice(start, end - start).unique()) for start, end in bounds)
