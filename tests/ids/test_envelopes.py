"""mailserver.ids.envelopes: envelopes and their ids, one to one, with recorded envelopes and any others."""

from hashlib import sha256

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.ids.envelopes import (
    EnvelopeMeta,
    content_topic_of,
    envelope_differences,
    envelope_muid,
    envelope_of,
    joined_metas,
    joined_muids,
    message_hashes,
    message_of,
    meta_of,
    read_meta,
    topic_of,
)
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC as NETWORK
from mailserver.ids.muid import Muid, NoId, metadata_of, muid
from mailserver.ids.waku_message import decode_message
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from mailserver.waku.envelope import MAX_U32, Envelope, Topic, decode_envelope, encode_envelope
from mailserver.waku.envelope_rows import read_fields
from tests.properties import settings
from tests.waku.envelopes import RECORDED, RECORDED_RAWS

TOPIC = Topic(b"\x9a\xcb\x04\x42")
ENVELOPE = encode_envelope(1_795_000_050, 50, TOPIC, b"data", 7)
NAME = envelope_muid(NETWORK, ENVELOPE)


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    expiry = draw(st.integers(1, MAX_U32))
    ttl = draw(st.integers(0, expiry - 1))
    data, nonce = draw(st.binary(max_size=300)), draw(st.integers(0, 2**64 - 1))
    return encode_envelope(expiry, ttl, draw(st.binary(min_size=4, max_size=4)), data, nonce)


# The mapping


def test_ids_of_an_envelope_are_what_the_mapping_says() -> None:
    meta = (1_795_000_000 * 10**9).to_bytes(8, "big") + (50).to_bytes(4, "big") + (7).to_bytes(8, "big")
    content_topic = "/waku/1/0x9acb0442/rfc26"

    assert metadata_of(NAME) == meta_of(ENVELOPE) == meta
    assert sha256(NETWORK.encode() + content_topic.encode() + meta + b"data").digest() + meta == NAME
    expected = b"data" + content_topic.encode() + meta + meta[:8]
    assert message_of(ENVELOPE).hash(NETWORK) == sha256(NETWORK.encode() + expected).digest()
    assert message_of(ENVELOPE).version == 1


@pytest.mark.parametrize("vector", RECORDED, ids=range(len(RECORDED)))
def test_recorded_envelope_is_made_again_from_its_muid(vector: dict[str, object]) -> None:
    envelope = decode_envelope(bytes.fromhex(str(vector["raw"])))

    again = envelope_of(NETWORK, envelope_muid(NETWORK, envelope), envelope.topic, envelope.data)

    assert again == envelope
    assert again.hash().hex() == vector["hash"]


@given(envelopes())
def test_any_envelope_is_made_again_from_its_muid(envelope: Envelope) -> None:
    name = envelope_muid(NETWORK, envelope)

    assert len(name) == 52
    assert envelope_of(NETWORK, name, envelope.topic, envelope.data) == envelope
    assert not envelope_differences(NETWORK, name, envelope)


@given(st.lists(envelopes(), max_size=5))
def test_muids_of_envelopes_that_lie_one_after_the_other_are_those_of_each(several: list[Envelope]) -> None:
    nameless = encode_envelope(100, 100, TOPIC, b"data", 7)
    raws = [nameless.raw, b"damaged", b"", *(one.raw for one in several), *RECORDED_RAWS, nameless.raw]
    body, sizes = b"".join(raws), [*map(len, raws)]
    several = [*several, *map(decode_envelope, RECORDED_RAWS)]

    names = [None, None, None, *(envelope_muid(NETWORK, one) for one in several), None]
    assert joined_muids(NETWORK, body, sizes) == names
    assert joined_metas(body, sizes) == [None if name is None else metadata_of(name) for name in names]


@given(st.lists(envelopes(), max_size=3))
def test_message_hashes_of_fields_are_those_of_the_messages(several: list[Envelope]) -> None:
    several = [*several, *map(decode_envelope, RECORDED_RAWS)]
    too_old = encode_envelope(50, 50, TOPIC, b"data", 7)
    raws = [too_old.raw, *(each.raw for each in several)]
    fields = [each for each in read_fields(b"".join(raws), map(len, raws)) if each is not None]

    assert message_hashes(NETWORK, fields) == [None, *(message_of(each).hash(NETWORK) for each in several)]


def test_envelope_that_was_created_at_another_time_than_is_said_has_no_muid() -> None:
    body, sizes = ENVELOPE.raw * 2, [len(ENVELOPE.raw)] * 2

    assert joined_muids(NETWORK, body, sizes, [ENVELOPE.created, ENVELOPE.created + 1]) == [NAME, None]


@given(envelopes(), envelopes())
def test_different_envelopes_have_different_muids_and_message_hashes(one: Envelope, other: Envelope) -> None:
    assume(one != other)

    assert envelope_muid(NETWORK, one) != envelope_muid(NETWORK, other)
    assert message_of(one).hash(NETWORK) != message_of(other).hash(NETWORK)


@pytest.mark.parametrize(
    "other",
    [
        encode_envelope(1_795_000_051, 50, TOPIC, b"data", 7),
        encode_envelope(1_795_000_050, 51, TOPIC, b"data", 7),
        encode_envelope(1_795_000_051, 51, TOPIC, b"data", 7),  # created at the same time
        encode_envelope(1_795_000_050, 50, TOPIC, b"data", 8),
        encode_envelope(1_795_000_050, 50, TOPIC, b"dat", 7),
        encode_envelope(1_795_000_050, 50, Topic(b"\x9a\xcb\x04\x43"), b"data", 7),
    ],
)
def test_copy_with_any_field_changed_has_another_muid(other: Envelope) -> None:
    assert envelope_muid(NETWORK, other) != NAME
    assert envelope_muid("/waku/2/rs/1/5", ENVELOPE) != NAME


@given(envelopes(), envelopes())
def test_metadata_sorts_by_time_of_creation(one: Envelope, other: Envelope) -> None:
    assume(one.created < other.created)

    assert meta_of(one) < meta_of(other)


@given(envelopes())
def test_ids_say_nothing_that_is_not_in_the_clear(envelope: Envelope) -> None:
    """Whoever sees the fields of an envelope, without any key, computes the same ids."""
    seen = encode_envelope(envelope.expiry, envelope.ttl, envelope.topic, envelope.data, envelope.nonce)

    assert envelope_muid(NETWORK, seen) == envelope_muid(NETWORK, envelope)
    assert read_meta(meta_of(envelope)) == (envelope.created, envelope.ttl, envelope.nonce)


# Bounds


@pytest.mark.parametrize("ttl", [100, 101, MAX_U32])
def test_envelope_of_1970_or_before_has_no_id(ttl: int) -> None:
    forged = encode_envelope(100, ttl, TOPIC, b"data", 7)

    for name in (meta_of, message_of, lambda envelope: envelope_muid(NETWORK, envelope)):
        with pytest.raises(NoId, match=f"created {100 - ttl} s after"):
            name(forged)


def test_time_of_any_envelope_fits_into_63_bits_and_is_never_0() -> None:
    last = encode_envelope(MAX_U32, 0, TOPIC, b"data", 2**64 - 1)
    first = encode_envelope(1, 0, TOPIC, b"data", 0)

    assert message_of(last).timestamp == MAX_U32 * 10**9 < 2**63
    assert message_of(first).timestamp == 10**9
    for envelope in (first, last):
        assert decode_message(message_of(envelope).encode()) == message_of(envelope)
        assert envelope_of(NETWORK, envelope_muid(NETWORK, envelope), TOPIC, b"data") == envelope


def test_longest_envelope_fits_into_a_message() -> None:
    data = bytes(MAX_ENVELOPE_BYTES - 32)
    longest = encode_envelope(1_795_000_050, 2**30, TOPIC, data, 2**64 - 1)

    assert len(longest.raw) == MAX_ENVELOPE_BYTES
    assert decode_message(message_of(longest).encode()).payload == data


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        (bytes(19), "meta is not that of an envelope, got 19, limit 20"),
        (bytes(21), "meta is not that of an envelope, got 21, limit 20"),
        (bytes(20), "created is not a whole number of seconds since 1970, from 1 on, got 0"),
        ((10**9 + 1).to_bytes(8, "big") + bytes(12), "created is not a whole number of seconds since 1970, from 1 on"),
        ((2 * 10**9).to_bytes(8, "big") + (MAX_U32 - 1).to_bytes(4, "big") + bytes(8), "expiry is beyond 32 bits"),
        ((2**32 * 10**9).to_bytes(8, "big") + bytes(12), "expiry is beyond 32 bits, got 4294967296"),
    ],
)
def test_meta_that_no_envelope_has_is_refused(meta: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=f"^{why}"):
        read_meta(meta)

    with pytest.raises(DecodeError, match=f"^{why}"):
        envelope_of(NETWORK, muid(NETWORK, content_topic_of(TOPIC), meta, b"data"), TOPIC, b"data")


@pytest.mark.parametrize(
    ("network", "topic", "data"),
    [("/waku/2/rs/1/5", TOPIC, b"data"), (NETWORK, Topic(bytes(4)), b"data"), (NETWORK, TOPIC, b"dat")],
)
def test_envelope_of_other_parts_is_refused(network: str, topic: Topic, data: bytes) -> None:
    with pytest.raises(DecodeError, match="MUID does not name this network topic, topic and data"):
        envelope_of(network, NAME, topic, data)


@settings(max_examples=30)
@given(st.binary(min_size=4, max_size=4).map(Topic))
def test_content_topic_is_read_as_it_was_made(topic: Topic) -> None:
    assert topic_of(content_topic_of(topic)) == topic


@pytest.mark.parametrize(
    "other",
    [
        "/waku/1/0x9ACB0442/rfc26",
        "/waku/1/0x9acb044/rfc26",
        "/waku/1/0x9acb0442/rfc26\n",
        "/waku/1/9acb0442/rfc26",
        "/waku/2/0x9acb0442/rfc26",
        "",
    ],
)
def test_topic_has_one_content_topic_and_no_other(other: str) -> None:
    with pytest.raises(DecodeError, match="content topic is none of Waku v1"):
        topic_of(other)


# What differs


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (encode_envelope(1_795_000_051, 50, TOPIC, b"data", 7), ("created",)),
        (encode_envelope(1_795_000_050, 51, TOPIC, b"data", 7), ("created", "ttl")),
        (encode_envelope(1_795_000_050, 50, TOPIC, b"data", 8), ("nonce",)),
        (encode_envelope(1_795_000_050, 50, TOPIC, b"dat", 7), ("network topic, topic or data",)),
        (encode_envelope(1_795_000_051, 51, TOPIC, b"", 7), ("ttl", "network topic, topic or data")),
    ],
)
def test_fields_that_differ_are_named(other: Envelope, found: tuple[str, ...]) -> None:
    assert envelope_differences(NETWORK, NAME, other) == found


def test_muid_of_something_else_differs_in_its_meta() -> None:
    other = muid(NETWORK, content_topic_of(TOPIC), b"chosen by an application", b"data")

    assert envelope_differences(NETWORK, other, ENVELOPE) == ("meta",)


def test_every_flipped_bit_of_a_muid_is_noticed() -> None:
    envelope = decode_envelope(RECORDED_RAWS[0])
    name = envelope_muid(NETWORK, envelope)

    for bit in range(8 * len(name)):
        flipped = bytearray(name)
        flipped[bit // 8] ^= 1 << bit % 8
        assert envelope_differences(NETWORK, Muid(bytes(flipped)), envelope)


def test_meta_has_the_names_of_its_parts() -> None:
    assert read_meta(meta_of(ENVELOPE)) == EnvelopeMeta(created=1_795_000_000, ttl=50, nonce=7)
