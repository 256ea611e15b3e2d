import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import snappy
from mailserver.errors import DecodeError
from mailserver.leveldb.checksum import masked_checksum
from mailserver.leveldb.entries import MAX_KEY_BYTES, Entry, EntryOrder
from mailserver.leveldb.table import (
    FOOTER_BYTES,
    MAX_BLOCK_BYTES,
    TRAILER_BYTES,
    Handle,
    IndexRow,
    decode_entries,
    decode_footer,
    decode_index,
    open_block,
)
from tests.leveldb import writer
from tests.leveldb.writer import MAGIC, block, sized, stored, tagged
from tests.properties import settings

END: EntryOrder = (b"\xff" * MAX_KEY_BYTES, 0)


def read(file: bytes) -> list[Entry]:
    """All entries of a table."""
    entries: list[Entry] = []
    above = None
    for row in decode_index(opened(file, decode_footer(file[-FOOTER_BYTES:]))):
        entries += decode_entries(opened(file, row.handle), above, row.upper)
        above = row.upper
    return entries


def opened(file: bytes, handle: Handle) -> bytes:
    return open_block(file[handle.at : handle.at + handle.size + TRAILER_BYTES])


def in_order(entries: list[Entry]) -> list[Entry]:
    """Each place once, in order."""
    return sorted({(key, -sequence): Entry(key, sequence, value) for key, sequence, value in entries}.values(), key=by)


def by(entry: Entry) -> EntryOrder:
    return entry.key, -entry.sequence


keys = st.binary(max_size=3) | st.binary(max_size=MAX_KEY_BYTES - 8)
entries = st.lists(st.builds(Entry, keys, st.integers(0, 3), st.none() | st.binary(max_size=200)), max_size=60)


@settings(max_examples=50)
@given(entries.map(in_order), st.integers(1, 40), st.booleans())
def test_table_is_read_as_it_was_written(entries: list[Entry], block_rows: int, is_compressed: bool) -> None:
    assert read(writer.table(entries, block_rows=block_rows, is_compressed=is_compressed)) == entries


def test_checksum_is_the_published_one_masked() -> None:
    assert masked_checksum(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % 2**32


def test_footer_says_where_the_index_is() -> None:
    footer = bytes.fromhex("0105 8002 ac02").ljust(40, b"\0") + MAGIC

    assert decode_footer(footer) == Handle(256, 300)


@pytest.mark.parametrize(
    "footer",
    [
        bytes(48),
        MAGIC,
        bytes(41) + MAGIC,
        b"\xff" * 40 + MAGIC,
        b"\0\0\0\xff\xff\xff\xff\x7f".ljust(40, b"\0") + MAGIC,
    ],
    ids=["zeros", "short", "long", "no numbers", "too long a block"],
)
def test_footer_that_is_something_else_is_refused(footer: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_footer(footer)


def test_block_with_any_byte_changed_is_refused() -> None:
    for is_compressed in (False, True):
        sound = stored(block([(tagged(b"key", 1), b"value" * 30)]), is_compressed=is_compressed)
        for at in range(len(sound)):
            damaged = bytearray(sound)
            damaged[at] ^= 0x10
            with pytest.raises(DecodeError, match="block fails its checksum"):
                open_block(bytes(damaged))


def test_block_of_unknown_compression_is_refused() -> None:
    zstd = block([]) + b"\2"

    with pytest.raises(DecodeError, match="compression is unknown, got 2"):
        open_block(zstd + writer.checksum(zstd))


@pytest.mark.parametrize("size", range(TRAILER_BYTES))
def test_block_without_room_for_its_trailer_is_refused(size: int) -> None:
    with pytest.raises(DecodeError, match="block is cut off"):
        open_block(bytes(size))


def test_block_that_announces_more_than_snappy_can_inflate_is_refused() -> None:
    lying = snappy.compress(bytes(100))
    lying = b"\xff\xff\x7f" + lying[1:] + b"\1"

    with pytest.raises(DecodeError, match="Snappy announces too much"):
        open_block(lying + writer.checksum(lying))


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 1_000_000])
def test_block_that_snappy_has_made_much_smaller_is_opened(size: int) -> None:
    assert open_block(stored(bytes(size), is_compressed=True)) == bytes(size)
    assert size < MAX_BLOCK_BYTES


def rows_of(body: bytes, restarts: int = 1) -> bytes:
    return body + bytes(4 * restarts) + struct.pack("<I", restarts)


KEY = tagged(b"key", 1)


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        (b"abc", "block is cut off"),
        (struct.pack("<I", 1), "block has no room for its rows"),
        (struct.pack("<I", 2**32 - 1), "block has no room for its rows"),
        (rows_of(b"\1\x0b\0" + KEY), "row is damaged"),
        (rows_of(b"\0\x0b\1" + KEY), "row is damaged"),
        (rows_of(b"\0\x0c\0" + KEY), "row is damaged"),
        (rows_of(b"\0\x0b"), "row is damaged"),
        (rows_of(b"\0\xff\xff\xff\xff\xff\xff" + KEY), "varint is too long"),
        (rows_of(b"\0" + sized(bytes(MAX_KEY_BYTES + 1)).replace(b"\2", b"\2\0", 1)), "row is damaged"),
        (rows_of(b"\0\7\0" + KEY[:7]), "no sequence"),
        (rows_of(b"\0\x0b\0" + tagged(b"key", 1, kind=2)), "unknown kind"),
        (block([(KEY, b""), (KEY, b"")]), "entries are out of order"),
        (block([(KEY, b""), (tagged(b"key", 2), b"")]), "entries are out of order"),
        (block([(tagged(b"b", 1), b""), (tagged(b"a", 1), b"")]), "entries are out of order"),
    ],
    ids=[
        "short",
        "no room",
        "no room for many",
        "shares too much",
        "value too long",
        "key too long for the block",
        "no sizes",
        "number too long",
        "key too long",
        "no sequence",
        "kind",
        "twice",
        "newest last",
        "keys",
    ],
)
def test_block_that_is_no_block_of_entries_is_refused(plain: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode_entries(plain, None, END)


def test_entries_beyond_what_the_index_says_are_refused() -> None:
    plain = block([(tagged(b"b", 5), b""), (tagged(b"c", 5), b"")])

    assert len(decode_entries(plain, (b"b", -6), (b"c", -5))) == 2
    with pytest.raises(DecodeError, match="entries are out of order"):
        decode_entries(plain, (b"b", -5), END)
    with pytest.raises(DecodeError, match="not those that the index says"):
        decode_entries(plain, None, (b"c", -6))


def test_index_is_in_order() -> None:
    rows = [(tagged(b"a", 1), b"\0\5"), (tagged(b"b", 1), b"\x0a\5")]

    assert decode_index(block(rows)) == [IndexRow((b"a", -1), Handle(0, 5)), IndexRow((b"b", -1), Handle(10, 5))]
    with pytest.raises(DecodeError, match="blocks are out of order"):
        decode_index(block(rows[::-1]))
    with pytest.raises(DecodeError, match="number is cut off"):
        decode_index(block([(KEY, b"\0")]))


@given(st.binary(max_size=200))
def test_anything_else_is_refused_or_in_order(plain: bytes) -> None:
    try:
        found = decode_entries(plain, None, END)
    except DecodeError:
        return
    assert found == in_order(found)
