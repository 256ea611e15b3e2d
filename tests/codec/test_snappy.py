import random

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import snappy
from mailserver.errors import DecodeError
from tests.properties import settings

# Made by hand from Snappy's format_description.txt: length 12, the literal "abcd", a copy of 8 bytes from 4 back.
ABCD_THRICE = b"\x0c" + b"\x0cabcd" + b"\x11\x04"


def test_block_made_by_hand_inflates() -> None:
    assert snappy.decompress(ABCD_THRICE, max_bytes=12) == b"abcdabcdabcd"


def test_empty_text_is_a_length_of_zero() -> None:
    assert snappy.compress(b"") == b"\x00"
    assert snappy.decompress(b"\x00", max_bytes=0) == b""


@settings(max_examples=50)
@given(st.binary(max_size=300) | st.binary(max_size=20).map(lambda part: part * 50))
def test_decompress_gives_back_what_was_compressed(data: bytes) -> None:
    compressed = snappy.compress(data)

    assert snappy.decompress(compressed, max_bytes=len(data)) == data
    assert len(compressed) <= snappy.max_compressed_bytes(len(data))


def length_of(size: int) -> bytes:
    """A length as Snappy writes it: seven bits a byte, the lowest first."""
    rest, last = divmod(size, 0x80)
    return bytes([last]) if not rest else bytes([0x80 | last]) + length_of(rest)


def literal(data: bytes, *, length_bytes: int) -> bytes:
    """A block that is one literal, whose own length takes so many bytes, 0: it is in the tag."""
    size = len(data) - 1
    tag = (
        bytes([(59 + length_bytes) << 2]) + size.to_bytes(length_bytes, "little")
        if length_bytes
        else bytes([size << 2])
    )
    return length_of(len(data)) + tag + data


LITERALS = [
    (size, length_bytes)
    for size in (1, 2, 59, 60, 61, 127, 128, 255, 256, 257, 561, 16_383, 16_384, 65_536, 70_000)
    for length_bytes in range(5)
    if (size <= 60 if not length_bytes else 4 < size <= 256**length_bytes)  # the library refuses shorter ones
]


@pytest.mark.parametrize(("size", "length_bytes"), LITERALS)
def test_literal_of_any_length_inflates_as_by_the_library(size: int, length_bytes: int) -> None:
    data = random.Random(size).randbytes(size)
    block = literal(data, length_bytes=length_bytes)

    assert bytes(cramjam.snappy.decompress_raw(block)) == data
    assert snappy.decompress(block, max_bytes=size) == data
    with pytest.raises(DecodeError, match="announces too much"):
        snappy.decompress(block, max_bytes=size - 1)
    for damaged in (block[:-1], block + b"\x00", length_of(size + 1) + block[len(length_of(size)) :]):
        with pytest.raises(DecodeError, match="block is damaged"):
            snappy.decompress(damaged, max_bytes=2 * size + 1)


@settings(max_examples=300)
@given(st.integers(0, 70), st.sampled_from([0, 1, 3, 4, 5, 0xEC, 0xF0, 0xF4, 0xF8, 0xFC]), st.binary(max_size=70))
def test_whatever_looks_like_a_literal_is_taken_as_by_the_library(size: int, tag: int, rest: bytes) -> None:
    block = bytes([size, tag]) + rest
    try:
        expected = bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError:
        with pytest.raises(DecodeError):
            snappy.decompress(block, max_bytes=1000)
    else:
        assert snappy.decompress(block, max_bytes=1000) == expected


@pytest.mark.parametrize("size", [0, 1, 59, 60, 61, 62, 500])
def test_what_is_compressed_is_read_by_the_library(size: int) -> None:
    data = random.Random(size).randbytes(size)

    assert bytes(cramjam.snappy.decompress_raw(snappy.compress(data))) == data


@pytest.mark.parametrize("data", [bytes(33), random.Random(1).randbytes(561)])
def test_confirmation_and_sealed_envelope_do_not_go_to_the_library(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = bytes(cramjam.snappy.compress_raw(data)) if len(data) > 60 else snappy.compress(data)
    monkeypatch.delattr(snappy, "cramjam")

    assert snappy.decompress(block, max_bytes=len(data)) == data


def test_repetition_takes_less_room() -> None:
    assert len(snappy.compress(b"topic" * 1000)) < 500


def test_block_that_announces_one_byte_too_much_is_refused() -> None:
    block = snappy.compress(bytes(1001))

    with pytest.raises(DecodeError) as caught:
        snappy.decompress(block, max_bytes=1000)

    assert (caught.value.got, caught.value.limit) == (1001, 1000)


def test_block_that_announces_four_gigabytes_is_refused_by_its_first_bytes() -> None:
    with pytest.raises(DecodeError, match="announces too much, got 4294967295, limit 1000"):
        snappy.decompress(b"\xff\xff\xff\xff\x0f", max_bytes=1000)


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\xff", b"\x80\x80\x80\x80\x10", b"\xff" * 12])
def test_length_above_32_bits_is_refused(length: bytes) -> None:
    with pytest.raises(DecodeError, match="length is unreadable"):
        snappy.decompress(length, max_bytes=1 << 40)


@pytest.mark.parametrize("length", range(len(ABCD_THRICE)))
def test_every_truncation_of_a_block_is_refused(length: int) -> None:
    with pytest.raises(DecodeError):
        snappy.decompress(ABCD_THRICE[:length], max_bytes=1000)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(ABCD_THRICE + b"\x00", id="bytes left over"),
        pytest.param(b"\x0b" + ABCD_THRICE[1:], id="more than announced"),
        pytest.param(b"\x0d" + ABCD_THRICE[1:], id="less than announced"),
        pytest.param(b"\x0c" + b"\x0cabcd" + b"\x11\x05", id="copy from before the start"),
        pytest.param(b"\x0c" + b"\x0cabcd" + b"\x11\x00", id="copy from zero bytes back"),
    ],
)
def test_damaged_block_is_refused(block: bytes) -> None:
    with pytest.raises(DecodeError, match="block is damaged"):
        snappy.decompress(block, max_bytes=1000)


@settings(max_examples=200)
@given(st.binary(max_size=100))
def test_arbitrary_bytes_inflate_within_the_limit_or_are_refused(data: bytes) -> None:
    try:
        inflated = snappy.decompress(data, max_bytes=64)
    except DecodeError:
        return

    assert len(inflated) <= 64


@pytest.mark.parametrize(("plain", "compressed"), [(0, 32), (6, 39), (1000, 1198), (65536, 76490)])
def test_max_compressed_bytes_is_that_of_snappy(plain: int, compressed: int) -> None:
    assert snappy.max_compressed_bytes(plain) == compressed


# Long blocks


@pytest.mark.parametrize("plain", [b"", b"a", bytes(100_000), bytes(range(256)) * 1000])
def test_long_block_inflates_to_what_was_compressed(plain: bytes) -> None:
    block = memoryview(snappy.compress(plain))

    assert snappy.announced_bytes(block) == len(plain)
    assert snappy.decompress_long(block) == plain


def test_length_is_announced_by_the_first_bytes() -> None:
    assert snappy.announced_bytes(snappy.compress(bytes(1 << 22))[:5]) == 1 << 22


@pytest.mark.parametrize(
    "block", [b"", b"\xff\xff\xff\xff\xff\xff", snappy.compress(bytes(100_000))[:-9], b"\x05\x00a"]
)
def test_damaged_long_block_is_an_error(block: bytes) -> None:
    with pytest.raises(DecodeError):
        snappy.decompress_long(memoryview(block))
