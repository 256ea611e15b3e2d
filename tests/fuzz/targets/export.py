"""The archive's own records, and the index beside its files."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from mailserver.archive.errors import ArchiveError
from mailserver.archive.index.layout import ENTRY, TRAILER, directory_offset
from mailserver.archive.index.reader import (
    check_header,
    find_row,
    keys_place,
    read_directory,
    read_heads,
    read_keys,
)
from mailserver.archive.index.writer import FragmentWriter, IndexWriter, RowGroupColumns, footer_of
from mailserver.archive.manifest import IndexRecord, decode_record, decode_records, decode_settings
from mailserver.waku.envelope import EnvelopeHash
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.fuzz.targets.disk import record_seeds, text_of

ARCHIVE_SETTINGS = {"version": 1, "partition_by": "topic-prefix", "prefix_digits": 2}
ARCHIVE_RECORD = {
    "version": 1,
    "period": "2026-11-20",
    "run": "20261121T031700Z-1",
    "days": {
        "2026-11-20": {
            "rows": 5,
            "bytes": 6,
            "checksum": "00000000000000ff",
            "created_min": 1,
            "created_max": 2,
            "stores": {"ab": 70},
            "quarantined": 0,
        }
    },
    "files": [["topic=00/part.parquet", 10, 5]],
    "replaces": [["2026-11-20", "run"]],
    "snapshot": False,
}

DECODERS: tuple[tuple[Callable[[str, str], object], object], ...] = (
    (decode_settings, ARCHIVE_SETTINGS),
    (decode_record, ARCHIVE_RECORD),
    (decode_records, {"version": 1, "records": [ARCHIVE_RECORD]}),
)


def fuzz_records(data: bytes) -> None:
    """The archive's own records are read, or refused."""
    choices = Choices(data)
    decode, sound = choices.pick(DECODERS)
    text = text_of(choices.rest(), sound).decode("utf-8", "replace")
    try:
        decode(text, "record")
    except ArchiveError as error:
        assert str(error).isprintable()


def _index() -> bytes:
    """An index of two files, of 5 and 3 rows."""
    file = BytesIO()
    writer = IndexWriter(file)
    rows = [(bytes([0, 0, 0, number // 2]), 1000 + number % 2, bytes([30 * number] * 32)) for number in range(8)]
    for path, some in (("topic_prefix=0/a", rows[:5]), ("topic_prefix=0/b", rows[5:])):
        fragment = FragmentWriter()
        parquet: list[pq.FileMetaData] = []
        table = pa.table({"raw": [b"raw"] * len(some)})
        with pq.ParquetWriter(BytesIO(), table.schema, metadata_collector=parquet) as written:
            for at in range(0, len(some), 3):
                written.write_table(table.slice(at, 3))
                topics, created, hashes = zip(*some[at : at + 3], strict=True)
                sizes = pa.array([100] * len(topics))
                fragment.add(RowGroupColumns(pa.array(topics), pa.array(created), pa.array(hashes), sizes))
        writer.add(path, fragment.finish(footer_of(parquet[0])))
    writer.finish()
    return file.getvalue()


INDEX = _index()
(DIRECTORY_AT, *_) = TRAILER.unpack(INDEX[-TRAILER.size :])


def fuzz_index(data: bytes) -> None:
    """An index is read, and all that it says can be looked up in it; or it is refused."""
    choices = Choices(data)
    content = bytearray(INDEX)
    is_any = choices.flag()
    is_renewed = choices.flag()
    if is_any:
        content = bytearray(choices.rest())
    for _ in range(0 if is_any else choices.below(6)):
        content[choices.below(len(content))] = choices.below(256)
    if not is_any:
        del content[len(content) - choices.below(200) * choices.flag() :]
    try:
        at = directory_offset(bytes(content[-TRAILER.size :]), len(content))
        if is_renewed:  # as whoever writes other heads would
            _renew_digests(content, at)
        _look_up(BytesIO(content), IndexRecord(len(content), sha256(content[at:]).hexdigest()))
    except ArchiveError as error:
        assert str(error).isprintable()
        assert is_any or content != INDEX


def _renew_digests(content: bytearray, at: int) -> None:
    _, count, *_ = TRAILER.unpack(content[-TRAILER.size :])
    for number in range(min(count, 8)):
        start = at + number * ENTRY.size
        entry = content[start : start + ENTRY.size]
        if len(entry) == ENTRY.size:
            _, head_at, head_bytes, *_ = ENTRY.unpack(entry)
            digest = sha256(content[head_at : head_at + head_bytes]).digest()
            content[start + ENTRY.size - len(digest) : start + ENTRY.size] = digest


def _look_up(file: BytesIO, record: IndexRecord) -> None:
    check_header(file)
    entries = [*read_directory(file, record).entries.values()]
    for entry, head in zip(entries, read_heads(file, entries), strict=True):
        for number in range(len(head.groups)):
            for full_hash in read_keys(file, keys_place(entry, head, number)).hashes[:3]:
                found = find_row(file, entry, head, EnvelopeHash(full_hash.tobytes()))
                assert found is None or found[0] < len(head.groups)
        assert find_row(file, entry, head, EnvelopeHash(bytes([7] * 32))) is None


def index_seeds() -> Iterator[bytes]:
    """The index itself, without its end, and with edits."""
    yield b"\1\0" + INDEX
    yield b"\1\1" + INDEX
    yield b"\1\0" + INDEX[:-1]
    yield b"\1\0" + INDEX[DIRECTORY_AT:]
    for is_renewed in (0, 1):
        yield bytes([0, is_renewed])
        yield from (
            bytes([0, is_renewed, 1]) + where.to_bytes(2, "big") + b"\xff" for where in range(0, len(INDEX), 61)
        )


def seeds() -> Iterator[bytes]:
    """Each record, in each state."""
    for number, (_, sound) in enumerate(DECODERS):
        for seed in record_seeds(sound)():
            yield bytes([number]) + seed


TARGETS = {"records": Target(fuzz_records, seeds), "index": Target(fuzz_index, index_seeds, 8192)}
