"""The wire format of Protocol Buffers, as much of it as Waku v2 messages need: fields in, fields out.

Spec: protobuf.dev "Encoding". Groups, which no message of Waku has, are skipped with all that is in them.
"""

import sys
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from mailserver.codec import varint
from mailserver.errors import DecodeError

MAX_VARINT_BYTES = 10
"""As many as a number of 64 bits takes."""

MAX_FIELD_NUMBER = (1 << 29) - 1

MAX_GROUP_FIELDS = 64
"""Fields in all groups of a message, those groups and their ends among them. Nobody writes groups: they are unknown
fields, and whoever counts the fields that are read does not see these. No group can be deeper in others than half."""

_FIXED_BYTES = {1: 8, 5: 4}

_GROUP, _END_OF_GROUP = 3, 4


class WireType(IntEnum):
    """How long a field is, and of which kind."""

    VARINT = 0
    FIXED_64 = 1
    LENGTH_DELIMITED = 2
    FIXED_32 = 5


_VARINT, _LENGTH_DELIMITED = int(WireType.VARINT), int(WireType.LENGTH_DELIMITED)  # to get members of enums is slow

_new_tuple = tuple.__new__

_ONE_BYTE_NUMBERS = 1 << 4
"""Numbers below this take one byte with their wire type."""

_TWO_BYTE_LENGTHS = 1 << 14

_WIRE_TYPES = {int(kind): kind for kind in WireType}


class Field(NamedTuple):
    """One field. `value` is a number for VARINT, 8 or 4 bytes for the fixed ones, any bytes for LENGTH_DELIMITED."""

    number: int
    wire_type: WireType
    value: int | bytes


def read_fields(data: bytes, max_fields: int = sys.maxsize) -> Iterator[Field]:
    """Read the fields of a message, in the order in which they stand. One number may come more than once.

    Groups are left out: to every decoder that knows of none they are unknown fields, whatever their number.

    Args:
        max_fields: how many there may be. Each takes a microsecond, and may have only 2 bytes: whoever reads what any
            peer may send at any time needs this bound, or one of its own.
    Raises:
        DecodeError: more fields, or more than MAX_GROUP_FIELDS; truncated, a number of more than 64 bits, a field
            number of 0 or above MAX_FIELD_NUMBER, an unknown wire type, or the end of a group that has not begun.
    """
    at, end, count, in_groups = 0, len(data), 0, 0
    while at < end:
        count += 1
        if count > max_fields:
            raise DecodeError("protobuf message has too many fields", limit=max_fields)
        tag, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at)  # most take one byte: the fast way
        number, kind = tag >> 3, _WIRE_TYPES.get(tag & 7)
        if not 0 < number <= MAX_FIELD_NUMBER:
            raise _out_of_range(number)
        if kind is None:
            at, in_groups = _after_group(data, at, tag, in_groups)
            continue
        fixed = _FIXED_BYTES.get(tag & 7)
        if fixed is not None:
            said = fixed
        elif at < end and data[at] < 0x80:
            said, at = data[at], at + 1
        else:
            said, at = _varint(data, at)
        value: int | bytes = said
        if tag & 7 != _VARINT:
            stop = at + said
            if stop > end:
                raise DecodeError("protobuf field is truncated", got=end - at, limit=said)
            value, at = data[at:stop], stop
        yield _new_tuple(Field, (number, kind, value))  # `Field()` takes twice as long


def _after_group(data: bytes, at: int, tag: int, in_groups: int) -> tuple[int, int]:
    """Skip a group, which begins with this tag: where it ends, and how many fields have been in groups by then."""
    numbers: list[int] = []
    while True:
        number, wire_type = tag >> 3, tag & 7
        in_groups += 1
        if in_groups > MAX_GROUP_FIELDS:
            raise DecodeError("protobuf groups have too many fields", limit=MAX_GROUP_FIELDS)
        if not 0 < number <= MAX_FIELD_NUMBER:
            raise _out_of_range(number)
        if wire_type == _GROUP:
            numbers.append(number)
        elif wire_type == _END_OF_GROUP:
            if not numbers or numbers.pop() != number:
                raise DecodeError("protobuf group ends that has not begun", got=number)
            if not numbers:
                return at, in_groups
        elif wire_type not in _WIRE_TYPES:
            raise DecodeError("protobuf wire type is unknown", got=wire_type)
        elif wire_type == _VARINT:
            _, at = _varint(data, at)
        else:
            fixed = _FIXED_BYTES.get(wire_type)
            said, at = _varint(data, at) if fixed is None else (fixed, at)
            at += said  # where that is behind the end, the next tag is missing
        tag, at = _varint(data, at)


def _out_of_range(number: int) -> DecodeError:
    return DecodeError("protobuf field number is out of range", got=number, limit=MAX_FIELD_NUMBER)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of at most 64 bits; padded ones are lawful in protobuf."""
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for place, byte in enumerate(data[at : at + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + place + 1
    if at + MAX_VARINT_BYTES > len(data):
        raise DecodeError("protobuf number is truncated")
    raise DecodeError("protobuf number has more than 64 bits")


def write_number(number: int, value: int) -> bytes:
    """A VARINT field, for a value of 64 bits without sign."""
    return varint.encode(number << 3 | _VARINT) + varint.encode(value)


def write_bytes(number: int, value: bytes) -> bytes:
    """A LENGTH_DELIMITED field."""
    length = len(value)
    if number < _ONE_BYTE_NUMBERS and length < _TWO_BYTE_LENGTHS:  # as most are: two thirds of the time below
        tag = number << 3 | _LENGTH_DELIMITED
        return (bytes((tag, length)) if length < 0x80 else bytes((tag, length & 0x7F | 0x80, length >> 7))) + value
    return varint.encode(number << 3 | _LENGTH_DELIMITED) + varint.encode(length) + value


def write_packed(number: int, values: Iterable[int]) -> bytes:
    """A repeated number as one LENGTH_DELIMITED field; nothing at all, if there are none."""
    body = b"".join(map(varint.encode, values))
    return write_bytes(number, body) if body else b""


def read_packed(data: bytes) -> Iterator[int]:
    """Read what is in such a field.

    Raises:
        DecodeError: a number is truncated, or has more than 64 bits.
    """
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def zigzag(value: int) -> int:
    """The number without sign that stands for a signed one of 64 bits (sint64): 0, -1, 1, -2 become 0, 1, 2, 3."""
    return value << 1 if value >= 0 else (-value << 1) - 1


def unzigzag(value: int) -> int:
    """The signed number that a number without sign stands for (sint64)."""
    return value >> 1 if value & 1 == 0 else -(value >> 1) - 1
