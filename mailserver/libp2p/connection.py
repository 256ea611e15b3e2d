"""One libp2p connection, either side, without I/O: bytes and times in, bytes and events out.

It is upgraded first (`upgrade`), then carries streams, each with a protocol that is agreed on at its start. TCP and
WebSocket are alike: both carry bytes. A peer's fault never raises. One that concerns the whole connection ends it, with
a `Closed` event; one in the negotiation of a stream ends that stream.

Spec: libp2p/specs, connections. The protocol of a stream of ours is proposed together with the first data
("lazily"), so an answer takes one round trip.
"""

from collections.abc import Callable, Container

from mailserver.errors import LocalProtocolError
from mailserver.libp2p import mplex, yamux
from mailserver.libp2p.events import Closed, Event, ProtocolRefused, Secured, StreamFailed, StreamOpened
from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.multistream import Answering, Proposing
from mailserver.libp2p.noise import NoiseChannel, NoiseKeys
from mailserver.libp2p.peer_id import PeerId
from mailserver.libp2p.streams import (
    MAX_STREAMS,
    DataReceived,
    Muxer,
    PeerGoingAway,
    StreamId,
    StreamReset,
    WriteClosed,
)
from mailserver.libp2p.streams import IncomingStream as StreamBegun
from mailserver.libp2p.upgrade import Upgrade

MUXERS = (yamux.PROTOCOL, mplex.PROTOCOL)
"""The best first: yamux has flow control."""

HANDSHAKE_TIMEOUT_S = 10.0
"""How long the upgrade may take, from the start."""

NEGOTIATION_TIMEOUT_S = 10.0
"""How long it may take to agree on the protocol of a stream, from its first byte on: js-waku opens streams in advance
and leaves them empty."""

_NORMAL, _PROTOCOL_ERROR = 0, 1  # codes of a muxer's go away


class Connection:
    """One connection, either side, without I/O. Times are monotonic seconds."""

    def __init__(
        self,
        keys: NoiseKeys,
        protocols: Container[str],
        ephemeral_secret: Callable[[], bytes],
        now: float,
        *,
        is_dialer: bool,
        expected: PeerId | None = None,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        """Start.

        Args:
            protocols: what the peer's streams may be.
            ephemeral_secret: 32 random bytes; called once, when they are needed.
            expected: whom we have dialled; None takes anybody.
            max_streams: how many streams each side may have open at once.
        """
        self._protocols = protocols
        self._is_dialer = is_dialer
        self._max_streams = max_streams
        self._received = bytearray()
        self._events: list[Event] = []
        self._deadline = now + HANDSHAKE_TIMEOUT_S
        self._is_closed = False
        self._upgrade: Upgrade | None = Upgrade(
            keys, ephemeral_secret, self._received, is_dialer=is_dialer, expected=expected
        )
        self._out = self._upgrade.data_to_send()
        self._channel: NoiseChannel | None = None  # set by the upgrade, like the muxer
        self._muxer: Muxer | None = None
        self._negotiations: dict[StreamId, Answering | Proposing] = {}  # of streams without a protocol
        self._deadlines: dict[StreamId, float] = {}  # of those that have begun, the earliest first
        self._lines_bytes = 0  # what has come of lines of theirs that are not whole

    def receive_data(self, data: bytes, now: float) -> None:
        """Take bytes from the peer. Never raises for the peer's faults."""
        if self._is_closed:
            return
        self._received += data
        try:
            if self._upgrade is not None:
                self._advance(self._upgrade, now)
            while self._channel is not None and (plaintext := self._channel.open(self._received)) is not None:
                self._carry(plaintext, now)
        except Libp2pFault as fault:
            self._close(fault)

    def _advance(self, upgrade: Upgrade, now: float) -> None:
        try:
            upgraded = upgrade.advance()
        finally:
            self._out += upgrade.data_to_send()  # what was answered before a fault, too
        if upgraded is None:
            return
        self._upgrade = None
        self._channel = upgraded.channel
        if upgraded.muxer == yamux.PROTOCOL:
            self._muxer = yamux.Yamux(is_dialer=self._is_dialer, max_streams=self._max_streams)
        else:
            self._muxer = mplex.Mplex(max_streams=self._max_streams)
        self._events.append(Secured(upgraded.peer_id, upgraded.muxer))
        self._carry(upgraded.first, now)

    def _carry(self, plaintext: bytes, now: float) -> None:
        """Take bytes of the muxer."""
        assert self._muxer is not None, "a channel has a muxer"
        try:
            self._muxer.receive_data(plaintext)
        finally:
            self._take_events(self._muxer, now)  # those from before a fault, too

    def receive_eof(self, now: float) -> None:
        """The peer has closed its side, or the transport is broken."""
        if not self._is_closed:
            self._end(None)

    def next_timer(self) -> float | None:
        """When to call `handle_timer`; None if nothing is waited for."""
        if self._upgrade is not None:
            return self._deadline
        return next(iter(self._deadlines.values())) if self._deadlines else None

    def handle_timer(self, now: float) -> None:
        """End the connection whose upgrade takes too long, or the streams whose negotiation does."""
        if self._is_closed:
            return
        if self._upgrade is not None:
            if now >= self._deadline:
                self._close(Libp2pFault(Cause.HANDSHAKE_TIMEOUT, limit=HANDSHAKE_TIMEOUT_S))
            return
        assert self._muxer is not None, "the upgrade is done"
        for stream in [stream for stream, deadline in self._deadlines.items() if now >= deadline]:
            self._fail(self._muxer, stream, Cause.NEGOTIATION_TIMEOUT)

    def events(self) -> list[Event]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def data_to_send(self) -> list[bytes]:
        """Return the bytes to send that were queued since the last call, in order, in few pieces."""
        if self._muxer is not None:
            self._flush(self._muxer)
        out, self._out = self._out, []
        return out

    def _flush(self, muxer: Muxer) -> None:
        assert self._channel is not None, "a muxer has a channel"
        if pieces := muxer.data_to_send():
            self._out += self._channel.seal(pieces)

    @property
    def queued_bytes(self) -> int:
        """How many bytes on streams wait for `data_to_send`, or for the peer's windows."""
        return 0 if self._muxer is None else self._muxer.queued_bytes

    @property
    def held_bytes(self) -> int:
        """How many bytes have come of what is not whole: a message, and the lines of negotiations."""
        return len(self._received) + self._lines_bytes

    @property
    def received_frames(self) -> int:
        """How many frames of the muxer have come: each takes some microseconds, however short it is."""
        return 0 if self._muxer is None else self._muxer.received_frames

    @property
    def may_open(self) -> bool:
        """Whether `open_stream` is allowed now."""
        return self._muxer is not None and self._muxer.may_open

    def open_stream(self, protocol: str, now: float) -> StreamId:
        """Open a stream and propose its protocol. Data may be sent at once: it arrives if the peer speaks it.

        Raises:
            LocalProtocolError: `may_open` is False.
        """
        if self._muxer is None:
            raise LocalProtocolError("stream on a connection that is not secured")
        stream = self._muxer.open_stream()
        negotiation = self._negotiations[stream] = Proposing((protocol,))
        self._deadlines[stream] = now + NEGOTIATION_TIMEOUT_S
        self._muxer.send(stream, negotiation.data_to_send())
        return stream

    # After a stream or the connection has gone, these do nothing: the event that says so may not have been read yet.

    def send(self, stream: StreamId, data: bytes) -> None:
        """Queue bytes on a stream.

        Raises:
            LocalProtocolError: our half is closed.
        """
        if self._muxer is not None:
            self._muxer.send(stream, data)

    def unsent(self, stream: StreamId) -> int:
        """How many bytes of a stream wait for the peer's window."""
        return 0 if self._muxer is None else self._muxer.unsent(stream)

    def consumed(self, stream: StreamId, count: int) -> None:
        """The application has done with so many bytes that came: as many more may come.

        Raises:
            LocalProtocolError: more than have come.
        """
        if self._muxer is not None:
            self._muxer.consumed(stream, count)

    def close_write(self, stream: StreamId) -> None:
        """Close our half of a stream, behind what is queued. A second time does nothing."""
        if self._muxer is not None:
            self._muxer.close_write(stream)

    def reset(self, stream: StreamId) -> None:
        """End a stream at once, both halves."""
        if self._muxer is not None:
            self._forget(stream)
            self._muxer.reset(stream)

    def close(self) -> None:
        """End the connection. What is queued is still sent, as far as windows allow. A second call does nothing."""
        if not self._is_closed:
            self._close(None)

    def _take_events(self, muxer: Muxer, now: float) -> None:
        """Pass on what the muxer says, but for the negotiations, which end here."""
        gone: set[StreamId] = set()  # streams that were reset while these events were read
        for event in muxer.events():
            if isinstance(event, PeerGoingAway):
                self._events.append(event)
            elif isinstance(event, StreamBegun):
                self._negotiations[event.stream] = Answering(self._protocols)
            elif event.stream in self._negotiations:
                if not self._negotiate(muxer, event, now):
                    gone.add(event.stream)
            elif event.stream not in gone:
                self._events.append(event)

    def _negotiate(self, muxer: Muxer, event: DataReceived | WriteClosed | StreamReset, now: float) -> bool:
        """Go on with the negotiation of a stream; return whether the stream is still there."""
        stream, negotiation = event.stream, self._negotiations[event.stream]
        is_ours = isinstance(negotiation, Proposing)
        if not isinstance(event, DataReceived):
            self._forget(stream)
            muxer.reset(stream)
            if is_ours:
                self._events.append(StreamReset(stream, by_peer=True))
            return False
        self._deadlines.setdefault(stream, now + NEGOTIATION_TIMEOUT_S)
        held = negotiation.held_bytes
        try:
            negotiation.receive_data(event.data)
        except Libp2pFault as fault:
            self._fail(muxer, stream, fault.cause)
            return False
        finally:
            self._lines_bytes += negotiation.held_bytes - held
        answer = negotiation.data_to_send()
        if answer:
            muxer.send(stream, answer)
        if isinstance(negotiation, Proposing) and negotiation.is_refused:
            self._forget(stream)
            muxer.reset(stream)
            self._events.append(ProtocolRefused(stream, negotiation.protocols[-1]))
            return False
        if negotiation.agreed is None:
            muxer.consumed(stream, len(event.data))
            return True
        self._forget(stream)
        self._events.append(StreamOpened(stream, negotiation.agreed, is_ours))
        rest = negotiation.rest()
        if rest:
            self._events.append(DataReceived(stream, rest))
        muxer.consumed(stream, len(event.data) - len(rest))
        return True

    def _fail(self, muxer: Muxer, stream: StreamId, cause: Cause) -> None:
        is_ours = isinstance(self._negotiations[stream], Proposing)
        self._forget(stream)
        muxer.reset(stream)
        self._events.append(StreamFailed(stream, cause, is_ours))

    def _forget(self, stream: StreamId) -> None:
        """The negotiation of a stream is over."""
        if (negotiation := self._negotiations.pop(stream, None)) is not None:
            self._lines_bytes -= negotiation.held_bytes
        self._deadlines.pop(stream, None)

    def _close(self, fault: Libp2pFault | None) -> None:
        """End the connection, and tell the peer as far as the muxer has words for it."""
        if self._muxer is not None:
            self._muxer.go_away(_NORMAL if fault is None else _PROTOCOL_ERROR)
            self._flush(self._muxer)
        self._end(fault)

    def _end(self, fault: Libp2pFault | None) -> None:
        self._is_closed = True
        self._upgrade = self._muxer = self._channel = None
        self._received.clear()
        self._negotiations.clear()
        self._deadlines.clear()
        self._lines_bytes = 0
        self._events.append(Closed(fault))
