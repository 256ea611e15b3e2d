"""One RLPx session, either side, without I/O: bytes and times in, bytes and events out.

A session does the handshake, frames, Hello, compression, pings and Disconnect. It passes on the messages of the
capabilities that both sides share, and knows nothing about them. A peer's fault never raises: it ends the session with
the right Disconnect and a `SessionClosed` event. `rlpx.moves` says what may happen in which state.

Spec: rlpx.md; EIP-706 for compression.
"""

import contextlib
import math
from collections.abc import Callable
from typing import ClassVar

from mailserver.codec import snappy
from mailserver.codec.keys import NodeId
from mailserver.errors import DecodeError, DisconnectReason, LocalProtocolError, RemoteProtocolError
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import Capability, SharedCapability, locate, share
from mailserver.rlpx.events import (
    BaseMessageReceived,
    Event,
    LongMessageReceived,
    MessageReceived,
    MessageTooLong,
    SessionClosed,
    SessionOpened,
)
from mailserver.rlpx.frame_reader import PART_BYTES, FrameReader
from mailserver.rlpx.framing import (
    MAX_FRAME_BODY_BYTES,
    FrameDecoder,
    FrameEncoder,
    PartialFrame,
    encode_message_id,
    split_message,
)
from mailserver.rlpx.handshake import Entropy
from mailserver.rlpx.key_exchange import KeyExchange
from mailserver.rlpx.liveness import Action, Liveness
from mailserver.rlpx.moves import MOVES, Move, SessionState, move_of
from mailserver.rlpx.session_config import SessionConfig, Undecided
from mailserver.rlpx.shared_payload import SharedPayload

HANDSHAKE_TIMEOUT_S = 5.0
"""How long the handshake may take, from the start until both Hellos are in. Deployed clients use the same limit."""

MAX_SNAPPY_BYTES = 16 * 1024 * 1024
"""No message may be longer when inflated (rlpx.md "p2p"). Our own limit is lower: SessionConfig.max_message_bytes."""

_MESSAGE_ID_BYTES = 2  # up to 0xff, in RLP
_SNAPPY_VERSION = 5


class Session:
    """One RLPx session, either side, without I/O. Times are monotonic seconds.

    `opened_frames`: how many frames have been opened so far.
    """

    frame_decoder: ClassVar[type[FrameDecoder]] = FrameDecoder
    """What opens frames. A subclass that trusts its peer may use a decoder that checks less."""

    def __init__(
        self,
        config: SessionConfig,
        entropy: Callable[[], Entropy],
        now: float,
        *,
        remote_id: NodeId | None = None,
    ) -> None:
        """Start as initiator if `remote_id` is given, else as recipient.

        Args:
            entropy: called once, when the handshake needs it. So no keys are made for a stranger who sends nothing.
        Raises:
            DecodeError: `remote_id` is not a point on the curve.
        """
        self._config = config
        self._state = SessionState.HANDSHAKE
        self._received = bytearray()
        self._events: list[Event] = []
        self._deadline = now + HANDSHAKE_TIMEOUT_S
        self._liveness: Liveness | None = None  # set when the session opens
        self._is_reading = True
        self._is_authenticated = False
        self._is_undecided = False
        self._has_more = False
        self.opened_frames = 0
        self._encoder: FrameEncoder
        self._reader: FrameReader | None = None  # set when there are keys
        self._max_message_bytes = min(config.max_message_bytes, MAX_SNAPPY_BYTES)
        self._max_long_bytes = self._max_message_bytes  # of this peer
        self._max_body_bytes = _MESSAGE_ID_BYTES + p2p.MAX_P2P_MESSAGE_BYTES
        self._compressed = False
        self._shared: tuple[SharedCapability, ...] = ()
        self._remote_id = remote_id
        self._key_exchange: KeyExchange | None = KeyExchange(config.key, remote_id, entropy, self._received)
        self._out = self._key_exchange.data_to_send()

    @property
    def state(self) -> SessionState:
        """Where the session stands."""
        return self._state

    @property
    def remote_id(self) -> NodeId | None:
        """The peer's node id; None before a recipient has read auth."""
        return self._remote_id

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proved by its Hello that it holds the key of its node id. Auth alone may be a replay."""
        return self._is_authenticated

    @property
    def frame(self) -> PartialFrame | None:
        """The frame whose header has been read, and that is not complete. Each frame is an object of its own."""
        return None if self._reader is None else self._reader.frame

    @property
    def is_undecided(self) -> bool:
        """Whether it is undecided if we want the peer. Until `reconsider` decides, nothing that it sends is read."""
        return self._is_undecided and self._state is not SessionState.CLOSED

    @property
    def has_more(self) -> bool:
        """Whether complete frames may be left of what was received. Call `receive_data` with b"" to go on with them."""
        return self._has_more and self._state is not SessionState.CLOSED

    def receive_data(self, data: bytes, now: float, *, max_frames: float = math.inf) -> None:
        """Take bytes from the peer. Never raises for the peer's faults.

        Args:
            max_frames: how many frames to open at most. If there may be more, `has_more` is set.
        """
        if self._state is SessionState.CLOSED:
            return
        self._received += data
        if data and self._liveness is not None:
            self._liveness.on_data(now)
        self._advance_all(now, max_frames)

    def reconsider(self, now: float, *, max_frames: float = math.inf) -> None:
        """Ask again whether we want the peer, if that was undecided; `max_frames` as in `receive_data`."""
        if self.is_undecided:
            assert self._remote_id is not None
            self._is_undecided = False
            try:
                self._send_hello_if_wanted(self._remote_id)
            except RemoteProtocolError as error:
                self.disconnect(error.reason, str(error))
            self._advance_all(now, max_frames)

    def _advance_all(self, now: float, max_frames: float) -> None:
        most = self.opened_frames + max_frames
        if self._state is SessionState.OPEN:
            self._set_limits()  # the operator may have named the peer since
        try:
            while self.opened_frames < most and self._advance(now):
                pass
            self._has_more = self.opened_frames >= most
        except RemoteProtocolError as error:
            self.disconnect(error.reason, str(error))
        except DecodeError as error:
            self.disconnect(DisconnectReason.PROTOCOL_BREACH, str(error))

    def receive_eof(self) -> None:
        """The peer has closed its side, or the transport is broken."""
        if Move.END in MOVES[self._state]:
            cause = f"connection closed in state {self._state.name}"
            if self._key_exchange is not None and self._key_exchange.is_initiator:
                # The peer has no keys yet to say why in a Disconnect.
                cause = (
                    "connection closed without an answer: the node there most likely has another node id than the "
                    "enode says, or does not accept our address"
                )
            self._close(None, by_peer=True, cause=cause)

    def next_timer(self) -> float | None:
        """When to call `handle_timer`; None once closed. Bytes that arrive may put it off."""
        if self._state is SessionState.CLOSED:
            return None
        return self._deadline if self._liveness is None else self._liveness.next_timer()

    def handle_timer(self, now: float) -> None:
        """Send the ping that is due, or end the session of a peer that was silent for too long."""
        if self._state is SessionState.CLOSED:
            return
        if self._liveness is None:
            if now >= self._deadline:
                reason = DisconnectReason.ALREADY_CONNECTED if self._is_undecided else DisconnectReason.REQUESTED
                self.disconnect(reason, f"no handshake within {HANDSHAKE_TIMEOUT_S:g} s")
            return
        action = self._liveness.handle_timer(now)
        if action is Action.GIVE_UP:
            self.disconnect(DisconnectReason.PING_TIMEOUT, f"peer was silent for {self._liveness.timeout_s:g} s")
        elif action is Action.PING:
            self._send_frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD)

    def pause_reading(self) -> None:
        """The caller stops reading: the peer's silence no longer counts against it."""
        self._is_reading = False
        if self._liveness is not None:
            self._liveness.pause_reading()

    def resume_reading(self, now: float) -> None:
        """The caller reads again."""
        self._is_reading = True
        if self._liveness is not None:  # the handshake gets no more time
            self._liveness.resume_reading(now)

    def probe(self, now: float) -> bool:
        """Return whether the peer has opened the session or answered a probe within the last SEEN_RECENTLY_S.

        If not, and the session is open, the peer is pinged once, and given up unless it sends anything within
        PROBE_TIMEOUT_S. While the caller does not read, that time does not begin.
        """
        if self._state is not SessionState.OPEN or self._liveness is None:
            return False
        if self._liveness.was_seen_recently(now):
            return True
        if self._liveness.probe(now) is Action.PING:
            self._send_frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD)
        return False

    def send(self, capability: Capability, code: int, payload: bytes | SharedPayload) -> None:
        """Queue a message of a shared capability.

        Raises:
            LocalProtocolError: the session is not open, or the capability is not shared or has no such code.
        """
        if Move.SEND not in MOVES[self._state]:
            raise LocalProtocolError(f"send in state {self._state.name}")
        for entry in self._shared:
            if entry.capability == capability and 0 <= code < entry.length:
                self._send_frame(entry.offset + code, payload)
                return
        raise LocalProtocolError(f"{capability} has no code {code} here")

    def disconnect(self, reason: DisconnectReason, cause: str) -> None:
        """End the session and tell the peer why. A second call does nothing."""
        if Move.END not in MOVES[self._state]:
            return
        if self._state is not SessionState.HANDSHAKE:  # before that, there are no keys to send it with
            self._send_frame(p2p.MessageId.DISCONNECT, p2p.encode_disconnect(reason))
        self._close(reason, by_peer=False, cause=cause)

    def events(self) -> list[Event]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def data_to_send(self) -> list[bytes]:
        """Return the bytes to send that were queued since the last call, in order."""
        out, self._out = self._out, []
        return out

    def _advance(self, now: float) -> bool:
        """Act on the next complete packet or frame; return False if there is none, or nothing may be read."""
        if self._state is SessionState.CLOSED or self._is_undecided:
            return False
        if self._reader is None:
            return self._advance_handshake()
        body = self._reader.read(self._max_body_bytes)
        if body is None:
            return False
        self.opened_frames += 1
        self._on_frame(body, now)
        return True

    def _set_limits(self) -> None:
        """Set how long a message and a frame body of this peer may be now."""
        config = self._config
        assert self._remote_id is not None
        longest = self._max_message_bytes
        if config.may_send_long is not None and config.may_send_long(self._remote_id):
            longest = min(config.max_long_message_bytes, MAX_SNAPPY_BYTES)
        self._max_long_bytes = longest
        self._max_body_bytes = min(_MESSAGE_ID_BYTES + snappy.max_compressed_bytes(longest), MAX_FRAME_BODY_BYTES)

    def _advance_handshake(self) -> bool:
        assert self._key_exchange is not None, "without a frame reader, the key exchange is going on"
        secrets = self._key_exchange.advance()
        if secrets is None:
            return False
        self._out += self._key_exchange.data_to_send()
        self._key_exchange = None
        self._remote_id = secrets.remote_id
        self._encoder = FrameEncoder(secrets.aes, secrets.mac, secrets.egress_seed)
        decoder = self.frame_decoder(secrets.aes, secrets.mac, secrets.ingress_seed)
        self._reader = FrameReader(decoder, self._received)
        self._state = MOVES[self._state][Move.KEYS_AGREED]
        self._send_hello_if_wanted(secrets.remote_id)
        return True

    def _send_hello_if_wanted(self, remote_id: NodeId) -> None:
        config = self._config
        if self._refusal_of(remote_id) is Undecided.UNDECIDED:
            self._is_undecided = True
            return
        if remote_id == config.key.public_key:
            raise RemoteProtocolError(DisconnectReason.SELF_CONNECTION, "connected to ourselves")
        self._send_frame(p2p.MessageId.HELLO, config.hello().encode())

    def _refusal_of(self, remote_id: NodeId) -> Undecided | None:
        """Raise RemoteProtocolError if the peer is not wanted."""
        refused = None if self._config.refuse is None else self._config.refuse(remote_id)
        if isinstance(refused, DisconnectReason):
            raise RemoteProtocolError(refused, "we refused the peer")
        return refused

    def _on_frame(self, body: bytes | memoryview, now: float) -> None:
        message_id, data = split_message(body)
        move = move_of(message_id)
        if move not in MOVES[self._state]:
            what = "second Hello" if move is Move.HELLO else f"message id {message_id} before Hello"
            raise RemoteProtocolError(DisconnectReason.PROTOCOL_BREACH, what)
        if move is Move.MESSAGE:
            self._on_message(message_id, data, is_one_part=len(body) <= PART_BYTES)
        elif move is Move.HELLO:
            self._on_hello(p2p.Hello.decode(bytes(data)), now)
        elif move is Move.DISCONNECT:
            self._on_disconnect(bytes(data))
        else:
            payload = self._inflate(data, p2p.MAX_P2P_MESSAGE_BYTES)
            if move is Move.PING:
                self._send_frame(p2p.MessageId.PONG, p2p.EMPTY_PAYLOAD)
            self._events.append(BaseMessageReceived(len(payload)))

    def _on_message(self, message_id: int, data: bytes | memoryview, *, is_one_part: bool) -> None:
        """Take a message of a capability. One that came in one part is never long, whatever length it announces."""
        located = locate(self._shared, message_id)
        if located is None:
            raise RemoteProtocolError(
                DisconnectReason.PROTOCOL_BREACH, f"message id {message_id} belongs to no capability"
            )
        usual = self._max_message_bytes
        most = usual if is_one_part else self._max_long_bytes
        if most > usual:
            assert isinstance(data, memoryview), "it came in parts"
            size = snappy.announced_bytes(data) if self._compressed else len(data)
            if size > most:
                self._events.append(MessageTooLong(size))
            elif size > usual:
                self._events.append(LongMessageReceived(*located, data, self._compressed))
                return
        self._events.append(MessageReceived(*located, self._inflate(data, most)))

    def _on_hello(self, hello: p2p.Hello, now: float) -> None:
        self._compressed = (
            hello.version >= _SNAPPY_VERSION
        )  # from here on; a Disconnect that refuses this Hello is compressed, too
        if hello.node_id != self._remote_id:
            raise RemoteProtocolError(DisconnectReason.UNEXPECTED_IDENTITY, "Hello names another node id")
        self._is_authenticated = True
        if self._refusal_of(hello.node_id) is Undecided.UNDECIDED:  # another connection has appeared since our Hello
            raise RemoteProtocolError(DisconnectReason.ALREADY_CONNECTED, "we refused the peer")
        self._shared = share(self._config.capabilities, hello.capabilities)
        if not self._shared or not self._config.required <= {entry.capability for entry in self._shared}:
            raise RemoteProtocolError(DisconnectReason.USELESS_PEER, "no capability in common")
        assert self._reader is not None, "a frame has come"
        self._reader.is_compressed = self._compressed
        self._state = MOVES[self._state][Move.HELLO]
        self._set_limits()
        self._liveness = Liveness(now, is_reading=self._is_reading)
        self._events.append(SessionOpened(hello.node_id, hello.client_id, self._shared))

    def _on_disconnect(self, data: bytes) -> None:
        """The peer has sent Disconnect. It is compressed, unless the peer sent it before our Hello arrived."""
        if self._state is SessionState.OPEN:
            with contextlib.suppress(DecodeError):
                data = self._inflate(data, p2p.MAX_P2P_MESSAGE_BYTES)
        reason = p2p.decode_disconnect(data)
        name = "unknown reason" if reason is None else reason.name
        self._close(reason, by_peer=True, cause=f"peer disconnected: {name}")

    def _inflate(self, data: bytes | memoryview, max_bytes: int) -> bytes:
        if self._compressed:
            return snappy.decompress(bytes(data), max_bytes=max_bytes)
        if len(data) > max_bytes:
            raise DecodeError("message is too long", got=len(data), limit=max_bytes)
        return bytes(data)

    def _send_frame(self, message_id: int, payload: bytes | SharedPayload) -> None:
        if isinstance(payload, SharedPayload):
            data = payload.compressed if self._compressed else payload.raw
        else:
            data = snappy.compress(payload) if self._compressed else payload
        self._out.append(self._encoder.encode(encode_message_id(message_id) + data))

    def _close(self, reason: DisconnectReason | None, *, by_peer: bool, cause: str) -> None:
        self._state = SessionState.CLOSED
        if self._reader is not None:
            self._reader.clear()
        self._received.clear()
        self._events.append(SessionClosed(reason, by_peer, cause))
