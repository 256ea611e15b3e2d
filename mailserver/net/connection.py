"""One connection: pumps a Session and a WakuPeer over a socket; owns timeouts, draining and backpressure.

What one read has brought is handed over together, and acted on before the next bytes are read: a receiver that waits
slows its peer, and nobody else. Answers that the peer does not read fill the write buffer. Then nothing more is read
from it either, and after WRITE_TIMEOUT_S it is dropped.
"""

import asyncio
import contextlib
import logging
from asyncio import TimerHandle
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache

from mailserver.codec.keys import NodeId
from mailserver.codec.snappy import decompress_long
from mailserver.errors import ConnectionLost, DecodeError, DisconnectReason, RemoteProtocolError
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.limits.frame_memory import FRAME_TIMEOUT_S, FrameReservation
from mailserver.limits.loop_scheduler import FRAMES_AT_ONCE, FREE_FRAMES, HANDSHAKE_FRAMES, WorkBudget
from mailserver.net.inbound import Handler, Inbound, LongMessage, Receive, one_by_one
from mailserver.net.pipe import Pipe
from mailserver.net.sessions import WAKU, random_entropy
from mailserver.rlpx.events import (
    BaseMessageReceived,
    Closed,
    LongMessageReceived,
    MessageReceived,
    MessageTooLong,
    Opened,
)
from mailserver.rlpx.events import Event as SessionEvent
from mailserver.rlpx.liveness import PROBE_TIMEOUT_S
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.session import Session
from mailserver.rlpx.session_config import SessionConfig
from mailserver.rlpx.shared_payload import SharedPayload
from mailserver.waku.packets import PacketCode, PeerSettings, StatusOptions
from mailserver.waku.peer import Event, PeerState, StatusReceived, WakuPeer

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 20.0
"""How long a full write buffer may take to shrink; deployed clients use the same."""

TURN_TIMEOUT_S = 20.0
"""How long a large frame waits for memory: by then, deployed clients have given it up."""

LONG_TURN_TIMEOUT_S = 300.0
"""How long a message waits that is longer than a stranger may send: while ten others take as long as they may."""

LINGER_S = 1.0
"""How long a peer has to read our Disconnect and close. Closing at once could reset the connection under it."""

HELD_POLL_S = 0.1
"""How often to ask again whether a peer is wanted while that is undecided."""

FRAMES_TOGETHER = 4 * FRAMES_AT_ONCE
BYTES_TOGETHER = 16 * 1024
"""About so many frames, or bytes of their messages, are handed over together. Between each few of them, others have had
their turn. What is handed over together costs little more than one packet, and takes a millisecond or two."""

_NO_OPTIONS = StatusOptions()


@lru_cache(maxsize=4)
def _encoded(options: StatusOptions) -> SharedPayload:
    """The same is announced to every peer, and 10,000 topics take 10 ms to encode."""
    return SharedPayload(options.encode())


class Connection:
    """One peer's connection, from its first byte to its end.

    `heard_at`: when something came last, by the loop. `refused_bytes`: how long a packet of a named peer was that was
    too long even for one, or did not come to its end in time, 0 if there was none.
    """

    def __init__(
        self,
        pipe: Pipe,
        config: SessionConfig,
        status: StatusOptions,
        *,
        remote_id: NodeId | None = None,
        bounds: FrameBounds | None = None,
    ) -> None:
        """Take over a connected pipe; `run` does the rest.

        Args:
            status: what we announce.
            remote_id: whom we dialled; None if we were dialled.
            bounds: that all connections share; None for some of its own.
        Raises:
            DecodeError: `remote_id` is no point of the curve.
        """
        bounds = bounds or FrameBounds()
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._status = status
        self._peer = WakuPeer(light_node=bool(status.light_node))
        self._session = Session(config, random_entropy, self._loop.time(), remote_id=remote_id)
        self._timer: TimerHandle | None = None
        self._opening = WorkBudget(bounds.opening, FREE_FRAMES)
        self._counted_frames = 0
        self._reservation = FrameReservation(
            bounds.memory,
            max_message_bytes=config.max_message_bytes,
            on_granted=pipe.wake,
            on_late=self._on_late_frame,
        )
        self._stuck_timer: TimerHandle | None = None
        self._closed: Closed | None = None
        self._ready = asyncio.Event()
        self._flushing = False
        self.is_inbound = remote_id is None
        self.opened_at: float | None = None
        self.heard_at = self._loop.time()
        self.client_id = ""
        self.refused_bytes = 0

    def __str__(self) -> str:
        remote_id = self._session.remote_id
        return f"{remote_id.hex()[:8] if remote_id else '?'}@{self._pipe.address}"

    @property
    def closed(self) -> Closed | None:
        """How the connection ended, or None."""
        return self._closed

    @property
    def has_proved_itself(self) -> bool:
        """Whether the peer has the key of its `node_id`, or may have sent what another has once sent."""
        return self._session.has_proved_itself

    @property
    def was_open(self) -> bool:
        """Whether the handshake is over; the connection may have ended since."""
        return self.opened_at is not None

    @property
    def is_open(self) -> bool:
        """Whether the handshake is over and the connection has not ended."""
        return self._session.state is SessionState.OPEN

    @property
    def settings(self) -> PeerSettings:
        """What the peer has announced so far."""
        return self._peer.settings

    @property
    def node_id(self) -> NodeId | None:
        """Who the peer is; None before it has shown it."""
        return self._session.remote_id

    @property
    def host(self) -> str:
        """The peer's address, without the port."""
        return self._pipe.host

    @property
    def remote_address(self) -> str:
        """The peer's end of the socket: HOST:PORT."""
        return self._pipe.address

    @property
    def local_address(self) -> str:
        """Our end of the socket: HOST:PORT."""
        return self._pipe.local_address

    @property
    def received_bytes(self) -> int:
        """How much the peer has sent, as it came."""
        return self._pipe.received_bytes

    @property
    def sent_bytes(self) -> int:
        """How much was sent to it, or waits in the socket's buffer."""
        return self._pipe.sent_bytes

    async def run(self, handler: Handler) -> None:
        """Pump until the connection ends, then close the socket; the handler is awaited for each event of the peer."""
        await self.pump(one_by_one(handler))

    async def pump(self, receive: Receive) -> None:
        """Pump until the connection ends, then close the socket; `receive` is awaited for what each read brings."""
        try:
            self._flush()
            self._arm_timer()
            while self._closed is None:
                await self._dispatch(await self._read(), receive)
                await self._make_room()
                if self._pipe.is_full:
                    self._session.pause_reading()  # its silence is ours: we do not read
                    with contextlib.suppress(ConnectionLost):  # then `_closed` says so
                        await self.drain()
                    self._session.resume_reading(self._loop.time())
            if self._closed.by_peer:
                # A Go peer gives up on a packet that has not left within 20 s.
                self.refused_bytes = self.refused_bytes or self._reservation.long_bytes_due
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_S):
                        await self._pipe.finish()
        finally:
            for timer in (self._timer, self._stuck_timer):
                if timer is not None:
                    timer.cancel()
            # What refers to this connection goes, or it would stay until cycles are looked for: after thousands of it.
            self._timer = self._stuck_timer = None
            self._reservation.close()
            self._session.receive_eof()
            self._take_events()
            self._ready.set()
            self._pipe.abort()

    async def ready(self) -> PeerSettings:
        """Wait for the peer's Status.

        Raises:
            ConnectionLost: the connection ended before it came.
        """
        await self._ready.wait()
        if self._closed is not None:
            raise self._lost()
        return self._peer.settings

    def announce(self, status: StatusOptions) -> None:
        """Tell the peer what has changed of what we announced to it; nothing if nothing has."""
        previous, self._status = self._status, status
        update = status.since(previous)
        if self.is_open and update != _NO_OPTIONS:  # before, Status itself will say it
            self.send(PacketCode.STATUS_UPDATE, _encoded(update))

    def probe(self) -> bool:
        """Whether the peer has just shown that it is still there; if not, it is found out within PROBE_TIMEOUT_S."""
        is_there = self._session.probe(self._loop.time())
        self._flush()
        self._rearm_timer()
        if not is_there and self._pipe.is_full and self._stuck_timer is None:
            # Its silence says nothing: it is not read from while it does not read.
            written = self._pipe.written_bytes
            self._stuck_timer = self._loop.call_later(PROBE_TIMEOUT_S, self._end_if_stuck, written)
        return is_there

    def send(self, code: PacketCode, payload: bytes | SharedPayload) -> None:
        """Queue a packet. Before more than a few, `drain`.

        Raises:
            ConnectionLost: the connection has ended.
        """
        self.send_all(((code, payload),))

    def send_all(self, packets: Iterable[tuple[PacketCode, bytes | SharedPayload]]) -> None:
        """Queue packets: each a code and a payload.

        Raises:
            ConnectionLost: the connection has ended.
        """
        session = self._session
        if session.state is not SessionState.OPEN:
            raise self._lost()
        for code, payload in packets:
            session.send(WAKU, code, payload)
        if not self._flushing:  # what is sent in one turn of the loop goes out together
            self._flushing = True
            self._loop.call_soon(self._flush)

    async def drain(self) -> None:
        """Wait until the peer has read enough of what was sent.

        Raises:
            ConnectionLost: it did not within WRITE_TIMEOUT_S, or the connection has ended.
        """
        self._flush()
        if self._pipe.is_full:
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await self._pipe.drain()
            except TimeoutError:
                self.abort(f"peer read nothing for {WRITE_TIMEOUT_S:g} s")
        if not self.is_open:
            raise self._lost()

    def disconnect(self, reason: DisconnectReason, cause: str) -> None:
        """End the connection and say why."""
        self._session.disconnect(reason, cause)
        self._take_events()
        self._flush()
        self._pipe.wake()

    def abort(self, cause: str) -> None:
        """End the connection at once, whatever is unsent."""
        self._session.disconnect(DisconnectReason.TCP_ERROR, cause)
        self._take_events()
        self._pipe.abort()
        self._pipe.wake()

    async def _read(self) -> list[SessionEvent]:
        """Wait for bytes if there are none; return what some of the frames in them say."""
        session = self._session
        await self._open_frames()
        while session.is_held:
            self._flush()  # our part of the key exchange: the peer waits for it, too
            if not await self._pipe.rest(HELD_POLL_S):
                session.receive_eof()
            session.reconsider(self._loop.time(), max_frames=FRAMES_AT_ONCE)
        events = session.events()
        while session.has_more and _may_grow(events):
            await self._open_frames()
            events += session.events()
        return events

    async def _open_frames(self) -> None:
        """Open some of the frames that have come; wait for more if there are none."""
        session = self._session
        data = b"" if session.has_more else await self._pipe.read()
        if data:
            self.heard_at = self._loop.time()
        elif not session.has_more:
            if data is not None:
                session.receive_eof()
            return
        opened, self._counted_frames = session.opened_frames - self._counted_frames, session.opened_frames
        work = HANDSHAKE_FRAMES if session.state is SessionState.HANDSHAKE else opened
        await self._opening.take(work, len(data or b""))
        session.receive_data(data or b"", self._loop.time(), max_frames=FRAMES_AT_ONCE)
        self._reservation.release_unless(session.frame)

    async def _make_room(self) -> None:
        """Before more of a large frame is read, wait until there is memory for it."""
        if self._closed is not None or self._reservation.reserve(self._session.frame):
            return
        self._pause_reading()
        await self._pipe.rest(LONG_TURN_TIMEOUT_S if self._reservation.is_long else TURN_TIMEOUT_S)
        self._resume_reading()
        if not self._reservation.is_granted and self._closed is None:
            self.disconnect(DisconnectReason.REQUESTED, "no memory for a large frame")

    def _on_late_frame(self) -> None:
        self.refused_bytes = self._reservation.long_bytes_due
        self.disconnect(DisconnectReason.PING_TIMEOUT, f"frame took longer than {FRAME_TIMEOUT_S:g} s")

    async def _dispatch(self, events: Iterable[SessionEvent], receive: Receive) -> None:
        """Act on what the session has understood of the bytes read."""
        inbound = Inbound(self._decode)
        for event in events:
            if isinstance(
                event, MessageReceived | BaseMessageReceived
            ):  # pings cost as much as packets that say nothing
                inbound.add(event)
                continue
            await self._hand_over(inbound, receive)
            if self._closed is not None:  # by the peer, or by us because of what was handed over
                break
            match event:
                case LongMessageReceived():
                    await self._on_long_message(event, inbound)
                case MessageTooLong(size=size):
                    self.refused_bytes = size
                case Opened(client_id=client_id):
                    self._on_opened(client_id)
                case Closed():
                    self._closed = event
        await self._hand_over(inbound, receive)
        self._take_events()
        self._flush()

    def _on_opened(self, client_id: str) -> None:
        self.client_id = client_id
        self.opened_at = self._loop.time()
        self._peer.opened(self.opened_at)
        self._rearm_timer()
        if self.is_open:  # it may have said goodbye in the same breath
            self._session.send(WAKU, PacketCode.STATUS, _encoded(self._status))

    async def _hand_over(self, inbound: Inbound, receive: Receive) -> None:
        """Have packets acted on. Nothing is read meanwhile, nor while the peer is over its limit: TCP slows it down."""
        while len(inbound) and self._closed is None:
            self._flush()  # it may take a while
            self._pause_reading()
            try:
                seconds = await receive(inbound)
            except RemoteProtocolError as error:
                self.disconnect(error.reason, error.cause)
                return
            self._resume_reading()
            if seconds > 0 and self._closed is None:
                self._flush()  # a Pong, say: whoever is slowed must not take us for dead
                self._session.pause_reading()
                await self._pipe.rest(seconds)
                self._session.resume_reading(self._loop.time())

    def _decode(self, message: MessageReceived | LongMessage) -> Event:
        """Say what a message means.

        Raises:
            RemoteProtocolError: it breaks a rule.
        """
        if isinstance(message, LongMessage):
            return self._peer.receive_long_packet(message.code, message.payload)
        event = self._peer.receive_packet(message.code, message.payload)
        if isinstance(event, StatusReceived):
            self._ready.set()
        return event

    async def _on_long_message(self, message: LongMessageReceived, inbound: Inbound) -> None:
        """Inflate a long packet in a thread; nothing is read meanwhile."""
        self._flush()
        self._pause_reading()
        try:
            payload = await _inflated(message.data) if message.is_compressed else bytearray(message.data)
        except DecodeError as error:
            self.disconnect(DisconnectReason.PROTOCOL_BREACH, str(error))
            return
        self._resume_reading()
        inbound.add(LongMessage(message.code, payload))

    def _pause_reading(self) -> None:
        """Read nothing for a reason of ours, which must not count against the peer."""
        self._session.pause_reading()
        self._peer.pause_reading(self._loop.time())

    def _resume_reading(self) -> None:
        self._session.resume_reading(self._loop.time())
        if self._peer.state is PeerState.AWAIT_STATUS:
            self._peer.resume_reading(self._loop.time())
            self._rearm_timer()

    def _lost(self) -> ConnectionLost:
        if self._closed is None:  # the end has been read, but not yet acted on
            return ConnectionLost(None, "connection is ending")
        return ConnectionLost(self._closed.reason, self._closed.cause)

    def _take_events(self) -> None:
        """Note how the session ended, if it was ended from our side."""
        for event in self._session.events():
            if isinstance(event, Closed):
                self._closed = event

    def _flush(self) -> None:
        self._flushing = False
        data = self._session.data_to_send()
        if data:
            self._pipe.write(data)

    def _arm_timer(self) -> None:
        due = self._session.next_timer()
        if due is None:
            self._timer = None
            return
        of_peer = self._peer.next_timer()
        self._timer = self._loop.call_at(due if of_peer is None else min(due, of_peer), self._on_timer)

    def _rearm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._arm_timer()

    def _end_if_stuck(self, written_bytes: int) -> None:
        self._stuck_timer = None
        if self._pipe.written_bytes == written_bytes:
            self.abort(f"peer read nothing for {PROBE_TIMEOUT_S:g} s")

    def _on_timer(self) -> None:
        # The session's timer moves on with every byte; ours is set anew only when it fires, not for each of them.
        now = self._loop.time()
        self._session.handle_timer(now)
        try:
            self._peer.handle_timer(now)
        except RemoteProtocolError as error:
            self._session.disconnect(error.reason, error.cause)
        self._take_events()
        self._flush()
        if self._closed is not None:
            self._pipe.wake()
        self._arm_timer()


Serve = Callable[[Connection], Awaitable[None]]
"""Serves a connection until it ends."""


async def run_guarded(serve: Serve, connection: Connection) -> None:
    """Serve a connection; a fault of ours that its peer has hit upon must not end the service for all the others."""
    try:
        await serve(connection)
    except Exception:
        log.exception("internal error peer=%s", connection)
        connection.abort("internal error")


def _may_grow(events: Sequence[SessionEvent]) -> bool:
    """Whether more may be handed over together with this: not with pings, say, which are answered at once."""
    size = 0
    for event in events:
        if not isinstance(event, MessageReceived):
            return False
        size += len(event.payload)
    return len(events) < FRAMES_TOGETHER and size < BYTES_TOGETHER


async def _inflated(data: memoryview) -> bytearray:
    """Inflate a long message in a thread; to the end, whoever is cancelled: its memory is counted until then."""
    inflating = asyncio.ensure_future(asyncio.to_thread(decompress_long, data))
    try:
        return await asyncio.shield(inflating)
    except asyncio.CancelledError:
        await asyncio.gather(inflating, return_exceptions=True)
        raise
