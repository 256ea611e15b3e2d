"""The index of each period (`mailserver.archive.index`): put together from fragments that tasks make.

A task puts the fragments of a piece into one file of the staging directory, one after another, and behind them the sums
of the piece's ids. So the driver holds one fragment at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index.id_sums import MINUTE, read_days, read_minutes, together
from mailserver.archive.index.layout import Table
from mailserver.archive.index.reader import check_header, read_directory, read_fragment
from mailserver.archive.index.writer import FragmentWriter, IndexWriter, RowGroupColumns
from mailserver.archive.manifest import IndexRecord, SumsRecord
from spark_export.task_files import TaskFiles

_TAIL_BYTES = 8  # of a Parquet file: the footer's length, and the magic


@dataclass(frozen=True, slots=True)
class Fragments:
    """The fragments that a task has made, in the file `name`.

    `parts`: the fragments in their order in that file. For each, the path of its data file in the period's directory,
    and how many bytes it has. `minutes`: how many rows the sums of ids behind them have (`id_sums.MINUTE`); None if
    there are none, as the rows have no MUIDs.
    """

    name: str
    parts: tuple[tuple[str, int], ...]
    minutes: int | None = None


def fragment_of(rows: pa.Table, ends: Sequence[int], file: pa.Buffer) -> bytes:
    """What the index says of a file.

    Args:
        rows: ROWS of the file, as they were read back.
        ends: after which row each row group ends.
        file: all its bytes.
    Raises:
        ArchiveFault: the rows are not in order, or one is there twice.
    """
    writer = FragmentWriter()
    for start, end in zip([0, *ends], ends, strict=False):
        group = rows.slice(start, end - start)
        writer.add(RowGroupColumns(*(group.column(name) for name in ("topic", "created", "hash", "size"))))
    footer_bytes = int.from_bytes(file.slice(file.size - _TAIL_BYTES, 4).to_pybytes(), "little") + _TAIL_BYTES
    return writer.finish(file.slice(file.size - footer_bytes).to_pybytes())


def write_index(
    files: TaskFiles, name: str, fragments: Sequence[Fragments], way: str, network_topic: str
) -> IndexRecord:
    """Put the index of a period together, and read it back.

    Args:
        name: where it is to be, relative to the archive.
        way: as for `TaskFiles.write`.
        network_topic: to which the MUIDs of the rows belong.
    Raises:
        ArchiveFault: it does not come back as it was written.
        ArchiveError: the archive cannot be read or written.
    """
    has_sums = all(of_piece.minutes is not None for of_piece in fragments)
    sums = (network_topic, together(_sums(files, fragments))) if has_sums else None
    with files.created(name, way) as stream:
        writer = IndexWriter(stream)
        for path, fragment in _each(files, fragments):
            writer.add(path, fragment)
        record = writer.finish(sums)
    files.flush(name)
    with files.opened(name) as file:
        if sums is not None and record.sums is not None:
            _check_sums(file, record.sums, *sums, name)
        check_header(file)
        entries = dict(read_directory(file, record).entries)
        for path, fragment in _each(files, fragments):
            if read_fragment(file, entries.pop(path)) != fragment:
                raise ArchiveFault(f"{name} does not come back as it was written")
    return record


def _check_sums(file: BinaryIO, record: SumsRecord, network_topic: str, minutes: Table, name: str) -> None:
    """Compare the sums of an index with what was to be written."""
    days = read_days(file, record)
    found = together(read_minutes(file, days, row) for row in range(len(days.days)))
    if days.network_topic != network_topic or (days.each_once and found.tobytes() != minutes.tobytes()):
        raise ArchiveFault(f"{name} does not come back as it was written")


def _sums(files: TaskFiles, fragments: Sequence[Fragments]) -> Iterator[Table]:
    """The sums of each piece."""
    for of_piece in fragments:
        at = sum(size for _, size in of_piece.parts)
        with files.opened(of_piece.name) as file:
            yield np.frombuffer(file.read_at((of_piece.minutes or 0) * MINUTE.itemsize, at), MINUTE)


def _each(files: TaskFiles, fragments: Sequence[Fragments]) -> Iterator[tuple[str, bytes]]:
    """Each fragment with the path of its data file, in the order of the paths."""
    places = []
    for of_piece in fragments:
        at = 0
        for path, size in of_piece.parts:
            places.append((path, of_piece.name, at, size))
            at += size
    for path, name, at, size in sorted(places):
        with files.opened(name) as file:
            yield path, file.read_at(size, at)
