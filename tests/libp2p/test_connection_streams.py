from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import LocalProtocolError
from mailserver.libp2p import mplex, yamux
from mailserver.libp2p.connection import NEGOTIATION_TIMEOUT_S, Connection
from mailserver.libp2p.events import Closed, Event, ProtocolRefused, StreamFailed, StreamOpened
from mailserver.libp2p.faults import Cause
from mailserver.libp2p.multistream import HEADER, MAX_PROPOSALS
from mailserver.libp2p.noise import MAX_MESSAGE_BYTES
from mailserver.libp2p.streams import (
    MAX_CONNECTION_BYTES,
    MAX_STREAM_BYTES,
    MAX_STREAMS,
    DataReceived,
    Muxer,
    PeerGoingAway,
    StreamId,
    StreamReset,
    WriteClosed,
)
from tests.libp2p.links import CHAT, ECHO, Pair, ScriptedPeer, closed, lines, listening, muxer_of
from tests.libp2p.names import MUXERS
from tests.pairs import START
from tests.properties import settings

both_muxers = pytest.mark.parametrize("muxer", MUXERS)
both_roles = pytest.mark.parametrize("is_dialer", [True, False], ids=["dialer", "listener"])

E = TypeVar("E", bound=Event)


def first(events: Sequence[Event], kind: type[E]) -> E:
    """The first event of a kind."""
    found = next((event for event in events if isinstance(event, kind)), None)
    assert found is not None, events
    return found


def received(events: Sequence[Event], stream: StreamId) -> bytes:
    """The data of a stream."""
    return b"".join(event.data for event in events if isinstance(event, DataReceived) and event.stream == stream)


class MuxedPeer(ScriptedPeer):
    """A scripted peer that is past the upgrade, and makes frames with a muxer of its own."""

    def __init__(self, connection: Connection, muxer: str) -> None:
        super().__init__(connection, is_dialer=True)
        self.agree_on_noise()
        self.shake_hands()
        self.muxer: Muxer = muxer_of(muxer, is_dialer=True)
        connection.events()

    @classmethod
    def of(cls, muxer: str, *, max_streams: int = MAX_STREAMS) -> "MuxedPeer":
        """One of a listener."""
        return cls(listening((muxer,), max_streams=max_streams), muxer)

    def flush(self, now: float = START) -> None:
        """Send the frames that were made, in one message."""
        self.say_sealed(*self.muxer.data_to_send(), now=now)

    def open(self, data: bytes = b"", now: float = START) -> StreamId:
        """Open a stream and send data, nothing negotiated."""
        stream = self.muxer.open_stream()
        if data:
            self.muxer.send(stream, data)
        self.flush(now)
        return stream

    def answered(self, stream: StreamId) -> bytes:
        """What was answered on a stream; None of it may end the muxer."""
        self.muxer.receive_data(self.heard_sealed())
        return b"".join(
            event.data for event in self.muxer.events() if isinstance(event, DataReceived) and event.stream == stream
        )


# Opening


@both_muxers
@both_roles
def test_stream_of_either_side_is_opened_with_its_protocol(muxer: str, *, is_dialer: bool) -> None:
    pair = Pair.open(muxer)
    ours, theirs = (pair.dialer, pair.listener) if is_dialer else (pair.listener, pair.dialer)

    stream = ours.open_stream(CHAT, START)
    pair.pump()

    assert ours.events() == [StreamOpened(stream, CHAT, is_ours=True)]
    opened = first(theirs.events(), StreamOpened)
    assert (opened.protocol, opened.is_ours) == (CHAT, False)


@both_muxers
def test_data_goes_both_ways_until_both_halves_are_closed(muxer: str) -> None:
    pair = Pair.open(muxer)
    stream = pair.dialer.open_stream(ECHO, START)
    pair.dialer.send(stream, b"question")
    pair.dialer.close_write(stream)
    pair.pump()
    events = pair.listener.events()
    theirs = first(events, StreamOpened).stream
    assert events[1:] == [DataReceived(theirs, b"question"), WriteClosed(theirs)]

    pair.listener.consumed(theirs, 8)
    pair.listener.send(theirs, b"answer")
    pair.listener.close_write(theirs)
    pair.pump()

    assert pair.dialer.events() == [
        StreamOpened(stream, ECHO, is_ours=True),
        DataReceived(stream, b"answer"),
        WriteClosed(stream),
    ]


@both_muxers
def test_proposal_and_first_data_go_out_together(muxer: str) -> None:
    pair = Pair.open(muxer)

    stream = pair.dialer.open_stream(CHAT, START)
    pair.dialer.send(stream, b"lazy")
    (message,) = pair.dialer.data_to_send()
    pair.listener.receive_data(message, START)

    events = pair.listener.events()
    assert received(events, first(events, StreamOpened).stream) == b"lazy"


@both_muxers
def test_protocol_that_is_not_spoken_is_refused(muxer: str) -> None:
    pair = Pair.open(muxer)

    stream = pair.dialer.open_stream("/other/1.0.0", START)
    pair.dialer.send(stream, b"for nobody")
    pair.pump()

    assert pair.dialer.events() == [ProtocolRefused(stream, "/other/1.0.0")]
    # The data behind the proposal was read as a line, which it is not.
    assert {type(event) for event in pair.listener.events()} <= {StreamFailed}
    assert pair.dialer.next_timer() is None
    assert pair.listener.next_timer() is None


@both_muxers
def test_peer_may_try_other_protocols(muxer: str) -> None:
    peer = MuxedPeer.of(muxer)

    stream = peer.open(lines(HEADER, "ls", "/other/1.0.0", CHAT) + b"data")

    assert peer.answered(stream) == lines(HEADER, "na", "na", CHAT)
    opened, data = peer.connection.events()
    assert opened == StreamOpened(first([opened], StreamOpened).stream, CHAT, is_ours=False)
    assert data == DataReceived(first([opened], StreamOpened).stream, b"data")


@both_muxers
def test_negotiation_byte_by_byte_is_the_same(muxer: str) -> None:
    peer = MuxedPeer.of(muxer)
    stream = peer.open()

    for byte in lines(HEADER, "/other/1.0.0", CHAT) + b"data":
        peer.muxer.send(stream, bytes([byte]))
        peer.flush()

    assert peer.answered(stream) == lines(HEADER, "na", CHAT)
    events = peer.connection.events()
    assert received(events, first(events, StreamOpened).stream) == b"data"


@both_muxers
def test_negotiation_is_not_counted_as_unread(muxer: str) -> None:
    """Else a stream that nobody consumes of could not take all of MAX_STREAM_BYTES."""
    peer = MuxedPeer.of(muxer)
    stream = peer.open(lines(HEADER, *["/other/1.0.0"] * (MAX_PROPOSALS - 1), CHAT) + b"data")
    opened = first(peer.connection.events(), StreamOpened).stream

    peer.connection.consumed(opened, 4)
    with pytest.raises(LocalProtocolError):
        peer.connection.consumed(opened, 1)

    assert peer.answered(stream).endswith(lines(CHAT))


@both_muxers
@pytest.mark.parametrize(
    "rest", [lines(CHAT)[3:] + b"data", b"\n", b"", None], ids=["agreed", "malformed", "timer", "reset"]
)
def test_line_that_is_not_whole_is_held_until_it_is_or_its_stream_is_gone(muxer: str, rest: bytes | None) -> None:
    peer = MuxedPeer.of(muxer)
    streams = [peer.open(lines(HEADER, CHAT)[: len(lines(HEADER)) + 3]) for _ in range(5)]
    assert peer.connection.held_bytes == 5 * 3

    for stream in streams:
        if rest is None:
            peer.muxer.reset(stream)
        elif rest:
            peer.muxer.send(stream, rest)
    peer.flush()
    peer.connection.handle_timer(START + NEGOTIATION_TIMEOUT_S)

    assert peer.connection.held_bytes == 0


@both_muxers
def test_connection_that_is_closed_holds_no_lines(muxer: str) -> None:
    peer = MuxedPeer.of(muxer)
    peer.open(lines(HEADER)[:5])

    peer.connection.close()

    assert peer.connection.held_bytes == 0


# What goes wrong while a protocol is agreed on


@both_muxers
def test_empty_stream_is_no_fault_however_long_it_is_idle(muxer: str) -> None:
    peer = MuxedPeer.of(muxer)
    stream = peer.open()

    assert peer.connection.next_timer() is None
    peer.connection.handle_timer(START + 1000 * NEGOTIATION_TIMEOUT_S)
    peer.muxer.send(stream, lines(HEADER, CHAT))
    peer.flush(START + 1000 * NEGOTIATION_TIMEOUT_S)

    assert peer.answered(stream) == lines(HEADER, CHAT)
    assert [type(event) for event in peer.connection.events()] == [StreamOpened]


@both_muxers
def test_negotiation_that_has_begun_ends_by_its_timer(muxer: str) -> None:
    peer = MuxedPeer.of(muxer)
    peer.open(lines(HEADER)[:1], START + 1)
    peer.open(lines(HEADER), START + 2)

    assert peer.connection.next_timer() == START + 1 + NEGOTIATION_TIMEOUT_S
    peer.connection.handle_timer(START + 1 + NEGOTIATION_TIMEOUT_S)

    failed = peer.connection.events()
    assert [(event.cause, event.is_ours) for event in failed if isinstance(event, StreamFailed)] == [
        (Cause.NEGOTIATION_TIMEOUT, False)
    ]
    assert peer.connection.next_timer() == START + 2 + NEGOTIATION_TIMEOUT_S


@both_muxers
def test_more_bytes_give_a_negotiation_no_more_time(muxer: str) -> None:
    peer = MuxedPeer.of(muxer)
    stream = peer.open(lines(HEADER))

    peer.muxer.send(stream, lines("/other/1.0.0"))
    peer.flush(START + NEGOTIATION_TIMEOUT_S - 1)

    assert peer.connection.next_timer() == START + NEGOTIATION_TIMEOUT_S


@both_muxers
def test_stream_of_ours_that_is_not_answered_ends_by_its_timer(muxer: str) -> None:
    pair = Pair.open(muxer)
    stream = pair.dialer.open_stream(CHAT, START)

    assert pair.dialer.next_timer() == START + NEGOTIATION_TIMEOUT_S
    pair.dialer.handle_timer(START + NEGOTIATION_TIMEOUT_S)

    assert pair.dialer.events() == [StreamFailed(stream, Cause.NEGOTIATION_TIMEOUT, is_ours=True)]
    assert pair.dialer.next_timer() is None


@both_muxers
@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (lines(CHAT), Cause.NO_MULTISTREAM),
        (lines(HEADER) + b"\0", Cause.BAD_LINE),
        (lines(HEADER) + b"\xff\x7f", Cause.LINE_TOO_LONG),
        (lines(HEADER, *["/other/1.0.0"] * (MAX_PROPOSALS + 1)), Cause.TOO_MANY_PROPOSALS),
    ],
)
def test_bad_negotiation_ends_its_stream_and_nothing_else(muxer: str, data: bytes, cause: Cause) -> None:
    peer = MuxedPeer.of(muxer)
    other = peer.open(lines(HEADER, CHAT))
    peer.connection.events()

    stream = peer.open(data)
    peer.muxer.send(stream, lines(CHAT))
    peer.muxer.send(other, b"still there")
    peer.flush()

    failed, data_received = peer.connection.events()
    assert isinstance(failed, StreamFailed)
    assert (failed.cause, failed.is_ours) == (cause, False)
    assert isinstance(data_received, DataReceived)
    assert data_received.data == b"still there"
    peer.muxer.receive_data(peer.heard_sealed())
    assert StreamReset(stream, by_peer=True) in peer.muxer.events()


@both_muxers
def test_what_comes_for_a_failed_stream_in_the_same_message_is_dropped(muxer: str) -> None:
    peer = MuxedPeer.of(muxer)
    stream = peer.muxer.open_stream()
    for data in (lines("/nonsense"), lines(HEADER, CHAT), b"data"):
        peer.muxer.send(stream, data)
    peer.muxer.close_write(stream)

    peer.flush()

    assert [type(event) for event in peer.connection.events()] == [StreamFailed]


@both_muxers
def test_wrong_answer_ends_a_stream_of_ours(muxer: str) -> None:
    peer = MuxedPeer.of(muxer)
    stream = peer.connection.open_stream(CHAT, START)
    peer.hear()
    peer.muxer.receive_data(peer.heard_sealed())
    theirs = first([event for event in peer.muxer.events() if isinstance(event, DataReceived)], DataReceived).stream

    peer.muxer.send(theirs, lines(HEADER, ECHO))
    peer.flush()

    assert peer.connection.events() == [StreamFailed(stream, Cause.WRONG_ANSWER, is_ours=True)]


@both_muxers
@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "closed"])
def test_stream_that_ends_before_it_has_a_protocol_is_told_to_whoever_opened_it(muxer: str, *, is_reset: bool) -> None:
    peer = MuxedPeer.of(muxer)
    stream = peer.connection.open_stream(CHAT, START)
    peer.hear()
    peer.muxer.receive_data(peer.heard_sealed())
    ours = first([event for event in peer.muxer.events() if isinstance(event, DataReceived)], DataReceived).stream
    theirs = peer.open(lines(HEADER))

    for each in (ours, theirs):
        (peer.muxer.reset if is_reset else peer.muxer.close_write)(each)
    peer.flush()

    assert peer.connection.events() == [StreamReset(stream, by_peer=True)]
    assert peer.connection.next_timer() is None
    peer.muxer.receive_data(peer.heard_sealed())
    resets = {event.stream for event in peer.muxer.events() if isinstance(event, StreamReset)}
    assert resets == (set() if is_reset else {ours, theirs})


# Bounds


@both_muxers
def test_streams_of_each_side_are_bounded(muxer: str) -> None:
    pair = Pair.open(muxer, max_streams=3)
    for connection in (pair.dialer, pair.listener):
        for _ in range(3):
            connection.open_stream(CHAT, START)
        assert not connection.may_open
        with pytest.raises(LocalProtocolError):
            connection.open_stream(CHAT, START)
    pair.pump()

    for connection in (pair.dialer, pair.listener):
        assert [type(event) for event in connection.events()] == [StreamOpened] * 6


@both_muxers
def test_more_streams_of_the_peer_are_reset(muxer: str) -> None:
    peer = MuxedPeer.of(muxer, max_streams=2)

    opened = [peer.open(lines(HEADER, CHAT)) for _ in range(3)]
    peer.muxer.receive_data(peer.heard_sealed())
    assert StreamReset(opened[2], by_peer=True) in peer.muxer.events()
    assert [type(event) for event in peer.connection.events()] == [StreamOpened] * 2
    peer.muxer.reset(opened[0])
    peer.open(lines(HEADER, CHAT))

    assert [type(event) for event in peer.connection.events()] == [StreamReset, StreamOpened]


@both_muxers
def test_data_that_is_not_consumed_is_bounded_on_a_stream(muxer: str) -> None:
    peer = MuxedPeer.of(muxer)
    peer.open(lines(HEADER, CHAT))
    events = peer.connection.events()
    opened = first(events, StreamOpened).stream
    # yamux tells what was consumed once it is half a window, so the negotiation still takes some of it.
    allowed = MAX_STREAM_BYTES - (len(lines(HEADER, CHAT)) if muxer == yamux.PROTOCOL else 0)
    raw = raw_data(muxer, allowed)

    for at in range(0, len(raw), MAX_MESSAGE_BYTES // 2):
        peer.say_sealed(raw[at : at + MAX_MESSAGE_BYTES // 2])
    events = peer.connection.events()
    assert len(received(events, opened)) == allowed
    peer.say_sealed(raw_data(muxer, 1))

    last = peer.connection.events()[-1]
    if muxer == mplex.PROTOCOL:
        assert last == StreamReset(opened, by_peer=False)
    else:
        assert isinstance(last, Closed)
        assert last.fault is not None
        assert last.fault.cause is Cause.WINDOW_OVERRUN


def raw_data(muxer: str, size: int) -> bytes:
    """Frames of the dialer's first stream with so many bytes, whether or not the other side allows them."""
    if muxer == mplex.PROTOCOL:
        other = mplex.Mplex()
        stream = other.open_stream()
        other.data_to_send()
        other.send(stream, bytes(size))
        return b"".join(other.data_to_send())
    frames = b""
    while size:
        length = min(size, 60_000)
        frames += yamux.HEADER.pack(0, yamux.FrameType.DATA, 0, 1, length) + bytes(length)
        size -= length
    return frames


def test_data_that_is_not_consumed_is_bounded_on_a_connection_of_mplex() -> None:
    peer = MuxedPeer.of(mplex.PROTOCOL)
    piece = bytes(64_000)
    whole, rest = divmod(MAX_CONNECTION_BYTES, len(piece))
    streams = [peer.open(lines(HEADER, CHAT)) for _ in range(whole // 4 + 1)]
    for number in range(whole + 1):
        peer.muxer.send(streams[number // 4], piece if number < whole else piece[:rest])
        peer.flush()
    assert {type(event) for event in peer.connection.events()} == {StreamOpened, DataReceived}

    peer.muxer.send(streams[-1], b"x")
    peer.flush()

    fault = closed(peer.connection.events()).fault
    assert fault is not None
    assert fault.cause is Cause.TOO_MUCH_UNREAD


@both_muxers
def test_consumed_data_makes_room(muxer: str) -> None:
    pair = Pair.open(muxer)
    stream = pair.dialer.open_stream(CHAT, START)
    data = bytes(50_000)
    total = 0

    for _ in range(40):
        pair.dialer.send(stream, data)
        pair.pump()
        for event in pair.listener.events():
            if isinstance(event, DataReceived):
                total += len(event.data)
                pair.listener.consumed(event.stream, len(event.data))
        pair.pump()

    assert total == 40 * 50_000
    assert pair.dialer.unsent(stream) == 0


def test_yamux_waits_for_the_window_and_says_so() -> None:
    pair = Pair.open(yamux.PROTOCOL)
    stream = pair.dialer.open_stream(CHAT, START)

    pair.dialer.send(stream, bytes(MAX_STREAM_BYTES + 1000))
    assert pair.dialer.queued_bytes >= MAX_STREAM_BYTES + 1000
    pair.pump()

    waiting = pair.dialer.unsent(stream)
    assert 0 < waiting <= 1000 + len(lines(HEADER, CHAT))
    assert pair.dialer.queued_bytes == waiting
    opened = first(pair.listener.events(), StreamOpened).stream
    pair.listener.consumed(opened, MAX_STREAM_BYTES - 1000)
    pair.pump()
    assert pair.dialer.unsent(stream) == 0
    assert pair.dialer.queued_bytes == 0


@both_muxers
def test_many_small_sends_go_out_in_few_messages(muxer: str) -> None:
    pair = Pair.open(muxer)
    stream = pair.dialer.open_stream(CHAT, START)
    pair.pump()
    pair.dialer.events()

    for _ in range(400):
        pair.dialer.send(stream, bytes(300))

    assert pair.dialer.queued_bytes >= 400 * 300
    assert len(pair.dialer.data_to_send()) == 2
    assert pair.dialer.queued_bytes == 0
    assert pair.dialer.data_to_send() == []


# Ends


@both_muxers
def test_stream_that_is_reset_is_gone_on_both_sides(muxer: str) -> None:
    pair = Pair.open(muxer)
    stream = pair.dialer.open_stream(CHAT, START)
    pair.pump()
    pair.dialer.events()
    opened = first(pair.listener.events(), StreamOpened).stream

    pair.dialer.reset(stream)
    pair.pump()

    assert pair.listener.events() == [StreamReset(opened, by_peer=True)]
    assert pair.dialer.events() == []


@both_muxers
def test_stream_that_we_reset_before_it_is_answered_has_no_timer_and_no_event(muxer: str) -> None:
    pair = Pair.open(muxer)
    stream = pair.dialer.open_stream(CHAT, START)

    pair.dialer.reset(stream)
    pair.pump()

    assert pair.dialer.events() == []
    assert pair.dialer.next_timer() is None


@both_muxers
def test_nothing_happens_to_a_stream_or_a_connection_that_is_gone(muxer: str) -> None:
    pair = Pair.open(muxer)
    stream = pair.dialer.open_stream(CHAT, START)
    pair.pump()
    pair.dialer.events()

    for is_closed in (False, True):
        if is_closed:
            pair.dialer.close()
        else:
            pair.dialer.reset(stream)
        pair.dialer.data_to_send()
        pair.dialer.send(stream, b"late")
        pair.dialer.consumed(stream, 5)
        pair.dialer.close_write(stream)
        pair.dialer.reset(stream)
        assert pair.dialer.unsent(stream) == 0
        assert pair.dialer.queued_bytes == 0
        assert pair.dialer.data_to_send() == []

    assert pair.dialer.events() == [Closed(None)]
    assert not pair.dialer.may_open


@both_muxers
def test_what_is_queued_is_sent_before_we_close(muxer: str) -> None:
    pair = Pair.open(muxer)
    stream = pair.dialer.open_stream(CHAT, START)
    pair.dialer.send(stream, b"last words")

    pair.dialer.close()
    pair.pump()

    assert pair.dialer.events() == [Closed(None)]
    events = pair.listener.events()
    assert received(events, first(events, StreamOpened).stream) == b"last words"
    if muxer == yamux.PROTOCOL:
        assert events[-1] == PeerGoingAway(0)
        assert not pair.listener.may_open


def test_peer_that_broke_a_rule_is_told_in_yamux() -> None:
    peer = MuxedPeer.of(yamux.PROTOCOL)

    peer.say_sealed(b"\x01" + bytes(11))

    assert closed(peer.connection.events()).fault is not None
    peer.muxer.receive_data(peer.heard_sealed())
    assert peer.muxer.events() == [PeerGoingAway(1)]


@both_muxers
def test_what_came_before_a_fault_is_passed_on(muxer: str) -> None:
    peer = MuxedPeer.of(muxer)
    stream = peer.muxer.open_stream()
    peer.muxer.send(stream, lines(HEADER, CHAT) + b"data")
    bad = b"\x01" + bytes(11) if muxer == yamux.PROTOCOL else b"\x07\x00"

    peer.say_sealed(*peer.muxer.data_to_send(), bad)

    opened, data, end = peer.connection.events()
    assert isinstance(opened, StreamOpened)
    assert data == DataReceived(opened.stream, b"data")
    assert isinstance(end, Closed)
    assert end.fault is not None
    assert end.fault.cause is Cause.BAD_FRAME


@both_muxers
def test_message_that_was_tampered_with_ends_the_connection(muxer: str) -> None:
    pair = Pair.open(muxer)
    pair.dialer.open_stream(CHAT, START)
    (message,) = pair.dialer.data_to_send()

    pair.listener.receive_data(message[:-1] + bytes([message[-1] ^ 1]), START)

    fault = closed(pair.listener.events()).fault
    assert fault is not None
    assert fault.cause is Cause.UNDECRYPTABLE


@both_muxers
def test_message_that_was_replayed_ends_the_connection(muxer: str) -> None:
    pair = Pair.open(muxer)
    pair.dialer.open_stream(CHAT, START)
    (message,) = pair.dialer.data_to_send()
    pair.listener.receive_data(message, START)
    assert [type(event) for event in pair.listener.events()] == [StreamOpened]

    pair.listener.receive_data(message, START)

    fault = closed(pair.listener.events()).fault
    assert fault is not None
    assert fault.cause is Cause.UNDECRYPTABLE


@both_muxers
@pytest.mark.parametrize("chunk_bytes", [1, 13])
def test_streams_in_pieces_are_the_same(muxer: str, chunk_bytes: int) -> None:
    whole, cut = Pair.open(muxer), Pair.open(muxer)

    for pair, size in ((whole, None), (cut, chunk_bytes)):
        for number in range(5):
            stream = pair.dialer.open_stream(CHAT if number else "/other/1.0.0", START)
            pair.dialer.send(stream, bytes([number]) * 100)
            pair.dialer.close_write(stream)
        pair.pump(chunk_bytes=size)

    assert whole.listener.events() == cut.listener.events()
    assert whole.dialer.events() == cut.dialer.events()


@both_muxers
@given(data=st.lists(st.binary(min_size=1, max_size=60), max_size=20))
@settings()
def test_random_frames_raise_nothing(muxer: str, data: list[bytes]) -> None:
    peer = MuxedPeer.of(muxer)

    for piece in data:
        peer.say_sealed(piece)

    kinds = [type(event) for event in peer.connection.events()]
    assert kinds.count(Closed) <= 1
    assert Closed not in kinds[:-1]
