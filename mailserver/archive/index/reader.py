"""Reading an index by seeking: its directory, then the heads, the keys and the hashes that are asked for.

Whoever reads opens the file, for each read anew: what happens to it meanwhile is a fault of that read and of no other.
Every byte is compared with its digest before it is used.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import BinaryIO, NamedTuple

import numpy as np

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index.columns import Bytes, Numbers, Numbers32
from mailserver.archive.index.layout import (
    BLOCK_ENTRIES,
    DIGEST_BYTES,
    HASHED,
    HEADER,
    KEYS_ROW_BYTES,
    TRAILER,
    Entry,
    Head,
    decode_directory,
    decode_head,
    directory_offset,
)
from mailserver.archive.manifest import IndexRecord
from mailserver.waku.envelope import HASH_BYTES, EnvelopeHash

HEADS_BYTES = 4 * 1024 * 1024
"""So much is read at once of heads that stand side by side."""

TAIL_BYTES = 16 * 1024
"""The end of an index that is read first: most directories are no longer."""


class RowKeys(NamedTuple):
    """The keys of a row group, in columns: a row each, in its order."""

    created: Numbers
    sizes: Numbers | Numbers32
    hashes: Bytes


class KeysPlace(NamedTuple):
    """Where an index has the keys of a row group, and what they must be."""

    at: int
    rows: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class PeriodIndex:
    """What an index says of all files of its period, by their paths."""

    entries: Mapping[str, Entry]


def read_directory(file: BinaryIO, record: IndexRecord) -> PeriodIndex:
    """The directory of an index.

    Args:
        record: what the period's record says of it.
    Raises:
        ArchiveFault: it is not the one that the record names, was cut off, or is damaged.
        OSError: it cannot be read.
    """
    size = file.seek(0, os.SEEK_END)
    if size != record.bytes:
        raise ArchiveFault(f"it has {size} bytes instead of {record.bytes}")
    tail = _read_at(file, max(0, size - TAIL_BYTES), min(size, TAIL_BYTES))
    at = directory_offset(tail[-TRAILER.size :], size)
    content = tail[at - size :] if size - at <= len(tail) else _read_at(file, at, size - at)
    return PeriodIndex({entry.path: entry for entry in decode_directory(content, at, bytes.fromhex(record.sha256))})


def read_heads(file: BinaryIO, entries: Sequence[Entry]) -> list[Head]:
    """The heads of some files of an index, in this order.

    Raises:
        ArchiveFault: one is damaged, or was cut off.
        OSError: it cannot be read.
    """
    heads: dict[str, Head] = {}
    for some in _side_by_side(entries):
        start = some[0].head_at
        content = _read_at(file, start, some[-1].head_at + some[-1].head_bytes - start)
        for entry in some:
            encoded = content[entry.head_at - start :][: entry.head_bytes]
            if sha256(encoded).digest() != entry.digest:
                raise ArchiveFault(f"the index is damaged: the digest of what it says of {entry.path} does not match")
            head = decode_head(encoded)
            if (head.rows, head.head_bytes, head.bulk_bytes) != (entry.rows, entry.head_bytes, entry.bulk_bytes):
                raise ArchiveFault(f"the index contradicts itself about {entry.path}")
            heads[entry.path] = head
    return [heads[entry.path] for entry in entries]


def keys_place(entry: Entry, head: Head, group: int) -> KeysPlace:
    """Where the keys of a row group are."""
    rows = int(head.groups["rows"][group])
    first = int(head.group_ends[group]) - rows
    at = entry.bulk_at + head.keys_at + first * KEYS_ROW_BYTES
    return KeysPlace(at, rows, head.groups["digest"][group].tobytes())


def read_keys(file: BinaryIO, place: KeysPlace) -> RowKeys:
    """The keys of a row group.

    Raises:
        ArchiveFault: they are damaged, or were cut off.
        OSError: they cannot be read.
    """
    content = _read_at(file, place.at, place.rows * KEYS_ROW_BYTES)
    if sha256(content).digest()[:DIGEST_BYTES] != place.digest:
        raise ArchiveFault("the index is damaged: the digest of a row group's keys does not match")
    sizes_at, hashes_at = 8 * place.rows, 12 * place.rows
    return RowKeys(
        np.frombuffer(content, "<i8", place.rows).astype(np.int64, copy=False),
        np.frombuffer(content, "<u4", place.rows, sizes_at).astype(np.uint32, copy=False),
        np.frombuffer(content, np.uint8, -1, hashes_at).reshape(place.rows, HASH_BYTES),
    )


def find_row(file: BinaryIO, entry: Entry, head: Head, full_hash: EnvelopeHash) -> tuple[int, int] | None:
    """Where in a file an envelope is, by its hash: its row group, and its row there; None if it is not in it.

    Raises:
        ArchiveFault: the index is damaged.
        OSError: it cannot be read.
    """
    prefix = int.from_bytes(full_hash[:4], "big")
    prefixes = head.blocks["prefix"]
    first = max(0, int(np.searchsorted(prefixes, prefix, "left")) - 1)
    for number in range(first, int(np.searchsorted(prefixes, prefix, "right"))):
        start = number * BLOCK_ENTRIES
        count = min(BLOCK_ENTRIES, head.rows - start)
        at = entry.bulk_at + head.hashes_at + start * HASHED.itemsize
        content = _read_at(file, at, count * HASHED.itemsize)
        if sha256(content).digest()[:DIGEST_BYTES] != head.blocks["digest"][number].tobytes():
            raise ArchiveFault("the index is damaged: the digest of a block of hashes does not match")
        block = np.frombuffer(content, HASHED)
        for row in block["row"][block["prefix"] == prefix].tolist():
            if row >= head.rows:
                raise ArchiveFault("the index contradicts itself about its hashes")
            group = int(np.searchsorted(head.group_ends, row, "right"))
            place = keys_place(entry, head, group)
            in_group = row - (int(head.group_ends[group]) - place.rows)
            if read_keys(file, place).hashes[in_group].tobytes() == full_hash:
                return group, in_group
    return None


def check_header(file: BinaryIO) -> None:
    """Check how a file begins, which nothing else reads.

    Raises:
        ArchiveFault: not as an index does.
        OSError: it cannot be read.
    """
    if _read_at(file, 0, len(HEADER)) != HEADER:
        raise ArchiveFault("it is no index")


def read_fragment(file: BinaryIO, entry: Entry) -> bytes:
    """All that an index has of a file, as it was added; not compared with any digest.

    Raises:
        ArchiveFault: it was cut off.
        OSError: it cannot be read.
    """
    return _read_at(file, entry.head_at, entry.head_bytes) + _read_at(file, entry.bulk_at, entry.bulk_bytes)


def _side_by_side(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """What is read at once: heads that follow each other."""
    some: list[Entry] = []
    size = 0
    for entry in sorted(entries, key=lambda entry: entry.head_at):
        follows = some and entry.head_at == some[-1].head_at + some[-1].head_bytes
        if some and (not follows or size + entry.head_bytes > HEADS_BYTES):
            yield some
            some, size = [], 0
        some.append(entry)
        size += entry.head_bytes
    if some:
        yield some


def _read_at(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    content = file.read(size)
    if len(content) != size:
        raise ArchiveFault("the index was cut off")
    return content
