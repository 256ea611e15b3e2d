"""The row groups of the archive's files: what a footer says of each, the keys of its envelopes, the envelopes.

Everything here waits for the disk and takes processor time: it runs in a thread. pyarrow decodes without Python's
lock. Each file is opened anew for each read and never mapped into memory, so what happens to a file meanwhile is an
error of that read and nothing else.

Nothing is believed. Before anything of a file is used, all of it is read, and compared with the digest in its record:
pyarrow ends the whole process where a damaged footer has it meet what it does not expect (26.0.1: "terminate called
after throwing an instance of 'parquet::ParquetException'"), and a footer has no checksum. From then on the footer is
used as it was. Pages have checksums, which pyarrow checks; what a footer says of a row group is compared with the rows
as they are read; an envelope is hashed before it is handed out. Only of files that earlier versions wrote, and nobody
has verified since, there is no digest.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index.columns import Bytes, Numbers, bytes_of, numbers_of
from mailserver.archive.index.reader import KeysPlace
from mailserver.codec.keccak import keccak256
from mailserver.waku.envelope import HASH_BYTES, TOPIC_BYTES, EnvelopeHash, Topic

_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # the footer's length, and the magic
_CHUNK_BYTES = 1024 * 1024

_KEY_COLUMNS = ("created", "hash", "size")


class FileGone(ArchiveFault):
    """A file is not where it was: it was replaced since, or deleted."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file as its record has it.

    `names`: where it may be, the likeliest first. `sha256`: in hex; "" if it is not known. `topic`: of all its rows,
    where each topic has a directory.
    """

    names: tuple[Path, ...]
    bytes: int
    rows: int
    sha256: str = ""
    topic: Topic | None = None


@dataclass(frozen=True, slots=True)
class IndexedKeys:
    """Where the keys of a row group are, in which index."""

    path: Path
    place: KeysPlace


@dataclass(frozen=True, slots=True, eq=False)
class RowGroup:
    """What a footer, or an index, says of a row group. Ranges are inclusive; times in Unix seconds.

    `raw_bytes`: of its envelopes, decoded. `footer`: of the file. `indexed`: None if its file has no index.
    """

    file: DataFile
    number: int
    rows: int
    topics: tuple[Topic, Topic]
    created: tuple[int, int]
    raw_bytes: int
    footer: bytes = field(repr=False)
    indexed: IndexedKeys | None = None


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """What tells the envelopes of a row group apart, in columns; rows are in the order (topic, created, hash).

    `topics`: its topics in order; `topic_ends`: behind which row each ends. Both are empty where they come from an
    index, which has said before what is where.
    """

    topics: tuple[Topic, ...]
    topic_ends: Numbers
    created: Numbers
    hashes: Bytes
    sizes: Numbers

    @property
    def memory_bytes(self) -> int:
        """What this takes."""
        columns = (self.topic_ends, self.created, self.hashes, self.sizes)
        return sum(column.nbytes for column in columns) + 64 * len(self.topics)


def read_footer(file: DataFile) -> tuple[RowGroup, ...]:
    """The row groups of a file, in their order. All of the file is read.

    Raises:
        FileGone: it is not there.
        ArchiveFault: it cannot be read, or is not what its record says.
    """
    with _opened(file) as handle:
        footer = _verified_footer(handle, file)
        metadata = parsed(footer)
        columns = {name: number for number, name in enumerate(metadata.schema.names)}
        wanted = {*_KEY_COLUMNS, "raw", *([] if file.topic else ["topic"])}
        if not wanted <= columns.keys():
            raise ValueError(f"it has no column {', '.join(sorted(wanted - columns.keys()))}")
        groups: list[RowGroup] = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            created = _range(group.column(columns["created"]))
            if file.topic is None:
                first, last = map(_topic, _range(group.column(columns["topic"])))
                topics = first, last
            else:
                topics = file.topic, file.topic
            if created[0] > created[1] or topics[0] > topics[1] or (groups and groups[-1].topics[1] > topics[0]):
                raise ValueError("what its footer says is contradictory")
            raw_bytes = group.column(columns["raw"]).total_uncompressed_size
            groups.append(RowGroup(file, number, group.num_rows, topics, created, raw_bytes, footer))
        if sum(group.rows for group in groups) != file.rows:
            raise ValueError(f"it has {sum(group.rows for group in groups)} rows instead of {file.rows}")
    return tuple(groups)


def read_keys(group: RowGroup) -> GroupKeys:
    """The keys of a row group.

    Raises:
        FileGone: its file is not there.
        ArchiveFault: it cannot be read, or is not what its footer says.
    """
    names = [*_KEY_COLUMNS, *([] if group.file.topic else ["topic"])]
    with _opened(group.file) as handle:
        table = _read(handle, parsed(group.footer), group.number, names)
        if table.num_rows != group.rows or any(column.null_count for column in table.columns):
            raise ValueError(f"row group {group.number} is not what its footer says")
        created = numbers_of(table["created"])
        hashes = bytes_of(table["hash"], HASH_BYTES)
        if group.file.topic is None:
            topics, ends = _runs(bytes_of(table["topic"], TOPIC_BYTES))
        else:
            topics, ends = (group.file.topic,), np.array([group.rows], np.int64)
        keys = GroupKeys(topics, ends, created, hashes, numbers_of(table["size"]))
        found = (int(created.min()), int(created.max()))
        if found != group.created or (topics[0], topics[-1]) != group.topics or list(topics) != sorted(set(topics)):
            raise ValueError(f"row group {group.number} is not what its footer says")
    return keys


def parsed(footer: bytes) -> pq.FileMetaData:
    """A footer as pyarrow needs it: of a file with many row groups this takes a millisecond."""
    return pq.read_metadata(pa.BufferReader(footer))


def read_raws(
    group: RowGroup, metadata: pq.FileMetaData, rows: Sequence[int], hashes: Sequence[EnvelopeHash]
) -> list[bytes]:
    """Some envelopes of a row group; each is what its hash says.

    Args:
        metadata: the file's footer, `parsed`.
    Raises:
        FileGone: its file is not there.
        ArchiveFault: it cannot be read, or an envelope is another.
    """
    with _opened(group.file) as handle:
        column = _read(handle, metadata, group.number, ["raw"]).column(0)
        if len(column) != group.rows:
            raise ValueError(f"row group {group.number} is not what its footer says")
        raws: list[Any] = column.take(pa.array(rows, pa.int64())).to_pylist()
        for raw, full_hash in zip(raws, hashes, strict=True):
            if raw is None or keccak256(raw) != full_hash:
                raise ValueError(f"envelope {full_hash.hex()} is not what its hash says")
    return raws


@contextmanager
def _opened(file: DataFile) -> Iterator[pa.NativeFile]:
    """Open a file, wherever it is; what is wrong with it from here on is an ArchiveFault that names it."""
    last = file.names[-1]
    for path in file.names:
        try:
            handle = pa.OSFile(str(path))
        except FileNotFoundError as error:
            if path == last:
                raise FileGone(f"{path} is missing") from error
            continue
        except OSError as error:
            raise ArchiveFault(f"cannot read {path}: {_cause(error)}") from error
        try:
            with handle:
                size = handle.size()
                if size != file.bytes:
                    raise ValueError(f"it has {size} bytes instead of {file.bytes}")
                yield handle
        except (pa.ArrowException, ValueError, OSError, OverflowError, UnicodeDecodeError) as error:
            raise ArchiveFault(f"cannot read {path}: {_cause(error)}") from error
        return


def _verified_footer(handle: pa.NativeFile, file: DataFile) -> bytes:
    """The end of a file, from its footer on, once all of it was found to be as recorded."""
    handle.seek(-_TAIL_BYTES, os.SEEK_END)
    tail = handle.read()
    footer_bytes = int.from_bytes(tail[:4], "little") + _TAIL_BYTES
    if tail[4:] != _MAGIC or footer_bytes > file.bytes:
        raise ValueError("it is no Parquet file")
    handle.seek(-footer_bytes, os.SEEK_END)
    footer: bytes = handle.read()
    handle.seek(0)
    digest, left, buffer = hashlib.sha256(), file.bytes - footer_bytes, memoryview(bytearray(_CHUNK_BYTES))
    while left and file.sha256:
        count = handle.readinto(buffer[:left])
        if not count:
            raise ValueError("it was cut off")
        digest.update(buffer[:count])
        left -= count
    digest.update(footer)
    if file.sha256 and digest.hexdigest() != file.sha256:
        raise ValueError("it is damaged: its digest is another")
    return footer


def _read(handle: pa.NativeFile, metadata: pq.FileMetaData, number: int, columns: Sequence[str]) -> pa.Table:
    with pq.ParquetFile(handle, metadata=metadata, page_checksum_verification=True) as parquet:
        return parquet.read_row_group(number, columns=columns, use_threads=False)


def _cause(error: Exception) -> str:
    """One line of what may be many."""
    return str(error).partition("\n")[0]


def _range(column: pq.ColumnChunkMetaData) -> tuple[Any, Any]:
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        raise ValueError(f"its footer does not say which {column.path_in_schema} there are")
    return statistics.min, statistics.max


def _topic(text: str) -> Topic:
    topic = bytes.fromhex(text.removeprefix("0x"))
    if len(topic) != TOPIC_BYTES:
        raise ValueError(f"{text!r} is no topic")
    return Topic(topic)


def _runs(topics: Bytes) -> tuple[tuple[Topic, ...], Numbers]:
    """The topics of rows that are in order by them, and behind which row each ends."""
    ends = np.append(np.flatnonzero((topics[1:] != topics[:-1]).any(axis=1)) + 1, len(topics))
    return tuple(Topic(topics[end - 1].tobytes()) for end in ends), ends
