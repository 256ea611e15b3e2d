"""mailserver.codec.protobuf: fields as they are read and written; tests/ids/test_waku_message.py has the errors."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.codec import varint
from mailserver.codec.protobuf import (
    MAX_FIELD_NUMBER,
    Field,
    WireType,
    read_fields,
    read_packed,
    unzigzag,
    write_bytes,
    write_number,
    write_packed,
    zigzag,
)
from mailserver.errors import DecodeError

numbers = st.integers(1, MAX_FIELD_NUMBER)
values = st.integers(0, 2**64 - 1)


def test_fields_are_those_of_the_guide() -> None:
    """protobuf.dev "Encoding": 150 in field 1, "testing" in field 2."""
    data = bytes.fromhex("089601 120774657374696e67")

    assert list(read_fields(data)) == [
        Field(1, WireType.VARINT, 150),
        Field(2, WireType.LENGTH_DELIMITED, b"testing"),
    ]
    assert write_number(1, 150) + write_bytes(2, b"testing") == data


@pytest.mark.parametrize("number", [1, 15, 16, MAX_FIELD_NUMBER])
@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 16_383, 16_384])
def test_bytes_have_their_tag_and_length_before_them(number: int, length: int) -> None:
    data = b"a" * length

    assert write_bytes(number, data) == varint.encode(number << 3 | 2) + varint.encode(length) + data


@given(numbers, values, numbers, st.binary(max_size=200))
@example(MAX_FIELD_NUMBER, 2**64 - 1, 1, b"")
def test_fields_are_read_as_they_were_written(one: int, value: int, other: int, data: bytes) -> None:
    written = write_number(one, value) + write_bytes(other, data)

    assert list(read_fields(written)) == [
        Field(one, WireType.VARINT, value),
        Field(other, WireType.LENGTH_DELIMITED, data),
    ]


def test_padded_number_is_read() -> None:
    assert list(read_fields(bytes.fromhex("08 968100"))) == [Field(1, WireType.VARINT, 150)]


def test_fields_beyond_the_bound_are_not_read() -> None:
    data = write_number(1, 7) * 3
    fields = read_fields(data + b"\xff" * 100, 3)

    assert list(read_fields(data, 3)) == [Field(1, WireType.VARINT, 7)] * 3
    assert [next(fields) for _ in range(3)] == list(read_fields(data))
    with pytest.raises(DecodeError, match="too many fields, limit 3"):
        next(fields)


@given(st.integers(-(2**63), 2**63 - 1))
@example(-(2**63))
def test_zigzag_stands_for_every_signed_number(value: int) -> None:
    assert unzigzag(zigzag(value)) == value
    assert 0 <= zigzag(value) < 2**64


def test_zigzag_takes_turns() -> None:
    assert [zigzag(value) for value in (0, -1, 1, -2, 2147483647, -2147483648)] == [0, 1, 2, 3, 4294967294, 4294967295]


@given(st.binary(max_size=60))
def test_random_bytes_are_fields_or_refused(data: bytes) -> None:
    try:
        fields = list(read_fields(data))
    except DecodeError:
        return
    assert sum(len(field.value) for field in fields if isinstance(field.value, bytes)) <= len(data)


@given(numbers, st.lists(values, max_size=5))
def test_packed_numbers_are_read_as_they_were_written(number: int, packed: list[int]) -> None:
    written = write_packed(number, packed)

    bodies = [field.value for field in read_fields(written) if isinstance(field.value, bytes)]
    assert [value for body in bodies for value in read_packed(body)] == packed


def test_packed_numbers_are_those_of_the_guide() -> None:
    """protobuf.dev "Encoding": 3, 270 and 86942 in field 6."""
    assert write_packed(6, [3, 270, 86942]).hex() == "3206038e029ea705"
    assert write_packed(6, []) == b""
