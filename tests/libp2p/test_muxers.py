"""What both muxers promise. What is only of one is in test_mplex.py and test_yamux.py."""

import random
import tracemalloc
from contextlib import nullcontext, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import LocalProtocolError
from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.framed_muxer import MAX_FRAMES_AT_ONCE, MAX_IDLE_FRAMES, MAX_SENT_BYTES
from mailserver.libp2p.streams import (
    MAX_CONNECTION_BYTES,
    MAX_STREAM_BYTES,
    MAX_STREAMS,
    DataReceived,
    IncomingStream,
    StreamId,
    StreamReset,
    WriteClosed,
)
from tests.data import load
from tests.fuzz.choices import Choices
from tests.libp2p.joined import MUXERS, Joined, Side, converse
from tests.properties import settings

pytestmark = pytest.mark.parametrize("kind", MUXERS)


def opened(kind: str) -> tuple[Joined, StreamId, StreamId]:
    """Two sides, and one stream of the first: its name there, and with the other."""
    joined = Joined(kind)
    stream = joined.sides[0].open()
    joined.settle()
    return joined, stream, joined.sides[1].opened[0]


def exchange(joined: Joined, to: int) -> None:
    """Let everything arrive at one side, where nothing is consumed."""
    while joined.fly(to, 1 << 16):
        pass


def spoken(kind: str) -> bytes:
    """What a dialer says: streams with data, closed, reset, and data that is long."""
    muxer = MUXERS[kind](True)
    first, second, third = (muxer.open_stream() for _ in range(3))
    muxer.send(first, b"short")
    muxer.send(second, bytes(range(256)) * 400)
    muxer.close_write(second)
    muxer.send(first, b"more")
    muxer.reset(third)
    muxer.close_write(first)
    return b"".join(muxer.data_to_send())


def heard_in_pieces(kind: str, data: bytes, cut: int) -> Side:
    side = Side(MUXERS[kind](False))
    for at in range(0, len(data), cut):
        side.receive(data[at : at + cut])
    return side


@given(data=st.binary(max_size=400))
@settings(max_examples=300)
def test_each_stream_brings_its_bytes_in_order_whatever_is_done_and_however_it_is_cut(kind: str, data: bytes) -> None:
    converse(kind, Choices(data))


@pytest.mark.parametrize("cut", [1, 5, 1 << 20])
def test_conversation_of_another_implementation_is_read(kind: str, cut: int) -> None:
    (recorded,) = (each for each in load("muxers.json")["conversations"] if each["muxer"] == kind)

    side = heard_in_pieces(kind, bytes.fromhex(recorded["said"]), cut)

    *asked, last = side.heard.values()
    assert [heard.data for heard in asked] == [
        bytes((at * 7 + number) & 255 for at in range(size)) for number, size in enumerate(recorded["sizes"])
    ]
    assert all(heard.is_closed and not heard.is_reset for heard in asked)
    assert last.is_reset
    assert side.going_away == ([0] if kind == "yamux" else [])


@pytest.mark.parametrize("opener", [0, 1])
def test_either_side_opens_streams_and_both_send_on_them(kind: str, opener: int) -> None:
    joined = Joined(kind)
    here, there = joined.sides[opener], joined.sides[1 - opener]

    stream = here.open()
    here.muxer.send(stream, b"question")
    joined.settle()
    (theirs,) = there.opened
    there.muxer.send(theirs, b"answer")
    joined.settle()

    assert there.heard[theirs].data == b"question"
    assert here.heard[stream].data == b"answer"


def test_streams_of_both_sides_have_different_names(kind: str) -> None:
    joined = Joined(kind)
    for side in joined.sides:
        for _ in range(3):
            side.open()

    joined.settle()

    assert [len(side.heard) for side in joined.sides] == [6, 6]


def test_half_that_is_closed_leaves_the_other_open(kind: str) -> None:
    joined, stream, theirs = opened(kind)
    here, there = joined.sides

    here.muxer.send(stream, b"question")
    here.muxer.close_write(stream)
    queued = here.muxer.queued_bytes
    here.muxer.close_write(stream)
    assert here.muxer.queued_bytes == queued
    joined.settle()
    there.muxer.send(theirs, b"answer")
    joined.settle()

    assert there.heard[theirs].is_closed
    assert here.heard[stream].data == b"answer"
    assert not here.heard[stream].is_closed


def test_data_for_a_half_that_is_closed_is_a_bug_of_ours(kind: str) -> None:
    joined, stream, _ = opened(kind)
    muxer = joined.sides[0].muxer
    muxer.close_write(stream)

    with pytest.raises(LocalProtocolError):
        muxer.send(stream, b"late")


def test_reset_reaches_the_other_side_and_nothing_follows(kind: str) -> None:
    joined, stream, theirs = opened(kind)
    here, there = joined.sides

    here.muxer.reset(stream)
    here.muxer.send(stream, b"late")
    here.muxer.close_write(stream)
    here.muxer.consumed(stream, 1)
    here.muxer.reset(stream)
    joined.flying[1].extend(here.data_to_send())
    there.receive(bytes(joined.flying[1]))

    assert there.heard[theirs].is_reset
    assert here.data_to_send() == b""
    assert here.muxer.unsent(stream) == 0


def test_reset_drops_the_events_of_its_stream_and_no_others(kind: str) -> None:
    joined, stream, theirs = opened(kind)
    here, there = joined.sides
    other = here.open()
    here.muxer.send(stream, b"dropped")
    here.muxer.send(other, b"kept")

    there.muxer.receive_data(here.data_to_send())
    there.muxer.reset(theirs)

    kinds = [type(event) for event in there.muxer.events()]
    assert kinds == [IncomingStream, DataReceived]


def test_frames_that_cross_a_reset_are_ignored_and_counted(kind: str) -> None:
    joined, stream, theirs = opened(kind)
    here, there = joined.sides

    there.muxer.reset(theirs)
    here.muxer.send(stream, b"crossed")
    here.muxer.close_write(stream)
    joined.settle()

    assert there.muxer.ignored_frames == 2
    assert there.heard[theirs].data == b""
    assert here.heard[stream].is_reset


def test_data_behind_a_close_is_ignored_and_counted(kind: str) -> None:
    joined, stream, theirs = opened(kind)
    here, there = joined.sides
    here.muxer.send(stream, b"data")
    data = here.data_to_send()
    here.muxer.close_write(stream)
    there.receive(here.data_to_send())

    there.receive(data)

    assert there.muxer.ignored_frames == 1
    assert there.heard[theirs].data == b""


def test_nothing_is_sent_for_empty_data(kind: str) -> None:
    joined, stream, _ = opened(kind)
    muxer = joined.sides[0].muxer

    muxer.send(stream, b"")

    assert muxer.data_to_send() == []


def test_long_data_leaves_room_for_other_streams_between_its_frames(kind: str) -> None:
    joined, stream, theirs = opened(kind)
    here, there = joined.sides
    data = random.Random(2).randbytes(2 * MAX_SENT_BYTES + 1)

    here.muxer.send(stream, data)

    pieces = here.muxer.data_to_send()
    assert len(pieces) == 3
    for piece in pieces:
        assert len(piece) <= MAX_SENT_BYTES + 12
        there.receive(piece)
    assert there.heard[theirs].data == data


def test_more_streams_than_may_be_open_at_once_are_reset(kind: str) -> None:
    joined = Joined(kind)
    there = joined.sides[1]
    openings = b"".join(openings_of(kind, MAX_STREAMS + 2))

    there.receive(openings)

    assert len(there.opened) == MAX_STREAMS
    assert there.muxer.refused_streams == 2
    said = joined.sides[0]
    said.muxer.receive_data(there.data_to_send())  # streams that it knows nothing of
    assert said.muxer.events() == []


def openings_of(kind: str, count: int) -> list[bytes]:
    """What a dialer without our bounds sends to open streams and send a byte on each."""
    said = []
    muxer = MUXERS[kind](True)
    for _ in range(count):
        stream = muxer.open_stream()
        muxer.send(stream, b"x")
        said.append(b"".join(muxer.data_to_send()))
        muxer.reset(stream)
        muxer.data_to_send()
    return said


def test_place_of_a_stream_is_free_once_it_is_reset_or_closed_and_consumed(kind: str) -> None:
    joined = Joined(kind)
    here, there = joined.sides
    for _ in range(MAX_STREAMS):
        here.open()
    joined.settle()
    reset, closed = list(here.heard)[:2]

    here.muxer.reset(reset)
    here.muxer.send(closed, b"last")
    here.muxer.close_write(closed)
    exchange(joined, 1)
    there.muxer.close_write(there.opened[1])
    exchange(joined, 0)
    assert here.muxer.may_open
    here.open()
    exchange(joined, 1)
    here.open()  # this side is through with `closed`, the other has not consumed it
    exchange(joined, 1)

    assert there.muxer.refused_streams == 1
    there.consume(there.opened[1], 4)
    joined.settle()
    here.open()
    joined.settle()
    assert there.muxer.refused_streams == 1


@pytest.mark.parametrize("first", [0, 1])
def test_place_is_free_whichever_side_closes_first(kind: str, first: int) -> None:
    joined = Joined(kind)
    here, there = joined.sides

    for number in range(MAX_STREAMS + 1):
        ours = here.open()
        here.muxer.send(ours, b"data")
        joined.settle()
        names = (ours, there.opened[number])
        joined.sides[first].muxer.close_write(names[first])
        joined.settle()
        joined.sides[1 - first].muxer.close_write(names[1 - first])
        joined.settle()

    assert here.muxer.may_open
    assert there.muxer.refused_streams == 0


def test_no_more_streams_are_opened_than_may_be(kind: str) -> None:
    joined = Joined(kind)
    muxer = joined.sides[0].muxer
    for _ in range(MAX_STREAMS):
        assert muxer.may_open
        muxer.open_stream()

    assert not muxer.may_open
    with pytest.raises(LocalProtocolError):
        muxer.open_stream()


def test_streams_of_the_other_side_leave_ours_their_places(kind: str) -> None:
    joined = Joined(kind)
    for _ in range(MAX_STREAMS):
        joined.sides[0].open()
    joined.settle()

    for _ in range(MAX_STREAMS):
        joined.sides[1].open()
    joined.settle()

    assert [side.muxer.refused_streams for side in joined.sides] == [0, 0]
    assert [len(side.heard) for side in joined.sides] == [2 * MAX_STREAMS] * 2


def test_side_that_goes_away_opens_and_takes_no_streams_and_keeps_those_it_has(kind: str) -> None:
    joined, stream, theirs = opened(kind)
    here, there = joined.sides

    there.muxer.go_away(0)
    refused = here.open()
    here.muxer.send(stream, b"goes on")
    joined.settle()

    assert not there.muxer.may_open
    assert here.heard[refused].is_reset
    assert there.muxer.refused_streams == 1
    assert there.heard[theirs].data == b"goes on"


def test_more_cannot_be_consumed_than_has_come(kind: str) -> None:
    joined, stream, theirs = opened(kind)
    here, there = joined.sides
    here.muxer.send(stream, b"four")
    exchange(joined, 1)

    with pytest.raises(LocalProtocolError):
        there.muxer.consumed(theirs, 5)


def test_stream_goes_on_for_as_long_as_it_is_consumed(kind: str) -> None:
    joined, stream, theirs = opened(kind)
    here, there = joined.sides
    piece = bytes(100_000)

    for _ in range(50):
        here.muxer.send(stream, piece)
        joined.settle()

    assert len(there.heard[theirs].data) == 50 * len(piece)
    assert here.muxer.queued_bytes == 0


@pytest.mark.parametrize("is_refused", [True, False])
def test_flood_of_frames_that_do_nothing_is_a_fault(kind: str, is_refused: bool) -> None:
    """Streams where no more may be, or the ends of streams that are not there."""
    here, there = Joined(kind).sides
    stream = here.open()
    opening = here.data_to_send()
    here.muxer.close_write(stream)
    flood = opening if is_refused else here.data_to_send()
    there.muxer.go_away(0)

    for _ in range(3):  # what has been taken counts no more
        there.data_to_send()
        there.receive(flood * MAX_IDLE_FRAMES)
    with pytest.raises(Libp2pFault) as caught:
        there.receive(flood)

    assert caught.value.cause is Cause.IDLE_FRAMES
    assert there.muxer.received_frames == 3 * MAX_IDLE_FRAMES
    assert there.muxer.ignored_frames + there.muxer.refused_streams == 3 * MAX_IDLE_FRAMES + 1


@pytest.mark.parametrize("too_many", [0, 1])
def test_more_frames_than_anybody_has_to_say_at_once_are_a_fault(kind: str, too_many: int) -> None:
    joined, stream, _ = opened(kind)
    here, there = joined.sides
    for _ in range(MAX_FRAMES_AT_ONCE + too_many):
        here.muxer.send(stream, b"x")
    data = here.data_to_send()

    with pytest.raises(Libp2pFault) if too_many else nullcontext() as caught:
        there.receive(data)

    assert caught is None or caught.value.cause is Cause.TOO_MANY_FRAMES
    assert there.unread == MAX_FRAMES_AT_ONCE


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 1000])
def test_bytes_are_the_same_in_any_pieces(kind: str, cut: int) -> None:
    data = spoken(kind)

    whole, pieces = heard_in_pieces(kind, data, len(data)), heard_in_pieces(kind, data, cut)

    assert pieces.heard == whole.heard
    assert pieces.opened == whole.opened
    assert pieces.data_to_send() == whole.data_to_send()


def test_every_truncation_is_no_fault_and_makes_a_part_of_what_the_whole_makes(kind: str) -> None:
    data = spoken(kind)
    whole = heard_in_pieces(kind, data, len(data))

    for length in [*range(200), *range(200, len(data), 997)]:
        part = heard_in_pieces(kind, data[:length], length or 1)
        assert part.opened == whole.opened[: len(part.opened)]
        for stream, heard in part.heard.items():
            assert whole.heard[stream].data.startswith(heard.data)


@given(data=st.binary(max_size=300), is_dialer=st.booleans())
@settings(max_examples=500)
def test_random_bytes_raise_nothing_but_a_fault(kind: str, data: bytes, is_dialer: bool) -> None:
    side = Side(MUXERS[kind](is_dialer))

    with suppress(Libp2pFault):
        side.receive(data)

    assert len(side.opened) <= len(data) // 2


def test_data_of_streams_that_are_gone_is_not_kept(kind: str) -> None:
    joined, stream, theirs = opened(kind)
    here, there = joined.sides
    here.muxer.send(stream, bytes(200_000))
    pieces = here.muxer.data_to_send()
    there.muxer.reset(theirs)
    there.data_to_send()

    tracemalloc.start()
    for _ in range(20):
        for piece in pieces:
            there.muxer.receive_data(piece)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert kept < 10_000


def test_small_pieces_of_a_long_frame_cost_what_large_ones_do(kind: str) -> None:
    """Bytes are not joined again and again: each is handed on as it comes."""
    joined, stream, theirs = opened(kind)
    here, there = joined.sides
    here.muxer.send(stream, random.Random(1).randbytes(50_000))
    data = here.data_to_send()

    for at in range(0, len(data), 10):
        there.muxer.receive_data(data[at : at + 10])

    events = there.muxer.events()
    assert len(events) >= len(data) // 10 - 2
    assert {type(event) for event in events} == {DataReceived}
    assert {event.stream for event in events if isinstance(event, DataReceived)} == {theirs}


def test_bounds_of_all_streams_hold_while_nothing_is_consumed(kind: str) -> None:
    """Data on more streams than the bound has room for: none of it is kept beyond, whatever else happens."""
    joined = Joined(kind)
    here, there = joined.sides
    streams = [here.open() for _ in range(12)]
    with pytest.raises(Libp2pFault) if kind == "mplex" else nullcontext():
        for stream in streams:
            here.muxer.send(stream, bytes(MAX_STREAM_BYTES // 2))
            exchange(joined, 1)

    assert MAX_CONNECTION_BYTES - MAX_STREAM_BYTES < there.unread <= MAX_CONNECTION_BYTES


def test_stream_with_an_id_that_was_used_before_is_another_one(kind: str) -> None:
    """Else what the application does late to the first would be done to the second."""
    muxer = MUXERS[kind](False)
    names: list[StreamId] = []
    for number in range(3):
        dialer = MUXERS[kind](True)
        stream = dialer.open_stream()
        muxer.receive_data(b"".join(dialer.data_to_send()))
        (event,) = muxer.events()
        assert isinstance(event, IncomingStream)
        assert event.stream not in names
        for gone in names:
            muxer.consumed(gone, 1)
            muxer.close_write(gone)
            muxer.send(gone, b"late")
            muxer.reset(gone)
        muxer.send(event.stream, bytes([number]))

        dialer.receive_data(b"".join(muxer.data_to_send()))
        assert dialer.events() == [DataReceived(stream, bytes([number]))]
        muxer.reset(event.stream)
        muxer.data_to_send()
        names.append(event.stream)


def test_events_are_told_in_the_order_of_what_happened(kind: str) -> None:
    joined, stream, theirs = opened(kind)
    here, there = joined.sides
    other = here.open()
    here.muxer.send(stream, b"one")
    here.muxer.close_write(stream)
    here.muxer.reset(other)

    there.muxer.receive_data(here.data_to_send())

    events = there.muxer.events()
    (second,) = (event.stream for event in events if isinstance(event, IncomingStream))
    assert events == [
        IncomingStream(second),
        DataReceived(theirs, b"one"),
        WriteClosed(theirs),
        StreamReset(second, True),
    ]
