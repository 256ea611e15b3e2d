from typing import TypeAlias

import pytest
import rlp as library
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import rlp
from mailserver.errors import DecodeError
from tests.data import load
from tests.properties import settings

VALID = load("rlptest.json")
INVALID = load("invalidRLPTest.json")

Json: TypeAlias = "str | int | list[Json]"

ITEMS: st.SearchStrategy[rlp.Item] = st.recursive(
    st.binary(max_size=70),
    lambda items: st.lists(items, max_size=5),
    max_leaves=20,
).filter(lambda item: depth_of(item) <= rlp.MAX_DEPTH)


def depth_of(item: rlp.Item) -> int:
    return 0 if isinstance(item, bytes) else 1 + max(map(depth_of, item), default=0)


def nested(depth: int) -> rlp.Item:
    item: rlp.Item = b""
    for _ in range(depth):
        item = [item]
    return item


def item_of(value: Json) -> rlp.Item:
    """What a vector's "in" means: a string, an integer (one above 64 bits as "#..."), or a list of them."""
    if isinstance(value, list):
        return [item_of(element) for element in value]
    if isinstance(value, int):
        return rlp.encode_uint(value)
    if value.startswith("#"):
        return rlp.encode_uint(int(value[1:]))
    return value.encode()


def equally_long(length: int) -> st.SearchStrategy[list[bytes]]:
    return st.lists(st.binary(min_size=length, max_size=length), max_size=4)


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


VALID_BYTES = {name: unhex(vector["out"]) for name, vector in VALID.items()}


@pytest.mark.parametrize("name", VALID)
def test_published_item_encodes_to_the_published_bytes(name: str) -> None:
    assert rlp.encode(item_of(VALID[name]["in"])).hex() == VALID_BYTES[name].hex()


@pytest.mark.parametrize("name", VALID)
def test_published_bytes_decode_to_the_published_item(name: str) -> None:
    assert rlp.decode(VALID_BYTES[name]) == item_of(VALID[name]["in"])


@pytest.mark.parametrize("name", INVALID)
def test_published_invalid_bytes_are_refused(name: str) -> None:
    data = unhex(INVALID[name]["out"])

    with pytest.raises(DecodeError):
        rlp.decode(data)


@pytest.mark.parametrize("name", VALID)
def test_every_truncation_of_published_bytes_is_refused(name: str) -> None:
    data = VALID_BYTES[name]

    for length in range(len(data)):
        with pytest.raises(DecodeError):
            rlp.decode(data[:length])
        with pytest.raises(DecodeError):
            rlp.decode_first(data[:length])


@settings(max_examples=100)
@given(ITEMS)
def test_decode_gives_back_what_was_encoded(item: rlp.Item) -> None:
    data = rlp.encode(item)

    assert data == library.encode(item)
    assert rlp.decode(data) == item
    assert rlp.decode_first(data) == item


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=60), max_size=4) | st.integers(0, 60).flatmap(equally_long))
def test_strings_encode_as_a_list_of_them(strings: list[bytes]) -> None:
    assert rlp.encode_strings(strings) == rlp.encode(strings)


@settings(max_examples=200)
@given(st.lists(ITEMS, max_size=4) | st.integers(2, 55).flatmap(equally_long), st.data())
def test_strings_of_one_length_are_read_at_a_stroke_and_nothing_else(
    items: list[rlp.Item], draw: st.DataObject
) -> None:
    data = bytearray(rlp.encode(items))
    if draw.draw(st.booleans()):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    changed = bytes(data)
    try:
        _, at, end = rlp.header(changed, 0, len(changed))
        found = rlp.decode_list(changed[:end])
    except DecodeError:
        return
    lengths = {len(item) if isinstance(item, bytes) else None for item in found}
    is_equal = len(lengths) == 1 and lengths < {*range(2, 56)}

    assert rlp.equal_strings(changed, at, end) == (found if is_equal else None)
    assert rlp.equal_strings(b"before" + changed + b"after", 6 + at, 6 + end) == (found if is_equal else None)


@pytest.mark.parametrize("cut", range(1, 12))
def test_strings_that_are_cut_off_are_not_read_at_a_stroke(cut: int) -> None:
    data = rlp.encode([b"one", b"two", b"six"])

    assert rlp.equal_strings(data, 1, len(data) - cut) == {4: [b"one", b"two"], 8: [b"one"]}.get(cut)


def test_tuples_encode_as_lists() -> None:
    assert rlp.encode((b"cat", (b"dog",))) == rlp.encode([b"cat", [b"dog"]])


def like_the_library(data: bytes) -> None:
    """Decode as the library does, or refuse: never more lenient, stricter only by depth."""
    expected: rlp.Item | None
    try:
        expected = library.decode(data)
    except library.DecodingError:
        expected = None
    if expected is not None and depth_of(expected) > rlp.MAX_DEPTH:
        expected = None

    try:
        got = rlp.decode(data)
    except DecodeError:
        assert expected is None
    else:
        assert got == expected
        assert rlp.encode(got) == data


@settings(max_examples=300)
@given(st.binary(max_size=80))
def test_random_bytes_decode_as_by_the_library_or_are_refused(data: bytes) -> None:
    like_the_library(data)


@settings(max_examples=200)
@given(ITEMS, st.data())
def test_valid_bytes_with_one_changed_decode_as_by_the_library_or_are_refused(
    item: rlp.Item, draw: st.DataObject
) -> None:
    data = bytearray(rlp.encode(item))
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))

    like_the_library(bytes(data))


def test_two_bytes_of_every_value_decode_as_by_the_library_or_are_refused() -> None:
    for first in range(256):
        like_the_library(bytes([first]))
        for second in range(256):
            like_the_library(bytes([first, second]))


def test_bytes_after_the_item_are_refused_by_decode_and_ignored_by_decode_first() -> None:
    data = rlp.encode([b"cat"]) + b"padding"

    first = rlp.decode_first(data)
    with pytest.raises(DecodeError) as caught:
        rlp.decode(data)

    assert first == [b"cat"]
    assert (caught.value.got, caught.value.limit) == (12, 5)


def test_bytes_after_a_string_are_ignored_by_decode_first() -> None:
    assert rlp.decode_first(b"\x83catdog") == b"cat"


def test_item_that_overruns_its_list_is_refused() -> None:
    # The list holds 3 bytes, its string claims 3 after its prefix; the byte it lacks follows the list.
    data = b"\xc3\x83abc"

    with pytest.raises(DecodeError, match="longer than what holds it, got 3, limit 2"):
        rlp.decode_first(data)


def test_length_that_overruns_its_list_is_refused() -> None:
    data = b"\xc1\xb8" + bytes([56]) + bytes(56)

    with pytest.raises(DecodeError, match="truncated"):
        rlp.decode_first(data)


def test_value_as_deep_as_allowed_decodes() -> None:
    deepest = nested(rlp.MAX_DEPTH)

    assert rlp.decode(rlp.encode(deepest)) == deepest


def test_value_deeper_than_allowed_is_refused() -> None:
    with pytest.raises(DecodeError) as caught:
        rlp.decode(rlp.encode(nested(rlp.MAX_DEPTH + 1)))

    assert caught.value.limit == rlp.MAX_DEPTH


def test_value_of_three_thousand_levels_is_refused_before_it_is_built() -> None:
    # Python's recursion ends at 1,000 levels by default.
    data = bytes([0xB9, 1, 0]) + bytes(256)
    for _ in range(3000):
        data = b"\xf9" + len(data).to_bytes(2, "big") + data

    with pytest.raises(DecodeError, match="nested too deep"):
        rlp.decode(data)


def test_as_many_items_as_allowed_decode() -> None:
    # The list itself counts: 1 + 2 lists + 3 strings.
    item: rlp.Item = [[b"a", b"b"], [b"c"]]

    assert rlp.decode(rlp.encode(item), max_items=6) == item
    assert rlp.decode_first(rlp.encode(item), max_items=6) == item
    assert rlp.decode_list(rlp.encode(item), max_items=6) == item


def test_more_items_than_allowed_are_refused() -> None:
    data = rlp.encode([[b"a", b"b"], [b"c"]])

    for decode in (rlp.decode, rlp.decode_first, rlp.decode_list):
        with pytest.raises(DecodeError) as caught:
            decode(data, max_items=5)
        assert caught.value.limit == 5


def test_default_limit_of_items_holds() -> None:
    strings: list[rlp.Encodable] = [b""] * rlp.MAX_ITEMS

    assert len(rlp.decode_list(rlp.encode(strings[1:]))) == rlp.MAX_ITEMS - 1
    with pytest.raises(DecodeError):
        rlp.decode_list(rlp.encode(strings))


def test_decode_list_refuses_a_string() -> None:
    with pytest.raises(DecodeError, match="expected an RLP list"):
        rlp.decode_list(rlp.encode(b"cat"))


def test_as_list_takes_a_list_and_refuses_a_string() -> None:
    assert rlp.as_list([b"cat"]) == [b"cat"]
    with pytest.raises(DecodeError, match="expected an RLP list"):
        rlp.as_list(b"cat")


def test_as_bytes_takes_a_string_and_refuses_a_list() -> None:
    assert rlp.as_bytes(b"cat") == b"cat"
    with pytest.raises(DecodeError, match="expected an RLP string"):
        rlp.as_bytes([b"cat"])


def test_as_bytes_refuses_another_length_than_the_given() -> None:
    assert rlp.as_bytes(b"cat", 3) == b"cat"
    with pytest.raises(DecodeError) as caught:
        rlp.as_bytes(b"cat", 4)

    assert (caught.value.got, caught.value.limit) == (3, 4)


@settings(max_examples=50)
@given(st.integers(0, 2**64 - 1))
def test_integer_reads_back(value: int) -> None:
    data = rlp.encode_uint(value)

    assert rlp.as_uint(data, 8) == value
    assert data[:1] != b"\x00"


def test_integer_zero_is_the_empty_string() -> None:
    assert rlp.encode_uint(0) == b""
    assert rlp.as_uint(b"", 1) == 0


def test_integer_longer_than_allowed_is_refused() -> None:
    assert rlp.as_uint(b"\xff\xff", 2) == 0xFFFF
    with pytest.raises(DecodeError) as caught:
        rlp.as_uint(b"\x01\x00\x00", 2)

    assert (caught.value.got, caught.value.limit) == (3, 2)


@pytest.mark.parametrize("data", [b"\x00", b"\x00\x01"])
def test_integer_with_leading_zeros_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="leading zeros"):
        rlp.as_uint(data, 8)


def test_integer_that_is_a_list_is_refused() -> None:
    with pytest.raises(DecodeError, match="expected an RLP string"):
        rlp.as_uint([], 8)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"\x7f", (False, 0, 1), id="byte that is its own encoding"),
        pytest.param(b"\x80", (False, 1, 1), id="empty string"),
        pytest.param(b"\x81\x80", (False, 1, 2), id="string of one byte"),
        pytest.param(b"\xb7" + bytes(55), (False, 1, 56), id="longest short string"),
        pytest.param(b"\xb8\x38" + bytes(56), (False, 2, 58), id="shortest long string"),
        pytest.param(b"\xb9\x01\x00" + bytes(256), (False, 3, 259), id="string with a length of two bytes"),
        pytest.param(b"\xc0", (True, 1, 1), id="empty list"),
        pytest.param(b"\xc1\x00", (True, 1, 2), id="list of one byte"),
        pytest.param(b"\xf7" + bytes(55), (True, 1, 56), id="longest short list"),
        pytest.param(b"\xf8\x38" + bytes(56), (True, 2, 58), id="shortest long list"),
    ],
)
def test_header_tells_kind_and_bounds_wherever_the_item_starts(data: bytes, expected: tuple[bool, int, int]) -> None:
    is_list, start, stop = expected

    assert rlp.header(data, 0, len(data)) == expected
    assert rlp.header(b"...." + data + b"....", 4, 4 + len(data)) == (is_list, start + 4, stop + 4)


def test_header_refuses_an_item_that_passes_the_end_of_its_surroundings() -> None:
    data = b"\x83cat"

    with pytest.raises(DecodeError, match="longer than what holds it, got 3, limit 2"):
        rlp.header(data, 0, 3)
    with pytest.raises(DecodeError, match="truncated"):
        rlp.header(data, 4, 4)
    with pytest.raises(DecodeError, match="truncated"):
        rlp.header(data, 0, 0)
