"""History archives in the form of the specification: the bytes of another encoder, padding, bounds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec.protobuf import write_bytes, write_number
from mailserver.communities.formats import PIECE_BYTES, HistoryArchive, TimeRange
from mailserver.communities.index import decode_index
from mailserver.communities.spec_format import padding_field, waku_message
from mailserver.errors import DecodeError
from mailserver.ids.envelopes import NS, envelope_of, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, muid
from mailserver.ids.waku_message import WakuMessage
from tests.communities.making import SPEC, WEEK, community, history, spec_messages
from tests.data import load
from tests.properties import settings

VECTOR = load("communities/messages.json")["spec"]
RANGE = TimeRange(*VECTOR["range"])
TOPICS = tuple(VECTOR["topics"])
MESSAGES = [
    WakuMessage(bytes(range(256)) * 2, TOPICS[0], version=1, timestamp=1_700_000_000 * NS, meta=b"m" * 20),
    WakuMessage(b"\x01" * 300, TOPICS[1], version=1, timestamp=1_700_000_001 * NS, meta=b"n" * 20),
]
METADATA = (
    write_number(1, 1)
    + write_number(2, RANGE.lower * NS)
    + write_number(3, RANGE.upper * NS)
    + b"".join(write_bytes(4, topic.encode()) for topic in TOPICS)
)


def test_archive_is_that_of_another_encoder() -> None:
    messages = [SPEC.message(message) for message in MESSAGES]

    (encoded,) = SPEC.encode_archives(RANGE, TOPICS, messages)

    begin = bytes.fromhex(VECTOR["archive_begin"])
    assert [message.encoded.hex() for message in messages] == VECTOR["messages"]
    assert encoded.data == begin + bytes(VECTOR["padding_bytes"])
    assert len(encoded.data) == VECTOR["archive_bytes"] == PIECE_BYTES
    assert (encoded.padding, encoded.messages) == (0, 2)
    assert SPEC.decode_archive(encoded.data) == HistoryArchive(RANGE, TOPICS, tuple(messages))


def test_messages_keep_all_that_an_envelope_has() -> None:
    for envelope in history(community(), WEEK, 1, 7):
        message = SPEC.message_of(envelope)
        found = waku_message(message)

        name = muid(DEFAULT_NETWORK_TOPIC, found.content_topic, found.meta, found.payload)
        again = envelope_of(DEFAULT_NETWORK_TOPIC, name, envelope.topic, found.payload)
        assert again.raw == envelope.raw
        assert message.hash == message_of(envelope).hash(DEFAULT_NETWORK_TOPIC)
        assert message.timestamp_ns == envelope.created * NS


def test_range_without_messages_is_an_archive_that_says_so() -> None:
    (encoded,) = SPEC.encode_archives(WEEK, TOPICS, [])

    assert encoded.messages == 0
    assert len(encoded.data) == PIECE_BYTES
    assert SPEC.decode_archive(encoded.data) == HistoryArchive(WEEK, TOPICS, ())


@pytest.mark.parametrize("wanted", [1, 2, 130, 16_387])
def test_what_no_field_can_add_is_added_with_one_piece_more(wanted: int) -> None:
    field = padding_field(PIECE_BYTES - wanted)

    assert len(field) == wanted + PIECE_BYTES


def test_only_four_lengths_take_one_piece_more() -> None:
    near = [*range(200), *range(16_000, 17_000), *range(PIECE_BYTES - 200, PIECE_BYTES)]  # lengths get longer here
    longer = [wanted for wanted in near if len(padding_field(PIECE_BYTES - wanted)) != wanted]

    assert longer == [1, 2, 130, 16_387]


@given(length=st.integers(0, 10**7), piece_bytes=st.integers(1, 10**6))
@settings(max_examples=300)
def test_padding_ends_and_fills_pieces(length: int, piece_bytes: int) -> None:
    field = padding_field(length, piece_bytes)

    assert (length + len(field)) % piece_bytes == 0
    assert len(field) < piece_bytes + max(piece_bytes, 4)
    assert length % piece_bytes or not field


def archive(*parts: bytes) -> bytes:
    return write_bytes(2, METADATA) + b"".join(parts)


def test_unknown_fields_are_skipped() -> None:
    found = SPEC.decode_archive(archive(write_bytes(9, b"new"), write_number(10, 5), write_number(3, 1)))

    assert found == HistoryArchive(RANGE, TOPICS, ())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(archive(write_bytes(4, b"\0\0\x01")), "not zero", id="padding"),
        pytest.param(archive(write_bytes(4, b"\x01"), write_bytes(4, b"\0")), "not zero", id="first of two paddings"),
        pytest.param(archive(*[write_bytes(4, b"\0")] * 3), "too often", id="three paddings"),
        pytest.param(archive(write_number(1, 2)), "version", id="version"),
        pytest.param(archive(write_bytes(3, b"\x0a\x00")), "content_topic is missing", id="message"),
        pytest.param(archive(b"\x1a\x05a"), "truncated", id="truncated"),
        pytest.param(b"", "empty", id="no metadata"),
        pytest.param(write_bytes(2, write_number(2, 5 * NS) + write_number(3, 5 * NS)), "empty", id="empty range"),
        pytest.param(write_bytes(2, write_number(2, 5) + write_number(3, NS)), "whole seconds", id="part of a second"),
        pytest.param(write_bytes(2, METADATA + write_number(1, 2)), "version", id="version of the metadata"),
        pytest.param(write_bytes(2, write_number(1, 2) + METADATA[2:]), "version", id="version in its place"),
        pytest.param(write_bytes(2, METADATA + write_bytes(4, b"\xff")), "UTF-8", id="topic"),
        pytest.param(write_bytes(2, METADATA + write_number(3, 2**64 - 1)), "whole seconds", id="late"),
        pytest.param(write_bytes(2, METADATA + write_number(3, (2**33 + 1) * NS)), "too late", id="too late"),
        pytest.param(write_bytes(2, METADATA + write_bytes(4, b"t") * 1000), "too often", id="topics"),
    ],
)
def test_what_does_not_parse_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        SPEC.decode_archive(data)


def test_padding_outside_of_the_message_is_refused() -> None:
    with pytest.raises(DecodeError, match="outside"):
        SPEC.decode_archive(archive(), 1)


def test_no_truncation_is_taken_for_the_whole() -> None:
    messages = spec_messages(history(community(), WEEK, 1, 3))
    encoded = archive(*(write_bytes(3, message.encoded) for message in messages))
    whole, short = SPEC.decode_archive(encoded), []

    for end in range(len(encoded)):
        try:
            short.append(SPEC.decode_archive(encoded[:end]))
        except DecodeError:
            continue

    assert whole.messages == (*messages,)
    assert short == [replace(whole, messages=(*messages[:count],)) for count in range(3)]


def test_index_is_that_of_another_encoder() -> None:
    index = decode_index(bytes.fromhex(VECTOR["index"]))

    assert index.format_name == "spec"
    assert [entry.id for entry in index.entries] == VECTOR["ids"]
    assert [entry.offset for entry in index.entries] == VECTOR["offsets"]
    assert [entry.size for entry in index.entries] == VECTOR["sizes"]
    assert {(entry.time_range, entry.content_topics, entry.padding) for entry in index.entries} == {(RANGE, TOPICS, 0)}
