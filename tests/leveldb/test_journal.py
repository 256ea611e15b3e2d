import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.leveldb import journal
from mailserver.leveldb.journal import BLOCK_BYTES, JournalGap, JournalRecord, read_journal
from tests.leveldb import writer
from tests.leveldb.writer import FIRST, FULL, LAST, MIDDLE, chunk
from tests.properties import settings

HEADER_BYTES = 7


def blocks(data: bytes) -> list[bytes]:
    return [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]


def read(data: bytes, *, may_be_torn: bool = False) -> tuple[list[bytes], list[JournalGap]]:
    """The records, and the gaps."""
    pieces = list(read_journal(blocks(data), may_be_torn=may_be_torn))
    return [each.content for each in pieces if isinstance(each, JournalRecord)], [
        p for p in pieces if isinstance(p, JournalGap)
    ]


@settings(max_examples=60)
@example([BLOCK_BYTES - HEADER_BYTES])
@example([BLOCK_BYTES - HEADER_BYTES - 1, 5])  # one byte is left of the block
@example([BLOCK_BYTES - 2 * HEADER_BYTES, 5])  # there is room for a header, and for nothing behind it
@example([3 * BLOCK_BYTES, 0, 1])
@given(st.lists(st.integers(0, 40) | st.integers(0, 3 * BLOCK_BYTES), max_size=8))
def test_records_of_any_length_are_read(sizes: list[int]) -> None:
    records = [bytes([number + 1]) * size for number, size in enumerate(sizes)]

    assert read(writer.journal(records)) == (records, [])


def test_record_is_told_with_its_place() -> None:
    assert list(read_journal(blocks(writer.journal([b"one", b"two"])), may_be_torn=False)) == [
        JournalRecord(0, b"one"),
        JournalRecord(10, b"two"),
    ]


def test_zeros_at_the_end_are_no_damage() -> None:
    data = writer.journal([b"one"])

    assert read(data + bytes(3)) == ([b"one"], [])
    assert read(data + bytes(2 * BLOCK_BYTES)) == ([b"one"], [])


def test_zeros_amid_records_are_told_with_their_length() -> None:
    """As a file system leaves them after a power cut, where it had room for a block but not yet its bytes."""
    records = [bytes([number]) * 3000 for number in range(60)]
    written = bytearray(writer.journal(records))
    written[BLOCK_BYTES + 5000 : 4 * BLOCK_BYTES] = bytes(3 * BLOCK_BYTES - 5000)

    found, gaps = read(bytes(written), may_be_torn=True)

    lost = [record for record in records if record not in found]
    assert found == [record for record in records if record in found]
    assert 30 <= len(lost) <= 34
    (zeros,) = [gap for gap in gaps if gap.why.endswith("zeros")]
    assert zeros.why == f"{4 * BLOCK_BYTES - zeros.at} bytes are zeros"
    assert BLOCK_BYTES + 5000 <= zeros.at < BLOCK_BYTES + 5000 + 3007


def test_record_amid_which_a_block_is_zeros_is_told_and_not_joined() -> None:
    written = bytearray(writer.journal([b"a" * (4 * BLOCK_BYTES), b"next"]))
    written[2 * BLOCK_BYTES : 3 * BLOCK_BYTES] = bytes(BLOCK_BYTES)

    records, gaps = read(bytes(written), may_be_torn=True)

    assert records == [b"next"]
    assert [(gap.at, gap.why) for gap in gaps] == [
        (0, "a part of this record cannot be read"),
        (2 * BLOCK_BYTES, f"{BLOCK_BYTES} bytes are zeros"),
    ]


def test_what_fills_a_block_up_is_not_looked_at() -> None:
    data = bytearray(writer.journal([bytes(BLOCK_BYTES - HEADER_BYTES - 3), b"one"]))
    data[BLOCK_BYTES - 1] = 1

    assert [len(record) for record in read(bytes(data))[0]] == [BLOCK_BYTES - HEADER_BYTES - 3, 3]
    assert read(bytes(data))[1] == []


def test_chunk_with_wrong_checksum_is_left_out_and_the_rest_is_read() -> None:
    parts = [chunk(FULL, each) for each in (b"one", b"two", b"three")]
    data = bytearray(b"".join(parts))
    data[len(parts[0]) + HEADER_BYTES] ^= 1

    records, gaps = read(bytes(data))

    assert records == [b"one", b"three"]
    assert gaps == [JournalGap(10, bytes(data[10:20]), "chunk fails its checksum")]


def test_damaged_length_costs_the_rest_of_its_block_only() -> None:
    many = [bytes([number]) * 3000 for number in range(20)]
    data = bytearray(writer.journal(many))
    data[3007 + 4] ^= 1  # the length of the second

    records, (first, second) = read(bytes(data))

    assert records == [many[0], *many[11:]]  # the eleventh crosses the border
    assert (first.at, first.why) == (3007, "chunk fails its checksum")
    assert second.why == "what follows a damaged chunk cannot be told apart"
    assert first.content + second.content == bytes(data[3007:BLOCK_BYTES])


@pytest.mark.parametrize(
    ("chunks", "records", "whys"),
    [
        ([(FIRST, b"a"), (FULL, b"b")], [b"b"], ["another record begins before this one ends"]),
        ([(FIRST, b"a"), (FIRST, b"b"), (LAST, b"c")], [b"bc"], ["another record begins before this one ends"]),
        ([(MIDDLE, b"a"), (LAST, b"b"), (FULL, b"c")], [b"c"], ["a record has no beginning"] * 2),
        ([(FIRST, b"a"), (MIDDLE, b"b")], [], ["the file ends within this record"]),
        ([(7, b"a"), (FULL, b"b")], [b"b"], ["kind is unknown"]),
        ([(FIRST, b"a"), (7, b"b"), (LAST, b"c")], [], ["a part of this record cannot be read", "kind is unknown"]),
    ],
    ids=["full in one", "first in one", "no first", "no last", "unknown kind", "unknown kind within"],
)
def test_chunks_that_make_no_record_are_told(
    chunks: list[tuple[int, bytes]], records: list[bytes], whys: list[str]
) -> None:
    found, gaps = read(b"".join(chunk(kind, payload) for kind, payload in chunks))

    assert found == records
    assert [gap.why for gap in gaps] == whys


def test_journal_that_is_cut_off_anywhere_within_a_chunk_says_so() -> None:
    data = writer.journal([b"one", b"two"])

    for size in range(1, len(data)):
        records, gaps = read(data[:size])
        assert records == [b"one"][: size // 10]
        assert [gap.why for gap in gaps] == (["the file ends within this chunk"] if size != 10 else [])


@pytest.mark.parametrize("size", [100, 2 * BLOCK_BYTES + 100, 3 * BLOCK_BYTES])
def test_record_that_was_being_written_when_the_process_was_killed_is_no_damage(size: int) -> None:
    data = writer.journal([b"one", b"x" * size])

    for end in {*range(10, 200), *range(size - 50, len(data)), BLOCK_BYTES, BLOCK_BYTES + 3, 2 * BLOCK_BYTES}:
        if end < len(data):
            assert read(data[:end], may_be_torn=True) == ([b"one"], [])
            assert read(data[:end] + bytes(BLOCK_BYTES - end % BLOCK_BYTES), may_be_torn=True)[0] == [b"one"]


def test_damaged_length_of_the_last_chunk_is_not_taken_for_one_that_was_being_written() -> None:
    data = bytearray(writer.journal([b"one", b"two"]))
    data[10 + 4] ^= 0x40

    assert read(bytes(data), may_be_torn=True) == (
        [b"one"],
        [JournalGap(10, bytes(data[10:]), "the file ends within this chunk")],
    )


def test_damaged_length_that_hides_what_follows_is_told() -> None:
    data = bytearray(writer.journal([b"one", b"two", b"three"]))
    data[10 + 5] ^= 0x40

    assert read(bytes(data), may_be_torn=True) == (
        [b"one"],
        [JournalGap(10, bytes(data[10:]), "the file ends within this chunk")],
    )


@pytest.mark.parametrize("rest", [b"", b"abc", b"\1\2\3\4\x40\0\1abc"], ids=["nothing", "no header", "a header"])
def test_end_behind_a_damaged_chunk_is_told(rest: bytes) -> None:
    data = bytearray(writer.journal([b"one", b"two"]))
    data[10 + HEADER_BYTES] ^= 1

    records, gaps = read(bytes(data) + rest, may_be_torn=True)

    assert records == [b"one"]
    assert b"".join(gap.content for gap in gaps) == bytes(data[10:]) + rest


def test_block_that_cannot_be_read_is_passed_on_and_costs_what_is_in_it() -> None:
    records = [bytes([number]) * 3000 for number in range(60)]
    written: list[bytes | JournalGap] = [*blocks(writer.journal(records))]
    written[1] = JournalGap(BLOCK_BYTES, b"", "the disk cannot read it")

    pieces = list(read_journal(written, may_be_torn=True))

    found = [piece.content for piece in pieces if isinstance(piece, JournalRecord)]
    assert [record for record in records if record not in found] == records[10:22]
    assert [(piece.at, piece.why) for piece in pieces if isinstance(piece, JournalGap)] == [
        (30070, "a part of this record cannot be read"),
        (BLOCK_BYTES, "the disk cannot read it"),
    ]
    assert all(writer.journal(records)[piece.at + 7 :][:20] == piece.content[:20] for piece in pieces if piece.content)


def test_chunk_that_crosses_the_border_of_a_block_is_told() -> None:
    data = bytearray(writer.journal([bytes(1000)] * 40))
    at = 32 * 1007
    data[at + 4 : at + 6] = (2000).to_bytes(2, "little")

    records, (gap, *_) = read(bytes(data))

    assert len(records) == 39
    assert (gap.at, gap.why) == (at, "chunk crosses a block's border")


def test_record_above_the_bound_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_RECORD_BYTES", 100_000)

    records, gaps = read(writer.journal([b"a", bytes(100_000), bytes(100_001), b"b"]))

    assert records == [b"a", bytes(100_000), b"b"]
    assert [gap.why for gap in gaps] == ["record has more than 100000 bytes"]


@settings(max_examples=60)
@given(st.data())
def test_changed_byte_costs_what_it_is_in_and_is_told(data: st.DataObject) -> None:
    records = [bytes([number + 1]) * (400 * number) for number in range(1, 20)]
    written = bytearray(writer.journal(records))
    at = data.draw(st.integers(0, len(written) - 1))
    written[at] ^= data.draw(st.integers(1, 255))

    found, gaps = read(bytes(written), may_be_torn=data.draw(st.booleans()))

    lost = [record for record in records if record not in found]
    assert all(record in records for record in found)
    assert lost == [] or gaps
    assert sum(map(len, lost)) <= 2 * BLOCK_BYTES


@given(st.lists(st.binary(max_size=40), max_size=5), st.booleans())
def test_anything_else_is_read_without_an_error(parts: list[bytes], may_be_torn: bool) -> None:
    records, gaps = read(b"".join(parts), may_be_torn=may_be_torn)

    assert sum(map(len, records)) + sum(len(gap.content) for gap in gaps) <= sum(map(len, parts))
