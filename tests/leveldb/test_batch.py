import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.leveldb.batch import TooManyEntries, decode_batch
from mailserver.leveldb.entries import MAX_KEY_BYTES, Entry
from tests.leveldb import writer
from tests.properties import settings


@settings(max_examples=50)
@given(
    st.integers(0, 2**56),
    st.lists(st.tuples(st.binary(max_size=MAX_KEY_BYTES), st.none() | st.binary(max_size=300)), max_size=6),
)
def test_entries_have_sequences_that_follow_one_another(first: int, changes: list[tuple[bytes, bytes | None]]) -> None:
    entries = [Entry(key, first + number, value) for number, (key, value) in enumerate(changes)]

    assert decode_batch(writer.batch(entries), len(entries)) == entries


def test_batch_by_hand() -> None:
    record = bytes.fromhex("0700000000000000 03000000 01 01 61 02 6869 00 01 62 01 00 00")

    assert decode_batch(record, 3) == [Entry(b"a", 7, b"hi"), Entry(b"b", 8, None), Entry(b"", 9, b"")]


SOUND = writer.batch([Entry(b"key", 5, b"value"), Entry(b"other", 6, None)])


@pytest.mark.parametrize("size", range(len(SOUND)))
def test_batch_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(DecodeError):
        decode_batch(SOUND[:size], 9)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (SOUND + b"\2\1a", "kind of an entry is unknown, got 2"),
        (SOUND + b"\0\1a", "another number of entries than it says, got 3, limit 2"),
        (writer.batch([Entry(bytes(MAX_KEY_BYTES + 1), 1, None)]), "key is too long"),
        (SOUND[:12] + b"\1\xff\xff\xff\xff\x0fabc", "bytes are cut off"),
        (SOUND[:12] + b"\1\xff\xff\xff\xff\xff\xff", "varint is too long"),
        (SOUND[:12] + b"\1\xff", "number is cut off"),
        (SOUND[:12] + b"\1\xff\xff\xff\xff\x1fabc", "number is too large, got 8589934591"),
    ],
    ids=["kind", "count", "key", "value", "number", "cut number", "large number"],
)
def test_batch_that_is_something_else_is_refused(record: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode_batch(record, 9)


def test_batch_with_more_entries_than_there_is_memory_for_is_not_decoded() -> None:
    many = writer.batch([Entry(b"", number, None) for number in range(1000)])

    with pytest.raises(TooManyEntries):
        decode_batch(many, 999)
    assert len(decode_batch(many, 1000)) == 1000


def test_batch_with_many_more_entries_than_it_says_is_not_decoded_to_its_end() -> None:
    with pytest.raises(DecodeError, match="another number of entries than it says, got 3, limit 2"):
        decode_batch(SOUND + b"\0\1a" * 1000, 3)
