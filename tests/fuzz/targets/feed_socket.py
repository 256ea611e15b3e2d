"""The frames of the feed socket, to both sides, in pieces."""

from collections.abc import Iterator, Mapping
from typing import Any

from mailserver.errors import DecodeError
from mailserver.feed_socket.frames import (
    OF_DAEMON,
    OF_GATEWAY,
    Envelopes,
    FeedEnvelope,
    Frame,
    FrameKind,
    FrameReader,
    Hello,
    Join,
    Missed,
    Post,
    PostRefusal,
    Refused,
    Role,
    Stored,
    Terms,
)
from mailserver.store.interface import NewEnvelope
from mailserver.waku.envelope import EnvelopeHash
from mailserver.worker_socket.frames import OF_WORKER, OF_WRITER, Index, NotStored, Put
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.mailservers import NEWS, SPORT
from tests.pairs import digest


def fuzz_frames(data: bytes) -> None:
    """Bytes are the same frames, or refused, however they are cut; a frame that was read is written and read again."""
    choices = Choices(data)
    kinds: Mapping[int, FrameKind[Any]] = choices.pick((OF_DAEMON, OF_GATEWAY, OF_WRITER, OF_WORKER))
    size = 1 + choices.below(256)
    stream = choices.rest()

    whole = _read(FrameReader(kinds), [stream])

    assert _read(FrameReader(kinds), [stream[at : at + size] for at in range(0, len(stream), size)]) == whole
    for frame in whole or ():
        assert FrameReader(kinds).receive_data(frame.encode()) == [frame]


def _read(reader: FrameReader[Any], pieces: list[bytes]) -> list[Any] | None:
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
        Refused(3, PostRefusal.LOW_POW),
    ]
    for frame in of_daemon:
        yield b"\0\x05" + frame.encode()
    yield b"\0\xff" + b"".join(frame.encode() for frame in of_daemon)
    yield b"\1\x05" + Join(Role.GATEWAY).encode() + Post(1, first.raw).encode() + Post(2, b"").encode()
    yield b"\2\x05" + Envelopes((first,)).encode() + Stored(2).encode() + NotStored(3, "the disk is full").encode()
    rows = tuple(NewEnvelope(20, 10, NEWS, each.hash, each.raw) for each in (first, second))
    yield b"\3\x05" + Put(1, 7, True, rows).encode() + Put(2, 0, False, ()).encode() + Index(3, 9).encode()


TARGETS = {"frames": Target(fuzz_frames, frames_seeds, max_bytes=1024)}
