"""How an index file is laid out: records of fixed width, and what encodes and decodes them. No file is touched here.

    header       magic, version
    bulk         of each file one after the other: the keys of its rows, its hashes in order; read by seeking
    heads        of each file one after the other: its row groups, its topics, its footer; kept in memory by readers
    sums         of the ids of all envelopes, by time of creation (`id_sums`); the period's record says where
    directory    an entry for each file: where its head and its bulk are, and what they span; the paths; the trailer

One file's head and bulk are a fragment, which whoever writes the file makes by itself. An index is put together from
fragments without looking into their bulk.

A head begins with a table of its sections. Each has a kind, a version and a place, so that kinds of later versions
(the ids of messages, say) can join: a reader leaves out what it does not know.

Numbers are little-endian. Topics and the beginnings of hashes are bytes, compared as such: as numbers they are
big-endian.

What is read is checked by digests, from the period's record down. The record has the SHA-256 of the directory with
its trailer, the directory has one of each head, a head has one of each row group's keys and of each block of hashes.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from mailserver.archive.errors import ArchiveFault

VERSION = 1

HEADER = struct.pack("<8sHHI", b"WMSINDEX", VERSION, 0, 0)

MAX_HEAD_BYTES = 64 * 1024 * 1024
MAX_DIRECTORY_BYTES = 64 * 1024 * 1024
"""A file of 256 MiB has a head of 1 MB; a month may have a hundred thousand files."""

DIGEST_BYTES = 16
"""So much of a SHA-256 is kept for keys and hashes: it tells damage, and each envelope is hashed later."""

BLOCK_ENTRIES = 1024
"""So many hashes are read, and checked, for one lookup: 8 KiB."""

Table = np.ndarray[tuple[int], np.dtype[Any]]

TRAILER = struct.Struct("<QIHH8s")
"""Where the directory begins, how many files, version, 0, magic. It ends the file."""

ENTRY = struct.Struct("<IQQQQIIIqq32s")
"""A file in the directory: the fields of Entry, but the length of its path where its path is."""

GROUP = np.dtype(
    [
        ("rows", "<u4"),
        ("unused", "<u4"),
        ("raw_bytes", "<u8"),
        ("created_min", "<i8"),
        ("created_max", "<i8"),
        ("digest", "u1", DIGEST_BYTES),
    ]
)
"""A row group, in the order of the file. `raw_bytes`: of its envelopes, decoded. `digest`: of its keys."""

TOPIC = np.dtype([("topic", ">u4"), ("first_row", "<u4"), ("created_min", "<u4"), ("created_max", "<u4")])
"""A topic of a file, in order. Its rows go up to the next one's, and so row groups need not be named. Times are 0 where
they are less: requests reach back to 0."""

BLOCK = np.dtype([("prefix", ">u4"), ("unused", "<u4"), ("digest", "u1", DIGEST_BYTES)])
"""A block of hashes: with what the first begins."""

HASHED = np.dtype([("prefix", ">u4"), ("row", "<u4")])
"""A row by the first 4 bytes of its hash. Its whole hash is among its keys, which decide."""

KEYS_ROW_BYTES = 8 + 4 + 32
"""The keys of a row group are three columns: created <i8, size <u4, hash 32 bytes."""

_HEAD = struct.Struct("<4sHHQQ")
"""Magic, version, number of sections, bytes of the head, bytes of the bulk."""

_SECTION = struct.Struct("<HHIQQ")
"""Kind, version, place (0: head, 1: bulk), offset there, bytes."""

_HEAD_MAGIC = b"WMSF"
_TRAILER_MAGIC = b"WMSINDEX"
_SECTION_VERSION = 1
_ALIGNED = 8
_IN_HEAD, _IN_BULK = 0, 1


class SectionKind(IntEnum):
    """What a section holds."""

    GROUPS = 1
    TOPICS = 2
    FOOTER = 3
    """The end of the Parquet file, from its footer on."""
    KEYS = 4
    BLOCKS = 5
    HASHES = 6
    """By these, `reader.find_row` finds an envelope of which only the hash is known. The mailserver never asks so. They
    are written because readers of earlier versions take a fragment without them for damaged."""


_PLACES = {
    SectionKind.GROUPS: _IN_HEAD,
    SectionKind.TOPICS: _IN_HEAD,
    SectionKind.FOOTER: _IN_HEAD,
    SectionKind.BLOCKS: _IN_HEAD,
    SectionKind.KEYS: _IN_BULK,
    SectionKind.HASHES: _IN_BULK,
}


@dataclass(frozen=True, slots=True)
class Head:
    """What the index says of one Parquet file, as its head has it.

    `group_ends`, `topic_ends`: behind which row each ends. `keys_at`, `hashes_at`: where these are in the bulk.
    """

    groups: Table
    topics: Table
    blocks: Table
    footer: bytes
    group_ends: Table
    topic_ends: Table
    keys_at: int
    hashes_at: int
    head_bytes: int
    bulk_bytes: int

    @property
    def rows(self) -> int:
        """How many rows the file has."""
        return int(self.group_ends[-1])

    @property
    def created(self) -> tuple[int, int]:
        """When the first and the last of its envelopes were created."""
        return int(self.topics["created_min"].min()), int(self.topics["created_max"].max())


class Entry(NamedTuple):
    """A file in the directory of an index. Ranges are inclusive; topics are numbers."""

    path: str
    head_at: int
    head_bytes: int
    bulk_at: int
    bulk_bytes: int
    rows: int
    topics: tuple[int, int]
    created: tuple[int, int]
    digest: bytes


def encode_fragment(sections: Iterable[tuple[SectionKind, bytes]]) -> bytes:
    """A head and its bulk, of these sections."""
    table: list[tuple[SectionKind, int, int, int]] = []
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    sections = [*sections]
    head_at, bulk_at = _HEAD.size + _SECTION.size * len(sections), 0
    for kind, content in sections:
        place = _PLACES[kind]
        padded = content + bytes(-len(content) % _ALIGNED)
        table.append((kind, place, bulk_at if place == _IN_BULK else head_at, len(content)))
        parts[place].append(padded)
        if place == _IN_BULK:
            bulk_at += len(padded)
        else:
            head_at += len(padded)
    encoded = b"".join(_SECTION.pack(kind, _SECTION_VERSION, place, at, size) for kind, place, at, size in table)
    start = _HEAD.pack(_HEAD_MAGIC, VERSION, len(table), head_at, bulk_at)
    return b"".join((start, encoded, *parts[_IN_HEAD], *parts[_IN_BULK]))


def decode_head(data: bytes) -> Head:
    """Read the head of a fragment; what follows it in `data` is left alone.

    Raises:
        ArchiveFault: it is not whole, contradicts itself, or is of a later version.
    """
    if len(data) < _HEAD.size:
        raise ArchiveFault("the head of a fragment was cut off")
    magic, version, count, head_bytes, bulk_bytes = _HEAD.unpack_from(data)
    if magic != _HEAD_MAGIC:
        raise ArchiveFault("there is no fragment")
    if version != VERSION:
        raise ArchiveFault(f"a fragment has version {version}, this program knows {VERSION}")
    if head_bytes > min(len(data), MAX_HEAD_BYTES) or _HEAD.size + count * _SECTION.size > head_bytes:
        raise ArchiveFault("the head of a fragment was cut off")
    found: dict[int, tuple[int, int]] = {}
    for number in range(count):
        kind, version, place, at, size = _SECTION.unpack_from(data, _HEAD.size + number * _SECTION.size)
        if kind not in _PLACES:
            continue
        if version != _SECTION_VERSION:
            raise ArchiveFault(f"section {kind} of a fragment has version {version}")
        if place != _PLACES[SectionKind(kind)] or at + size > (bulk_bytes if place == _IN_BULK else head_bytes):
            raise ArchiveFault(f"section {kind} of a fragment is not where it can be")
        found[kind] = at, size
    if missing := _PLACES.keys() - found.keys():
        raise ArchiveFault(f"a fragment has no section {min(missing)}")
    return _checked(data, found, head_bytes, bulk_bytes)


def _checked(data: bytes, found: dict[int, tuple[int, int]], head_bytes: int, bulk_bytes: int) -> Head:
    groups = _table(data, found[SectionKind.GROUPS], GROUP)
    topics = _table(data, found[SectionKind.TOPICS], TOPIC)
    blocks = _table(data, found[SectionKind.BLOCKS], BLOCK)
    at, size = found[SectionKind.FOOTER]
    if not len(groups) or not len(topics):
        raise ArchiveFault("a fragment has no rows")
    group_ends = np.cumsum(groups["rows"], dtype=np.int64)
    rows = int(group_ends[-1])
    topic_ends = np.append(topics["first_row"][1:], [rows]).astype(np.int64)
    numbers = topics["topic"].astype(np.int64)
    is_sound = (
        groups["rows"].all()
        and not topics["first_row"][0]
        and (np.diff(topic_ends, prepend=0) > 0).all()
        and (np.diff(numbers) > 0).all()
        and (topics["created_min"] <= topics["created_max"]).all()
        and (groups["created_min"] <= groups["created_max"]).all()
        and (np.diff(blocks["prefix"].astype(np.int64)) >= 0).all()
        and len(blocks) == -(-rows // BLOCK_ENTRIES)
        and found[SectionKind.KEYS][1] == rows * KEYS_ROW_BYTES
        and found[SectionKind.HASHES][1] == rows * HASHED.itemsize
    )
    if not is_sound:
        raise ArchiveFault("a fragment contradicts itself")
    return Head(
        groups,
        topics,
        blocks,
        data[at : at + size],
        group_ends,
        topic_ends,
        found[SectionKind.KEYS][0],
        found[SectionKind.HASHES][0],
        head_bytes,
        bulk_bytes,
    )


def _table(data: bytes, where: tuple[int, int], kind: np.dtype[Any]) -> Table:
    at, size = where
    if size % kind.itemsize:
        raise ArchiveFault("a table of a fragment was cut off")
    return np.frombuffer(data, kind, size // kind.itemsize, at) if size else np.empty(0, kind)


def encode_directory(entries: Sequence[Entry], directory_at: int) -> bytes:
    """The end of an index, from its directory on."""
    paths = [entry.path.encode() for entry in entries]
    table = [
        ENTRY.pack(len(path), *entry[1:6], *entry.topics, *entry.created, entry.digest)
        for entry, path in zip(entries, paths, strict=True)
    ]
    trailer = TRAILER.pack(directory_at, len(entries), VERSION, 0, _TRAILER_MAGIC)
    return b"".join((*table, *paths, trailer))


def directory_offset(trailer: bytes, size: int) -> int:
    """Where the directory of an index of so many bytes begins, by its trailer.

    Raises:
        ArchiveFault: that is none, or of a later version.
    """
    if len(trailer) != TRAILER.size:
        raise ArchiveFault("the index was cut off")
    at, _, version, _, magic = TRAILER.unpack(trailer)
    if magic != _TRAILER_MAGIC:
        raise ArchiveFault("it is no index")
    if version != VERSION:
        raise ArchiveFault(f"the index has version {version}, this program knows {VERSION}")
    if not len(HEADER) <= at <= size - TRAILER.size or size - at > MAX_DIRECTORY_BYTES:
        raise ArchiveFault("the directory of the index is not where it can be")
    return int(at)


def decode_directory(data: bytes, directory_at: int, digest: bytes) -> list[Entry]:
    """Read the end of an index, from its directory on.

    Args:
        digest: its SHA-256, as the period's record has it.
    Raises:
        ArchiveFault: it is not the one that the record names, or contradicts itself.
    """
    if sha256(data).digest() != digest:
        raise ArchiveFault("the index is damaged: the digest of its directory does not match")
    if directory_offset(data[-TRAILER.size :], directory_at + len(data)) != directory_at:
        raise ArchiveFault("the directory of the index is not where it can be")
    _, count, _, _, _ = TRAILER.unpack(data[-TRAILER.size :])
    paths_at = count * ENTRY.size
    if paths_at > len(data) - TRAILER.size:
        raise ArchiveFault("the directory of the index was cut off")
    paths = data[paths_at : -TRAILER.size]
    entries: list[Entry] = []
    end = 0
    for length, *places, first, last, oldest, newest, head_digest in ENTRY.iter_unpack(data[:paths_at]):
        head_at, head_bytes, bulk_at, bulk_bytes, rows = places
        path, end = paths[end : end + length].decode("utf-8", "replace"), end + length
        spans = (first, last), (oldest, newest)
        entry = Entry(path, head_at, head_bytes, bulk_at, bulk_bytes, rows, *spans, head_digest)
        if max(entry.head_at + entry.head_bytes, entry.bulk_at + entry.bulk_bytes) > directory_at:
            raise ArchiveFault("the directory of the index contradicts itself")
        if entry.head_bytes > MAX_HEAD_BYTES or first > last or oldest > newest:
            raise ArchiveFault("the directory of the index contradicts itself")
        entries.append(entry)
    if end != len(paths) or len({entry.path for entry in entries}) != count:
        raise ArchiveFault("the directory of the index contradicts itself")
    return entries
