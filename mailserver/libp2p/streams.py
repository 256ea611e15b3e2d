"""What both muxers are to the connection that uses them: streams, events, bounds.

A muxer carries many streams of bytes on one connection; either side may open one. Each side may close its own half of
a stream, and either may reset the whole. Spec: libp2p/specs, "mplex", "yamux", "connections" (Multiplexing).
"""

from typing import NamedTuple, NewType, Protocol, TypeAlias

StreamId = NewType("StreamId", int)
"""Names one stream of a connection, whoever opened it. It is ours: what mplex writes as an id, both sides may use."""

MAX_STREAMS = 256
"""How many streams each side may have open at once. More of the other side's are reset."""

MAX_STREAM_BYTES = 256 * 1024
"""How many bytes of a stream may have come that were not consumed."""

MAX_CONNECTION_BYTES = 1024 * 1024
"""The same of all streams of a connection together."""


class IncomingStream(NamedTuple):
    """The other side has opened a stream."""

    stream: StreamId


class DataReceived(NamedTuple):
    """Bytes have come, at least one. They count against the bounds until `Muxer.consumed`."""

    stream: StreamId
    data: bytes


class WriteClosed(NamedTuple):
    """The other side has closed its half: no more bytes come. Ours is as it was."""

    stream: StreamId


class StreamReset(NamedTuple):
    """The stream is gone, both halves; what was not consumed counts no more.

    `by_peer` is False where the muxer did it because more bytes were left than MAX_STREAM_BYTES.
    """

    stream: StreamId
    by_peer: bool


class PeerGoingAway(NamedTuple):
    """The other side takes and opens no more streams. Those that are open go on."""

    code: int


MuxEvent: TypeAlias = IncomingStream | DataReceived | WriteClosed | StreamReset | PeerGoingAway


class Muxer(Protocol):
    """The streams of one connection, either side, without I/O: `mplex.Mplex` or `yamux.Yamux`.

    A stream is gone once it is reset, or both halves are closed and all its bytes are consumed. To send on, consume of,
    close or reset a stream that is gone does nothing: the event that says so may not have been read yet.

    `received_frames`: how many frames have come. Each takes 2 us or more, and of mplex one may have 2 bytes: whoever
    has many peers bounds how many it takes of each in a second.
    `ignored_frames`: how many of them did nothing. Those of unknown streams are such, as they may have crossed a reset.
    `refused_streams`: how many streams of the other side were reset at once, for there were too many.
    """

    received_frames: int
    ignored_frames: int
    refused_streams: int

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the other side, cut anywhere.

        Raises:
            Libp2pFault: the connection must be closed. Events from before are there; nothing may be received after it.
        """

    def events(self) -> list[MuxEvent]:
        """What has happened since the last call."""

    def data_to_send(self) -> list[bytes]:
        """What is to be sent since the last call, in order, to be joined as the caller likes."""

    @property
    def queued_bytes(self) -> int:
        """How many bytes wait for `data_to_send`, or for the other side's windows."""

    @property
    def may_open(self) -> bool:
        """Whether `open_stream` is allowed now."""

    def open_stream(self) -> StreamId:
        """Open a stream.

        Raises:
            LocalProtocolError: `may_open` is False.
        """

    def send(self, stream: StreamId, data: bytes) -> None:
        """Send bytes, or queue them until the other side's window allows more.

        Raises:
            LocalProtocolError: our half is closed.
        """

    def unsent(self, stream: StreamId) -> int:
        """How many bytes of a stream wait for the other side's window."""

    def consumed(self, stream: StreamId, count: int) -> None:
        """The application has done with so many bytes that came: as many more may come.

        Raises:
            LocalProtocolError: more than have come.
        """

    def close_write(self, stream: StreamId) -> None:
        """Close our half, behind what is queued. A second time does nothing."""

    def reset(self, stream: StreamId) -> None:
        """End a stream at once, both halves; what is queued is dropped. No event follows of it."""

    def go_away(self, code: int) -> None:
        """Take and open no more streams. Those that are open go on.

        Args:
            code: why, one of yamux's: 0 in the ordinary course, 1 the other side broke a rule, 2 a fault of ours.
        """
