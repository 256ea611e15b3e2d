"""mailserver.reconcile.wire: numbers, bounds and ranges as they are written, and what is refused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.reconcile.wire import (
    ID_BYTES,
    INFINITY,
    KEY_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_TIMESTAMP,
    MIN_FRAME_BYTES,
    VERSION,
    FrameWriter,
    Mode,
    OtherVersion,
    Range,
    bound_between,
    check_version,
    read_ranges,
    read_varint,
    split_ids,
    write_varint,
)

ID = bytes(range(ID_BYTES))
PRINT = bytes(range(16))
HEAD = bytes([VERSION])
LAWFUL = HEAD + bytes.fromhex("0b 00 00  01 02 abcd 01") + PRINT + bytes.fromhex("00 00 02 01") + ID
"""Skip to (10, ""), a fingerprint to (10, abcd), a list of one id to infinity."""

keys = st.builds(
    lambda time, name: time.to_bytes(8, "big") + name, st.integers(0, 3), st.binary(min_size=32, max_size=32)
)


def bound(timestamp: int, prefix: bytes = b"") -> bytes:
    return timestamp.to_bytes(8, "big") + prefix


def refused(body: str) -> str:
    """Why a message with these ranges is refused."""
    with pytest.raises(DecodeError) as caught:
        list(read_ranges(HEAD + bytes.fromhex(body)))
    return str(caught.value)


# Numbers


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8100"), (300, "822c"), (2**64 - 1, "81ffffffffffffffff7f")],
)
def test_number_has_as_few_digits_as_possible_the_most_significant_first(value: int, encoded: str) -> None:
    assert write_varint(value).hex() == encoded
    assert read_varint(bytes.fromhex(encoded) + b"\x01", 0) == (value, len(encoded) // 2)


@pytest.mark.parametrize(
    ("encoded", "why"),
    [
        ("", "number is truncated"),
        ("81", "number is truncated"),
        ("ff" * 9, "number is truncated"),
        ("8001", "number is not in its shortest form"),
        ("8080", "number is not in its shortest form"),
        ("82808080808080808000", "number has more than 64 bits"),
        ("ff" * 10, "number has more than 64 bits"),
        ("ff" * 2000, "number has more than 64 bits"),
    ],
)
def test_number_that_is_cut_off_too_long_or_padded_is_refused(encoded: str, why: str) -> None:
    with pytest.raises(DecodeError, match=f"^{why}$"):
        read_varint(bytes.fromhex(encoded), 0)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_number_is_read_as_it_was_written(value: int, before: bytes) -> None:
    encoded = write_varint(value)

    assert read_varint(before + encoded, len(before)) == (value, len(before) + len(encoded))


# Reading


def test_ranges_are_read_with_their_bounds_and_payloads() -> None:
    assert list(read_ranges(LAWFUL)) == [
        Range(bound(10), Mode.SKIP),
        Range(bound(10, b"\xab\xcd"), Mode.FINGERPRINT, PRINT),
        Range(INFINITY, Mode.ID_LIST, ID),
    ]
    assert list(read_ranges(HEAD)) == []


def test_message_that_ends_within_a_range_is_refused() -> None:
    ends = [len(HEAD), len(HEAD) + 3, len(HEAD) + 3 + 21, len(LAWFUL)]  # each range may be the last

    for length in range(1, len(LAWFUL)):
        if length not in ends:
            assert "truncated" in refused(LAWFUL[1:length].hex())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("0b 00 00  00 00 00  ff", "number is truncated"),  # a byte behind the last range
        ("0b 21", "prefix of a bound is too long, got 33"),
        ("00 01 ab 00", "prefix of a bound is too long, got 1"),
        ("01 00 00", "bounds do not rise"),  # nothing is below the first item
        ("0b 00 00  01 00 00", "bounds do not rise"),
        ("0b 01 ab 00  01 01 aa 00", "bounds do not rise"),
        ("0b 02 abcd 00  01 01 ab 00", "bounds do not rise"),
        ("00 00 00  0b 00 00", "bounds do not rise"),
        ("0b 00 03", "mode of a range is unknown, got 3"),
        ("0b 00 8101", "mode of a range is unknown, got 129"),
        ("00 00 02 01", "list of ids is truncated, got 0, limit 32"),
        ("00 00 02 81ffffffffffffffff7f", f"list of ids is truncated, got 0, limit {(2**64 - 1) * 32}"),
        ("00 00 01 0011", "fingerprint is truncated, got 2, limit 16"),
    ],
)
def test_what_no_honest_side_sends_is_refused(body: str, why: str) -> None:
    assert refused(body) == why


def test_timestamp_up_to_the_reserved_one_is_read_and_no_other() -> None:
    highest = write_varint(MAX_TIMESTAMP + 1)

    assert list(read_ranges(HEAD + highest + b"\0\0")) == [Range(bound(MAX_TIMESTAMP), Mode.SKIP)]
    assert refused((highest + b"\0\0").hex() + "02 00 00").startswith("timestamp of a bound is too large")


def test_empty_range_up_to_infinity_is_read_as_the_reference_may_send_it() -> None:
    ranges = list(read_ranges(HEAD + bytes.fromhex("00 00 02 00  00 00 01") + PRINT))

    assert [(each.upper, each.mode) for each in ranges] == [(INFINITY, Mode.ID_LIST), (INFINITY, Mode.FINGERPRINT)]


@pytest.mark.parametrize("message", [b"", b"\x00", b"\x5f", b"\x70", b"\xff"])
def test_message_without_a_version_is_refused(message: bytes) -> None:
    with pytest.raises(DecodeError, match="no version") as caught:
        check_version(message)
    assert not isinstance(caught.value, OtherVersion)


def test_other_version_is_told_apart() -> None:
    for version in (0x60, 0x62, 0x6F):
        with pytest.raises(OtherVersion) as caught:
            check_version(bytes([version]))
        assert caught.value.got == version

    check_version(HEAD)


def test_message_of_the_greatest_length_is_read_and_no_longer_one() -> None:
    check_version(HEAD + bytes(MAX_MESSAGE_BYTES - 1))

    with pytest.raises(DecodeError, match=f"got {MAX_MESSAGE_BYTES + 1}, limit {MAX_MESSAGE_BYTES}"):
        check_version(HEAD + bytes(MAX_MESSAGE_BYTES))


# Writing


@st.composite
def some_ranges(draw: st.DrawFn) -> list[Range]:
    bounds = sorted(draw(st.sets(st.one_of(keys, keys.map(lambda key: key[: 8 + key[9] % 4])), max_size=12)))
    bounds = [each for each in bounds if each != bytes(8)]
    if draw(st.booleans()):
        bounds.append(INFINITY)
    kinds = st.sampled_from([(Mode.FINGERPRINT, PRINT), (Mode.ID_LIST, b""), (Mode.ID_LIST, ID * 3)])
    return [Range(upper, *draw(kinds)) for upper in bounds]


@given(some_ranges())
def test_ranges_are_read_as_they_were_written(ranges: list[Range]) -> None:
    frame = FrameWriter(MAX_MESSAGE_BYTES)

    assert frame.add(ranges)

    assert list(read_ranges(frame.message())) == ranges


def test_ranges_that_are_skipped_become_one_and_the_last_ones_none() -> None:
    frame = FrameWriter(MIN_FRAME_BYTES)
    frame.skip(bound(1))
    frame.skip(bound(2))
    frame.add([Range(bound(3), Mode.FINGERPRINT, PRINT)])
    frame.skip(bound(4))
    frame.skip(INFINITY)

    assert list(read_ranges(frame.message())) == [
        Range(bound(2), Mode.SKIP),
        Range(bound(3), Mode.FINGERPRINT, PRINT),
    ]


def test_what_does_not_fit_leaves_the_frame_as_it_was() -> None:
    frame = FrameWriter(MIN_FRAME_BYTES)
    frame.add([Range(bound(1000), Mode.ID_LIST, ID * 100)])
    frame.skip(bound(2000))
    before = frame.message()

    fits = frame.add([Range(bound(3000), Mode.ID_LIST, ID * 30)])

    assert not fits
    assert frame.message() == before
    assert frame.add([Range(bound(2500), Mode.FINGERPRINT, PRINT)])  # the skip and the timestamp are as they were
    assert list(read_ranges(frame.message()))[1:] == [
        Range(bound(2000), Mode.SKIP),
        Range(bound(2500), Mode.FINGERPRINT, PRINT),
    ]


def test_what_is_put_may_use_the_reserve() -> None:
    frame = FrameWriter(MIN_FRAME_BYTES)
    frame.put([Range(bound(1), Mode.ID_LIST, ID * 122)])
    assert frame.room < 0

    frame.put([Range(INFINITY, Mode.FINGERPRINT, PRINT)])

    assert len(frame.message()) <= MIN_FRAME_BYTES


# Bounds


@given(keys, keys)
def test_bound_between_two_keys_is_the_shortest(one: bytes, other: bytes) -> None:
    if one == other:
        return
    before, key = sorted((one, other))

    found = bound_between(before, key)

    assert before < found <= key
    assert key.startswith(found)
    shorter = [key[:length] for length in range(8, len(found))]
    assert not [each for each in shorter if before < each]


def test_bounds_and_keys_compare_as_bytes() -> None:
    rising = [bound(0, b"\x01"), bound(0, b"\x01\x00"), bound(0, b"\x02"), bound(1), bound(1, ID), bound(256), INFINITY]

    assert all(lower < upper for lower, upper in pairwise(rising))
    assert max(bound(MAX_TIMESTAMP, b"\xff" * ID_BYTES), INFINITY) == INFINITY


def test_list_is_split_into_its_ids() -> None:
    assert split_ids(b"") == []
    assert split_ids(ID + ID[::-1]) == [ID, ID[::-1]]
    assert 8 + len(ID) == KEY_BYTES
