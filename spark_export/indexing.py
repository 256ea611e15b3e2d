"""The index of each period (`mailserver.archive.index`): put together from fragments that tasks make.

A task puts the fragments of a piece into one file of the staging directory, one after another. So the driver holds one
fragment at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index.reader import check_header, read_directory, read_fragment
from mailserver.archive.index.writer import FragmentWriter, IndexWriter, RowGroupColumns
from mailserver.archive.manifest import IndexRecord
from spark_export.task_files import TaskFiles

_TAIL_BYTES = 8  # of a Parquet file: the footer's length, and the magic


@dataclass(frozen=True, slots=True)
class Fragments:
    """The fragments that a task has made, in the file `name`.

    `parts`: the fragments in their order in that file. For each, the path of its data file in the period's directory,
    and how many bytes it has.
    """

    name: str
    parts: tuple[tuple[str, int], ...]


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


def write_index(files: TaskFiles, name: str, fragments: Sequence[Fragments], way: str) -> IndexRecord:
    """Put the index of a period together, and read it back.

    Args:
        name: where it is to be, relative to the archive.
        way: as for `TaskFiles.write`.
    Raises:
        ArchiveFault: it does not come back as it was written.
        ArchiveError: the archive cannot be read or written.
    """
    with files.created(name, way) as stream:
        writer = IndexWriter(stream)
        for path, fragment in _each(files, fragments):
            writer.add(path, fragment)
        record = writer.finish()
    with files.opened(name) as file:
        check_header(file)
        entries = dict(read_directory(file, record).entries)
        for path, fragment in _each(files, fragments):
            if read_fragment(file, entries.pop(path)) != fragment:
                raise ArchiveFault(f"{name} does not come back as it was written")
    return record


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
