"""mailserver.archive.index: what was written is found by seeking, and damage is found instead of it."""

import struct
from hashlib import sha256
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index import layout
from mailserver.archive.index.layout import TRAILER, SectionKind, decode_head
from mailserver.archive.index.reader import (
    check_header,
    find_row,
    keys_place,
    read_directory,
    read_heads,
    read_keys,
)
from mailserver.archive.manifest import IndexRecord
from mailserver.waku.envelope import EnvelopeHash
from tests.archive.index.indexes import ROWS, Row, fragment, index_of, row
from tests.properties import settings

FRAGMENTS = {"topic_prefix=0/a": fragment(ROWS[:30], 10), "topic_prefix=0/b": fragment(ROWS[30:], 20)}


def read_all(file: BytesIO, record: IndexRecord) -> list[Row]:
    """All rows of an index, by whatever says anything of them."""
    check_header(file)
    entries = [*read_directory(file, record).entries.values()]
    rows: list[Row] = []
    for entry, head in zip(entries, read_heads(file, entries), strict=True):
        keys = [read_keys(file, keys_place(entry, head, group)) for group in range(len(head.groups))]
        created = [int(one) for part in keys for one in part.created]
        hashes = [one.tobytes() for part in keys for one in part.hashes]
        topics = [
            int(topic["topic"]).to_bytes(4, "big")
            for topic, end in zip(head.topics, head.topic_ends, strict=True)
            for _ in range(int(topic["first_row"]), int(end))
        ]
        for number, one in enumerate(hashes):
            found = find_row(file, entry, head, EnvelopeHash(one))
            assert found is not None
            group, in_group = found
            assert int(head.group_ends[group]) - int(head.groups["rows"][group]) + in_group == number
        rows += zip(topics, created, hashes, strict=True)
    return rows


def test_what_was_written_is_read() -> None:
    file, record = index_of(FRAGMENTS)

    assert read_all(file, record) == ROWS


@settings(max_examples=40)
@given(
    keys=st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 10), st.integers(0, 10**6)), min_size=1, unique=True),
    group_rows=st.integers(1, 20),
    files_of=st.integers(1, 60),
)
def test_any_rows_are_read_as_they_were_written(
    keys: list[tuple[int, int, int]], group_rows: int, files_of: int
) -> None:
    rows = sorted({row(*one) for one in keys})
    file, record = index_of(
        {str(at): fragment(rows[at : at + files_of], group_rows) for at in range(0, len(rows), files_of)}
    )

    assert read_all(file, record) == rows


def test_hashes_that_begin_alike_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sorted((b"\0\0\0\1", number % 3, b"same" + number.to_bytes(28, "big")) for number in range(3000))
    file, record = index_of({"a": fragment(rows, 700)})
    (entry,) = read_directory(file, record).entries.values()
    (head,) = read_heads(file, [entry])

    for number in (0, 1, 699, 700, 1024, 2999):
        group, in_group = divmod(number, 700)
        assert find_row(file, entry, head, EnvelopeHash(rows[number][2])) == (group, in_group)
    for stranger in (b"same" + bytes([255] * 28), bytes(32), bytes([255] * 32)):
        assert find_row(file, entry, head, EnvelopeHash(stranger)) is None


def test_index_of_many_files_is_read_whatever_its_directory_takes() -> None:
    one = fragment(ROWS, 100)
    file, record = index_of({f"topic_prefix={number}/part": one for number in range(500)})

    index = read_directory(file, record)

    assert len(index.entries) == 500
    assert [*index.entries] == [f"topic_prefix={number}/part" for number in range(500)]
    some = [index.entries[f"topic_prefix={number}/part"] for number in (499, 3, 4, 0)]
    assert [head.rows for head in read_heads(file, some)] == [60] * 4


def test_truncated_index_is_a_fault() -> None:
    file, record = index_of(FRAGMENTS)
    content = file.getvalue()

    for size in range(len(content)):
        with pytest.raises(ArchiveFault):
            read_directory(BytesIO(content[:size]), record)
        with pytest.raises(ArchiveFault):
            read_all(BytesIO(content[:size]), IndexRecord(size, record.sha256))


@pytest.mark.slow
def test_no_flipped_bit_is_believed() -> None:
    file, record = index_of(FRAGMENTS)
    content = file.getvalue()
    padding = 0

    for at in range(len(content)):
        spoilt = BytesIO(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        try:
            assert read_all(spoilt, record) == ROWS
            padding += 1
        except ArchiveFault:
            continue
    assert padding <= 7 * len(FRAGMENTS)


def test_index_of_a_later_version_is_refused() -> None:
    file, record = index_of(FRAGMENTS)
    content = bytearray(file.getvalue())
    at, files, version, unused, magic = TRAILER.unpack(content[-TRAILER.size :])
    content[-TRAILER.size :] = TRAILER.pack(at, files, version + 1, unused, magic)
    digest = sha256(content[at:]).hexdigest()

    with pytest.raises(ArchiveFault, match="has version 2, this program knows 1"):
        read_directory(BytesIO(content), IndexRecord(record.bytes, digest))


def test_section_of_an_unknown_kind_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    known = decode_head(FRAGMENTS["topic_prefix=0/a"])
    data = FRAGMENTS["topic_prefix=0/a"]
    sections_at, one = struct.calcsize("<4sHHQQ"), struct.calcsize("<HHIQQ")
    footer_at = next(at for at in range(sections_at, sections_at + 6 * one, one) if data[at] == SectionKind.FOOTER)
    unknown = data[:footer_at] + struct.pack("<H", 99) + data[footer_at + 2 :]

    with pytest.raises(ArchiveFault, match="no section 3"):
        decode_head(unknown)
    monkeypatch.setattr(layout, "_PLACES", layout._PLACES | {99: 0})  # noqa: SLF001 - a writer of a later version
    later = layout.encode_fragment(
        [
            (SectionKind.GROUPS, known.groups.tobytes()),
            (99, b"ids"),  # type: ignore[list-item]
            (SectionKind.TOPICS, known.topics.tobytes()),
            (SectionKind.BLOCKS, known.blocks.tobytes()),
            (SectionKind.FOOTER, known.footer),
            (SectionKind.KEYS, bytes(30 * 44)),
            (SectionKind.HASHES, bytes(30 * 8)),
        ]
    )
    monkeypatch.undo()
    assert decode_head(later).footer == known.footer
