"""History archives as status-go makes them: the bytes of another encoder, padding outside of the message, bounds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import PrivateKey
from mailserver.codec.protobuf import write_bytes, write_number
from mailserver.communities.application import open_application_message
from mailserver.communities.deployed_format import (
    DeployedFormat,
    DeployedMessage,
    decode_message,
    deployed_message,
    message,
    message_of,
    padding_bytes,
)
from mailserver.communities.formats import PIECE_BYTES, HistoryArchive, TimeRange
from mailserver.communities.index import decode_index
from mailserver.errors import DecodeError
from mailserver.ids.envelopes import NS, content_topic_of
from mailserver.waku.envelope import Topic
from mailserver.waku.payload import OpenedPayload, open_symmetric
from tests.communities.making import WEEK, community, deployed_messages, envelope, history
from tests.data import load

VECTOR = load("communities/messages.json")["deployed"]
RANGE = TimeRange(*VECTOR["range"])
V1_TOPICS = [Topic(bytes.fromhex(topic)) for topic in VECTOR["topics"]]
TOPICS = tuple(map(content_topic_of, V1_TOPICS))
MESSAGES = [
    DeployedMessage(b"\x04" + bytes(range(64)), 1_700_000_000, V1_TOPICS[0], b"hello", b"\x07" * 9, b"\xaa" * 32),
    DeployedMessage(b"", 1_700_000_001, V1_TOPICS[1], b"imported", b"", b"\xbb" * 32, "1234"),
]
FORM = DeployedFormat()


def test_archive_is_that_of_another_encoder() -> None:
    messages = [message(each) for each in MESSAGES]

    (encoded,) = FORM.encode_archives(RANGE, TOPICS, messages)

    assert [each.encoded.hex() for each in messages] == VECTOR["messages"]
    assert encoded.data == bytes.fromhex(VECTOR["archive"]) + bytes(VECTOR["padding_bytes"])
    assert (len(encoded.data), encoded.padding, encoded.messages) == (PIECE_BYTES, VECTOR["padding_bytes"], 2)
    assert FORM.decode_archive(encoded.data, encoded.padding) == HistoryArchive(RANGE, TOPICS, tuple(messages))
    assert [deployed_message(each) for each in messages] == MESSAGES


def test_message_has_what_the_channels_key_opens() -> None:
    (channel, *_) = community().channels
    sealed = envelope(channel, WEEK.lower, 5, text="hello")
    assert channel.key is not None

    found = deployed_message(message_of(sealed, open_symmetric(sealed.data, channel.key)))

    opened = open_application_message(found.payload)
    member = PrivateKey(keccak256(b"member 5")).public_key
    assert (opened.signer, opened.payload) == (member, b"hello")
    assert found.sig == b"\x04" + member
    assert (found.timestamp, found.topic, found.hash) == (sealed.created, sealed.topic, sealed.hash())
    assert len(found.padding) > 0


def test_message_that_nobody_signed_has_no_sig() -> None:
    sealed = envelope(community().channels[0], WEEK.lower)

    assert deployed_message(message_of(sealed, OpenedPayload(b"text", None, b""))).sig == b""


@pytest.mark.parametrize("hash_", [b"", b"short"])
def test_message_without_a_hash_is_named_by_what_it_says(hash_: bytes) -> None:
    one, other = (message(replace(MESSAGES[1], hash=hash_, payload=text)) for text in (b"one", b"other"))

    assert len(one.hash) == len(other.hash) == 32
    assert one.hash != other.hash


def test_range_without_messages_has_no_archive() -> None:
    assert list(FORM.encode_archives(WEEK, TOPICS, [])) == []


@pytest.mark.parametrize(
    ("length", "padding"),
    [
        (1, PIECE_BYTES - 1),
        (PIECE_BYTES - 1, 1),
        (PIECE_BYTES, 0),
        (PIECE_BYTES + 1, PIECE_BYTES - 1),
        (2 * PIECE_BYTES - 1, 1),
        (2 * PIECE_BYTES, PIECE_BYTES),  # status-go adds a whole piece here, and none to a single piece
        (3 * PIECE_BYTES, PIECE_BYTES),
    ],
)
def test_padding_is_that_of_status_go(length: int, padding: int) -> None:
    assert padding_bytes(length) == padding


@given(length=st.integers(1, 10**8))
def test_padding_fills_pieces(length: int) -> None:
    assert (length + padding_bytes(length)) % PIECE_BYTES == 0
    assert padding_bytes(length) <= PIECE_BYTES


METADATA = (
    write_number(2, RANGE.lower) + write_number(3, RANGE.upper) + b"".join(write_bytes(4, topic) for topic in V1_TOPICS)
)


@pytest.mark.parametrize(
    ("data", "padding", "why"),
    [
        pytest.param(write_bytes(2, METADATA) + b"\0\x01", 2, "not zero", id="padding"),
        pytest.param(b"\0" * 5, 6, "longer than itself", id="too much padding"),
        pytest.param(write_bytes(2, METADATA) + b"\0\0", 1, "field number", id="too little padding"),
        pytest.param(write_bytes(2, METADATA + write_bytes(4, b"abc")), 0, "4 bytes", id="topic"),
        pytest.param(write_bytes(2, METADATA + write_number(3, 2**34)), 0, "too late", id="late"),
        pytest.param(write_bytes(2, METADATA) + write_number(1, 2), 0, "version", id="version"),
        pytest.param(write_bytes(2, METADATA) + write_bytes(3, b""), 0, "4 bytes", id="message"),
        pytest.param(bytes(1000 * PIECE_BYTES + 1), 0, "too long", id="length"),
    ],
)
def test_what_does_not_parse_is_refused(data: bytes, padding: int, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        FORM.decode_archive(data, padding)


@pytest.mark.parametrize(
    ("encoded", "why"),
    [
        pytest.param(write_bytes(1, bytes(66)), "sig is too long", id="sig"),
        pytest.param(write_number(2, 2**33 + 1), "timestamp is too large", id="timestamp"),
        pytest.param(write_bytes(3, b"abcde"), "topic is too long", id="topic"),
        pytest.param(write_bytes(6, bytes(33)), "hash is too long", id="hash"),
        pytest.param(write_bytes(3, b"abcd") + write_bytes(7, b"\xff"), "not UTF-8", id="third party id"),
    ],
)
def test_message_that_does_not_parse_is_refused(encoded: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode_message(encoded)


def test_messages_sort_by_time_and_carry_it_in_nanoseconds() -> None:
    found = deployed_messages(community(), reversed(history(community(), WEEK, 1, 9)))

    assert [each.timestamp_ns for each in found] == sorted(each.timestamp_ns for each in found)
    assert found[0].timestamp_ns == WEEK.lower * NS


def test_index_is_that_of_another_encoder() -> None:
    index = decode_index(bytes.fromhex(VECTOR["index"]))

    assert index.format_name == "deployed"
    assert [entry.id for entry in index.entries] == VECTOR["ids"]
    assert [entry.offset for entry in index.entries] == VECTOR["offsets"]
    assert [entry.size for entry in index.entries] == VECTOR["sizes"]
    assert [entry.padding for entry in index.entries] == VECTOR["paddings"]
    assert {(entry.time_range, entry.content_topics) for entry in index.entries} == {(RANGE, TOPICS)}
