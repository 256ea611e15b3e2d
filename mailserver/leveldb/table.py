"""A table: blocks of entries in order, an index of them, and a footer that says where the index is.

A block is followed by how it is compressed (1 byte) and a checksum of both (4 bytes, the lowest first). A row of a
block says how much it shares of the key before it, how many bytes of its own key follow, and how long its value is.
Behind the rows stand the places of those that share nothing, for whoever seeks within a block, and how many. In the
index, the key of a row is not below any in its block, and below all in the next; its value is where the block is.
Spec: `doc/table_format.md`.
"""

import struct
from typing import NamedTuple

from mailserver.codec import snappy
from mailserver.errors import DecodeError
from mailserver.leveldb.checksum import masked_checksum
from mailserver.leveldb.entries import (
    MAX_KEY_BYTES,
    U32_BITS,
    U64_BITS,
    Entry,
    EntryOrder,
    decode_entry,
    decode_order,
    read_number,
)

FOOTER_BYTES = 48
TRAILER_BYTES = 5
"""Behind each block."""

MAX_BLOCK_BYTES = 32 * 1024 * 1024
"""Blocks have 4 KiB, or one envelope; the index of a table of 2 MiB has 20 KiB."""

MAX_INFLATION = 22
"""Snappy's best is 64 bytes from 3."""

_MAGIC = bytes.fromhex("57fb808b247547db")
_TRAILER = struct.Struct("<BI")
_PLAIN, _SNAPPY = 0, 1
_U32 = struct.Struct("<I")


class Handle(NamedTuple):
    """Where a block is, without what follows it."""

    at: int
    size: int


class IndexRow(NamedTuple):
    """A block, and a place that none of its entries is behind."""

    upper: EntryOrder
    handle: Handle


def decode_footer(footer: bytes) -> Handle:
    """Where the index is.

    Args:
        footer: the last FOOTER_BYTES of a table.
    Raises:
        DecodeError: it is none.
    """
    if len(footer) != FOOTER_BYTES or not footer.endswith(_MAGIC):
        raise DecodeError("table has no footer")
    _, at = _read_handle(footer, 0)
    return _read_handle(footer, at)[0]


def _read_handle(data: bytes, at: int) -> tuple[Handle, int]:
    start, at = read_number(data, at, U64_BITS)
    size, at = read_number(data, at, U64_BITS)
    if size > MAX_BLOCK_BYTES:
        raise DecodeError("block is too long", got=size, limit=MAX_BLOCK_BYTES)
    return Handle(start, size), at


def open_block(stored: bytes) -> bytes:
    """Check a block, and inflate it.

    Args:
        stored: the block, and what follows it.
    Raises:
        DecodeError: it is damaged.
    """
    size = len(stored) - TRAILER_BYTES
    if size < 0:
        raise DecodeError("block is cut off", got=len(stored))
    compression, checksum = _TRAILER.unpack_from(stored, size)
    if masked_checksum(stored[: size + 1]) != checksum:
        raise DecodeError("block fails its checksum")
    if compression == _PLAIN:
        return stored[:size]
    if compression == _SNAPPY:
        return snappy.decompress(stored[:size], max_bytes=min(MAX_BLOCK_BYTES, MAX_INFLATION * size))
    raise DecodeError("compression is unknown", got=compression)


def decode_index(block: bytes) -> list[IndexRow]:
    """The blocks of a table, in their order.

    Raises:
        DecodeError: it is no index.
    """
    rows: list[IndexRow] = []
    for key, value in _rows(block):
        upper = decode_order(key)
        if rows and upper <= rows[-1].upper:
            raise DecodeError("blocks are out of order")
        rows.append(IndexRow(upper, _read_handle(value, 0)[0]))
    return rows


def decode_entries(block: bytes, above: EntryOrder | None, upper: EntryOrder) -> list[Entry]:
    """The entries of a block, in their order.

    Args:
        above: a place that all of them are behind; None: there is none.
        upper: a place that none of them is behind.
    Raises:
        DecodeError: it is no such block.
    """
    entries: list[Entry] = []
    for key, value in _rows(block):
        entry = decode_entry(key, value)
        place = entry.key, -entry.sequence
        if above is not None and place <= above:
            raise DecodeError("entries are out of order")
        above = place
        entries.append(entry)
    if above is not None and above > upper:
        raise DecodeError("entries are not those that the index says")
    return entries


def _rows(block: bytes) -> list[tuple[bytes, bytes]]:
    """The keys and values of a block."""
    end = len(block) - _U32.size
    if end < 0:
        raise DecodeError("block is cut off", got=len(block))
    (count,) = _U32.unpack_from(block, end)
    end -= _U32.size * count
    if end < 0:
        raise DecodeError("block has no room for its rows", got=count)
    rows: list[tuple[bytes, bytes]] = []
    key, at = b"", 0
    while at < end:
        shared, own, size, at = _sizes(block, at)
        value_at = at + own
        if shared > len(key) or shared + own > MAX_KEY_BYTES or value_at + size > end:
            raise DecodeError("row is damaged")
        key = key[:shared] + block[at:value_at]
        at = value_at + size
        rows.append((key, block[value_at:at]))
    return rows


def _sizes(block: bytes, at: int) -> tuple[int, int, int, int]:
    """How much a row shares, how long the rest of its key is, and its value; and where the rest of its key begins."""
    numbers = []
    for _ in range(3):
        number, at = (block[at], at + 1) if at < len(block) and block[at] < 0x80 else read_number(block, at, U32_BITS)
        numbers.append(number)
    shared, own, size = numbers
    return shared, own, size, at
