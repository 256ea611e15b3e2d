"""mailserver.codec.varint: numbers as unsigned-varint writes them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.codec import varint
from mailserver.errors import DecodeError


@given(st.integers(0, 2**63 - 1))
@example(127)
@example(128)
@example(2**56 - 1)
@example(2**56)
@example(1_764_000_000 * 10**9 * 2)
@example(2**63 - 1)
def test_number_is_read_as_it_was_written(value: int) -> None:
    written = varint.encode(value)

    assert varint.decode(b"x" + written + b"y", 1, 9) == (value, 1 + len(written))
    for length in range(len(written)):
        assert varint.decode(written[:length], 0, 9) is None


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (255, "ff01"), (300, "ac02"), (16384, "808001")],
)
def test_number_has_the_bytes_of_the_specification(value: int, written: str) -> None:
    """multiformats/unsigned-varint."""
    assert varint.encode(value).hex() == written


def test_number_that_is_padded_or_too_long_is_refused() -> None:
    with pytest.raises(DecodeError, match="varint is not in its shortest form"):
        varint.decode(b"\x81\x00", 0, 9)
    with pytest.raises(DecodeError, match="varint is too long, limit 5"):
        varint.decode(b"\xff" * 5, 0, 5)
