"""mailserver.codec.protobuf: fields as they are read and written; tests/ids/test_waku_message.py has the errors."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.codec import varint
from mailserver.codec.protobuf import (
    MAX_FIELD_NUMBER,
    MAX_GROUP_FIELDS,
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


def group(number: int, body: bytes) -> bytes:
    return varint.encode(number << 3 | 3) + body + varint.encode(number << 3 | 4)


GROUPED = bytes.fromhex("0807 12023a29 2d01020304 31 0102030405060708")
"""A field of each wire type."""


@pytest.mark.parametrize("body", [b"", GROUPED, GROUPED + group(1, GROUPED) + group(MAX_FIELD_NUMBER, b"")])
def test_groups_are_skipped_with_what_is_in_them(body: bytes) -> None:
    data = write_number(1, 150) + group(1, body) + write_bytes(2, b"testing") + group(200, body)

    assert list(read_fields(data)) == [
        Field(1, WireType.VARINT, 150),
        Field(2, WireType.LENGTH_DELIMITED, b"testing"),
    ]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("0b", "protobuf number is truncated"),
        ("0b 08", "protobuf number is truncated"),
        ("0b 12 05 61", "protobuf number is truncated"),
        ("0b 0d 0102", "protobuf number is truncated"),
        ("0c", "protobuf group ends that has not begun, got 1"),
        ("0b 14", "protobuf group ends that has not begun, got 2"),
        ("0b 13 0c", "protobuf group ends that has not begun, got 1"),
        ("0b 0c 0c", "protobuf group ends that has not begun, got 1"),
        ("0b 0e", "protobuf wire type is unknown, got 6"),
        ("0f", "protobuf wire type is unknown, got 7"),
        ("03", f"protobuf field number is out of range, got 0, limit {MAX_FIELD_NUMBER}"),
        ("0b 00", f"protobuf field number is out of range, got 0, limit {MAX_FIELD_NUMBER}"),
    ],
)
def test_group_that_is_none_is_refused(data: str, why: str) -> None:
    with pytest.raises(DecodeError) as caught:
        list(read_fields(bytes.fromhex(data)))

    assert str(caught.value) == why


@pytest.mark.parametrize("one", [group(1, b""), group(1, b"\x08\x01\x08\x01")], ids=["empty", "of two fields"])
def test_groups_of_a_message_are_bounded(one: bytes) -> None:
    fields = 2 if len(one) == 2 else 4

    assert list(read_fields(one * (MAX_GROUP_FIELDS // fields))) == []
    with pytest.raises(DecodeError, match=f"groups have too many fields, limit {MAX_GROUP_FIELDS}"):
        list(read_fields(one * (MAX_GROUP_FIELDS // fields + 1)))
    with pytest.raises(DecodeError, match="groups have too many fields"):
        list(read_fields(b"\x0b" * 1_000_000))


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
