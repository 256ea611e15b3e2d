"""yamux, `/yamux/1.0.0`: streams with flow control, the muxer that go-libp2p prefers.

    header = version (1 byte), type (1), flags (2), stream id (4), length (4)        big-endian; behind DATA, data

Each side may send 256 KiB on a stream before the other has read any of it; a window update allows more. Whoever dialled
opens streams with odd ids, the listener with even ones. Spec: libp2p/specs, yamux/README.md; where it is silent,
go-yamux: the length of a reset is an error code, and frames of a stream that is gone are skipped.
"""

from collections import deque
from enum import IntEnum
from struct import Struct

from mailserver.errors import LocalProtocolError
from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.framed_muxer import MAX_SENT_BYTES, FramedMuxer, StreamState, wire_id_of
from mailserver.libp2p.streams import MAX_CONNECTION_BYTES, MAX_STREAMS, PeerGoingAway, StreamId

PROTOCOL = "/yamux/1.0.0"

WINDOW_BYTES = 256 * 1024
"""The window of a stream when it begins ("Flow Control"). We never allow more."""

MAX_WINDOW_BYTES = (1 << 32) - 1
"""The largest that the other side may allow us."""

MAX_STREAM_ID = (1 << 32) - 1
"""A connection that has used all of its ids opens no more streams."""

MAX_UNACKNOWLEDGED = 256
"""How many streams of ours may wait for their ACK ("ACK backlog & backpressure")."""

MAX_PINGS = 32
"""How many pings are answered before what is to be sent is taken, as in go-yamux. Those beyond get no answer."""

HEADER = Struct(">BBHII")

_CONNECTION = StreamId(0)  # what frames that concern no stream have for its id


class FrameType(IntEnum):
    """What a frame is."""

    DATA = 0
    WINDOW_UPDATE = 1
    PING = 2
    GO_AWAY = 3


class Flag(IntEnum):
    """What it says besides, one bit each. The first two also tell a ping from its answer."""

    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


class _Stream(StreamState):
    """One stream.

    `receive_window`, `send_window`: how many bytes the other side may still send, and we.
    `consumed`: bytes to be allowed by the next window update. With `unread` and `receive_window` they are WINDOW_BYTES.
    `queue`: what waits for the window, `queued` bytes; None before the first time, since an empty deque takes 0.8 KB of
    every idle stream. `is_closing`: FIN goes out behind it.
    """

    __slots__ = ("consumed", "is_acknowledged", "is_closing", "queue", "queued", "receive_window", "send_window")

    def __init__(self, *, is_ours: bool) -> None:
        super().__init__(is_ours=is_ours)
        self.is_acknowledged = not is_ours
        self.is_closing = False
        self.receive_window = WINDOW_BYTES
        self.send_window = WINDOW_BYTES
        self.consumed = 0
        self.queue: deque[bytes | memoryview] | None = None
        self.queued = 0


class Yamux(FramedMuxer[_Stream]):
    """The streams of one connection, either side: a `streams.Muxer`.

    A stream that would have more bytes unread than its window ends the connection; one that would lead beyond
    `max_connection_bytes` of all streams is reset, as its sender has kept to the rules. An id is forgotten with its
    stream, as in deployed nodes: those who open streams at the same time do not open them in the order of their ids.
    """

    def __init__(
        self, *, is_dialer: bool, max_streams: int = MAX_STREAMS, max_connection_bytes: int = MAX_CONNECTION_BYTES
    ) -> None:
        """Begin without streams.

        Args:
            is_dialer: whether we have dialled the connection: our ids are odd.
            max_streams: each side may have as many open at once.
        """
        super().__init__(max_streams=max_streams, max_connection_bytes=max_connection_bytes)
        self._next_id = 1 if is_dialer else 2
        self._their_parity = 0 if is_dialer else 1
        self._unacknowledged = 0
        self._unsent = 0
        self._pings = 0
        self._peer_is_going_away = False
        self._is_last_data = False  # whether the frame that is being read closes its half

    @property
    def queued_bytes(self) -> int:
        """See `Muxer.queued_bytes`."""
        return self._out_bytes + self._unsent

    @property
    def may_open(self) -> bool:
        """See `Muxer.may_open`."""
        return (
            self._may_open_one(is_ours=True)
            and not self._peer_is_going_away
            and self._unacknowledged < MAX_UNACKNOWLEDGED
            and self._next_id <= MAX_STREAM_ID
        )

    def data_to_send(self) -> list[bytes]:
        """See `Muxer.data_to_send`."""
        self._pings = 0
        return super().data_to_send()

    def open_stream(self) -> StreamId:
        """See `Muxer.open_stream`."""
        if not self.may_open:
            raise LocalProtocolError("no more streams may be opened")
        stream = StreamId(self._next_id)
        self._next_id += 2
        self._add(stream, _Stream(is_ours=True))
        self._unacknowledged += 1
        self._send_frame(FrameType.WINDOW_UPDATE, Flag.SYN, stream, 0)
        return stream

    def send(self, stream: StreamId, data: bytes) -> None:
        """See `Muxer.send`."""
        state = self._streams.get(stream)
        if state is None:
            return
        if state.is_closing:
            raise LocalProtocolError("data for a stream that is closed")
        if 0 < len(data) <= min(state.send_window, MAX_SENT_BYTES):  # where others wait, there is no window
            state.send_window -= len(data)
            self._send_data(stream, data)
        elif data:
            if state.queue is None:
                state.queue = deque()
            state.queue.append(data)
            state.queued += len(data)
            self._unsent += len(data)
            self._send_queued(stream, state)

    def unsent(self, stream: StreamId) -> int:
        """See `Muxer.unsent`."""
        state = self._streams.get(stream)
        return 0 if state is None else state.queued

    def close_write(self, stream: StreamId) -> None:
        """See `Muxer.close_write`."""
        state = self._streams.get(stream)
        if state is not None and not state.is_closing:
            state.is_closing = True
            self._send_queued(stream, state)

    def go_away(self, code: int) -> None:
        """See `Muxer.go_away`. A second time does nothing."""
        if not self._is_going_away:
            self._is_going_away = True
            self._send_frame(FrameType.GO_AWAY, 0, _CONNECTION, code)

    def _read_header(self, data: bytes, at: int) -> int | None:
        after = at + HEADER.size
        if after > len(data):
            return None
        version, kind, flags, number, length = HEADER.unpack_from(data, at)
        if version != 0 or kind > FrameType.GO_AWAY:
            raise Libp2pFault(Cause.BAD_FRAME, got=data[at:after].hex())
        if kind == FrameType.PING:
            self._on_ping(flags, length)
        elif kind == FrameType.GO_AWAY:
            self._peer_is_going_away = True
            self._events.append(PeerGoingAway(length))
        else:
            self._on_stream_frame(kind, flags, self._named(number), length)
        return after

    def _on_ping(self, flags: int, value: int) -> None:
        """Answer a ping. We send none of our own, so an answer is for nobody."""
        if flags & Flag.SYN and self._pings < MAX_PINGS:
            self._pings += 1
            self._send_frame(FrameType.PING, Flag.ACK, _CONNECTION, value)
        else:
            self._ignore()

    def _on_stream_frame(self, kind: int, flags: int, stream: StreamId, length: int) -> None:
        if stream == _CONNECTION:
            raise Libp2pFault(Cause.BAD_STREAM_ID, got=stream)
        if kind == FrameType.DATA:
            if length > WINDOW_BYTES:  # more than any stream has ever been allowed
                raise Libp2pFault(Cause.FRAME_TOO_LONG, got=length, limit=WINDOW_BYTES)
            self._left, self._is_last_data = length, False
        if flags & Flag.SYN:
            stream = self._on_opened(stream)
        self._frame_stream = stream
        state = self._streams.get(stream)
        if state is None:
            if not flags & Flag.SYN:  # else it was refused
                self._ignore()
            return
        if flags & Flag.ACK and not state.is_acknowledged:
            state.is_acknowledged = True
            self._unacknowledged -= 1
        if flags & Flag.RST:  # before the window: the length of a reset is an error code
            self._end(stream, state, by_peer=True)
        elif kind == FrameType.WINDOW_UPDATE:
            self._on_window_update(stream, state, length)
            if flags & Flag.FIN:
                self._close_read(stream, state)
        else:
            self._on_data_header(stream, state, length, is_last=flags & Flag.FIN != 0)

    def _on_opened(self, stream: StreamId) -> StreamId:
        if stream & 1 != self._their_parity:
            raise Libp2pFault(Cause.BAD_STREAM_ID, got=stream)
        if stream in self._streams:
            raise Libp2pFault(Cause.STREAM_REUSED, got=stream)
        if self._may_open_one(is_ours=False):
            stream = self._name(stream)
            self._add(stream, _Stream(is_ours=False))
            self._send_frame(FrameType.WINDOW_UPDATE, Flag.ACK, stream, 0)
        else:
            self._refuse(stream)
        return stream

    def _on_window_update(self, stream: StreamId, state: _Stream, length: int) -> None:
        state.send_window += length
        if state.send_window > MAX_WINDOW_BYTES:
            raise Libp2pFault(Cause.WINDOW_OVERFLOW, got=state.send_window, limit=MAX_WINDOW_BYTES)
        if state.queued:
            self._send_queued(stream, state)

    def _on_data_header(self, stream: StreamId, state: _Stream, length: int, *, is_last: bool) -> None:
        if state.is_read_closed:
            self._ignore()
            return
        if length > state.receive_window:
            raise Libp2pFault(Cause.WINDOW_OVERRUN, got=length, limit=state.receive_window)
        state.receive_window -= length
        if not is_last:
            return
        if length:
            self._is_last_data = True
        else:
            self._close_read(stream, state)

    def _on_data(self, stream: StreamId, state: _Stream, part: bytes) -> None:
        if not self._has_room(part):
            self._end(stream, state, by_peer=False)
            return
        self._deliver(stream, state, part)
        if self._is_last_data and not self._left:
            self._close_read(stream, state)

    def _on_consumed(self, stream: StreamId, state: _Stream, count: int) -> None:
        state.consumed += count
        if state.consumed >= WINDOW_BYTES // 2 and not state.is_read_closed:
            self._send_frame(FrameType.WINDOW_UPDATE, 0, stream, state.consumed)
            state.receive_window += state.consumed
            state.consumed = 0

    def _send_queued(self, stream: StreamId, state: _Stream) -> None:
        """Send as much as the window allows, short pieces together; then FIN if nothing is left before it."""
        while state.queue and state.send_window:
            length = min(state.queued, state.send_window, MAX_SENT_BYTES)
            state.queued -= length
            state.send_window -= length
            self._unsent -= length
            self._send_data(stream, _take(state.queue, length))
        if state.is_closing and not state.queued:
            state.is_write_closed = True
            self._send_frame(FrameType.WINDOW_UPDATE, Flag.FIN, stream, 0)
            self._forget_if_done(stream, state)

    def _send_data(self, stream: StreamId, data: bytes) -> None:
        self._out.append(HEADER.pack(0, FrameType.DATA, 0, wire_id_of(stream), len(data)) + data)
        self._out_bytes += HEADER.size + len(data)

    def _send_reset(self, stream: StreamId, *, is_ours: bool) -> None:
        self._send_frame(FrameType.WINDOW_UPDATE, Flag.RST, stream, 0)

    def _send_frame(self, kind: FrameType, flags: int, stream: StreamId, length: int) -> None:
        self._out.append(HEADER.pack(0, kind, flags, wire_id_of(stream), length))
        self._out_bytes += HEADER.size

    def _forget(self, stream: StreamId, state: _Stream) -> None:
        super()._forget(stream, state)
        self._unsent -= state.queued
        if not state.is_acknowledged:
            self._unacknowledged -= 1


def _take(queue: deque[bytes | memoryview], length: int) -> bytes:
    """Remove so many bytes from the front, of as many as there are at least, and join them."""
    parts: list[bytes | memoryview] = []
    while length:
        part = queue.popleft()
        if len(part) > length:
            queue.appendleft(memoryview(part)[length:])
            part = memoryview(part)[:length]
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
