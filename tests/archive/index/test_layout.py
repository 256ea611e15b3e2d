"""mailserver.archive.index.layout: what contradicts itself is refused, even under a digest that is right."""

from collections.abc import Callable
from hashlib import sha256

import numpy as np
import pytest

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index import layout
from mailserver.archive.index.layout import (
    ENTRY,
    HEADER,
    TRAILER,
    Entry,
    SectionKind,
    decode_directory,
    decode_head,
    directory_offset,
    encode_directory,
    encode_fragment,
)
from tests.archive.index.indexes import ROWS, fragment

SOUND = fragment(ROWS, 25)
HEAD = decode_head(SOUND)
SECTIONS = {
    SectionKind.GROUPS: HEAD.groups.tobytes(),
    SectionKind.TOPICS: HEAD.topics.tobytes(),
    SectionKind.BLOCKS: HEAD.blocks.tobytes(),
    SectionKind.FOOTER: HEAD.footer,
    SectionKind.KEYS: bytes(44 * len(ROWS)),
    SectionKind.HASHES: bytes(8 * len(ROWS)),
}


def with_section(kind: SectionKind, content: bytes) -> bytes:
    return encode_fragment((SECTIONS | {kind: content}).items())


def with_field(kind: SectionKind, field: str, number: int, value: int) -> bytes:
    table = {SectionKind.GROUPS: HEAD.groups, SectionKind.TOPICS: HEAD.topics, SectionKind.BLOCKS: HEAD.blocks}[
        kind
    ].copy()
    table[field][number] = value
    return with_section(kind, table.tobytes())


def edited(at: int, value: int) -> bytes:
    return SOUND[:at] + bytes([value]) + SOUND[at + 1 :]


FIRST_SECTION = 24  # behind magic, version, count, and two lengths


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "cut off"),
        (SOUND[:23], "cut off"),
        (SOUND[: HEAD.head_bytes - 1], "cut off"),
        (edited(0, ord("X")), "no fragment"),
        (edited(4, 2), "has version 2"),
        (edited(6, 255), "cut off"),
        (edited(15, 1), "cut off"),
        (edited(FIRST_SECTION + 2, 2), "section 1 of a fragment has version 2"),
        (edited(FIRST_SECTION + 4, 1), "not where it can be"),
        (edited(FIRST_SECTION + 15, 1), "not where it can be"),
        (edited(FIRST_SECTION, 200), "no section 1"),
        (with_section(SectionKind.GROUPS, SECTIONS[SectionKind.GROUPS][:-1]), "table of a fragment was cut off"),
        (with_section(SectionKind.GROUPS, b""), "has no rows"),
        (with_section(SectionKind.TOPICS, b""), "has no rows"),
        (with_section(SectionKind.BLOCKS, b""), "contradicts itself"),
        (with_section(SectionKind.KEYS, bytes(44)), "contradicts itself"),
        (with_section(SectionKind.HASHES, bytes(8)), "contradicts itself"),
        (with_field(SectionKind.GROUPS, "rows", 1, 0), "contradicts itself"),
        (with_field(SectionKind.GROUPS, "rows", 1, 24), "contradicts itself"),
        (with_field(SectionKind.GROUPS, "created_min", 0, 2000), "contradicts itself"),
        (with_field(SectionKind.TOPICS, "first_row", 0, 1), "contradicts itself"),
        (with_field(SectionKind.TOPICS, "first_row", 2, 20), "contradicts itself"),
        (with_field(SectionKind.TOPICS, "first_row", 2, 60), "contradicts itself"),
        (with_field(SectionKind.TOPICS, "topic", 1, 2), "contradicts itself"),
        (with_field(SectionKind.TOPICS, "created_max", 0, 5), "contradicts itself"),
    ],
)
def test_head_that_contradicts_itself_is_refused(data: bytes, cause: str) -> None:
    with pytest.raises(ArchiveFault, match=cause):
        decode_head(data)


def test_blocks_out_of_order_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BLOCK_ENTRIES", 30)
    blocks = np.concatenate([HEAD.blocks, HEAD.blocks])
    blocks["prefix"] = (2, 1)

    with pytest.raises(ArchiveFault, match="contradicts itself"):
        decode_head(with_section(SectionKind.BLOCKS, blocks.tobytes()))


def test_head_that_is_put_together_again_is_sound() -> None:
    assert decode_head(encode_fragment(SECTIONS.items())).topics.tolist() == HEAD.topics.tolist()


AT = 1000
ONE = Entry("topic_prefix=0/a", 500, 400, 16, 480, 7, (1, 2), (3, 4), bytes(32))
TWO = ONE._replace(path="topic_prefix=0/b")


def decoded(content: bytes) -> list[Entry]:
    return decode_directory(content, AT, sha256(content).digest())


def test_directory_comes_back() -> None:
    assert decoded(encode_directory([ONE, TWO], AT)) == [ONE, TWO]
    assert decoded(encode_directory([], AT)) == []


@pytest.mark.parametrize(
    "entry",
    [
        ONE._replace(head_at=601),
        ONE._replace(bulk_bytes=985),
        ONE._replace(topics=(3, 2)),
        ONE._replace(created=(5, 4)),
        ONE._replace(head_bytes=2**40),
        TWO,
    ],
)
def test_entry_that_cannot_be_is_refused(entry: Entry) -> None:
    with pytest.raises(ArchiveFault, match="contradicts itself"):
        decoded(encode_directory([TWO, entry], AT))


def _without_a_path(content: bytes) -> bytes:
    return content[: ENTRY.size] + content[ENTRY.size + 1 :]


def _with_count(content: bytes) -> bytes:
    _, _, *rest = TRAILER.unpack(content[-TRAILER.size :])
    return content[: -TRAILER.size] + TRAILER.pack(AT, 2**32 - 1, *rest)


def _elsewhere(content: bytes) -> bytes:
    return content[: -TRAILER.size] + TRAILER.pack(AT - 1, *TRAILER.unpack(content[-TRAILER.size :])[1:])


@pytest.mark.parametrize("spoil", [_without_a_path, _with_count, _elsewhere])
def test_directory_that_contradicts_itself_is_refused(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ArchiveFault, match="directory of the index"):
        decoded(spoil(encode_directory([ONE], AT)))


@pytest.mark.parametrize(
    ("trailer", "cause"),
    [
        (b"", "cut off"),
        (TRAILER.pack(AT, 1, 1, 0, b"PAR1PAR1"), "no index"),
        (TRAILER.pack(AT, 1, 2, 0, HEADER[:8]), "has version 2"),
        (TRAILER.pack(3, 1, 1, 0, HEADER[:8]), "not where it can be"),
        (TRAILER.pack(2**62, 1, 1, 0, HEADER[:8]), "not where it can be"),
    ],
)
def test_trailer_of_no_index_is_refused(trailer: bytes, cause: str) -> None:
    with pytest.raises(ArchiveFault, match=cause):
        directory_offset(trailer, 2000)


def test_directory_may_not_be_longer_than_a_bound() -> None:
    with pytest.raises(ArchiveFault, match="not where it can be"):
        directory_offset(TRAILER.pack(AT, 1, 1, 0, HEADER[:8]), AT + layout.MAX_DIRECTORY_BYTES + 1)
