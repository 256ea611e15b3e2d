"""mplex, `/mplex/6.7.0`: streams without flow control, the muxer that js-waku has unless it is told otherwise.

    frame  = header, length, data        header: id << 3 | flag; header and length are uvarints, data has `length` bytes

Whoever opens a stream chooses its id, from its own 60 bits: both sides may use one number. The flag says which side's
it is. As nothing holds the other side back, what it sends and we have not consumed is bounded by resetting the stream.
Spec: libp2p/specs, mplex/README.md.
"""

from enum import IntEnum

from mailserver.codec import varint
from mailserver.errors import DecodeError, LocalProtocolError
from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.framed_muxer import MAX_SENT_BYTES, FramedMuxer, StreamState, wire_id_of
from mailserver.libp2p.streams import MAX_CONNECTION_BYTES, MAX_STREAM_BYTES, MAX_STREAMS, StreamId

PROTOCOL = "/mplex/6.7.0"

MAX_FRAME_BYTES = 1024 * 1024
"""The longest data in a frame ("Writing to a stream")."""

MAX_VARINT_BYTES = 9
"""Of a header, or of a length."""


class Flag(IntEnum):
    """What a frame is. The name says which side sends it: the one that has opened the stream, or the other."""

    NEW_STREAM = 0
    MESSAGE_RECEIVER = 1
    MESSAGE_INITIATOR = 2
    CLOSE_RECEIVER = 3
    CLOSE_INITIATOR = 4
    RESET_RECEIVER = 5
    RESET_INITIATOR = 6


class _Stream(StreamState):
    """One stream; `header` is that of all frames with our data."""

    __slots__ = ("header",)

    def __init__(self, stream: StreamId, *, is_ours: bool) -> None:
        super().__init__(is_ours=is_ours)
        self.header = _header(stream, Flag.MESSAGE_INITIATOR if is_ours else Flag.MESSAGE_RECEIVER)


class Mplex(FramedMuxer[_Stream]):
    """The streams of one connection, either side: a `streams.Muxer`.

    Beyond `max_stream_bytes` that were not consumed, a stream is reset; beyond `max_connection_bytes`, the connection
    ends. A stream's id is forgotten with the stream, as in deployed nodes.
    """

    def __init__(
        self,
        *,
        max_streams: int = MAX_STREAMS,
        max_stream_bytes: int = MAX_STREAM_BYTES,
        max_connection_bytes: int = MAX_CONNECTION_BYTES,
    ) -> None:
        """Begin without streams.

        Args:
            max_streams: each side may have as many open at once.
        """
        super().__init__(max_streams=max_streams, max_connection_bytes=max_connection_bytes)
        self._max_stream_bytes = max_stream_bytes
        self._next_id = 0

    @property
    def queued_bytes(self) -> int:
        """See `Muxer.queued_bytes`. Nothing waits for a window."""
        return self._out_bytes

    @property
    def may_open(self) -> bool:
        """See `Muxer.may_open`."""
        return self._may_open_one(is_ours=True)

    def open_stream(self) -> StreamId:
        """See `Muxer.open_stream`. The stream has no name: names are for people who debug."""
        if not self.may_open:
            raise LocalProtocolError("no more streams may be opened")
        stream = StreamId(_wire_id(self._next_id, is_ours=True))
        self._next_id += 1
        self._add(stream, _Stream(stream, is_ours=True))
        self._send_empty(stream, Flag.NEW_STREAM)
        return stream

    def send(self, stream: StreamId, data: bytes) -> None:
        """See `Muxer.send`. Nothing waits."""
        state = self._streams.get(stream)
        if state is None:
            return
        if state.is_write_closed:
            raise LocalProtocolError("data for a stream that is closed")
        for at in range(0, len(data), MAX_SENT_BYTES):
            part = data[at : at + MAX_SENT_BYTES]
            frame = b"".join((state.header, varint.encode(len(part)), part))
            self._out.append(frame)
            self._out_bytes += len(frame)

    def unsent(self, stream: StreamId) -> int:
        """See `Muxer.unsent`: 0, as there are no windows."""
        return 0

    def close_write(self, stream: StreamId) -> None:
        """See `Muxer.close_write`."""
        state = self._streams.get(stream)
        if state is not None and not state.is_write_closed:
            state.is_write_closed = True
            self._send_empty(stream, Flag.CLOSE_INITIATOR if state.is_ours else Flag.CLOSE_RECEIVER)
            self._forget_if_done(stream, state)

    def go_away(self, code: int) -> None:
        """See `Muxer.go_away`. mplex has no words for it: streams of the other side are reset from now on."""
        self._is_going_away = True

    def _read_header(self, data: bytes, at: int) -> int | None:
        try:
            header = varint.decode(data, at, MAX_VARINT_BYTES)
            length = None if header is None else varint.decode(data, header[1], MAX_VARINT_BYTES)
        except DecodeError as error:
            raise Libp2pFault(Cause.BAD_FRAME) from error
        if header is None or length is None:
            return None
        self._left, after = length
        if self._left > MAX_FRAME_BYTES:
            raise Libp2pFault(Cause.FRAME_TOO_LONG, got=self._left, limit=MAX_FRAME_BYTES)
        self._on_header(header[0] >> 3, header[0] & 7)
        return after

    def _on_header(self, number: int, flag: int) -> None:
        # Those that the receiver of a stream sends have odd flags: the stream is one of ours.
        wire_id = _wire_id(number, is_ours=flag & 1 == 1)
        stream = self._frame_stream = self._named(wire_id)
        state = self._streams.get(stream)
        if flag in _MESSAGES:
            if state is None or state.is_read_closed or not self._left:
                self._ignore()
            return
        if flag > Flag.RESET_INITIATOR:
            raise Libp2pFault(Cause.BAD_FRAME, got=flag, limit=Flag.RESET_INITIATOR)
        self._frame_stream = _NO_STREAM  # a name, or data where none belongs, is skipped
        if flag == Flag.NEW_STREAM:
            if state is not None:
                raise Libp2pFault(Cause.STREAM_REUSED, got=number)
            if self._may_open_one(is_ours=False):
                stream = self._name(wire_id)
                self._add(stream, _Stream(stream, is_ours=False))
            else:
                self._refuse(stream)
        elif state is None:
            self._ignore()
        elif flag in _CLOSES:
            self._close_read(stream, state)
        else:
            self._end(stream, state, by_peer=True)

    def _on_data(self, stream: StreamId, state: _Stream, part: bytes) -> None:
        if state.unread + len(part) > self._max_stream_bytes:
            self._end(stream, state, by_peer=False)
        elif self._has_room(part):
            self._deliver(stream, state, part)
        else:
            raise Libp2pFault(Cause.TOO_MUCH_UNREAD, limit=self._max_connection_bytes)

    def _on_consumed(self, stream: StreamId, state: _Stream, count: int) -> None:
        """The other side is not told."""

    def _send_reset(self, stream: StreamId, *, is_ours: bool) -> None:
        self._send_empty(stream, Flag.RESET_INITIATOR if is_ours else Flag.RESET_RECEIVER)

    def _send_empty(self, stream: StreamId, flag: Flag) -> None:
        frame = _header(stream, flag) + b"\0"
        self._out.append(frame)
        self._out_bytes += len(frame)


_MESSAGES = (Flag.MESSAGE_RECEIVER, Flag.MESSAGE_INITIATOR)
_CLOSES = (Flag.CLOSE_RECEIVER, Flag.CLOSE_INITIATOR)

_NO_STREAM = StreamId(-1)


def _wire_id(number: int, *, is_ours: bool) -> int:
    return number << 1 | is_ours


def _header(stream: StreamId, flag: Flag) -> bytes:
    return varint.encode(wire_id_of(stream) >> 1 << 3 | flag)
