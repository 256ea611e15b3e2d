"""mailserver.ids.waku_message: the published hashes; the protobuf form beside bytes that are written by hand."""

from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.ids.waku_message import (
    MAX_CONTENT_TOPIC_BYTES,
    MAX_FIELDS,
    MAX_MESSAGE_BYTES,
    MAX_META_BYTES,
    MAX_RATE_LIMIT_PROOF_BYTES,
    WakuMessage,
    decode_message,
)
from tests.ids.vectors import HASHES, MESSAGE, NETWORK

NEEDED = bytes.fromhex("0a 02 6869  12 02 2f61")
"""payload = "hi", content_topic = "/a"."""

messages = st.builds(
    WakuMessage,
    payload=st.binary(max_size=300),
    content_topic=st.text(max_size=40),
    version=st.none() | st.integers(0, 2**32 - 1),
    timestamp=st.none() | st.integers(-(2**63), 2**63 - 1),
    meta=st.binary(max_size=64),
    rate_limit_proof=st.none() | st.binary(max_size=40),
    ephemeral=st.none() | st.booleans(),
)


def decoded(tail: str) -> WakuMessage:
    return decode_message(NEEDED + bytes.fromhex(tail))


def refused(data: bytes) -> str:
    with pytest.raises(DecodeError) as caught:
        decode_message(data)
    return str(caught.value)


# The hash


@pytest.mark.parametrize(("message", "expected"), HASHES)
def test_hash_is_that_of_the_specification(message: WakuMessage, expected: str) -> None:
    assert message.hash(NETWORK).hex() == expected


def test_hash_is_that_of_a_deployed_client() -> None:
    """Of js-waku and go-waku, which agreed."""
    message = WakuMessage(b"hello waku", "/study/1/chat/proto", timestamp=1_700_000_000_123_456_789)

    assert message.hash("/waku/2/rs/1/3").hex() == "e8841cef06e28951c26aecf5fb156cf2ae7abacfe247c015f91287e221d9326d"


@pytest.mark.parametrize(("timestamp", "last"), [(None, bytes(8)), (0, bytes(8)), (-2, b"\xff" * 7 + b"\xfe")])
def test_timestamp_always_has_8_bytes_in_the_hash(timestamp: int | None, last: bytes) -> None:
    message = replace(MESSAGE, timestamp=timestamp)
    parts = NETWORK.encode() + message.payload + message.content_topic.encode() + message.meta

    assert message.hash(NETWORK) == sha256(parts + last).digest()


@given(messages)
def test_hash_is_of_the_attributes_not_of_the_encoding(message: WakuMessage) -> None:
    """Version, proof and ephemeral are no part of it, nor is the order of the fields."""
    bare = WakuMessage(message.payload, message.content_topic, timestamp=message.timestamp, meta=message.meta)
    fields = message.encode()
    topic_first = bare.encode()[len(WakuMessage(bare.payload, "").encode()) - 2 :] + fields

    assert decode_message(fields).hash(NETWORK) == bare.hash(NETWORK)
    assert decode_message(topic_first).hash(NETWORK) == bare.hash(NETWORK)


# The protobuf form


def test_fields_have_the_numbers_and_types_of_the_schema() -> None:
    message = WakuMessage(b"hi", "/a", version=1, timestamp=-1, meta=b"m", rate_limit_proof=b"proof", ephemeral=True)

    assert message.encode() == NEEDED + bytes.fromhex("18 01  50 01  5a 01 6d  aa01 05 70726f6f66  f801 01")
    assert decode_message(message.encode()) == message


@given(messages)
def test_message_is_decoded_as_it_was_encoded(message: WakuMessage) -> None:
    assert decode_message(message.encode()) == message


@pytest.mark.parametrize(
    ("timestamp", "encoded"),
    [(0, "5000"), (1, "5002"), (-1, "5001"), (2**63 - 1, "50fe" + "ff" * 8 + "01"), (-(2**63), "50" + "ff" * 9 + "01")],
)
def test_timestamp_is_zigzag(timestamp: int, encoded: str) -> None:
    assert decoded(encoded).timestamp == timestamp
    assert replace(decode_message(NEEDED), timestamp=timestamp).encode() == NEEDED + bytes.fromhex(encoded)


def test_empty_payload_is_written_for_nwaku_refuses_a_message_without_one() -> None:
    assert WakuMessage(b"", "/a").encode() == bytes.fromhex("0a 00  12 02 2f61")


def test_of_a_field_that_comes_twice_the_last_one_counts() -> None:
    assert decoded("0a 01 78  5a 01 61  5a 01 62") == WakuMessage(b"x", "/a", meta=b"b")


@pytest.mark.parametrize(
    "unknown", ["20 07", "29 0102030405060708", "6a 03 616263", "6d 01020304", "f8ffffff0f 01"], ids=range(5)
)
def test_unknown_fields_are_skipped(unknown: str) -> None:
    assert decoded(unknown + "5a 01 6d") == WakuMessage(b"hi", "/a", meta=b"m")


@pytest.mark.parametrize(
    "other", ["08 01", "15 01020304", "1a 01 01", "51 0102030405060708", "5b 5c"], ids=lambda other: f"tag {other[:2]}"
)
def test_field_of_another_wire_type_is_an_unknown_one(other: str) -> None:
    assert decoded(other + "18 01 50 08" + other) == WakuMessage(b"hi", "/a", version=1, timestamp=4)
    assert decoded(other) == WakuMessage(b"hi", "/a")


def test_numbers_are_taken_as_decoders_take_them() -> None:
    """Of a version its low 32 bits, and any number but 0 is true."""
    ten_bytes = "808080 80f0ffffff ff01"

    assert decoded("18 8180808010").version == 1
    assert decoded("18" + ten_bytes).version == 0
    assert decoded("f801 02").ephemeral is True
    assert decoded("f801" + ten_bytes).ephemeral is True
    assert decoded("f801 808000").ephemeral is False


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        ("12 01 ff", "content_topic is not UTF-8"),
        ("5a 41" + "00" * 65, "meta is too long, got 65, limit 64"),
        ("0b", "protobuf number is truncated"),
        ("0f", "protobuf wire type is unknown, got 7"),
        ("02 00", f"protobuf field number is out of range, got 0, limit {2**29 - 1}"),
        ("ffffffff7f", f"protobuf field number is out of range, got {2**32 - 1}, limit {2**29 - 1}"),
        ("50" + "ff" * 9 + "02", "protobuf number has more than 64 bits"),
        ("50" + "ff" * 11, "protobuf number has more than 64 bits"),
        ("50 ff", "protobuf number is truncated"),
        ("5a ff ff ff ff ff 01", "protobuf field is truncated, got 0, limit 68719476735"),
    ],
)
def test_what_does_not_follow_the_schema_is_refused(tail: str, why: str) -> None:
    assert refused(NEEDED + bytes.fromhex(tail)) == why


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "payload is missing"),
        ("0a 00", "content_topic is missing"),
        ("12 02 2f61", "payload is missing"),
        ("08 01 12 02 2f61", "payload is missing"),
    ],
)
def test_message_without_payload_or_content_topic_is_refused_as_nwaku_does(data: str, why: str) -> None:
    assert refused(bytes.fromhex(data)) == why


def test_every_truncation_is_refused_or_ends_between_two_fields() -> None:
    whole = replace(MESSAGE, version=1, rate_limit_proof=bytes(3), ephemeral=False)
    data = whole.encode()

    read = 0
    for length in range(len(data)):
        try:
            message = decode_message(data[:length])
        except DecodeError:
            continue
        read += 1
        assert data.startswith(message.encode())
    assert read == 5  # without the last one to five of the optional fields


def test_bounds_are_kept() -> None:
    topic, proof = "x" * MAX_CONTENT_TOPIC_BYTES, bytes(MAX_RATE_LIMIT_PROOF_BYTES)
    largest = WakuMessage(b"", topic, meta=bytes(MAX_META_BYTES), rate_limit_proof=proof)
    rest = len(largest.encode()) + 2  # the payload's length takes 3 bytes, not 1
    longest = replace(largest, payload=bytes(MAX_MESSAGE_BYTES - rest))

    assert len(longest.encode()) == MAX_MESSAGE_BYTES
    assert decode_message(longest.encode()) == longest
    assert (
        refused(longest.encode() + b"\0")
        == f"message is too long, got {MAX_MESSAGE_BYTES + 1}, limit {MAX_MESSAGE_BYTES}"
    )
    assert refused(replace(largest, content_topic=topic + "x").encode()).startswith("content_topic is too long")
    assert refused(replace(largest, rate_limit_proof=proof + b"x").encode()).startswith("rate_limit_proof is too long")


@pytest.mark.parametrize("field", ["20 07", "0a 00"], ids=["unknown", "known"])
def test_message_of_too_many_fields_is_refused(field: str) -> None:
    rest = MAX_FIELDS - 2  # NEEDED has two

    assert decoded(field * rest).content_topic == "/a"
    assert refused(NEEDED + bytes.fromhex(field) * (rest + 1)).endswith(f"too many fields, limit {MAX_FIELDS}")


@given(st.binary(max_size=60))
def test_random_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = decode_message(NEEDED + data)
    except DecodeError:
        return
    assert decode_message(message.encode()) == message
