"""A journal: records of any length in chunks, none of which crosses the border of a block of 32 KiB.

A manifest is one, too. A chunk is a checksum of its kind and its payload (4 bytes), the payload's length (2), the kind
(1), the payload. Numbers have their lowest byte first. Spec: `doc/log_format.md`.

Where LevelDB gives up the rest of a block, this goes on behind a damaged chunk, if the next one is sound. Nothing is
passed over in silence, but for what is at the end: zeros, which some systems leave there, and the beginning of a record
that was being written when the process was killed, which nobody was told of as written.
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
_ENDS_WITHIN = "the file ends within this {}"
_BEGINS, _ENDS = frozenset({_FULL, _FIRST}), frozenset({_FULL, _LAST})


class JournalRecord(NamedTuple):
    """A record, and where its first chunk begins."""

    at: int
    content: bytes


class JournalGap(NamedTuple):
    """A piece that is no chunk, or part of no record: where it begins, its bytes, and why."""

    at: int
    content: bytes
    why: str


class _Chunk(NamedTuple):
    at: int
    kind: int
    payload: bytes


class _Zeros(NamedTuple):
    """The rest of a block is zeros."""

    at: int


def read_journal(blocks: Iterable[bytes | JournalGap], *, may_be_torn: bool) -> Iterator[JournalRecord | JournalGap]:
    """The records of a journal, in their order, and what cannot be read.

    Args:
        blocks: what is in it, BLOCK_BYTES each but for the last. One that cannot be read is a gap, and passed on.
        may_be_torn: whether it is sound if its last record is not all there.
    """
    record, begun_at = bytearray(), -1
    is_told = False  # whether it was told that a record is damaged of which parts may follow
    for chunk in _chunks(blocks, may_be_torn=may_be_torn):
        is_begin = isinstance(chunk, _Chunk) and chunk.kind in _BEGINS
        if begun_at >= 0 and (is_begin or isinstance(chunk, JournalGap)):
            why = "another record begins before this one ends" if is_begin else "a part of this record cannot be read"
            yield JournalGap(begun_at, bytes(record), why)
            begun_at = -1
        if isinstance(chunk, JournalGap):
            yield chunk
            is_told = True
            continue
        if is_begin:
            record, begun_at, is_told = bytearray(), chunk.at, False
        elif begun_at < 0:
            if not is_told:
                yield JournalGap(chunk.at, chunk.payload, "a record has no beginning")
            continue
        record += chunk.payload
        if len(record) > MAX_RECORD_BYTES:
            yield JournalGap(begun_at, bytes(record), f"record has more than {MAX_RECORD_BYTES} bytes")
            begun_at, is_told = -1, True
        elif chunk.kind in _ENDS:
            yield JournalRecord(begun_at, bytes(record))
            begun_at = -1
    if begun_at >= 0 and not may_be_torn:
        yield JournalGap(begun_at, bytes(record), _ENDS_WITHIN.format("record"))


def _chunks(blocks: Iterable[bytes | JournalGap], *, may_be_torn: bool) -> Iterator[_Chunk | JournalGap]:
    start, zeros_at = 0, -1
    for block in blocks:
        if isinstance(block, JournalGap):
            yield block
            start = block.at + BLOCK_BYTES
            continue
        for piece in _chunks_of(block, start, may_be_torn=may_be_torn):
            if isinstance(piece, _Zeros):
                zeros_at = piece.at if zeros_at < 0 else zeros_at
                continue
            if zeros_at >= 0:  # something follows them, so they are in the place of what was written
                yield JournalGap(zeros_at, b"", f"{piece.at - zeros_at} bytes are zeros")
                zeros_at = -1
            yield piece
        start += len(block)


def _chunks_of(block: bytes, start: int, *, may_be_torn: bool) -> Iterator[_Chunk | JournalGap | _Zeros]:
    at, is_sound = 0, True
    while len(block) - at >= _HEADER.size:
        checksum, size, kind = _HEADER.unpack_from(block, at)
        payload_at = at + _HEADER.size
        end = payload_at + size
        if not (checksum or size or kind or any(block[at:])):
            yield _Zeros(start + at)
            return
        if end > len(block):
            if len(block) == BLOCK_BYTES:
                yield JournalGap(start + at, block[at:], "chunk crosses a block's border")
            elif not (may_be_torn and is_sound and _is_torn(block, at)):
                yield JournalGap(start + at, block[at:], _ENDS_WITHIN.format("chunk"))
            return
        was_sound, is_sound = is_sound, masked_checksum(block[at + _KIND_AT : end]) == checksum
        if is_sound and _FULL <= kind <= _LAST:
            yield _Chunk(start + at, kind, block[payload_at:end])
        elif was_sound:
            yield JournalGap(
                start + at, block[at:end], "chunk fails its checksum" if not is_sound else "kind is unknown"
            )
        else:  # the length before this was wrong, too
            yield JournalGap(start + at, block[at:], "what follows a damaged chunk cannot be told apart")
            return
        at = end
    if len(block) < BLOCK_BYTES and any(block[at:]) and not (may_be_torn and is_sound):
        yield JournalGap(start + at, block[at:], _ENDS_WITHIN.format("chunk"))


def _is_torn(block: bytes, at: int) -> bool:
    """Whether a chunk that is longer than what is left was not written to its end: its length is not what is damaged.

    That is so unless its checksum is that of what is left, or something sound follows.
    """
    checksum, _, _ = _HEADER.unpack_from(block, at)
    if masked_checksum(block[at + _KIND_AT :]) == checksum:
        return False
    return not any(_is_sound(block, later) for later in range(at + 1, len(block) - _HEADER.size + 1))


def _is_sound(block: bytes, at: int) -> bool:
    """Whether there is a sound chunk at this place."""
    checksum, size, kind = _HEADER.unpack_from(block, at)
    end = at + _HEADER.size + size
    may_be = _FULL <= kind <= _LAST and end <= len(block)
    return bool(may_be and masked_checksum(block[at + _KIND_AT : end]) == checksum)
