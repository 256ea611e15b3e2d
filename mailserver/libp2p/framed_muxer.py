"""What mplex and yamux share: frames cut out of the bytes that come, halves of streams, and what is not consumed."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from mailserver.errors import LocalProtocolError
from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.streams import DataReceived, IncomingStream, MuxEvent, StreamId, StreamReset, WriteClosed

MAX_SENT_BYTES = 64 * 1024
"""The longest data in a frame of ours: other streams wait no longer than for one. What the other side may send is its
muxer's to say."""


MAX_IDLE_FRAMES = 4096
"""How many frames may come that do nothing, or open streams where no more may be, before what is to be sent is taken.
As many cross a reset where the other side was amidst sending 256 KiB in frames of 64 bytes."""


MAX_FRAMES_AT_ONCE = 8192
"""How many frames may come in one call: a message of Noise has room for 32,000, whose reading takes half a second, and
no client has that much to say in so few bytes."""


class StreamState:
    """One stream that is not gone.

    `unread`: bytes that have come and were not consumed.
    """

    __slots__ = ("is_ours", "is_read_closed", "is_write_closed", "unread")

    def __init__(self, *, is_ours: bool) -> None:
        self.is_ours = is_ours
        self.is_read_closed = False
        self.is_write_closed = False
        self.unread = 0


S = TypeVar("S", bound=StreamState)

_WIRE_ID_BITS = 64  # mplex has 60, and one that says who has opened the stream
_MAX_WIRE_ID = (1 << _WIRE_ID_BITS) - 1


def wire_id_of(stream: StreamId) -> int:
    """What stands for a stream in frames."""
    return stream & _MAX_WIRE_ID


class FramedMuxer(ABC, Generic[S]):
    """A muxer without its frames: see `streams.Muxer`."""

    def __init__(self, *, max_streams: int, max_connection_bytes: int) -> None:
        self._max_streams = max_streams
        self._max_connection_bytes = max_connection_bytes
        self._streams: dict[StreamId, S] = {}
        self._highest_id = -1  # of those that the other side has opened
        self._reopened = 0  # how many of its streams had no higher one
        self._named_anew: dict[int, StreamId] = {}  # those of them that are not gone
        self._ours = 0  # how many of them we have opened
        self._unread = 0  # of all of them
        self._is_going_away = False
        self._events: list[MuxEvent] = []
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._head = b""  # of a frame whose header has not come as a whole
        self._left = 0  # how much of the data of the frame is still to come
        self._frame_stream = StreamId(0)  # whose data it is; that of a stream that is gone is skipped
        self._idle_frames = 0  # since what is to be sent was taken
        self.received_frames = 0
        self.ignored_frames = 0
        self.refused_streams = 0

    def receive_data(self, data: bytes) -> None:
        """See `Muxer.receive_data`. The data of a frame is handed on as it comes, so nothing but headers waits here."""
        if self._head:
            data, self._head = self._head + data, b""
        at, end = 0, len(data)
        most = self.received_frames + MAX_FRAMES_AT_ONCE
        while at < end:
            left = self._left
            if left:
                part = data[at : at + left]
                at += len(part)
                self._left = left - len(part)
                stream = self._streams.get(self._frame_stream)
                if stream is not None and not stream.is_read_closed:
                    self._on_data(self._frame_stream, stream, part)
            else:
                after = self._read_header(data, at)
                if after is None:
                    self._head = data[at:]
                    return
                at = after
                self.received_frames += 1
                if self.received_frames > most:
                    raise Libp2pFault(Cause.TOO_MANY_FRAMES, limit=MAX_FRAMES_AT_ONCE)

    def events(self) -> list[MuxEvent]:
        """See `Muxer.events`."""
        events, self._events = self._events, []
        return events

    def data_to_send(self) -> list[bytes]:
        """See `Muxer.data_to_send`."""
        out, self._out, self._out_bytes = self._out, [], 0
        self._idle_frames = 0
        return out

    def consumed(self, stream: StreamId, count: int) -> None:
        """See `Muxer.consumed`."""
        state = self._streams.get(stream)
        if state is None:
            return
        if count > state.unread:
            raise LocalProtocolError(f"{count} bytes consumed of {state.unread}")
        state.unread -= count
        self._unread -= count
        self._on_consumed(stream, state, count)
        self._forget_if_done(stream, state)

    def reset(self, stream: StreamId) -> None:
        """See `Muxer.reset`."""
        state = self._streams.get(stream)
        if state is None:
            return
        self._send_reset(stream, is_ours=state.is_ours)
        self._forget(stream, state)
        self._events = [event for event in self._events if getattr(event, "stream", None) != stream]

    @abstractmethod
    def _read_header(self, data: bytes, at: int) -> int | None:
        """Read and act on the header of the frame that begins at `at`; return where its data begins.

        Data that follows goes into `_left` and `_frame_stream`. None: the header has not come as a whole.
        """

    @abstractmethod
    def _on_data(self, stream: StreamId, state: S, part: bytes) -> None:
        """Data has come, not empty, for a stream whose other half is open."""

    @abstractmethod
    def _on_consumed(self, stream: StreamId, state: S, count: int) -> None:
        """The application has done with some of it."""

    @abstractmethod
    def _send_reset(self, stream: StreamId, *, is_ours: bool) -> None:
        """Tell the other side that the stream is gone."""

    def _named(self, wire_id: int) -> StreamId:
        """The stream that the id in a frame means, if there is one."""
        return self._named_anew.get(wire_id, StreamId(wire_id)) if self._named_anew else StreamId(wire_id)

    def _name(self, wire_id: int) -> StreamId:
        """Name a stream that the other side opens: like none before, though it may use an id again.

        Else what we do late to a stream that is gone would be done to another. Ids mostly rise, and are names then.
        """
        if wire_id > self._highest_id:
            self._highest_id = wire_id
            return StreamId(wire_id)
        self._reopened += 1
        name = self._named_anew[wire_id] = StreamId(self._reopened << _WIRE_ID_BITS | wire_id)
        return name

    def _add(self, stream: StreamId, state: S) -> None:
        self._streams[stream] = state
        if state.is_ours:
            self._ours += 1
        else:
            self._events.append(IncomingStream(stream))

    def _may_open_one(self, *, is_ours: bool) -> bool:
        """Whether this side may have one more stream."""
        held = self._ours if is_ours else len(self._streams) - self._ours
        return held < self._max_streams and not self._is_going_away

    def _refuse(self, stream: StreamId) -> None:
        """The other side has opened a stream that it may not have."""
        self.refused_streams += 1
        self._send_reset(stream, is_ours=False)
        self._count_idle()

    def _ignore(self) -> None:
        """A frame does nothing."""
        self.ignored_frames += 1
        self._count_idle()

    def _count_idle(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > MAX_IDLE_FRAMES:
            raise Libp2pFault(Cause.IDLE_FRAMES, limit=MAX_IDLE_FRAMES)

    def _has_room(self, part: bytes) -> bool:
        """Whether so much more may wait for the application, on all streams together."""
        return self._unread + len(part) <= self._max_connection_bytes

    def _deliver(self, stream: StreamId, state: S, part: bytes) -> None:
        state.unread += len(part)
        self._unread += len(part)
        self._events.append(DataReceived(stream, part))

    def _close_read(self, stream: StreamId, state: S) -> None:
        """The other side has closed its half."""
        if not state.is_read_closed:
            state.is_read_closed = True
            self._events.append(WriteClosed(stream))
            self._forget_if_done(stream, state)

    def _end(self, stream: StreamId, state: S, *, by_peer: bool) -> None:
        """The stream was reset, by the other side or because it has more bytes unread than it may."""
        if not by_peer:
            self._send_reset(stream, is_ours=state.is_ours)
        self._forget(stream, state)
        self._events.append(StreamReset(stream, by_peer))

    def _forget_if_done(self, stream: StreamId, state: S) -> None:
        if state.is_read_closed and state.is_write_closed and not state.unread:
            self._forget(stream, state)

    def _forget(self, stream: StreamId, state: S) -> None:
        del self._streams[stream]
        if stream > _MAX_WIRE_ID:
            del self._named_anew[wire_id_of(stream)]
        self._unread -= state.unread
        if state.is_ours:
            self._ours -= 1
