"""mailserver.ids.muid: what a MUID is of, which messages have none, and what differs."""

from hashlib import sha256

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.ids.muid import (
    MAX_METADATA_BYTES,
    MAX_MUID_BYTES,
    Difference,
    NoId,
    check_muid,
    checksum_of,
    differences,
    metadata_of,
    muid,
    muids_after,
    sync_id,
)
from tests.ids.vectors import CHECKSUM, MESSAGE, NETWORK

CONTENT, META, PAYLOAD = MESSAGE.content_topic, MESSAGE.meta, MESSAGE.payload
NAME = muid(NETWORK, CONTENT, META, PAYLOAD)

metas = st.binary(min_size=1, max_size=MAX_METADATA_BYTES)


def test_muid_is_the_checksum_and_then_the_meta() -> None:
    assert NAME.hex() == CHECKSUM + META.hex()
    assert checksum_of(NAME).hex() == CHECKSUM
    assert metadata_of(NAME) == META


@given(st.text(max_size=20), st.text(max_size=20), metas, st.binary(max_size=40))
def test_checksum_is_of_the_four_parts_in_their_order(network: str, content: str, meta: bytes, payload: bytes) -> None:
    name = muid(network, content, meta, payload)

    assert checksum_of(name) == sha256(network.encode() + content.encode() + meta + payload).digest()
    assert metadata_of(name) == meta
    assert check_muid(name) == name
    assert not differences(name, network, content, meta, payload)


@given(st.lists(st.tuples(st.text(max_size=20), metas, st.binary(max_size=40)), max_size=5))
def test_muids_of_many_messages_are_those_of_each(several: list[tuple[str, bytes, bytes]]) -> None:
    befores = [(NETWORK + content).encode() + meta for content, meta, _ in several]

    made = muids_after(befores, (meta for _, meta, _ in several), (payload for _, _, payload in several))

    assert made == [muid(NETWORK, *parts) for parts in several]


@pytest.mark.parametrize("length", [1, 8, 31, 32])
def test_muid_is_as_long_as_its_meta_and_never_padded(length: int) -> None:
    assert len(muid(NETWORK, CONTENT, bytes(length), PAYLOAD)) == 32 + length <= MAX_MUID_BYTES


def test_message_without_meta_has_no_muid() -> None:
    with pytest.raises(NoId, match=r"^a message without meta has no MUID$"):
        muid(NETWORK, CONTENT, b"", PAYLOAD)


@pytest.mark.parametrize("length", [33, 64])
def test_message_with_more_meta_than_a_muid_has_room_for_has_none(length: int) -> None:
    with pytest.raises(NoId, match=f"^a message with {length} bytes of meta has no MUID: it may have 32$"):
        muid(NETWORK, CONTENT, bytes(length), PAYLOAD)


def test_bytes_of_any_length_but_33_to_64_are_no_muid() -> None:
    for length in range(70):
        if 33 <= length <= 64:
            assert check_muid(bytes(length)) == bytes(length)
        else:
            with pytest.raises(DecodeError, match=f"got {length}, limit 64"):
                check_muid(bytes(length))


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ((NETWORK, CONTENT, META, PAYLOAD), set()),
        ((NETWORK + "2", CONTENT, META, PAYLOAD), {Difference.CONTENT}),
        ((NETWORK, CONTENT + "2", META, PAYLOAD), {Difference.CONTENT}),
        ((NETWORK, CONTENT, META, PAYLOAD[:-1]), {Difference.CONTENT}),
        ((NETWORK, CONTENT, b"other", PAYLOAD), {Difference.META}),
        ((NETWORK, CONTENT, b"", PAYLOAD), {Difference.META}),
        ((NETWORK, CONTENT, bytes(64), PAYLOAD), {Difference.META}),
        ((NETWORK, CONTENT, b"other", b"other"), {Difference.META, Difference.CONTENT}),
    ],
)
def test_what_differs_is_named(changed: tuple[str, str, bytes, bytes], found: set[Difference]) -> None:
    assert differences(NAME, *changed) == found


@given(metas, st.binary(min_size=1, max_size=20), st.integers(1, 20))
def test_bytes_that_move_between_meta_and_payload_are_noticed(meta: bytes, payload: bytes, moved: int) -> None:
    """There are no separators: the checksum stays."""
    assume(moved <= len(payload) and len(meta) + moved <= MAX_METADATA_BYTES)
    name = muid(NETWORK, CONTENT, meta, payload)
    other = meta + payload[:moved], payload[moved:]

    assert checksum_of(muid(NETWORK, CONTENT, *other)) == checksum_of(name)
    assert differences(name, NETWORK, CONTENT, *other) == {Difference.META, Difference.CONTENT}


def test_sync_id_is_of_the_whole_muid() -> None:
    assert sync_id(NAME) == sha256(bytes.fromhex(CHECKSUM) + META).digest()
