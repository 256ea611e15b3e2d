"""A journal: records of any length in chunks, none of which crosses the border of a block of 32 KiB.

A manifest is one, too. A chunk is a checksum of its kind and its payload (4 bytes), the payload's length (2), the kind
(1), the payload. Numbers have their lowest byte first. Spec: `doc/log_format.md`.

Where LevelDB gives up the rest of a block, this goes on behind a damaged chunk, if the next one is sound. Nothing is
passed over in silence, but for zeros, which some systems leave at the end: a file that ends within a record was cut off
by a power cut, or its length is damaged, which looks the same.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mailserver.leveldb.checksum import masked_checksum

BLOCK_BYTES = 32 * 1024

MAX_RECORD_BYTES = 64 * 1024 * 1024
"""A longer one is left out. Those of a Go mailserver have one envelope, or some hundred deletions; those of a manifest
have some 150 bytes for each table."""

_HEADER = struct.Struct("<IHB")
_KIND_AT = 6
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_BEGINS, _ENDS = frozenset({_FULL, _FIRST}), frozenset({_FULL, _LAST})


class Record(NamedTuple):
    """A record, and where its first chunk begins."""

    at: int
    content: bytes


class Gap(NamedTuple):
    """A piece that is no chunk, or part of no record: where it begins, its bytes, and why."""

    at: int
    content: bytes
    why: str


class _Chunk(NamedTuple):
    at: int
    kind: int
    payload: bytes


def read_journal(blocks: Iterable[bytes]) -> Iterator[Record | Gap]:
    """The records of a journal, in their order, and what cannot be read.

    Args:
        blocks: what is in it, BLOCK_BYTES each but for the last.
    """
    record, begun_at = bytearray(), -1
    is_told = False  # whether it was told that a record is damaged of which parts may follow
    for chunk in _chunks(blocks):
        is_begin = isinstance(chunk, _Chunk) and chunk.kind in _BEGINS
        if begun_at >= 0 and (is_begin or isinstance(chunk, Gap)):
            why = "another record begins before this one ends" if is_begin else "a part of this record cannot be read"
            yield Gap(begun_at, bytes(record), why)
            begun_at = -1
        if isinstance(chunk, Gap):
            yield chunk
            is_told = True
            continue
        if is_begin:
            record, begun_at, is_told = bytearray(), chunk.at, False
        elif begun_at < 0:
            if not is_told:
                yield Gap(chunk.at, chunk.payload, "a record has no beginning")
            continue
        record += chunk.payload
        if len(record) > MAX_RECORD_BYTES:
            yield Gap(begun_at, bytes(record), f"record has more than {MAX_RECORD_BYTES} bytes")
            begun_at, is_told = -1, True
        elif chunk.kind in _ENDS:
            yield Record(begun_at, bytes(record))
            begun_at = -1
    if begun_at >= 0:
        yield Gap(begun_at, bytes(record), "the file ends within this record")


def _chunks(blocks: Iterable[bytes]) -> Iterator[_Chunk | Gap]:
    start = 0
    for block in blocks:
        yield from _chunks_of(block, start)
        start += len(block)


def _chunks_of(block: bytes, start: int) -> Iterator[_Chunk | Gap]:
    at, is_sound = 0, True
    while len(block) - at >= _HEADER.size:
        checksum, size, kind = _HEADER.unpack_from(block, at)
        payload_at = at + _HEADER.size
        end = payload_at + size
        if not (checksum or size or kind or any(block[at:])):
            return
        if end > len(block):
            why = "chunk crosses a block's border" if len(block) == BLOCK_BYTES else "the file ends within this chunk"
            yield Gap(start + at, block[at:], why)
            return
        was_sound, is_sound = is_sound, masked_checksum(block[at + _KIND_AT : end]) == checksum
        if is_sound and _FULL <= kind <= _LAST:
            yield _Chunk(start + at, kind, block[payload_at:end])
        elif was_sound:
            yield Gap(start + at, block[at:end], "chunk fails its checksum" if not is_sound else "kind is unknown")
        else:  # the length before this was wrong, too
            yield Gap(start + at, block[at:], "what follows a damaged chunk cannot be told apart")
            return
        at = end
    if len(block) < BLOCK_BYTES and any(block[at:]):
        yield Gap(start + at, block[at:], "the file ends within this chunk")
