"""mplex: its bytes, its faults, its bounds. What it shares with yamux is in test_muxers.py."""

import pytest

from mailserver.codec import varint
from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.framed_muxer import MAX_SENT_BYTES
from mailserver.libp2p.mplex import MAX_FRAME_BYTES, Flag, Mplex
from mailserver.libp2p.streams import (
    MAX_CONNECTION_BYTES,
    MAX_STREAM_BYTES,
    DataReceived,
    IncomingStream,
    StreamReset,
    WriteClosed,
)


def frame(number: int, flag: int, data: bytes = b"") -> bytes:
    """A frame, by the specification."""
    return varint.encode(number << 3 | flag) + varint.encode(len(data)) + data


def sent(muxer: Mplex) -> bytes:
    """All that it says."""
    return b"".join(muxer.data_to_send())


def fault_of(muxer: Mplex, data: bytes) -> Cause:
    """Of what the muxer accuses the other side."""
    with pytest.raises(Libp2pFault) as caught:
        muxer.receive_data(data)
    return caught.value.cause


def with_streams(count: int) -> Mplex:
    """A muxer with streams of the other side: 0, 1, .."""
    muxer = Mplex()
    for number in range(count):
        muxer.receive_data(frame(number, Flag.NEW_STREAM))
    assert [type(event) for event in muxer.events()] == [IncomingStream] * count
    return muxer


def test_frames_of_another_implementation_are_read() -> None:
    """js-libp2p-mplex, test/coder.spec.ts, "should decode msgs from buffer": NewStream of 17, 19 and 21, with names."""
    muxer = Mplex()

    muxer.receive_data(bytes.fromhex("88010231379801023139a801023231"))

    opened = muxer.events()
    assert [type(event) for event in opened] == [IncomingStream] * 3
    for event in opened:
        assert isinstance(event, IncomingStream)
        muxer.reset(event.stream)
    assert sent(muxer) == frame(17, 5) + frame(19, 5) + frame(21, 5)


def test_stream_of_ours_is_written_as_the_specification_says() -> None:
    muxer = Mplex()

    first, second = muxer.open_stream(), muxer.open_stream()
    muxer.send(first, b"data")
    muxer.close_write(first)
    muxer.reset(second)

    assert sent(muxer) == bytes.fromhex("0000 0800 0204 64617461 0400 0e00")


def test_stream_of_the_other_side_is_answered_with_the_flags_of_the_receiver() -> None:
    muxer = Mplex()
    muxer.receive_data(frame(300, Flag.NEW_STREAM, b"name") + frame(1, Flag.NEW_STREAM))
    first, second = (event.stream for event in muxer.events() if isinstance(event, IncomingStream))

    muxer.send(first, b"data")
    muxer.close_write(first)
    muxer.reset(second)

    assert sent(muxer) == bytes.fromhex("e112 04 64617461 e312 00 0d 00")


def test_both_sides_may_use_one_number() -> None:
    muxer = Mplex()
    ours = muxer.open_stream()
    muxer.receive_data(frame(0, Flag.NEW_STREAM) + frame(0, Flag.MESSAGE_INITIATOR, b"a"))
    muxer.receive_data(frame(0, Flag.MESSAGE_RECEIVER, b"b") + frame(0, Flag.CLOSE_RECEIVER))

    opened, first, second, closed = muxer.events()

    assert isinstance(opened, IncomingStream)
    assert opened.stream != ours
    assert (first, second) == (DataReceived(opened.stream, b"a"), DataReceived(ours, b"b"))
    assert closed == WriteClosed(ours)


@pytest.mark.parametrize("number", [0, 15, 16, 1 << 31, (1 << 60) - 1])
def test_every_number_of_60_bits_names_a_stream(number: int) -> None:
    muxer = Mplex()

    muxer.receive_data(frame(number, Flag.NEW_STREAM) + frame(number, Flag.MESSAGE_INITIATOR, b"a"))
    opened, data = muxer.events()
    assert isinstance(opened, IncomingStream)
    assert data == DataReceived(opened.stream, b"a")
    muxer.close_write(opened.stream)

    assert sent(muxer) == frame(number, Flag.CLOSE_RECEIVER)


def test_long_data_is_sent_in_frames_that_others_need_not_wait_for() -> None:
    muxer = Mplex()
    stream = muxer.open_stream()
    data = bytes(range(256)) * 600

    muxer.send(stream, data)

    parts = [data[at : at + MAX_SENT_BYTES] for at in range(0, len(data), MAX_SENT_BYTES)]
    assert len(parts) == 3
    assert sent(muxer) == b"\0\0" + b"".join(frame(0, Flag.MESSAGE_INITIATOR, part) for part in parts)


def test_data_of_a_long_frame_is_told_as_it_comes() -> None:
    muxer = with_streams(1)
    whole = frame(0, Flag.MESSAGE_INITIATOR, bytes(100_000))

    muxer.receive_data(whole[:50_000])
    before = muxer.events()
    muxer.receive_data(whole[50_000:])

    assert [len(event.data) for event in before + muxer.events() if isinstance(event, DataReceived)] == [49_996, 50_004]


def test_names_and_data_where_none_belongs_are_skipped() -> None:
    muxer = Mplex()
    name = bytes(MAX_FRAME_BYTES)

    muxer.receive_data(frame(0, Flag.NEW_STREAM, name) + frame(0, Flag.CLOSE_INITIATOR, b"data"))
    (opened, closed) = muxer.events()
    muxer.receive_data(frame(0, Flag.RESET_INITIATOR, b"data") + frame(1, Flag.NEW_STREAM))

    assert (type(opened), type(closed)) == (IncomingStream, WriteClosed)
    assert [type(event) for event in muxer.events()] == [StreamReset, IncomingStream]


def test_empty_data_is_no_event() -> None:
    muxer = with_streams(1)

    muxer.receive_data(frame(0, Flag.MESSAGE_INITIATOR))

    assert muxer.events() == []
    assert muxer.ignored_frames == 1


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (frame(0, 7), Cause.BAD_FRAME),
        (b"\xff" * 9, Cause.BAD_FRAME),
        (b"\x00" + b"\xff" * 9, Cause.BAD_FRAME),
        (b"\x80\x00", Cause.BAD_FRAME),  # a 0 in two bytes
        (b"\x00" + varint.encode(MAX_FRAME_BYTES + 1), Cause.FRAME_TOO_LONG),
        (frame(5, Flag.NEW_STREAM) * 2, Cause.STREAM_REUSED),
    ],
)
def test_broken_rule_is_a_fault_however_the_bytes_are_cut(data: bytes, cause: Cause) -> None:
    muxer = Mplex()

    assert fault_of(Mplex(), data) is cause
    for byte in data[:-1]:
        muxer.receive_data(bytes([byte]))
    assert fault_of(muxer, data[-1:]) is cause


def test_number_is_free_again_once_its_stream_is_gone() -> None:
    muxer = with_streams(1)

    muxer.receive_data(frame(0, Flag.RESET_INITIATOR) + frame(0, Flag.NEW_STREAM))

    assert [type(event) for event in muxer.events()] == [StreamReset, IncomingStream]


@pytest.mark.parametrize("flag", [flag for flag in Flag if flag is not Flag.NEW_STREAM])
def test_frame_of_an_unknown_stream_is_ignored_and_counted(flag: Flag) -> None:
    muxer = with_streams(1)

    muxer.receive_data(frame(7, flag, b"data") + frame(0, Flag.MESSAGE_INITIATOR, b"more"))

    (event,) = muxer.events()
    assert isinstance(event, DataReceived)
    assert event.data == b"more"
    assert muxer.ignored_frames == 1
    assert sent(muxer) == b""


def test_stream_that_is_not_consumed_is_reset_and_the_others_go_on() -> None:
    muxer = with_streams(2)
    fitting = frame(0, Flag.MESSAGE_INITIATOR, bytes(MAX_STREAM_BYTES))

    muxer.receive_data(fitting)
    assert [type(event) for event in muxer.events()] == [DataReceived]
    muxer.receive_data(frame(0, Flag.MESSAGE_INITIATOR, b"x") + frame(1, Flag.MESSAGE_INITIATOR, b"y"))

    reset, data = muxer.events()
    assert isinstance(reset, StreamReset)
    assert not reset.by_peer
    assert isinstance(data, DataReceived)
    assert data.data == b"y"
    assert sent(muxer) == frame(0, Flag.RESET_RECEIVER)


def test_rest_of_the_frame_that_reset_a_stream_is_skipped() -> None:
    muxer = with_streams(1)
    data = frame(0, Flag.MESSAGE_INITIATOR, bytes(MAX_FRAME_BYTES)) + frame(1, Flag.NEW_STREAM)

    for at in range(0, len(data), 60_000):
        muxer.receive_data(data[at : at + 60_000])

    kinds = [type(event) for event in muxer.events()]
    assert kinds == [DataReceived] * 4 + [StreamReset, IncomingStream]


def test_what_is_consumed_makes_room_on_the_stream() -> None:
    muxer = with_streams(1)
    half = frame(0, Flag.MESSAGE_INITIATOR, bytes(MAX_STREAM_BYTES // 2))

    for _ in range(10):
        muxer.receive_data(half)
        (event,) = muxer.events()
        assert isinstance(event, DataReceived)
        muxer.consumed(event.stream, len(event.data))

    assert sent(muxer) == b""


def test_connection_ends_where_all_streams_together_are_not_consumed() -> None:
    count = MAX_CONNECTION_BYTES // MAX_STREAM_BYTES
    muxer = with_streams(count + 1)
    for number in range(count):
        muxer.receive_data(frame(number, Flag.MESSAGE_INITIATOR, bytes(MAX_STREAM_BYTES)))

    assert fault_of(muxer, frame(count, Flag.MESSAGE_INITIATOR, b"x")) is Cause.TOO_MUCH_UNREAD
    assert [type(event) for event in muxer.events()] == [DataReceived] * count


def test_stream_that_is_gone_leaves_its_room_to_others() -> None:
    muxer = with_streams(20)

    for number in range(20):
        muxer.receive_data(frame(number, Flag.MESSAGE_INITIATOR, bytes(MAX_STREAM_BYTES)))
        muxer.receive_data(frame(number, Flag.RESET_INITIATOR))

    assert [type(event) for event in muxer.events()] == [DataReceived, StreamReset] * 20


def test_bounds_are_those_of_the_constructor() -> None:
    muxer = Mplex(max_streams=3, max_stream_bytes=10, max_connection_bytes=15)

    for number in range(4):
        muxer.receive_data(frame(number, Flag.NEW_STREAM))
    muxer.receive_data(frame(0, Flag.MESSAGE_INITIATOR, bytes(11)) + frame(1, Flag.MESSAGE_INITIATOR, bytes(10)))

    assert sent(muxer) == frame(3, Flag.RESET_RECEIVER) + frame(0, Flag.RESET_RECEIVER)
    assert fault_of(muxer, frame(2, Flag.MESSAGE_INITIATOR, bytes(6))) is Cause.TOO_MUCH_UNREAD


def test_fault_says_what_was_found_and_the_bound() -> None:
    with pytest.raises(Libp2pFault, match=r"^frame too long, got 1048577, limit 1048576$"):
        Mplex().receive_data(b"\x00" + varint.encode(MAX_FRAME_BYTES + 1))
    with pytest.raises(Libp2pFault, match=r"^bad frame$"):
        Mplex().receive_data(b"\xff" * 9)
