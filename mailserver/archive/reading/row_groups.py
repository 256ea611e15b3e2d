"""Reads row groups of the archive's files: what the footer says of each, the keys of its envelopes, the envelopes.

Everything here waits for the disk and takes processor time, so it runs in a thread. pyarrow decodes without holding
Python's lock. Each read opens its file again and never maps it into memory: if something happens to the file, that read
fails, and nothing else does.

Nothing is trusted before it is checked. A damaged footer can make pyarrow end the whole process (26.0.1: "terminate
called after throwing an instance of 'parquet::ParquetException'"), and Parquet has no checksum for it. So the footer
comes from the period's index, which has a digest of it. Without an index, the whole file is read once and compared with
the digest in its record, and the footer is kept from then on. Pages have checksums, and pyarrow checks them. The rows
are compared with what the footer says of them. Each envelope is hashed before it is handed out. Only files that earlier
versions wrote, and that nobody has verified since, have no digest.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.files import ReadableFiles
from mailserver.archive.index.columns import Bytes, Numbers, Numbers32, bytes_of, numbers_of
from mailserver.archive.index.reader import KeysPlace
from mailserver.codec.keccak import keccak256
from mailserver.waku.envelope import HASH_BYTES, TOPIC_BYTES, EnvelopeHash, Topic

_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # the footer's length, and the magic
_CHUNK_BYTES = 1024 * 1024

_KEY_COLUMNS = ("created", "hash", "size")

_COLUMNS_BYTES = 900
"""Memory that the columns of keys take in addition to what they hold: much, if a row group has few rows."""


class FileGone(ArchiveFault):
    """A file is missing: it was replaced or deleted."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of `files` as its record describes it.

    `names`: where it may be, the likeliest first. `sha256`: in hex; "" if it is not known. `topic`: the topic
    of all its rows if each topic has a directory, else None.
    """

    files: ReadableFiles = field(repr=False, compare=False)
    names: tuple[str, ...]
    bytes: int
    rows: int
    sha256: str = ""
    topic: Topic | None = None


@dataclass(frozen=True, slots=True)
class IndexedKeys:
    """Where an index has the keys of a row group."""

    name: str
    place: KeysPlace


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RowGroup:
    """A row group as a footer, or an index, describes it. Ranges are inclusive; times are Unix seconds.

    `raw_bytes`: the decoded bytes of its envelopes. `footer`: the file's. `indexed`: None if the file has no index.
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
    """The keys of a row group's envelopes, in columns. Rows are in the order (topic, created, hash).

    `topics`: its topics in order; `topic_ends`: the row after the last row of each. Both are empty if the keys are
    from an index: the index has already said which rows are wanted.
    """

    topics: tuple[Topic, ...]
    topic_ends: Numbers
    created: Numbers
    hashes: Bytes
    sizes: Numbers | Numbers32

    @property
    def memory_bytes(self) -> int:
        """About how many bytes of memory the keys take."""
        columns = (self.topic_ends, self.created, self.hashes, self.sizes)
        return _COLUMNS_BYTES + sum(column.nbytes for column in columns) + 64 * len(self.topics)


def read_footer(file: DataFile) -> tuple[RowGroup, ...]:
    """Verify a whole file, and return its row groups in their order.

    Raises:
        FileGone: the file is missing.
        ArchiveFault: it cannot be read, or differs from its record.
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
    """Read the keys of a row group from its file.

    Raises:
        FileGone: the file is missing.
        ArchiveFault: it cannot be read, or differs from its footer.
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
    """Parse a footer for pyarrow. That of a file with many row groups takes more than a millisecond."""
    return pq.read_metadata(pa.BufferReader(footer))


def read_raws(
    group: RowGroup, metadata: pq.FileMetaData, rows: Sequence[int], hashes: Sequence[EnvelopeHash]
) -> list[bytes]:
    """Read some envelopes of a row group, and compare each with its hash.

    Args:
        metadata: the file's footer, `parsed`.
        rows: the envelopes' rows in the row group.
        hashes: the hash of each.
    Raises:
        FileGone: the file is missing.
        ArchiveFault: it cannot be read, or an envelope has another hash.
    """
    with _opened(group.file) as handle:
        column = _read(handle, metadata, group.number, ["raw"]).column(0)
        if len(column) != group.rows:
            raise ValueError(f"row group {group.number} is not what its footer says")
        # Not by `take`: that begins with all kernels of pyarrow.compute, 8 MB, and is slower for less than 60 rows.
        raws: list[Any] = [column[row].as_py() for row in rows]
        for raw, full_hash in zip(raws, hashes, strict=True):
            if raw is None or keccak256(raw) != full_hash:
                raise ValueError(f"envelope {full_hash.hex()} is not what its hash says")
    return raws


@contextmanager
def _opened(file: DataFile) -> Iterator[pa.NativeFile]:
    """Open a file under whichever name it has. Every fault from here on is an ArchiveFault that names the file."""
    name = ""
    try:
        with ExitStack() as stack:
            for name in file.names:
                with suppress(FileNotFoundError):
                    handle = stack.enter_context(file.files.opened(name))
                    break
            else:
                raise FileNotFoundError(name)
            size = handle.size()
            if size != file.bytes:
                raise ValueError(f"it has {size} bytes instead of {file.bytes}")
            yield handle
    except FileNotFoundError as error:
        raise FileGone(f"{file.files.where(name)} is missing") from error
    except (pa.ArrowException, ValueError, OSError, OverflowError, UnicodeDecodeError) as error:
        raise ArchiveFault(f"cannot read {file.files.where(name)}: {_cause(error)}") from error


def _verified_footer(handle: pa.NativeFile, file: DataFile) -> bytes:
    """Compare a whole file with its digest; return its end, from the footer on."""
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
        raise ValueError("it is damaged: its digest does not match")
    return footer


def _read(handle: pa.NativeFile, metadata: pq.FileMetaData, number: int, columns: Sequence[str]) -> pa.Table:
    with pq.ParquetFile(handle, metadata=metadata, page_checksum_verification=True) as parquet:
        return parquet.read_row_group(number, columns=columns, use_threads=False)


def _cause(error: Exception) -> str:
    """Return the first line of an error's text."""
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
    """Return the topics of rows in order, and the row after the last row of each."""
    ends = np.append(np.flatnonzero((topics[1:] != topics[:-1]).any(axis=1)) + 1, len(topics))
    return tuple(Topic(topics[end - 1].tobytes()) for end in ends), ends
