"""Writes the files of a LevelDB, for tests that want some as no LevelDB writes them on demand."""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import google_crc32c

from mailserver.codec import snappy, varint
from mailserver.leveldb.entries import Entry
from mailserver.leveldb.journal import BLOCK_BYTES
from mailserver.leveldb.manifest import COMPARATOR

FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
MAGIC = bytes.fromhex("57fb808b247547db")
RESTART_ROWS = 16


def checksum(data: bytes) -> bytes:
    """The masked checksum of bytes, as it is written."""
    plain = google_crc32c.value(data)
    return struct.pack("<I", ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def sized(data: bytes) -> bytes:
    """Bytes with their length before them."""
    return varint.encode(len(data)) + data


def tagged(key: bytes, sequence: int, kind: int = 1) -> bytes:
    """A key as tables have it."""
    return key + (sequence << 8 | kind).to_bytes(8, "little")


# Journals.


def chunk(kind: int, payload: bytes) -> bytes:
    """A chunk."""
    return checksum(bytes([kind]) + payload) + struct.pack("<HB", len(payload), kind) + payload


def journal(records: Iterable[bytes]) -> bytes:
    """A journal with these records."""
    written = bytearray()
    for record in records:
        rest, begins = record, True
        while True:
            room = BLOCK_BYTES - len(written) % BLOCK_BYTES - 7
            if room < 0:
                written += bytes(room + 7)
                continue
            part, rest = rest[:room], rest[room:]
            written += chunk((FULL if begins else LAST) if not rest else FIRST if begins else MIDDLE, part)
            begins = False
            if not rest:
                break
    return bytes(written)


def batch(entries: Sequence[Entry]) -> bytes:
    """A record of entries, whose sequences follow one another."""
    body = b"".join(
        b"\0" + sized(entry.key) if entry.value is None else b"\1" + sized(entry.key) + sized(entry.value)
        for entry in entries
    )
    return struct.pack("<QI", entries[0].sequence if entries else 0, len(entries)) + body


# Tables.


def block(rows: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A block, still without what follows it."""
    body, restarts, before = bytearray(), [0], b""
    for number, (key, value) in enumerate(rows):
        shared = 0
        if number % RESTART_ROWS:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        elif number:
            restarts.append(len(body))
        body += varint.encode(shared) + varint.encode(len(key) - shared) + varint.encode(len(value))
        body += key[shared:] + value
        before = key
    return bytes(body) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def stored(plain: bytes, *, is_compressed: bool = False) -> bytes:
    """A block as it is in the file, with what follows it."""
    body = snappy.compress(plain) + b"\1" if is_compressed else plain + b"\0"
    return body + checksum(body)


def table(entries: Sequence[Entry], *, block_rows: int = 4, is_compressed: bool = True) -> bytes:
    """A table of entries, which are in order."""
    file, index = bytearray(), list[tuple[bytes, bytes]]()
    for start in range(0, len(entries), block_rows):
        some = entries[start : start + block_rows]
        rows = [(tagged(key, sequence, value is not None), value or b"") for key, sequence, value in some]
        written = stored(block(rows), is_compressed=is_compressed)
        index.append((rows[-1][0], varint.encode(len(file)) + varint.encode(len(written) - 5)))
        file += written
    return with_index(bytes(file), index)


def with_index(file: bytes, index: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A table of blocks, with what follows them."""
    handles = b""
    for each in (block([]), block(index)):
        written = stored(each)
        handles += varint.encode(len(file)) + varint.encode(len(written) - 5)
        file += written
    return file + handles.ljust(40, b"\0") + MAGIC


# Manifests, and all of it.


def new_table(level: int, number: int, size: int, entries: Sequence[Entry]) -> bytes:
    """What a manifest says of a table that is added."""
    ends = [tagged(key, sequence, value is not None) for key, sequence, value in (entries[0], entries[-1])]
    return b"\7" + b"".join(map(varint.encode, (level, number, size))) + b"".join(map(sized, ends))


def edit(*, comparator: bytes = COMPARATOR, journal: int = 0, more: bytes = b"") -> bytes:
    """A record of a manifest."""
    numbers = b"\2" + varint.encode(journal) + b"\3" + varint.encode(1000) + b"\4" + varint.encode(10**6)
    return b"\1" + sized(comparator) + numbers + more


def write_database(
    folder: Path,
    tables: Sequence[Sequence[Entry]],
    written: Sequence[Sequence[Entry]] = (),
    *,
    block_rows: int = 4,
    comparator: bytes = COMPARATOR,
) -> None:
    """A database with these tables, 5 and on, and one journal, 4, with these batches."""
    folder.mkdir(exist_ok=True)
    listed = b""
    for number, entries in enumerate(tables, 5):
        file = table(entries, block_rows=block_rows, is_compressed=bool(number % 2))
        (folder / f"{number:06}.ldb").write_bytes(file)
        listed += new_table(0, number, len(file), entries)
    (folder / "000004.log").write_bytes(journal(map(batch, written)))
    (folder / "MANIFEST-000003").write_bytes(journal([edit(comparator=comparator, journal=4, more=listed)]))
    (folder / "CURRENT").write_bytes(b"MANIFEST-000003\n")
