"""mailserver.feed_socket.frames: each frame goes there and back; what is none is refused, and nothing else happens."""

import itertools
import random
import struct

import pytest

from mailserver.errors import DecodeError
from mailserver.feed_socket.frames import (
    BATCH_BYTES,
    MAX_BODY_BYTES,
    OF_DAEMON,
    OF_GATEWAY,
    VERSION,
    Envelopes,
    FeedEnvelope,
    Frame,
    FrameKind,
    FrameReader,
    Hello,
    Join,
    Kind,
    Missed,
    Post,
    PostRefusal,
    Refused,
    Role,
    Stored,
    Terms,
    cut_batches,
)
from mailserver.ids.muid import MAX_NETWORK_TOPIC_BYTES
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES, Verdict
from mailserver.waku.envelope import EnvelopeHash, Topic
from mailserver.waku.packets import MAX_TOPIC_INTEREST
from tests.mailservers import NEWS, SPORT
from tests.pairs import digest

ALL = OF_DAEMON | OF_GATEWAY
MAX_NUMBER = 2**64 - 1


def envelope(number: int, size: int = 100) -> FeedEnvelope:
    seed = digest(f"envelope {number}")
    return FeedEnvelope(EnvelopeHash(seed), (seed * (size // len(seed) + 1))[:size])


def longest(kind: Kind) -> Frame:
    """A frame of the greatest length."""
    if kind is Kind.HELLO:
        topics = frozenset(Topic(number.to_bytes(4, "big")) for number in range(MAX_TOPIC_INTEREST))
        return Hello(Terms("t" * MAX_NETWORK_TOPIC_BYTES, 1.0, MAX_ENVELOPE_BYTES, topics))
    if kind is Kind.ENVELOPES:
        first = envelope(1, BATCH_BYTES - 2 * 36)
        return Envelopes((first, envelope(2, 0), envelope(3, MAX_ENVELOPE_BYTES)))
    if kind is Kind.POST:
        return Post(MAX_NUMBER, bytes(MAX_ENVELOPE_BYTES))
    others: dict[Kind, Frame] = {
        Kind.MISSED: Missed(1),
        Kind.STORED: Stored(2),
        Kind.REFUSED: Refused(3, PostRefusal.LOW_POW),
        Kind.JOIN: Join(Role.COMMUNITIES),
    }
    return others[kind]


FRAMES: list[Frame] = [
    Hello(Terms("/waku/2/rs/1/4", 0.000002, 1_000_000, None)),
    Hello(Terms("x", 0.0, 1, frozenset())),
    Hello(Terms("/waku/2/rs/16/32 \udcff", 1e300, MAX_ENVELOPE_BYTES, frozenset({NEWS, SPORT}))),
    Envelopes((envelope(1),)),
    Envelopes((envelope(1), envelope(2, 0), envelope(3, 1000))),
    Missed(1),
    Missed(MAX_NUMBER),
    Stored(0),
    Stored(MAX_NUMBER),
    *(Refused(number, refusal) for number, refusal in enumerate(PostRefusal)),
    Post(7, b"raw"),
    Post(MAX_NUMBER, b""),
    *map(Join, Role),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_frame_goes_there_and_back(frame: Frame) -> None:
    assert FrameReader(ALL).receive_data(frame.encode()) == [frame]


@pytest.mark.parametrize("kind", Kind)
def test_longest_frame_goes_there_and_back_and_a_longer_one_is_refused_at_its_head(kind: Kind) -> None:
    frame = longest(kind)
    encoded = frame.encode()

    assert len(encoded) == 5 + MAX_BODY_BYTES[kind]
    assert FrameReader(ALL).receive_data(encoded) == [frame]
    with pytest.raises(DecodeError, match="too long"):
        FrameReader(ALL).receive_data(struct.pack(">IB", 2 + MAX_BODY_BYTES[kind], kind))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 100_000])
def test_frames_come_in_pieces_of_any_length(size: int) -> None:
    data = b"".join(frame.encode() for frame in FRAMES)
    reader = FrameReader(ALL)

    read = [frame for at in range(0, len(data), size) for frame in reader.receive_data(data[at : at + size])]

    assert read == FRAMES


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_frame_that_is_cut_off_is_waited_for_and_one_with_a_shorter_body_is_never_the_same(frame: Frame) -> None:
    encoded = frame.encode()
    kind, body = encoded[4:5], encoded[5:]

    for end in range(len(encoded)):
        assert FrameReader(ALL).receive_data(encoded[:end]) == []
    for end in range(len(body)):
        try:
            read = FrameReader(ALL).receive_data(struct.pack(">I", 1 + end) + kind + body[:end])
        except DecodeError:
            continue
        assert read != [frame]
        assert kind in (bytes([Kind.POST]), bytes([Kind.HELLO]), bytes([Kind.ENVELOPES]))


@pytest.mark.parametrize(("kinds", "others"), [(OF_DAEMON, OF_GATEWAY), (OF_GATEWAY, OF_DAEMON)])
def test_each_side_may_send_its_own_frames_only(
    kinds: dict[int, FrameKind[Frame]], others: dict[int, FrameKind[Frame]]
) -> None:
    for kind in others:
        with pytest.raises(DecodeError, match="unknown kind"):
            FrameReader(kinds).receive_data(struct.pack(">IB", 9, kind))
    with pytest.raises(DecodeError, match="unknown kind"):
        FrameReader(ALL).receive_data(struct.pack(">IB", 9, 0x7F))


def hello(
    *, version: int = VERSION, min_pow: float = 0.5, limit: int = 1000, is_all: int = 1, rest: bytes = b"topic"
) -> bytes:
    return struct.pack(">BdIB", version, min_pow, limit, is_all) + rest


@pytest.mark.parametrize(
    ("kind", "body", "problem"),
    [
        (Kind.HELLO, b"", "HELLO is truncated"),
        (Kind.HELLO, hello(version=2), "version of the feed socket is another one, got 2, limit 1"),
        (Kind.HELLO, hello(min_pow=-0.1), "proof of work"),
        (Kind.HELLO, hello(min_pow=float("nan")), "proof of work"),
        (Kind.HELLO, hello(min_pow=float("inf")), "proof of work"),
        (Kind.HELLO, hello(limit=0), "length in HELLO"),
        (Kind.HELLO, hello(limit=MAX_ENVELOPE_BYTES + 1), "length in HELLO"),
        (Kind.HELLO, hello(rest=b""), "network topic"),
        (Kind.HELLO, hello(rest=b"t" * (MAX_NETWORK_TOPIC_BYTES + 1)), "network topic"),
        (Kind.HELLO, hello(is_all=0, rest=b"\0"), "HELLO is truncated"),
        (Kind.HELLO, hello(is_all=0, rest=b"\0\2" + NEWS + b"top"), "too many topics, or too few"),
        (
            Kind.HELLO,
            hello(is_all=0, rest=struct.pack(">H", MAX_TOPIC_INTEREST + 1) + bytes(4 * MAX_TOPIC_INTEREST + 9)),
            "too many topics",
        ),
        (Kind.ENVELOPES, b"", "batch is empty"),
        (Kind.ENVELOPES, bytes(35), "batch is truncated"),
        (Kind.ENVELOPES, bytes(32) + struct.pack(">I", 2) + b"1", "envelope in a batch is truncated"),
        (Kind.ENVELOPES, bytes(36) + b"1", "batch is truncated"),
        (Kind.MISSED, bytes(7), "number has the wrong length"),
        (Kind.STORED, b"", "number has the wrong length"),
        (Kind.REFUSED, bytes(8), "REFUSED has the wrong length"),
        (Kind.REFUSED, bytes(8) + b"\xff", "reason of a refusal is unknown"),
        (Kind.POST, bytes(7), "POST is truncated"),
    ],
)
def test_frame_that_is_wrong_is_refused(kind: Kind, body: bytes, problem: str) -> None:
    with pytest.raises(DecodeError, match=problem):
        FrameReader(ALL).receive_data(struct.pack(">IB", 1 + len(body), kind) + body)


def test_frame_without_a_kind_is_refused() -> None:
    with pytest.raises(DecodeError, match="too long or too short"):
        FrameReader(ALL).receive_data(bytes(5))


def test_any_bytes_are_frames_or_refused_and_what_is_read_is_written_again_as_it_was() -> None:
    chance = random.Random(21)
    refused = 0
    for _ in range(3000):
        data = bytearray(chance.choice(FRAMES).encode() + chance.randbytes(chance.randrange(8)))
        for _ in range(chance.randrange(3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            read = FrameReader(ALL).receive_data(bytes(data))
        except DecodeError:
            refused += 1
            continue
        for frame in read:
            assert FrameReader(ALL).receive_data(frame.encode()) == [frame]

    assert 100 < refused < 2900


def test_every_verdict_but_accepted_is_a_refusal_with_its_own_words() -> None:
    verdicts = [verdict for verdict in Verdict if verdict is not Verdict.ACCEPTED]

    assert [PostRefusal.of(verdict).text for verdict in verdicts] == [verdict.value for verdict in verdicts]
    assert len({refusal.text for refusal in PostRefusal}) == len(verdicts) + 2


@pytest.mark.parametrize(
    "sizes", [[], [10], [100] * 2000, [BATCH_BYTES, 1, MAX_ENVELOPE_BYTES, 1], [BATCH_BYTES - 37, 1]]
)
def test_batches_hold_all_in_order_and_are_as_long_as_they_may_be(sizes: list[int]) -> None:
    envelopes = [envelope(number, size) for number, size in enumerate(sizes)]

    batches = list(cut_batches(envelopes))

    assert list(itertools.chain.from_iterable(batch.envelopes for batch in batches)) == envelopes
    lengths = [len(batch.encode()) - 5 for batch in batches]
    assert all(length <= MAX_BODY_BYTES[Kind.ENVELOPES] for length in lengths)
    assert all(length >= BATCH_BYTES for length in lengths[:-1])
    assert all(
        length - 36 - len(batch.envelopes[-1].raw) < BATCH_BYTES for length, batch in zip(lengths, batches, strict=True)
    )
