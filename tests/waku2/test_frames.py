"""mailserver.waku2.frames: packets with their length before them; and how long those of each protocol may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import varint
from mailserver.errors import DecodeError
from mailserver.waku2.frames import MAX_LENGTH_BYTES, FrameReader, encode_frame
from mailserver.waku2.protocols import FRAME_BOUNDS, ProtocolId

bodies = st.lists(st.binary(max_size=300), max_size=5)


@given(bodies, st.integers(1, 50))
def test_frames_are_read_as_they_were_written_however_they_are_cut(frames: list[bytes], size: int) -> None:
    reader = FrameReader(300)
    stream = b"".join(map(encode_frame, frames))

    read = [body for at in range(0, len(stream), size) for body in reader.receive_data(stream[at : at + size])]

    assert read == frames
    assert reader.pending == 0
    reader.receive_eof()


@given(st.binary(max_size=300), st.integers(1, 50))
def test_first_frame_is_read_whatever_is_behind_it(body: bytes, size: int) -> None:
    reader = FrameReader(300)
    stream = encode_frame(body) + b"\xff" * 50  # which is no frame

    read = [reader.receive_first(stream[at : at + size]) for at in range(0, len(encode_frame(body)), size)]

    assert read == [None] * (len(read) - 1) + [body]


def test_first_frame_beyond_the_bound_is_refused_at_its_length() -> None:
    with pytest.raises(DecodeError, match="frame is too long, got 301, limit 300"):
        FrameReader(300).receive_first(varint.encode(301))


@given(st.binary(min_size=1, max_size=300))
def test_stream_that_ends_amidst_a_frame_is_refused(body: bytes) -> None:
    stream = encode_frame(body)
    for length in range(1, len(stream)):
        reader = FrameReader(300)

        assert reader.receive_data(stream[:length]) == []
        assert reader.pending == length
        with pytest.raises(DecodeError, match="frame is truncated"):
            reader.receive_eof()


def test_frame_beyond_the_bound_is_refused_at_its_length() -> None:
    assert FrameReader(300).receive_data(encode_frame(bytes(300))) == [bytes(300)]
    with pytest.raises(DecodeError, match="frame is too long, got 301, limit 300"):
        FrameReader(300).receive_data(varint.encode(301))


def test_length_that_does_not_end_is_refused() -> None:
    reader = FrameReader(300)

    assert reader.receive_data(b"\xff" * (MAX_LENGTH_BYTES - 1)) == []
    with pytest.raises(DecodeError, match="varint is too long"):
        reader.receive_data(b"\xff")


@given(st.binary(max_size=60))
def test_random_bytes_are_frames_or_refused(data: bytes) -> None:
    reader = FrameReader(20)
    try:
        found = reader.receive_data(data)
    except DecodeError:
        return
    assert b"".join(map(encode_frame, found)) + data[len(data) - reader.pending :] == data
    assert reader.pending <= 20 + MAX_LENGTH_BYTES


def test_every_protocol_has_its_bounds() -> None:
    assert FRAME_BOUNDS.keys() == set(ProtocolId)
    assert all(bounds.to_client for bounds in FRAME_BOUNDS.values())
