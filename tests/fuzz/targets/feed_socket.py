"""The frames of the feed socket, to both sides, in pieces."""

from collections.abc import Iterator

from mailserver.errors import DecodeError
from mailserver.feed_socket.frames import (
    OF_DAEMON,
    OF_GATEWAY,
    Envelopes,
    FeedEnvelope,
    Frame,
    FrameReader,
    Hello,
    Missed,
    Post,
    Refusal,
    Refused,
    Stored,
    Terms,
)
from mailserver.waku.envelope import EnvelopeHash
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.mailservers import NEWS, SPORT
from tests.pairs import digest


def fuzz_frames(data: bytes) -> None:
    """Bytes are the same frames, or refused, however they are cut; a frame that was read is written and read again."""
    choices = Choices(data)
    kinds = choices.pick((OF_DAEMON, OF_GATEWAY))
    size = 1 + choices.below(256)
    stream = choices.rest()

    whole = _read(FrameReader(kinds), [stream])

    assert _read(FrameReader(kinds), [stream[at : at + size] for at in range(0, len(stream), size)]) == whole
    for frame in whole or ():
        assert FrameReader(kinds).receive_data(frame.encode()) == [frame]


def _read(reader: FrameReader, pieces: list[bytes]) -> list[Frame] | None:
    """The frames; None if one is refused."""
    try:
        return [frame for piece in pieces for frame in reader.receive_data(piece)]
    except DecodeError:
        return None


def frames_seeds() -> Iterator[bytes]:
    """Each frame by itself, and all that one side sends."""
    first, second = (FeedEnvelope(EnvelopeHash(digest(name)), digest(name) * 2) for name in ("one", "two"))
    of_daemon: list[Frame] = [
        Hello(Terms("/waku/2/rs/1/4", 0.000002, 1000, None)),
        Hello(Terms("t", 0.0, 1, frozenset({NEWS, SPORT}))),
        Envelopes((first, second)),
        Missed(7),
        Stored(2),
        Refused(3, Refusal.LOW_POW),
    ]
    for frame in of_daemon:
        yield b"\0\x05" + frame.encode()
    yield b"\0\xff" + b"".join(frame.encode() for frame in of_daemon)
    yield b"\1\x05" + Post(1, first.raw).encode() + Post(2, b"").encode()


TARGETS = {"frames": Target(fuzz_frames, frames_seeds, max_bytes=1024)}
