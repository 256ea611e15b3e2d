"""yamux: its bytes, windows, faults and bounds. What it shares with mplex is in test_muxers.py."""

import pytest

from mailserver.errors import LocalProtocolError
from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.framed_muxer import MAX_SENT_BYTES
from mailserver.libp2p.streams import (
    MAX_CONNECTION_BYTES,
    DataReceived,
    IncomingStream,
    PeerGoingAway,
    StreamId,
    StreamReset,
    WriteClosed,
)
from mailserver.libp2p.yamux import (
    HEADER,
    MAX_PINGS,
    MAX_UNACKNOWLEDGED,
    MAX_WINDOW_BYTES,
    WINDOW_BYTES,
    Flag,
    FrameType,
    Yamux,
)

DATA, UPDATE, PING, GO_AWAY = FrameType


def header(kind: int, flags: int, stream: int, length: int) -> bytes:
    """The header of a frame, by the specification."""
    return bytes([0, kind]) + flags.to_bytes(2, "big") + stream.to_bytes(4, "big") + length.to_bytes(4, "big")


def frame(stream: int, data: bytes, flags: int = 0) -> bytes:
    """A data frame."""
    return header(DATA, flags, stream, len(data)) + data


def sent(muxer: Yamux) -> bytes:
    """All that it says."""
    return b"".join(muxer.data_to_send())


def frames(data: bytes) -> list[tuple[int, int, int, int]]:
    """Type, flags, stream and length of all frames, which must be whole."""
    found = []
    while data:
        version, kind, flags, stream, length = HEADER.unpack_from(data)
        assert version == 0
        found.append((kind, flags, stream, length))
        data = data[HEADER.size + (length if kind == DATA else 0) :]
    return found


def fault_of(muxer: Yamux, data: bytes) -> Cause:
    """Of what the muxer accuses the other side."""
    with pytest.raises(Libp2pFault) as caught:
        muxer.receive_data(data)
    return caught.value.cause


def listener(streams: int) -> Yamux:
    """A listener, and streams of the dialer: 1, 3, .."""
    muxer = Yamux(is_dialer=False)
    for stream in range(1, 2 * streams, 2):
        muxer.receive_data(header(UPDATE, Flag.SYN, stream, 0))
    assert [type(event) for event in muxer.events()] == [IncomingStream] * streams
    assert frames(sent(muxer)) == [(UPDATE, Flag.ACK, stream, 0) for stream in range(1, 2 * streams, 2)]
    return muxer


def dialer() -> tuple[Yamux, StreamId]:
    """A dialer, and a stream of its own: 1."""
    muxer = Yamux(is_dialer=True)
    stream = muxer.open_stream()
    assert frames(sent(muxer)) == [(UPDATE, Flag.SYN, 1, 0)]
    return muxer, stream


def test_stream_of_ours_is_written_as_the_specification_says() -> None:
    muxer = Yamux(is_dialer=True)

    first, second = muxer.open_stream(), muxer.open_stream()
    muxer.send(first, b"data")
    muxer.close_write(first)
    muxer.reset(second)

    assert sent(muxer) == bytes.fromhex(
        "00 01 0001 00000001 00000000"
        "00 01 0001 00000003 00000000"
        "00 00 0000 00000001 00000004 64617461"
        "00 01 0004 00000001 00000000"
        "00 01 0008 00000003 00000000"
    )


def test_listener_opens_streams_with_even_ids() -> None:
    muxer = Yamux(is_dialer=False)

    assert [muxer.open_stream() for _ in range(3)] == [2, 4, 6]


@pytest.mark.parametrize("is_dialer", [True, False])
def test_stream_is_opened_by_data_too_and_acknowledged(is_dialer: bool) -> None:
    muxer = Yamux(is_dialer=is_dialer)
    stream = StreamId(2 if is_dialer else 1)

    muxer.receive_data(frame(stream, b"data", Flag.SYN))

    assert muxer.events() == [IncomingStream(stream), DataReceived(stream, b"data")]
    assert frames(sent(muxer)) == [(UPDATE, Flag.ACK, stream, 0)]


@pytest.mark.parametrize(
    ("kind", "flags", "length", "events"),
    [
        (UPDATE, Flag.FIN, 0, [WriteClosed(StreamId(1))]),
        (DATA, Flag.FIN, 0, [WriteClosed(StreamId(1))]),
        (DATA, Flag.FIN, 3, [DataReceived(StreamId(1), b"abc"), WriteClosed(StreamId(1))]),
        (UPDATE, Flag.RST, 0, [StreamReset(StreamId(1), True)]),
        (UPDATE, Flag.RST | Flag.FIN, 0xFFFFFFFF, [StreamReset(StreamId(1), True)]),  # an error code of go-yamux
        (DATA, Flag.RST, 3, [StreamReset(StreamId(1), True)]),
        (DATA, 0, 0, []),
        (DATA, 0xFFF0, 3, [DataReceived(StreamId(1), b"abc")]),  # flags of the future
    ],
)
def test_flags_come_in_frames_of_both_kinds(kind: int, flags: int, length: int, events: list[object]) -> None:
    muxer = listener(1)

    muxer.receive_data(header(kind, flags, 1, length) + b"abc"[: length if kind == DATA else 0])

    assert muxer.events() == events
    assert fault_of(muxer, header(9, 0, 0, 0)) is Cause.BAD_FRAME  # the next frame begins where it should


def test_fin_in_a_frame_comes_behind_its_last_byte() -> None:
    muxer = listener(1)
    data = frame(1, b"abc", Flag.FIN)

    muxer.receive_data(data[:-1])
    before = muxer.events()
    muxer.receive_data(data[-1:])

    assert before == [DataReceived(StreamId(1), b"ab")]
    assert muxer.events() == [DataReceived(StreamId(1), b"c"), WriteClosed(StreamId(1))]


def test_stream_may_be_opened_and_closed_in_one_frame() -> None:
    muxer = Yamux(is_dialer=False)

    muxer.receive_data(frame(1, b"all", Flag.SYN | Flag.FIN))

    stream = StreamId(1)
    assert muxer.events() == [IncomingStream(stream), DataReceived(stream, b"all"), WriteClosed(stream)]


def test_only_what_the_window_allows_is_sent() -> None:
    muxer, stream = dialer()
    data = bytes(range(256)) * 1500

    muxer.send(stream, data)
    muxer.close_write(stream)

    first = sent(muxer)
    assert {length for _, _, _, length in frames(first)} == {MAX_SENT_BYTES}
    assert len(frames(first)) == WINDOW_BYTES // MAX_SENT_BYTES
    assert muxer.unsent(stream) == muxer.queued_bytes == len(data) - WINDOW_BYTES
    muxer.receive_data(header(UPDATE, Flag.ACK, stream, 1000))
    assert frames(sent(muxer)) == [(DATA, 0, stream, 1000)]
    muxer.receive_data(header(UPDATE, 0, stream, MAX_WINDOW_BYTES - WINDOW_BYTES))
    last = frames(sent(muxer))
    assert last[-1] == (UPDATE, Flag.FIN, stream, 0)
    assert sum(length for _, _, _, length in last) == len(data) - WINDOW_BYTES - 1000
    assert muxer.unsent(stream) == muxer.queued_bytes == 0


def test_short_pieces_fill_the_window_as_long_ones_do() -> None:
    muxer, stream = dialer()

    for _ in range(1000):
        muxer.send(stream, bytes(300))

    assert sum(length for _, _, _, length in frames(sent(muxer))) == WINDOW_BYTES
    assert muxer.unsent(stream) == 300_000 - WINDOW_BYTES


def test_short_pieces_that_waited_are_sent_together() -> None:
    muxer, stream = dialer()
    muxer.send(stream, bytes(WINDOW_BYTES))
    for number in range(100):
        muxer.send(stream, bytes([number]) * 3)
    sent(muxer)

    muxer.receive_data(header(UPDATE, 0, stream, 200))
    muxer.receive_data(header(UPDATE, 0, stream, 200))

    said = b"".join(bytes([number]) * 3 for number in range(100))
    assert sent(muxer) == frame(stream, said[:200]) + frame(stream, said[200:])


def test_nothing_overtakes_what_waits() -> None:
    muxer, stream = dialer()
    muxer.send(stream, bytes(WINDOW_BYTES - 1))
    sent(muxer)

    muxer.send(stream, b"ab")
    muxer.receive_data(header(UPDATE, 0, stream, 1))
    muxer.send(stream, b"c")
    muxer.receive_data(header(UPDATE, 0, stream, 1))

    assert sent(muxer) == frame(stream, b"a") + frame(stream, b"b") + frame(stream, b"c")


def test_what_waits_is_dropped_by_a_reset_of_either_side() -> None:
    muxer, first = dialer()
    second = muxer.open_stream()
    for stream in (first, second):
        muxer.send(stream, bytes(WINDOW_BYTES + 1000))
    sent(muxer)
    assert muxer.queued_bytes == 2000

    muxer.reset(first)
    muxer.receive_data(header(UPDATE, Flag.RST, second, 0))

    assert frames(sent(muxer)) == [(UPDATE, Flag.RST, first, 0)]
    assert muxer.queued_bytes == muxer.unsent(first) == muxer.unsent(second) == 0


def test_close_behind_what_waits_still_refuses_more() -> None:
    muxer, stream = dialer()
    muxer.send(stream, bytes(WINDOW_BYTES + 1))
    muxer.close_write(stream)
    assert all(flags == 0 for _, flags, _, _ in frames(sent(muxer)))

    with pytest.raises(LocalProtocolError):
        muxer.send(stream, b"late")


def test_window_is_given_back_once_half_of_it_is_consumed() -> None:
    muxer = listener(1)
    muxer.receive_data(frame(1, bytes(WINDOW_BYTES)))

    muxer.consumed(StreamId(1), WINDOW_BYTES // 2 - 1)
    assert sent(muxer) == b""
    muxer.consumed(StreamId(1), 1)

    assert frames(sent(muxer)) == [(UPDATE, 0, 1, WINDOW_BYTES // 2)]
    muxer.receive_data(frame(1, bytes(WINDOW_BYTES // 2)))
    assert fault_of(muxer, frame(1, b"x")) is Cause.WINDOW_OVERRUN


def test_no_window_is_given_to_a_half_that_is_closed() -> None:
    muxer = listener(1)
    muxer.receive_data(frame(1, bytes(WINDOW_BYTES), Flag.FIN))

    muxer.consumed(StreamId(1), WINDOW_BYTES)

    assert sent(muxer) == b""


def test_frame_beyond_the_window_is_a_fault_on_its_header() -> None:
    muxer = listener(1)
    muxer.receive_data(frame(1, b"x"))
    muxer.events()

    assert fault_of(muxer, header(DATA, 0, 1, WINDOW_BYTES)) is Cause.WINDOW_OVERRUN
    assert muxer.events() == []


@pytest.mark.parametrize("flags", [0, Flag.SYN])
@pytest.mark.parametrize("stream", [1, 3])
def test_no_stream_may_have_a_frame_longer_than_any_window(stream: int, flags: int) -> None:
    muxer = listener(1)

    assert fault_of(muxer, header(DATA, flags, stream, WINDOW_BYTES + 1)) is Cause.FRAME_TOO_LONG


def test_window_of_ours_may_be_as_large_as_its_number_and_no_larger() -> None:
    muxer = listener(1)
    muxer.receive_data(header(UPDATE, 0, 1, MAX_WINDOW_BYTES - WINDOW_BYTES))

    assert fault_of(muxer, header(UPDATE, 0, 1, 1)) is Cause.WINDOW_OVERFLOW


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"\x01" + header(DATA, 0, 1, 0)[1:], Cause.BAD_FRAME),
        (header(4, 0, 1, 0), Cause.BAD_FRAME),
        (header(DATA, 0, 0, 0), Cause.BAD_STREAM_ID),
        (header(UPDATE, Flag.SYN, 0, 0), Cause.BAD_STREAM_ID),
        (header(UPDATE, Flag.SYN, 2, 0), Cause.BAD_STREAM_ID),
        (header(UPDATE, Flag.SYN, 5, 0) * 2, Cause.STREAM_REUSED),
    ],
)
def test_broken_rule_is_a_fault_however_the_bytes_are_cut(data: bytes, cause: Cause) -> None:
    muxer = Yamux(is_dialer=False)

    assert fault_of(Yamux(is_dialer=False), data) is cause
    for byte in data[:-1]:
        muxer.receive_data(bytes([byte]))
    assert fault_of(muxer, data[-1:]) is cause


@pytest.mark.parametrize("stream", [0, 1, 3])
def test_listener_may_not_use_ids_of_the_dialer(stream: int) -> None:
    muxer, _ = dialer()

    assert fault_of(muxer, header(UPDATE, Flag.SYN, stream, 0)) is Cause.BAD_STREAM_ID


def test_id_is_free_again_once_its_stream_is_gone() -> None:
    muxer = listener(1)

    muxer.receive_data(header(UPDATE, Flag.RST, 1, 0) + header(UPDATE, Flag.SYN, 1, 0))

    assert [type(event) for event in muxer.events()] == [StreamReset, IncomingStream]


def test_streams_may_be_opened_in_any_order_of_their_ids() -> None:
    muxer = Yamux(is_dialer=False)

    for stream in (5, 1, 0xFFFFFFFF, 3):
        muxer.receive_data(header(UPDATE, Flag.SYN, stream, 0))

    streams = [event.stream for event in muxer.events() if isinstance(event, IncomingStream)]
    assert len(set(streams)) == 4
    for stream in streams:
        muxer.send(stream, b"x")
    assert muxer.data_to_send()[4:] == [frame(number, b"x") for number in (5, 1, 0xFFFFFFFF, 3)]


def test_data_of_a_stream_that_was_refused_is_skipped() -> None:
    muxer = Yamux(is_dialer=False, max_streams=1)

    muxer.receive_data(frame(1, b"taken", Flag.SYN) + frame(3, b"refused", Flag.SYN) + frame(3, b"crossed"))

    assert muxer.events() == [IncomingStream(StreamId(1)), DataReceived(StreamId(1), b"taken")]
    assert frames(sent(muxer)) == [(UPDATE, Flag.ACK, 1, 0), (UPDATE, Flag.RST, 3, 0)]
    assert (muxer.refused_streams, muxer.ignored_frames) == (1, 1)


def test_streams_wait_for_no_more_acknowledgements_than_the_backlog_has_room_for() -> None:
    muxer = Yamux(is_dialer=True, max_streams=1000)
    streams = [muxer.open_stream() for _ in range(MAX_UNACKNOWLEDGED)]
    assert not muxer.may_open

    muxer.receive_data(header(UPDATE, Flag.ACK, streams[0], 0) * 2)  # a second one frees no second place
    muxer.open_stream()
    after_an_acknowledgement = muxer.may_open
    muxer.reset(streams[0])  # it has been acknowledged: that is no place
    after_a_reset_of_it = muxer.may_open
    muxer.receive_data(header(UPDATE, Flag.SYN, 2, 0) + header(UPDATE, Flag.RST, 2, 0))
    after_streams_of_theirs = muxer.may_open
    muxer.receive_data(header(UPDATE, Flag.RST, streams[1], 0))

    assert (after_an_acknowledgement, after_a_reset_of_it, after_streams_of_theirs) == (False, False, False)
    assert muxer.may_open


def test_ids_of_ours_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mailserver.libp2p.yamux.MAX_STREAM_ID", 3)
    muxer = Yamux(is_dialer=True)

    assert [muxer.open_stream(), muxer.open_stream()] == [1, 3]

    assert not muxer.may_open


def test_ping_is_answered_with_its_value_and_an_answer_is_not() -> None:
    muxer = Yamux(is_dialer=False)

    muxer.receive_data(header(PING, Flag.SYN, 0, 0xDEADBEEF) + header(PING, Flag.ACK, 0, 7))

    assert sent(muxer) == header(PING, Flag.ACK, 0, 0xDEADBEEF)
    assert muxer.events() == []
    assert muxer.ignored_frames == 1


def test_flood_of_pings_has_few_answers_until_they_are_taken() -> None:
    muxer = Yamux(is_dialer=False)
    flood = header(PING, Flag.SYN, 0, 1) * 1000

    muxer.receive_data(flood)
    assert len(frames(sent(muxer))) == MAX_PINGS
    muxer.receive_data(flood)

    assert len(frames(sent(muxer))) == MAX_PINGS
    assert muxer.ignored_frames == 2000 - 2 * MAX_PINGS


def test_fin_of_one_stream_closes_no_other() -> None:
    muxer = listener(2)

    muxer.receive_data(frame(1, b"last", Flag.FIN) + frame(3, b"data"))

    first, second = StreamId(1), StreamId(3)
    assert muxer.events() == [DataReceived(first, b"last"), WriteClosed(first), DataReceived(second, b"data")]


def test_going_away_is_said_once_with_its_code() -> None:
    muxer = listener(1)

    muxer.go_away(1)
    muxer.go_away(0)

    assert sent(muxer) == header(GO_AWAY, 0, 0, 1)


def test_side_that_is_going_away_gets_no_streams_of_ours() -> None:
    muxer = listener(1)

    muxer.receive_data(header(GO_AWAY, 0, 0, 2) + frame(1, b"goes on"))

    assert muxer.events() == [PeerGoingAway(2), DataReceived(StreamId(1), b"goes on")]
    assert not muxer.may_open


def test_stream_that_all_streams_leave_no_room_for_is_reset() -> None:
    """Its sender has kept to the windows: the connection goes on."""
    count = MAX_CONNECTION_BYTES // WINDOW_BYTES
    muxer = listener(count + 1)
    for stream in range(1, 2 * count, 2):
        muxer.receive_data(frame(stream, bytes(WINDOW_BYTES)))
    last = StreamId(2 * count + 1)
    muxer.events()

    muxer.receive_data(frame(last, b"no room"))

    assert muxer.events() == [StreamReset(last, False)]
    assert frames(sent(muxer)) == [(UPDATE, Flag.RST, last, 0)]


def test_other_frames_may_come_to_a_stream_that_is_closed_and_not_consumed() -> None:
    muxer = listener(1)
    stream = StreamId(1)
    muxer.receive_data(frame(1, b"data", Flag.FIN))
    muxer.close_write(stream)
    muxer.events()

    muxer.receive_data(header(UPDATE, Flag.FIN, 1, 1000) + frame(1, b"late") + header(UPDATE, Flag.RST, 1, 0))

    assert muxer.events() == [StreamReset(stream, True)]
    assert muxer.ignored_frames == 1
