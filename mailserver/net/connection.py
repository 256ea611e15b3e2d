"""One connection: reads packets, hands them over, and answers for one peer from the first byte to the end.

Everything that one read has brought is acted on before the next bytes are read. So a receiver that waits slows down its
own peer, and nobody else. When a peer does not read our answers, the write buffer fills up: then nothing more is read
from that peer, and after WRITE_TIMEOUT_S it is dropped.

The parts: `link` sends and ends, `peer_timers` runs the timers, `frame_source` reads.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from functools import lru_cache

from mailserver.codec.keys import NodeId
from mailserver.errors import ConnectionLost, DecodeError, DisconnectReason, RemoteProtocolError
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.net.frame_source import FrameSource
from mailserver.net.inbound import Event as PeerEvent
from mailserver.net.inbound import Handler, Inbound, LongMessage, Receive, inflated, one_by_one
from mailserver.net.link import Link
from mailserver.net.peer_timers import PeerTimers
from mailserver.net.pipe import Pipe
from mailserver.net.sessions import WAKU, Code, random_entropy
from mailserver.rlpx.capabilities import Capability
from mailserver.rlpx.events import (
    BaseMessageReceived,
    Event,
    LongMessageReceived,
    MessageReceived,
    MessageTooLong,
    SessionClosed,
    SessionOpened,
)
from mailserver.rlpx.session import Session
from mailserver.rlpx.session_config import SessionConfig
from mailserver.rlpx.shared_payload import SharedPayload
from mailserver.waku.packets import PacketCode, PeerSettings, StatusOptions
from mailserver.waku.peer import LargePacket, PeerState, StatusReceived, WakuPeer
from mailserver.wakuid.peer import receive_id_packet

LINGER_S = 1.0
"""How long a peer has to read our Disconnect and close. If we closed at once, it might see a reset instead."""

_NO_OPTIONS = StatusOptions()


@lru_cache(maxsize=4)
def _encoded(options: StatusOptions) -> SharedPayload:
    """Encode Status once for all peers: 10,000 topics take 10 ms."""
    return SharedPayload(options.encode())


class Connection:
    """One peer's connection, from its first byte to its end.

    `is_inbound`: whether the peer dialled. `opened_at`: when the handshake was over, by the loop's clock; None before.
    `client_id`: what the peer calls its software; empty before its Hello. `capabilities`: those that both sides have;
    none before its Hello.
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
        """Take over a connected pipe; `run` or `pump` does the rest.

        Args:
            status: what we announce.
            remote_id: whom we dialled; None if we were dialled.
            bounds: shared by all connections; None: this connection has its own.
        Raises:
            DecodeError: `remote_id` is not a point on the curve.
        """
        self._loop = asyncio.get_running_loop()
        session = Session(config, random_entropy, self._loop.time(), remote_id=remote_id)
        self._session = session
        self._pipe = pipe
        self._status = status
        self._peer = WakuPeer(light_node=bool(status.light_node))
        self._link = Link(session, pipe)
        self._timers = PeerTimers(self._link, self._peer)
        self._frames = FrameSource(
            self._link, self._timers, bounds or FrameBounds(), max_message_bytes=config.max_message_bytes
        )
        self._ready = asyncio.Event()
        self.is_inbound = remote_id is None
        self.opened_at: float | None = None
        self.client_id = ""
        self.capabilities: frozenset[Capability] = frozenset()

    def __str__(self) -> str:
        remote_id = self._session.remote_id
        return f"{remote_id.hex()[:8] if remote_id else '?'}@{self._pipe.address}"

    @property
    def closed(self) -> SessionClosed | None:
        """How the connection ended, or None."""
        return self._link.closed

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proved that it holds the key of its `node_id`; a replayed auth packet does not."""
        return self._session.is_authenticated

    @property
    def was_open(self) -> bool:
        """Whether the handshake is over; the connection may have ended since."""
        return self.opened_at is not None

    @property
    def is_open(self) -> bool:
        """Whether the handshake is over and the connection has not ended."""
        return self._link.is_open

    @property
    def settings(self) -> PeerSettings:
        """What the peer has announced so far."""
        return self._peer.settings

    @property
    def node_id(self) -> NodeId | None:
        """The peer's node id; None before the peer has sent it."""
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
        """How many bytes the peer has sent, encrypted as they are."""
        return self._pipe.received_bytes

    @property
    def sent_bytes(self) -> int:
        """How many bytes have been sent to the peer, those in the write buffer included."""
        return self._pipe.sent_bytes

    @property
    def last_received_at(self) -> float:
        """When bytes came last, by the loop's clock; at first, when the connection was made."""
        return self._frames.last_received_at

    @property
    def refused_bytes(self) -> int:
        """The length of a named peer's packet that was too long even for one, or did not arrive in time; 0 if none."""
        return self._frames.refused_bytes

    async def run(self, handler: Handler) -> None:
        """Pump until the connection ends, then close the socket. Each event of the peer is awaited in `handler`."""
        await self.pump(one_by_one(handler))

    async def pump(self, receive: Receive) -> None:
        """Pump until the connection ends, then close the socket. `receive` is awaited for what each read brings."""
        link, timers, frames = self._link, self._timers, self._frames
        try:
            link.flush()
            timers.start()
            while link.closed is None:
                await self._dispatch(await frames.read(), receive)
                await frames.make_room()
                if self._pipe.is_full:
                    timers.pause_idle_timer()
                    with contextlib.suppress(ConnectionLost):  # then `closed` says so
                        await link.drain()
                    timers.resume_idle_timer()
            if link.closed.by_peer:
                frames.note_unfinished()
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_S):
                        await self._pipe.finish()
        finally:
            timers.stop()
            frames.end()
            link.close()
            self._ready.set()

    async def ready(self) -> PeerSettings:
        """Wait for the peer's Status.

        Raises:
            ConnectionLost: the connection ended before Status came.
        """
        await self._ready.wait()
        if self._link.closed is not None:
            raise self._link.lost()
        return self._peer.settings

    def announce(self, status: StatusOptions) -> None:
        """Tell the peer which of the options that we announce have changed; send nothing if none has."""
        previous, self._status = self._status, status
        update = status.since(previous)
        if self.is_open and update != _NO_OPTIONS:  # before that, Status itself has the new options
            self.send(PacketCode.STATUS_UPDATE, _encoded(update))

    def probe(self) -> bool:
        """Find out whether the peer is still there.

        Returns:
            True if it has just shown that. Otherwise it answers within PROBE_TIMEOUT_S, or it is dropped.
        """
        return self._timers.probe()

    def send(self, code: Code, payload: bytes | SharedPayload) -> None:
        """Queue a packet. Before queueing more than a few, `drain`.

        Raises:
            ConnectionLost: the connection has ended.
            LocalProtocolError: the peer does not share the capability of the code.
        """
        self._link.send_all(((code, payload),))

    def send_all(self, packets: Iterable[tuple[Code, bytes | SharedPayload]]) -> None:
        """Queue packets: each a code and a payload.

        Raises:
            ConnectionLost: the connection has ended.
        """
        self._link.send_all(packets)

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be read by the peer that `drain` waits."""
        return self._pipe.is_full

    async def drain(self) -> None:
        """Wait until the peer has read enough of what was sent.

        Raises:
            ConnectionLost: the peer read nothing for WRITE_TIMEOUT_S, or the connection has ended.
        """
        await self._link.drain()

    def disconnect(self, reason: DisconnectReason, cause: str) -> None:
        """End the connection and tell the peer why."""
        self._link.disconnect(reason, cause)

    def abort(self, cause: str) -> None:
        """End the connection at once; unsent data is dropped."""
        self._link.abort(cause)

    async def _dispatch(self, events: Iterable[Event], receive: Receive) -> None:
        """Act on what the session made of one read, in order."""
        link = self._link
        inbound = Inbound(self._decode, self._begin)
        for event in events:
            # Pings and packets that say nothing cost as much as any other message: all are handed over.
            if isinstance(event, MessageReceived | BaseMessageReceived):
                inbound.add(event)
                continue
            await self._hand_over(inbound, receive)
            if link.closed is not None:  # by the peer, or by us because of what was handed over
                break
            match event:
                case LongMessageReceived():
                    await self._inflate(event, inbound)
                case MessageTooLong(size=size):
                    self._frames.note_too_long(size)
                case SessionOpened():
                    self._on_opened(event)
                case SessionClosed():
                    link.closed = event
        await self._hand_over(inbound, receive)
        link.settle()

    def _on_opened(self, opened: SessionOpened) -> None:
        self.client_id = opened.client_id
        self.capabilities = frozenset(entry.capability for entry in opened.shared)
        self.opened_at = self._loop.time()
        self._peer.opened(self.opened_at)
        self._timers.start()
        if self.is_open:  # the peer's Disconnect may have come in the same read
            self._session.send(WAKU, PacketCode.STATUS, _encoded(self._status))

    async def _hand_over(self, inbound: Inbound, receive: Receive) -> None:
        """Have messages acted on. Nothing is read meanwhile, nor while the peer is over a limit: TCP slows it down."""
        link, timers = self._link, self._timers
        while len(inbound) and link.closed is None:
            link.flush()  # acting on them may take a while
            timers.pause()
            try:
                seconds = await receive(inbound)
            except RemoteProtocolError as error:
                link.disconnect(error.reason, error.cause)
                return
            timers.resume()
            if seconds > 0 and link.closed is None:
                link.flush()  # a Pong, say: a peer that we slow down must not take us for dead
                timers.pause_idle_timer()
                await self._pipe.sleep(seconds)
                timers.resume_idle_timer()

    async def _inflate(self, message: LongMessageReceived, inbound: Inbound) -> None:
        """Inflate a long message and add it to `inbound`. Nothing is read meanwhile."""
        if message.capability != WAKU:
            cause = f"packet {message.code} of {message.capability.name} is too long"
            self._link.disconnect(DisconnectReason.SUBPROTOCOL_ERROR, cause)
            return
        self._link.flush()
        self._timers.pause()
        try:
            payload = await inflated(message)
        except DecodeError as error:
            self._link.disconnect(DisconnectReason.PROTOCOL_BREACH, str(error))
            return
        self._timers.resume()
        inbound.add(LongMessage(message.code, payload))

    def _begin(self, message: MessageReceived) -> LargePacket:
        """Take a large packet, which is decoded part by part.

        Raises:
            RemoteProtocolError: it breaks a rule.
        """
        return self._peer.receive_large_packet(message.code, message.payload)

    def _decode(self, message: MessageReceived | LongMessage) -> PeerEvent:
        """Say what a message means.

        Raises:
            RemoteProtocolError: the message breaks a rule.
        """
        if isinstance(message, LongMessage):
            return self._peer.receive_long_packet(message.code, message.payload)
        if message.capability != WAKU:
            return receive_id_packet(message.code, message.payload, is_ready=self._peer.state is PeerState.READY)
        event = self._peer.receive_packet(message.code, message.payload)
        if isinstance(event, StatusReceived):
            self._ready.set()
        return event
