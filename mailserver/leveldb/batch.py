"""What a record of a journal says: entries that were written together, with sequences that follow one another.

The first sequence (8 bytes, the lowest first), how many entries (4), and of each its kind (1), its key and, unless it
was deleted, its value, both with their length before them. Spec: LevelDB's `db/write_batch.cc`.
"""

import struct

from mailserver.errors import DecodeError, MailserverError
from mailserver.leveldb.entries import HAS_VALUE, IS_DELETED, MAX_KEY_BYTES, Entry, read_bytes

_HEADER = struct.Struct("<QI")


class TooManyEntries(MailserverError):
    """A record has more entries than there is memory for."""


def decode_batch(record: bytes, most: int) -> list[Entry]:
    """The entries of a record, `most` at most: each takes much more memory than the two bytes that it may have.

    Raises:
        DecodeError: it is something else.
        TooManyEntries: it has more.
    """
    if len(record) < _HEADER.size:
        raise DecodeError("batch is cut off", got=len(record))
    sequence, count = _HEADER.unpack_from(record)
    entries: list[Entry] = []
    at = _HEADER.size
    while at < len(record) and len(entries) <= count:
        if len(entries) == most:
            raise TooManyEntries
        kind = record[at]
        key, at = read_bytes(record, at + 1)
        if len(key) > MAX_KEY_BYTES:
            raise DecodeError("key is too long", got=len(key), limit=MAX_KEY_BYTES)
        value: bytes | None = None
        if kind == HAS_VALUE:
            value, at = read_bytes(record, at)
        elif kind != IS_DELETED:
            raise DecodeError("kind of an entry is unknown", got=kind)
        entries.append(Entry(key, sequence + len(entries), value))
    if len(entries) != count:
        raise DecodeError("batch has another number of entries than it says", got=len(entries), limit=count)
    return entries
