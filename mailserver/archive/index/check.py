"""Whether an index is of the Parquet files beside it, and the fragment of a file that has none."""

import os
import re
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index.id_sums import EachOnce, encode_sums, sums_of, together
from mailserver.archive.index.layout import Entry, Table
from mailserver.archive.index.reader import PeriodIndex, check_header, read_directory, read_fragment, read_heads
from mailserver.archive.index.writer import FragmentWriter, RowGroupColumns
from mailserver.archive.manifest import PeriodRecord, SumsRecord
from mailserver.waku.envelope import Topic

_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # the footer's length, and the magic

OpenFile = Callable[[str], AbstractContextManager[BinaryIO]]
"""Opens a file of the period by its path in the period's record."""


def check_index(index: BinaryIO, record: PeriodRecord, open_file: OpenFile) -> None:
    """Compare an index with every row of its period's files.

    Raises:
        ArchiveFault: they differ, the index is damaged, or the record has none.
        OSError: a file cannot be read.
    """
    if record.index is None:
        raise ArchiveFault(f"the record of {record.period} has no index")
    check_header(index)
    directory = read_directory(index, record.index)
    check_paths(directory, {file.path: file.rows for file in record.files}.items())
    sums, each_once = [], EachOnce()
    for path, entry in sorted(directory.entries.items()):
        with open_file(path) as file:
            check_fragment(index, entry, file)
            if record.index.sums is not None:
                sums.append(sums_in(file))
                (head,) = read_heads(index, [entry])
                each_once.add(path, head, read_fragment(index, entry))
    if record.index.sums is not None:
        _check_sums(index, record.index.sums, record.network_topic, together(sums), each_once=each_once.holds)


def check_paths(directory: PeriodIndex, files: Collection[tuple[str, int]]) -> None:
    """Check that an index is of these files, each by its path and its rows.

    Raises:
        ArchiveFault: it is of others.
    """
    entries = {(entry.path, entry.rows) for entry in directory.entries.values()}
    if entries != {*files}:
        path, _ = min(entries ^ {*files})
        raise ArchiveFault(f"the index is of other files: {path} is not in both, or not with as many rows")


def check_fragment(index: BinaryIO, entry: Entry, file: BinaryIO) -> None:
    """Compare what an index says of a Parquet file with the file: every row of it.

    Raises:
        ArchiveFault: they differ, or the file cannot be read.
        OSError: the index cannot be read.
    """
    if read_fragment(index, entry) != fragment_of(file, topic_of(entry.path)):
        raise ArchiveFault(f"the index does not say what is in {entry.path}")


def fragment_of(file: BinaryIO, topic: Topic | None = None) -> bytes:
    """The fragment of a Parquet file: the same as of whoever wrote the file.

    Args:
        topic: of all rows, where the file has no such column.
    Raises:
        ArchiveFault: it is no file of an archive, or cannot be read.
    """
    writer = FragmentWriter()
    names = ["created", "hash", "size", *([] if topic else ["topic"])]
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            for number in range(parquet.metadata.num_row_groups):
                table = parquet.read_row_group(number, columns=names, use_threads=False)
                topics = pa.array([topic] * table.num_rows, pa.binary()) if topic else table["topic"]
                writer.add(RowGroupColumns(topics, table["created"], table["hash"], table["size"]))
            return writer.finish(_footer(file))
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise ArchiveFault(f"it cannot be indexed: {error}") from error


def topic_of(path: str) -> Topic | None:
    """The topic of all rows of a file, where each topic has a directory; None where the file says it of each row.

    Raises:
        ArchiveFault: it is no topic.
    """
    column, _, value = path.partition("/")[0].partition("=")
    if column != "topic":
        return None
    if not re.fullmatch(r"0x[0-9a-f]{8}", value):
        raise ArchiveFault(f"{path} is of no topic")
    return Topic(bytes.fromhex(value[2:]))


def sums_in(file: BinaryIO) -> Table:
    """The sums of ids of a Parquet file whose rows have MUIDs: `id_sums.MINUTE`.

    Raises:
        ArchiveFault: it is no such file, or cannot be read.
    """
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            numbers = range(parquet.metadata.num_row_groups)
            groups = (parquet.read_row_group(one, columns=["created", "muid"], use_threads=False) for one in numbers)
            return together([sums_of(group["created"], group["muid"]) for group in groups])
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise ArchiveFault(f"its ids cannot be added up: {error}") from error


def _check_sums(
    index: BinaryIO, record: SumsRecord, network_topic: str | None, minutes: Table, *, each_once: bool
) -> None:
    """Compare the sums of an index with those of the files."""
    head, rows = encode_sums(network_topic or "", minutes, each_once=each_once)
    index.seek(record.at)
    if record.bytes != len(head) or index.read(len(head) + len(rows)) != head + rows:
        raise ArchiveFault("the index has other sums of ids than the files")


def _footer(file: BinaryIO) -> bytes:
    file.seek(-_TAIL_BYTES, os.SEEK_END)
    tail = file.read()
    file.seek(-_TAIL_BYTES - int.from_bytes(tail[:4], "little"), os.SEEK_END)
    return file.read()
