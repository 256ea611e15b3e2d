"""What is read of a Go mailserver's LevelDB: journals and what their records say, manifests, blocks of tables."""

import contextlib
from collections.abc import Iterator

from mailserver.errors import DecodeError
from mailserver.leveldb.batch import decode_batch
from mailserver.leveldb.entries import MAX_KEY_BYTES, Entry, EntryOrder
from mailserver.leveldb.journal import BLOCK_BYTES, JournalRecord, read_journal
from mailserver.leveldb.manifest import Version
from mailserver.leveldb.table import (
    FOOTER_BYTES,
    TRAILER_BYTES,
    decode_entries,
    decode_footer,
    decode_index,
    open_block,
)
from tests.data import load
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.leveldb import writer

ENTRIES = [Entry(b"key%02d" % number, number + 1, None if number % 3 else b"value" * number) for number in range(12)]
END: EntryOrder = (b"\xff" * MAX_KEY_BYTES, 0)

MAX_WRITTEN_BYTES = 2 * BLOCK_BYTES
"""A longer journal is not filled up with zeros any more."""

RECORDED = {
    name: bytes.fromhex(content)
    for database in load("leveldb.json")["databases"]
    for name, content in database["files"].items()
}
"""Files that goleveldb has written, one of each name."""


def fuzz_journal(data: bytes) -> None:
    """No more comes out than was put in; of chunks that are sound nothing is lost; batches are as they were written."""
    choices = Choices(data)
    is_sound = choices.flag()
    written, payloads = bytearray(choices.fixed(choices.below(64)) if not is_sound else b""), 0
    while choices.more:
        kind = 1 + choices.below(4) if is_sound else choices.below(6)
        chunk = bytearray(writer.chunk(kind, choices.take(300)))
        payloads += len(chunk) - 7
        if not is_sound and choices.below(8) == 0:
            chunk[choices.below(len(chunk))] ^= 1 + choices.below(255)
        written += chunk
        if not is_sound and choices.below(16) == 0 and len(written) < MAX_WRITTEN_BYTES:
            written += bytes(choices.below(BLOCK_BYTES))
    blocks = [bytes(written[at : at + BLOCK_BYTES]) for at in range(0, len(written), BLOCK_BYTES)]
    found = 0
    for piece in read_journal(blocks, may_be_torn=False):
        assert 0 <= piece.at < len(written)
        found += len(piece.content)
        if isinstance(piece, JournalRecord):
            _check_batch(piece.content)
    assert found <= len(written)
    if is_sound and len(blocks) <= 1:
        assert found >= payloads


def _check_batch(record: bytes) -> None:
    try:
        entries = decode_batch(record, len(record))
    except DecodeError:
        return
    assert not entries or writer.batch(entries) == record


def journal_seeds() -> Iterator[bytes]:
    """Chunks of records, whole ones and parts; sound ones, and others, with something before and behind each."""
    batch = writer.batch(ENTRIES[:3])
    content = len(batch).to_bytes(2, "big") + batch
    yield b"\1\0" + content + b"\1" + content + b"\2\0\5abcde" + b"\3\0\3xyz"
    yield b"\1\1\0\1a\2\0\1b\0\0\1c\3\0\1d"
    for zeros in (b"\1", b"\0\x7f\xf0"):
        behind = b"\1" + zeros
        yield b"\0\0\1" + content + behind + b"\2" + content + behind + b"\3\0\5abcde" + behind + b"\4\0\3xyz" + behind
    yield b"\0\7garbage\1" + content + b"\0\5\1\1" + b"\1" + content + b"\1\1"


def fuzz_manifest(data: bytes) -> None:
    """A record is applied, or refused; tables have numbers that they were given."""
    choices = Choices(data)
    version = Version()
    while choices.more:
        try:
            version.apply(choices.take(400))
        except DecodeError:
            break
    assert all(len(table.first[0]) <= len(data) for table in version.tables)
    assert not version.has_journal(version.journal - 1) or version.previous_journal == version.journal - 1


def manifest_seeds() -> Iterator[bytes]:
    """The records of manifests of goleveldb."""
    for name, content in RECORDED.items():
        if name.startswith("MANIFEST"):
            records = [
                piece.content
                for piece in read_journal([content], may_be_torn=False)
                if isinstance(piece, JournalRecord)
            ]
            yield b"".join(len(record).to_bytes(2, "big") + record for record in records if len(record) <= 400)
    record = writer.edit(journal=7, more=writer.new_table(0, 5, 100, ENTRIES) + b"\6\0\5\x09\3\5\1\x09a" + bytes(8))
    yield len(record).to_bytes(2, "big") + record


def fuzz_table(data: bytes) -> None:
    """A table is read in order, with blocks that lie within it, or is refused; so is any block by itself."""
    choices = Choices(data)
    if choices.flag():
        for decode in (lambda plain: decode_entries(plain, None, END), decode_index, decode_footer, open_block):
            try:
                decode(data[1:])
            except DecodeError:
                continue
        return
    file = bytearray(writer.table(ENTRIES, block_rows=1 + choices.below(8), is_compressed=choices.flag()))
    while choices.more:
        file[choices.below(len(file))] ^= choices.below(256)
    entries = _entries_of(bytes(file))
    assert [entry for entry in ENTRIES if entry in entries] == entries


def _entries_of(file: bytes) -> list[Entry]:
    entries: list[Entry] = []
    try:
        handle = decode_footer(file[-FOOTER_BYTES:])
        index = decode_index(open_block(file[handle.at : handle.at + handle.size + TRAILER_BYTES]))
    except DecodeError:
        return entries
    above = None
    for row in index:
        stored = file[row.handle.at : row.handle.at + row.handle.size + TRAILER_BYTES]
        with contextlib.suppress(DecodeError):
            entries += decode_entries(open_block(stored), above, row.upper)
        above = row.upper
    return entries


def table_seeds() -> Iterator[bytes]:
    """Blocks as they are in files of goleveldb, opened ones, footers; and changes of a table."""
    for name, content in RECORDED.items():
        if name.endswith(".ldb"):
            footer = content[-FOOTER_BYTES:]
            index = decode_footer(footer)
            stored = content[index.at : index.at + index.size + TRAILER_BYTES]
            yield from (b"\1" + each for each in (footer, stored, open_block(stored)))
    yield b"\1" + writer.block([(writer.tagged(key, sequence, 1), value or b"") for key, sequence, value in ENTRIES])
    yield b"\1" + writer.stored(writer.block([]), is_compressed=True)
    yield from (b"\0\3\1", b"\0\1\0\0\5\1", b"\0\7\1\1\1\x10\2\2\x80")


TARGETS = {
    "journal": Target(fuzz_journal, journal_seeds, max_bytes=2048),
    "manifest": Target(fuzz_manifest, manifest_seeds, max_bytes=2048),
    "table": Target(fuzz_table, table_seeds, max_bytes=2048),
}
