"""Bencoding: one encoding of each value, and bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.torrents.bencode import MAX_DEPTH, MAX_VALUES, Value, decode, encode

# From BEP 3 "bencoding".
VECTORS: list[tuple[bytes, Value]] = [
    (b"4:spam", b"spam"),
    (b"0:", b""),
    (b"i3e", 3),
    (b"i-3e", -3),
    (b"i0e", 0),
    (b"l4:spam4:eggse", [b"spam", b"eggs"]),
    (b"le", []),
    (b"d3:cow3:moo4:spam4:eggse", {b"cow": b"moo", b"spam": b"eggs"}),
    (b"d4:spaml1:a1:bee", {b"spam": [b"a", b"b"]}),
    (b"de", {}),
]

values = st.recursive(
    st.integers(-(10**15) + 1, 10**15 - 1) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.binary(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(("data", "value"), VECTORS)
def test_values_are_written_and_read_as_the_specification_has_them(data: bytes, value: Value) -> None:
    assert encode(value) == data
    assert decode(data) == value


@given(values)
def test_what_was_written_is_read(value: Value) -> None:
    assert decode(encode(value)) == value


@given(st.binary(max_size=60) | st.text("0123456789:ilde-ab", max_size=40).map(str.encode))
def test_what_is_read_is_written_in_the_same_bytes(data: bytes) -> None:
    try:
        value = decode(data)
    except DecodeError:
        return

    assert encode(value) == data


def test_what_is_cut_off_is_refused() -> None:
    whole = encode({b"files": [{b"length": 12, b"path": [b"data"]}], b"name": b"x"})

    for size in range(len(whole)):
        with pytest.raises(DecodeError):
            decode(whole[:size])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"i3e4:spam",
        b"ie",
        b"i-e",
        b"i-0e",
        b"i03e",
        b"i+3e",
        b"i 3e",
        b"i3",
        b"i1000000000000000e",
        b"-1:a",
        b"01:a",
        b"5:spam",
        b"4294967296:spam",
        b"x",
        b"d1:b1:x1:a1:ye",
        b"d1:a1:x1:a1:ye",
        b"di1e1:ae",
        b"d1:ae",
        "i\N{SUPERSCRIPT TWO}e".encode(),
    ],
)
def test_what_is_not_canonical_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


def test_depth_and_count_are_bounded() -> None:
    deepest = b"l" * (MAX_DEPTH + 1) + b"e" * (MAX_DEPTH + 1)
    most = b"l" + b"0:" * (MAX_VALUES - 1) + b"e"

    assert encode(decode(deepest)) == deepest
    assert encode(decode(most)) == most
    with pytest.raises(DecodeError, match="nest too deep"):
        decode(b"l" + deepest + b"e")
    with pytest.raises(DecodeError, match="too many"):
        decode(b"l" + b"0:" * MAX_VALUES + b"e")
