"""What the files of a LevelDB have: entries, and pieces that cannot be read.

Within a file, and in the database, entries are in the order of their keys, the newest of a key first: `EntryOrder`.
"""

from typing import NamedTuple

from mailserver.codec import varint
from mailserver.errors import DecodeError

MAX_KEY_BYTES = 256
"""The keys of a Go mailserver have 36 or 40 bytes. Keys share beginnings on disk, but not in memory."""

U32_BITS, U64_BITS = 32, 64
"""How long numbers may be."""

IS_DELETED, HAS_VALUE = 0, 1
"""The kinds of entries."""

_TAG_BYTES = 8

EntryOrder = tuple[bytes, int]
"""A place among entries: (key, -sequence)."""

BEFORE_ALL: EntryOrder = (b"", -(1 << 64))


class Entry(NamedTuple):
    """What was written under a key; None if it was deleted. The higher its sequence, the later."""

    key: bytes
    sequence: int
    value: bytes | None


class UnreadablePiece(NamedTuple):
    """A piece of a file that cannot be read, or was left out: where it is, its bytes if they are known, and why.

    `number`: that of the file, which no other file of the database has; 0: it has none.
    """

    file: str
    number: int
    at: int
    content: bytes
    why: str


def decode_tagged(key: bytes) -> tuple[bytes, int, int]:
    """Take a key apart that has its sequence and kind behind it: return the key, its sequence, and the kind.

    Raises:
        DecodeError: it is too short, or the kind is unknown.
    """
    tag = int.from_bytes(key[-_TAG_BYTES:], "little")
    kind = tag & 0xFF
    if len(key) < _TAG_BYTES or kind > HAS_VALUE:
        raise DecodeError("key has no sequence, or an unknown kind")
    return key[:-_TAG_BYTES], tag >> 8, kind


def decode_entry(key: bytes, value: bytes) -> Entry:
    """The entry of a table's row.

    Raises:
        DecodeError: its key is damaged.
    """
    user_key, sequence, kind = decode_tagged(key)
    return Entry(user_key, sequence, None if kind == IS_DELETED else value)


def decode_order(key: bytes) -> EntryOrder:
    """The place that a key of an index, or of a manifest, stands for.

    Raises:
        DecodeError: it is damaged.
    """
    user_key, sequence, _ = decode_tagged(key)
    return user_key, -sequence


def read_number(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """Read a number; return it, and where it ends.

    Args:
        bits: U32_BITS or U64_BITS.
    Raises:
        DecodeError: it is too long, or cut off.
    """
    found = varint.decode(data, at, -(-bits // 7))
    if found is None:
        raise DecodeError("number is cut off")
    if found[0] >> bits:
        raise DecodeError("number is too large", got=found[0])
    return found


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Read bytes that have their length before them; return them, and where they end.

    Raises:
        DecodeError: they are cut off.
    """
    size, at = read_number(data, at, U32_BITS)
    end = at + size
    if end > len(data):
        raise DecodeError("bytes are cut off", got=len(data) - at, limit=size)
    return data[at:end], end
