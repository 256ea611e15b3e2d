"""The benchmark's side of a connection: a session that hands packets on as they are, so that it costs little itself.

`mailserver.client.mail_client` decodes every envelope and awaits every event; here what came is
looked at when the clock stands. Where many peers are played by one process, not even the MACs of what they get are
computed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from mailserver.codec.keys import Enode, PrivateKey
from mailserver.errors import ConnectionLost, DecodeError, DisconnectReason
from mailserver.net.sessions import WAKU, Code, random_entropy, random_key, session_config
from mailserver.rlpx.events import MessageReceived, SessionClosed, SessionOpened
from mailserver.rlpx.framing import FrameDecoder
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.session import Session
from mailserver.waku.bloom import EMPTY_BLOOM
from mailserver.waku.packets import PacketCode, PeerSettings, StatusOptions
from mailserver.wakuid.packets import WAKUID, IdPacketCode

CLIENT_ID = "waku-mailserver-bench"
CONNECT_TIMEOUT_S = 10.0

OnPacket = Callable[[int, bytes], None]
"""Takes the code and the payload of each packet after the Status."""

CLIENT_STATUS = StatusOptions(pow_requirement=0.0, bloom=EMPTY_BLOOM, light_node=True, confirmations=True)
"""What a client announces that wants nothing relayed."""


class _TrustingDecoder(FrameDecoder):
    """Opens frames without computing their MACs, which takes four times as long as all the rest."""

    def decode_header(self, data: bytes, *, max_body_bytes: int) -> int:
        size = int.from_bytes(self._decrypt(data[:16])[:3], "big")
        if not 0 < size <= max_body_bytes:
            raise DecodeError("frame is empty or too long", got=size, limit=max_body_bytes)
        return size

    def decode_part(self, data: bytes) -> bytes:
        return self._decrypt(data)

    def check_body(self, mac: bytes) -> None:
        """Of a peer that is trusted, it is not computed."""


class _TrustingSession(Session):
    """A session whose peer is known to send what it should; what came is compared with what was sent afterwards."""

    frame_decoder = _TrustingDecoder


class Wire(asyncio.Protocol):
    """One connection. Made by `connect`. `on_packet`, `on_answer` and `on_lost` may be set once it is made.

    `on_answer` takes the packets of `wakuid`, and `on_packet` all others.
    """

    transport: asyncio.Transport

    def __init__(self, enode: Enode, key: PrivateKey, status: StatusOptions, *, trusting: bool) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._status = status
        make = _TrustingSession if trusting else Session
        self._session = make(session_config(key, CLIENT_ID), random_entropy, loop.time(), remote_id=enode.node_id)
        self._ready: asyncio.Future[PeerSettings] = loop.create_future()
        self.on_packet: OnPacket = lambda code, payload: None
        self.on_answer: OnPacket = lambda code, payload: None
        self.on_lost: Callable[[ConnectionLost], None] = lambda error: None
        self._lost: ConnectionLost | None = None

    async def ready(self) -> PeerSettings:
        """Wait for the node's Status.

        Raises:
            ConnectionLost: the connection ended before it came.
        """
        return await self._ready

    def send(self, code: Code, payload: bytes) -> None:
        """Queue a packet; `flush` sends it. Packets queued from within `on_packet` are sent after it returned.

        Raises:
            ConnectionLost: the connection has ended, perhaps before `on_lost` was set.
        """
        if self._lost is not None:
            raise self._lost
        self._session.send(WAKUID if isinstance(code, IdPacketCode) else WAKU, code, payload)

    @property
    def unsent_bytes(self) -> int:
        """What was sent, but does not fit into the socket yet."""
        return self.transport.get_write_buffer_size()

    def flush(self) -> None:
        """Send what is queued, if the connection still stands."""
        data = self._session.data_to_send()
        if data and not self.transport.is_closing():  # only asyncio's of Python 3.11 takes lines then, and drops them
            self.transport.writelines(data)

    def disconnect(self) -> None:
        """Say goodbye and close."""
        self.on_lost = lambda error: None
        self._session.disconnect(DisconnectReason.CLIENT_QUITTING, "done")
        self.flush()
        self.transport.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self.transport = transport  # type: ignore[assignment] # a stream's, which uvloop's classes do not say
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Hand on the packets that are complete, then send what that made us say."""
        self._session.receive_data(data, self._loop.time())
        for event in self._session.events():
            match event:
                case MessageReceived(code=code, payload=payload, capability=capability) if capability == WAKUID:
                    self.on_answer(code, payload)
                case MessageReceived(code=PacketCode.STATUS, payload=payload):
                    self._ready.set_result(PeerSettings().updated(StatusOptions.decode(payload)))
                case MessageReceived(code=code, payload=payload):
                    self.on_packet(code, payload)
                case SessionOpened():
                    if self._session.state is SessionState.OPEN:  # it may have said goodbye in the same breath
                        self.send(PacketCode.STATUS, self._status.encode())
                case SessionClosed(reason=reason, cause=cause):
                    self._lose(ConnectionLost(reason, cause))
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._lose(ConnectionLost(None, str(exc or "the node closed the connection")))

    def _lose(self, error: ConnectionLost) -> None:
        self._lost = error
        if not self._ready.done():
            self._ready.set_exception(error)
        self.on_lost(error)


@contextlib.asynccontextmanager
async def connect(
    enode: Enode,
    *,
    status: StatusOptions = CLIENT_STATUS,
    key: PrivateKey | None = None,
    trusting: bool = False,
    source: str | None = None,
) -> AsyncIterator[tuple[Wire, PeerSettings]]:
    """Connect to a node and wait for its Status; disconnect at the end.

    Args:
        status: what we announce.
        key: whose node id we have; None for a new one.
        trusting: whether the MACs of what comes are not looked at.
        source: the address to connect from; None for what the system takes.
    Raises:
        ConnectionLost: the node ends the connection.
        OSError: nobody answers there (TimeoutError: within CONNECT_TIMEOUT_S).
    """
    loop = asyncio.get_running_loop()
    own = Wire(enode, key or random_key(), status, trusting=trusting)
    deadline = loop.time() + CONNECT_TIMEOUT_S
    async with asyncio.timeout_at(deadline):
        _, wire = await loop.create_connection(
            lambda: own, enode.host, enode.port, local_addr=None if source is None else (source, 0)
        )
    try:
        async with asyncio.timeout_at(deadline):
            settings = await wire.ready()
        yield wire, settings
    finally:
        wire.disconnect()
