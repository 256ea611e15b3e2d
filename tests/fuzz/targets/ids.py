"""Messages of Waku v2, and MUIDs from which envelopes are made again."""

from collections.abc import Iterator

from mailserver.errors import DecodeError
from mailserver.ids.envelopes import content_topic_of, envelope_differences, envelope_muid, envelope_of, message_of
from mailserver.ids.muid import (
    DEFAULT_NETWORK_TOPIC,
    MAX_METADATA_BYTES,
    NoId,
    check_muid,
    differences,
    metadata_of,
    muid,
)
from mailserver.ids.waku_message import (
    MAX_CONTENT_TOPIC_BYTES,
    MAX_META_BYTES,
    MAX_RATE_LIMIT_PROOF_BYTES,
    decode_message,
)
from mailserver.waku.envelope import Topic, decode_envelope
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.ids.vectors import HASHES
from tests.waku.envelopes import RECORDED_RAWS, SMALL, USUAL

ENVELOPES = [decode_envelope(raw) for raw in (SMALL, USUAL, *RECORDED_RAWS[:3])]


def fuzz_message(data: bytes) -> None:
    """What decodes is within its bounds, decodes again to itself, and has the ids of its parts."""
    try:
        message = decode_message(data)
    except DecodeError:
        return
    assert len(message.meta) <= MAX_META_BYTES
    assert len(message.content_topic.encode()) <= MAX_CONTENT_TOPIC_BYTES
    assert len(message.rate_limit_proof or b"") <= MAX_RATE_LIMIT_PROOF_BYTES
    again = decode_message(message.encode())
    assert again == message
    assert again.hash(DEFAULT_NETWORK_TOPIC) == message.hash(DEFAULT_NETWORK_TOPIC)
    parts = message.content_topic, message.meta, message.payload
    try:
        name = muid(DEFAULT_NETWORK_TOPIC, *parts)
    except NoId:
        assert not 0 < len(message.meta) <= MAX_METADATA_BYTES
        return
    assert metadata_of(name) == message.meta
    assert not differences(name, DEFAULT_NETWORK_TOPIC, *parts)


def message_seeds() -> Iterator[bytes]:
    """The messages of the vectors, and one of an envelope."""
    for message, _ in HASHES:
        yield message.encode()
    yield message_of(ENVELOPES[0]).encode()


def fuzz_envelope(data: bytes) -> None:
    """An envelope is made from a MUID only if it has that MUID; one that is decoded is made again from its own."""
    choices = Choices(data)
    topic, body, claimed = Topic(choices.fixed(4).ljust(4, b"\0")), choices.take(40), choices.rest()
    if claimed and choices.flag():
        claimed = muid(DEFAULT_NETWORK_TOPIC, content_topic_of(topic), claimed[:MAX_METADATA_BYTES], body)
    try:
        name = check_muid(claimed)
        envelope = envelope_of(DEFAULT_NETWORK_TOPIC, name, topic, body)
    except DecodeError:
        pass
    else:
        assert envelope_muid(DEFAULT_NETWORK_TOPIC, envelope) == name
        assert (envelope.topic, envelope.data) == (topic, body)
    for raw in (data, data[4:]):
        try:
            envelope = decode_envelope(raw)
            name = envelope_muid(DEFAULT_NETWORK_TOPIC, envelope)
        except (DecodeError, NoId):
            continue
        assert envelope_of(DEFAULT_NETWORK_TOPIC, name, envelope.topic, envelope.data) == envelope
        assert not envelope_differences(DEFAULT_NETWORK_TOPIC, name, envelope)


def envelope_seeds() -> Iterator[bytes]:
    """Envelopes, and the parts of which they are made again."""
    for envelope in ENVELOPES:
        yield envelope.raw
    meta = metadata_of(envelope_muid(DEFAULT_NETWORK_TOPIC, ENVELOPES[0]))
    yield ENVELOPES[0].topic + bytes([4]) + ENVELOPES[0].data[:4] + meta
    yield ENVELOPES[0].topic + bytes([4]) + ENVELOPES[0].data[:4] + envelope_muid(DEFAULT_NETWORK_TOPIC, ENVELOPES[0])


TARGETS = {
    "message": Target(fuzz_message, message_seeds),
    "envelope": Target(fuzz_envelope, envelope_seeds, max_bytes=1024),
}
