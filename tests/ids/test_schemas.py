"""mailserver.ids.schemas: each way to make meta is read again, sorts as it says, and refuses what is not its own."""

from uuid import UUID

import pytest
from Crypto.Cipher import AES
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.ids.muid import MAX_METADATA_BYTES
from mailserver.ids.schemas import (
    MAX_MS,
    MAX_NS,
    encrypted_meta,
    read_encrypted_meta,
    read_timestamp_meta,
    read_ulid_meta,
    read_uuid_meta,
    timestamp_meta,
    ulid_meta,
    uuid_meta,
)

TOPIC = "/app/1/chat/proto"
KEY = bytes(range(64))
INFO = bytes(range(100, 116))
SEALED = encrypted_meta(KEY, TOPIC, INFO)

nanoseconds = st.integers(0, MAX_NS)
milliseconds = st.integers(0, MAX_MS)
randomness = st.binary(min_size=10, max_size=10)
infos = st.binary(min_size=16, max_size=16)


# A time


@given(nanoseconds, nanoseconds)
def test_time_is_read_again_and_sorts(one: int, other: int) -> None:
    assert read_timestamp_meta(timestamp_meta(one)) == one
    assert (timestamp_meta(one) < timestamp_meta(other)) == (one < other)


def test_time_is_an_int64_in_8_bytes() -> None:
    assert timestamp_meta(1_795_000_000_123_456_789).hex() == (1_795_000_000_123_456_789).to_bytes(8, "big").hex()
    for wrong in (-1, 2**63):
        with pytest.raises(ValueError, match=f"{wrong} is not between 0 and {MAX_NS}"):
            timestamp_meta(wrong)
    for meta, why in ((bytes(7), "got 7, limit 8"), (b"\x80" + bytes(7), "beyond 63 bits")):
        with pytest.raises(DecodeError, match=why):
            read_timestamp_meta(meta)


# A ULID


@given(milliseconds, randomness, milliseconds, randomness)
def test_ulid_is_read_again_and_sorts_by_time(one: int, its: bytes, other: int, others: bytes) -> None:
    first, second = ulid_meta(one, its), ulid_meta(other, others)

    assert read_ulid_meta(first) == (one, its)
    assert (first < second) == ((one, its) < (other, others))


def test_ulid_is_that_of_its_specification() -> None:
    """01ARZ3NDEKTSV4RRFFQ69G5FAV, the example there; its first 10 characters are the time."""
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    number = 0
    for character in "01ARZ3NDEKTSV4RRFFQ69G5FAV":
        number = number << 5 | digits.index(character)
    meta = number.to_bytes(16, "big")

    time, its = read_ulid_meta(meta)

    assert time == 1_469_922_850_259
    assert ulid_meta(time, its) == meta


def test_what_is_no_ulid_is_refused() -> None:
    with pytest.raises(ValueError, match="is not between 0 and"):
        ulid_meta(MAX_MS + 1, bytes(10))
    with pytest.raises(ValueError, match="9 bytes instead of 10"):
        ulid_meta(1, bytes(9))
    with pytest.raises(DecodeError, match="got 17, limit 16"):
        read_ulid_meta(bytes(17))


# A UUID


@given(infos)
def test_uuid_is_of_version_4_and_has_122_of_the_bits(given: bytes) -> None:
    meta = uuid_meta(given)

    found = read_uuid_meta(meta)

    assert (found.version, found.bytes) == (4, meta)
    same = int.from_bytes(meta, "big") ^ int.from_bytes(given, "big")
    assert same & ~(0xF << 76 | 0x3 << 62) == 0


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        (bytes(15), "got 15, limit 16"),
        (bytes(16), "UUID is not of version 4"),
        (UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8").bytes, "UUID is not of version 4"),
        (UUID("6ba7b810-9dad-41d1-c0b4-00c04fd430c8").bytes, "UUID is not of version 4"),
    ],
)
def test_what_is_no_uuid_of_version_4_is_refused(meta: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        read_uuid_meta(meta)


def test_uuid_takes_16_random_bytes() -> None:
    with pytest.raises(ValueError, match="15 bytes instead of 16"):
        uuid_meta(bytes(15))


# Encrypted


@given(infos, st.text(max_size=20))
def test_info_is_read_with_the_key_and_the_topic(info: bytes, topic: str) -> None:
    meta = encrypted_meta(KEY, topic, info)

    assert len(meta) == MAX_METADATA_BYTES
    assert read_encrypted_meta(KEY, topic, meta) == info


def test_meta_is_aes_siv_as_another_library_has_it() -> None:
    cipher = AES.new(KEY, AES.MODE_SIV)
    cipher.update(TOPIC.encode())
    ciphertext, tag = cipher.encrypt_and_digest(INFO)

    assert tag + ciphertext == SEALED


@pytest.mark.parametrize(
    ("key", "topic", "meta"),
    [(KEY[::-1], TOPIC, SEALED), (KEY, TOPIC + "2", SEALED), (KEY, TOPIC, SEALED[::-1]), (KEY, TOPIC, bytes(32))],
)
def test_meta_of_others_is_told_apart(key: bytes, topic: str, meta: bytes) -> None:
    with pytest.raises(DecodeError, match="AES-SIV tag differs"):
        read_encrypted_meta(key, topic, meta)


def test_every_flipped_bit_of_encrypted_meta_is_noticed() -> None:
    for bit in range(8 * len(SEALED)):
        flipped = bytearray(SEALED)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecodeError, match="AES-SIV tag differs"):
            read_encrypted_meta(KEY, TOPIC, bytes(flipped))


def test_infos_that_differ_in_a_bit_have_nothing_in_common() -> None:
    other = encrypted_meta(KEY, TOPIC, INFO[:-1] + bytes([INFO[-1] ^ 1]))

    assert sum(one == two for one, two in zip(SEALED, other, strict=True)) < 6


def test_key_info_and_meta_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes instead of 64"):
        encrypted_meta(bytes(32), TOPIC, INFO)
    with pytest.raises(ValueError, match="15 bytes instead of 16"):
        encrypted_meta(KEY, TOPIC, INFO[:15])
    with pytest.raises(DecodeError, match="got 31, limit 32"):
        read_encrypted_meta(KEY, TOPIC, SEALED[:31])
