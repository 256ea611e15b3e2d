"""mailserver.worker_socket.frames: what workers and the one that writes the store say, as bytes."""

import struct

import pytest

from mailserver.errors import DecodeError
from mailserver.feed_socket.frames import OF_DAEMON, FrameReader, Kind, Post
from mailserver.store.interface import NewEnvelope
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from mailserver.waku.envelope import EnvelopeHash
from mailserver.worker_socket.frames import (
    MAX_CAUSE_BYTES,
    OF_WORKER,
    OF_WRITER,
    PUT_BYTES,
    Index,
    NotStored,
    OfWorker,
    Put,
    WorkerKind,
    cut_puts,
)
from tests.mailservers import NEWS, make_envelope, stored
from tests.pairs import digest

ROWS = tuple(stored(make_envelope(number), received=1_795_236_000 + number) for number in range(3))
FRAMES: list[OfWorker] = [
    Put(1, 0, True, ROWS),
    Put(2, 2**64 - 1, False, ROWS[:1]),
    Put(3, 0, False, ()),
    Index(4),
    Index(5, 2**64 - 1),
]


def read(data: bytes) -> list[OfWorker]:
    return FrameReader(OF_WORKER).receive_data(data)


def test_frames_come_in_pieces_of_any_length() -> None:
    data = b"".join(frame.encode() for frame in FRAMES)
    for size in (1, 7, 100_000):
        reader = FrameReader(OF_WORKER)
        pieces = [data[at : at + size] for at in range(0, len(data), size)]

        assert [frame for piece in pieces for frame in reader.receive_data(piece)] == FRAMES


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_truncation_is_refused_or_another_frame(frame: OfWorker) -> None:
    encoded = frame.encode()
    kind, body = encoded[4:5], encoded[5:]

    for end in range(len(encoded)):
        assert read(encoded[:end]) == []
    for end in range(len(body)):
        try:
            assert read(struct.pack(">I", 1 + end) + kind + body[:end]) != [frame]
        except DecodeError:
            continue


def test_longest_put_is_taken_and_a_longer_one_is_not() -> None:
    longest = NewEnvelope(1, 2, NEWS, EnvelopeHash(digest("hash")), bytes(MAX_ENVELOPE_BYTES))
    limit = OF_WORKER[WorkerKind.PUT].max_body_bytes

    assert read(Put(1, 0, True, (longest,)).encode()) == [Put(1, 0, True, (longest,))]
    with pytest.raises(DecodeError, match="too long"):
        read(struct.pack(">IB", 2 + limit, WorkerKind.PUT))


def test_every_part_of_a_long_packet_fits_into_a_frame() -> None:
    raw_sizes = [100, PUT_BYTES - 57, MAX_ENVELOPE_BYTES, 1, MAX_ENVELOPE_BYTES, 5]
    rows = [
        NewEnvelope(1, 2, NEWS, EnvelopeHash(digest(f"{number}")), bytes(size)) for number, size in enumerate(raw_sizes)
    ]

    parts = list(cut_puts(rows))

    assert [row for part in parts for row in part] == rows
    assert [len(part) for part in parts] == [2, 1, 2, 1]
    for part in parts:
        assert read(Put(1, 0, True, part).encode()) == [Put(1, 0, True, part)]
    assert list(cut_puts([])) == []


def test_cause_is_told_as_it_is_and_no_longer_than_a_frame() -> None:
    for cause, told in (
        ("the disk is full", "the disk is full"),
        ("x" * 5000, "x" * MAX_CAUSE_BYTES),
        ("\udcff", "\udcff"),
    ):
        assert FrameReader(OF_WRITER).receive_data(NotStored(7, cause).encode()) == [NotStored(7, told)]


def test_each_side_may_send_its_own_frames_only() -> None:
    for data in (Post(1, b"").encode(), NotStored(1, "no").encode(), struct.pack(">IB", 9, Kind.STORED)):
        with pytest.raises(DecodeError, match="unknown kind"):
            read(data)
    for kind in (Kind.HELLO, Kind.REFUSED, WorkerKind.PUT, WorkerKind.INDEX):
        with pytest.raises(DecodeError, match="unknown kind"):
            FrameReader(OF_WRITER).receive_data(struct.pack(">IB", 9, kind))
    assert WorkerKind.NOT_STORED not in OF_DAEMON
