import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailserver.codec import snappy
from mailserver.errors import DecodeError

# Made by hand from Snappy's format_description.txt: length 12, the literal "abcd", a copy of 8 bytes from 4 back.
ABCD_THRICE = b"\x0c" + b"\x0cabcd" + b"\x11\x04"


def test_block_made_by_hand_inflates() -> None:
    assert snappy.decompress(ABCD_THRICE, max_bytes=12) == b"abcdabcdabcd"


def test_empty_text_is_a_length_of_zero() -> None:
    assert snappy.compress(b"") == b"\x00"
    assert snappy.decompress(b"\x00", max_bytes=0) == b""


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=300) | st.binary(max_size=20).map(lambda part: part * 50))
def test_decompress_gives_back_what_was_compressed(data: bytes) -> None:
    compressed = snappy.compress(data)

    assert snappy.decompress(compressed, max_bytes=len(data)) == data
    assert len(compressed) <= snappy.max_compressed_bytes(len(data))


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


@settings(deadline=None, max_examples=200)
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
