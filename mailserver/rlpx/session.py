"""One RLPx session, either side, without I/O: bytes and times in, bytes and events out.

It carries the handshake, frames, Hello, compression, pings and Disconnect, and hands on the messages of the
capabilities that both sides share, knowing nothing about them. The peer's faults never raise: they end the
session with the right Disconnect and a `Closed` event.

    HANDSHAKE --auth, ack--> HELLO --both Hellos--> OPEN
        \\___________________________\\________________\\--> CLOSED

Spec: rlpx.md; EIP-706 for compression.
"""

import contextlib
import math
from collections.abc import Callable
from enum import Enum, auto

from mailserver.codec import snappy
from mailserver.codec.keys import NodeId
from mailserver.errors import DecodeError, DisconnectReason, LocalProtocolError, RemoteProtocolError
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import RESERVED_MESSAGE_IDS, Capability, SharedCapability, locate, share
from mailserver.rlpx.events import (
    BaseMessageReceived,
    Closed,
    Event,
    LongMessageReceived,
    MessageReceived,
    MessageTooLong,
    Opened,
)
from mailserver.rlpx.framing import (
    BLOCK_BYTES,
    HEADER_BYTES,
    MAC_BYTES,
    MAX_FRAME_BODY_BYTES,
    ComingFrame,
    FrameDecoder,
    FrameEncoder,
    encode_message_id,
    padded,
    split_message,
)
from mailserver.rlpx.handshake import (
    PLAIN_AUTH_BYTES,
    SIZE_PREFIX_BYTES,
    Entropy,
    Initiator,
    Recipient,
    Secrets,
    is_plain_auth,
    packet_length,
)
from mailserver.rlpx.liveness import Due, Liveness
from mailserver.rlpx.session_config import SessionConfig, Undecided
from mailserver.rlpx.shared_payload import SharedPayload

HANDSHAKE_TIMEOUT_S = 5.0
"""From the start until both Hellos are in; deployed clients wait as long."""

MAX_SNAPPY_BYTES = 16 * 1024 * 1024
"""No message may announce more (rlpx.md "p2p"); ours is lower, see SessionConfig.max_message_bytes."""

PART_BYTES = 32 * 1024
"""A frame that is longer is decrypted as it comes: all at once, the longest would take a tenth of a second."""

_MESSAGE_ID_BYTES = 2  # up to 0xff, in RLP
_SNAPPY_VERSION = 5
_PLAIN_AUTH_PREFIX = 0x04


class SessionState(Enum):
    """Where a session stands."""

    HANDSHAKE = auto()
    HELLO = auto()
    OPEN = auto()
    CLOSED = auto()


class Session:
    """One RLPx session, either side, without I/O. Times are monotonic seconds."""

    def __init__(
        self,
        config: SessionConfig,
        entropy: Callable[[], Entropy],
        now: float,
        *,
        remote_id: NodeId | None = None,
    ) -> None:
        """Start as initiator if `remote_id` is given, else as recipient. `opened_frames` counts what has come.

        Args:
            entropy: called once, when the handshake needs it: a stranger who sends nothing costs no keys.
        Raises:
            DecodeError: `remote_id` is no point of the curve.
        """
        self._config = config
        self._entropy = entropy
        self._state = SessionState.HANDSHAKE
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._events: list[Event] = []
        self._deadline = now + HANDSHAKE_TIMEOUT_S
        self._liveness: Liveness | None = None  # once it is open
        self._is_reading = True
        self._has_proved_itself = False
        self._is_held = False
        self._has_more = False
        self.opened_frames = 0
        self._encoder: FrameEncoder
        self._decoder: FrameDecoder
        self._frame: ComingFrame | None = None
        self._body = bytearray()  # of that frame, as far as it has been decrypted
        self._compressed = False
        self._shared: tuple[SharedCapability, ...] = ()
        self._remote_id = remote_id
        self._initiator = None if remote_id is None else Initiator(config.key, remote_id, entropy())
        self._may_be_plain = remote_id is None
        if self._initiator is not None:
            self._out.append(self._initiator.auth)

    @property
    def state(self) -> SessionState:
        """Where the session stands."""
        return self._state

    @property
    def remote_id(self) -> NodeId | None:
        """Who the peer is; None before a recipient has read auth."""
        return self._remote_id

    @property
    def has_proved_itself(self) -> bool:
        """Whether the peer has the key of its node id: an auth packet that was recorded opens no Hello."""
        return self._has_proved_itself

    @property
    def frame(self) -> ComingFrame | None:
        """The frame that is coming, if its header has been read; another object for each."""
        return self._frame

    @property
    def is_held(self) -> bool:
        """Whether it is undecided if the peer is wanted: nothing that it sends is looked at. See `reconsider`."""
        return self._is_held and self._state is not SessionState.CLOSED

    @property
    def has_more(self) -> bool:
        """Whether frames may be left of what was received; `receive_data` of nothing goes on with them."""
        return self._has_more and self._state is not SessionState.CLOSED

    def receive_data(self, data: bytes, now: float, *, max_frames: float = math.inf) -> None:
        """Take bytes from the peer. Never raises for the peer's faults.

        Args:
            max_frames: open no more than so many; then `has_more`.
        """
        if self._state is SessionState.CLOSED:
            return
        self._buffer += data
        if data and self._liveness is not None:
            self._liveness.heard(now)
        self._advance_all(now, max_frames)

    def reconsider(self, now: float, *, max_frames: float = math.inf) -> None:
        """Ask again whether the peer is wanted, if that was undecided; `max_frames` as of `receive_data`."""
        if self.is_held:
            assert self._remote_id is not None
            self._is_held = False
            try:
                self._greet_if_wanted(self._remote_id)
            except RemoteProtocolError as error:
                self.disconnect(error.reason, str(error))
            self._advance_all(now, max_frames)

    def _advance_all(self, now: float, max_frames: float) -> None:
        most = self.opened_frames + max_frames
        try:
            while self.opened_frames < most and self._advance(now):
                pass
            self._has_more = self.opened_frames >= most
        except RemoteProtocolError as error:
            self.disconnect(error.reason, str(error))
        except DecodeError as error:
            self.disconnect(DisconnectReason.PROTOCOL_BREACH, str(error))

    def receive_eof(self) -> None:
        """The peer closed its side, or the transport broke."""
        if self._state is not SessionState.CLOSED:
            cause = f"connection closed in state {self._state.name}"
            if self._initiator is not None:  # it cannot say so: there are no keys to say it with
                cause = (
                    "connection closed without an answer: another node id is there than the enode says, most likely, "
                    "or this address is not let in"
                )
            self._close(None, by_peer=True, cause=cause)

    def next_timer(self) -> float | None:
        """When to call `handle_timer`; None once closed. It moves forward as bytes arrive."""
        if self._state is SessionState.CLOSED:
            return None
        return self._deadline if self._liveness is None else self._liveness.next_timer()

    def handle_timer(self, now: float) -> None:
        """Send the ping that is due, or give up on a peer that is silent for too long."""
        if self._state is SessionState.CLOSED:
            return
        if self._liveness is None:
            if now >= self._deadline:
                reason = DisconnectReason.ALREADY_CONNECTED if self._is_held else DisconnectReason.REQUESTED
                self.disconnect(reason, f"no handshake within {HANDSHAKE_TIMEOUT_S:g} s")
            return
        due = self._liveness.due(now)
        if due is Due.GIVE_UP:
            self.disconnect(DisconnectReason.PING_TIMEOUT, f"peer was silent for {self._liveness.patience_s:g} s")
        elif due is Due.PING:
            self._send_frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD)

    def pause_reading(self) -> None:
        """The caller stops reading to slow the peer down: its silence no longer counts against it."""
        self._is_reading = False
        if self._liveness is not None:
            self._liveness.pause_reading()

    def resume_reading(self, now: float) -> None:
        """The caller reads again."""
        self._is_reading = True
        if self._liveness is not None:  # the handshake gets no more time
            self._liveness.resume_reading(now)

    def probe(self, now: float) -> bool:
        """Whether the peer has opened the session, or answered a probe, within the last SEEN_S.

        Otherwise it is pinged, once, and given up unless it says anything within PROBE_TIMEOUT_S; nothing before it is
        open. While the caller does not read, that time does not begin.
        """
        if self._state is not SessionState.OPEN or self._liveness is None:
            return False
        if self._liveness.is_seen(now):
            return True
        if self._liveness.probe(now) is Due.PING:
            self._send_frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD)
        return False

    def send(self, capability: Capability, code: int, payload: bytes | SharedPayload) -> None:
        """Queue a message of a shared capability.

        Raises:
            LocalProtocolError: the session is not open, or the capability is not shared or has no such code.
        """
        if self._state is not SessionState.OPEN:
            raise LocalProtocolError(f"send in state {self._state.name}")
        for entry in self._shared:
            if entry.capability == capability and 0 <= code < entry.length:
                self._send_frame(entry.offset + code, payload)
                return
        raise LocalProtocolError(f"{capability} has no code {code} here")

    def disconnect(self, reason: DisconnectReason, cause: str) -> None:
        """End the session and say why. A second call does nothing."""
        if self._state is SessionState.CLOSED:
            return
        if self._state is not SessionState.HANDSHAKE:  # before, there is no key to say it with
            self._send_frame(p2p.MessageId.DISCONNECT, p2p.encode_disconnect(reason))
        self._close(reason, by_peer=False, cause=cause)

    def events(self) -> list[Event]:
        """Return what has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def data_to_send(self) -> list[bytes]:
        """Return what is to be sent since the last call, in order."""
        out, self._out = self._out, []
        return out

    def _advance(self, now: float) -> bool:
        """Take the next whole packet or frame from the buffer; False if more bytes are needed, or none."""
        if self._state is SessionState.CLOSED or self._is_held:
            return False
        if self._state is SessionState.HANDSHAKE:
            return self._advance_handshake()
        if self._frame is None:
            if len(self._buffer) < HEADER_BYTES:
                return False
            header = self._take(HEADER_BYTES)
            self._frame = ComingFrame(self._decoder.decode_header(header, max_body_bytes=self._max_body_bytes()))
        frame = self._frame
        if frame.wire_bytes > PART_BYTES:
            if not self._decode_more(frame):
                return False
            body, self._body = memoryview(self._body)[: frame.body_bytes], bytearray()
        elif len(self._buffer) < frame.wire_bytes:
            return False
        else:
            body = memoryview(self._decoder.decode_body(self._take(frame.wire_bytes), frame.body_bytes))
        self._frame = None
        self.opened_frames += 1
        self._on_message(body, now)
        return True

    def _decode_more(self, frame: ComingFrame) -> bool:
        """Decrypt what has come of a large frame; return whether that is all."""
        size = padded(frame.body_bytes)
        self._body += self._decoder.decode_part(
            self._take(min(len(self._buffer) // BLOCK_BYTES * BLOCK_BYTES, size - len(self._body)))
        )
        if frame.message_bytes is None and self._body:
            _, data = split_message(memoryview(self._body)[:BLOCK_BYTES])
            frame.message_bytes = snappy.announced_bytes(data) if self._compressed else frame.body_bytes
        if len(self._body) < size or len(self._buffer) < MAC_BYTES:
            return False
        self._decoder.check_body(self._take(MAC_BYTES))
        return True

    def _max_body_bytes(self) -> int:
        if self._state is not SessionState.OPEN:
            return _MESSAGE_ID_BYTES + p2p.MAX_P2P_MESSAGE_BYTES
        longest = _MESSAGE_ID_BYTES + snappy.max_compressed_bytes(self._max_message_bytes())
        return min(longest, MAX_FRAME_BODY_BYTES)

    def _max_message_bytes(self, *, is_one_part: bool = False) -> int:
        """The most that a message may inflate to. One part holds no long message, whatever that announces."""
        config = self._config
        assert self._remote_id is not None
        if not is_one_part and config.may_be_long is not None and config.may_be_long(self._remote_id):
            return min(config.max_long_message_bytes, MAX_SNAPPY_BYTES)
        return min(config.max_message_bytes, MAX_SNAPPY_BYTES)

    def _advance_handshake(self) -> bool:
        if len(self._buffer) < SIZE_PREFIX_BYTES:
            return False
        start = bytes(self._buffer[:PLAIN_AUTH_BYTES])
        if self._may_be_plain and len(start) == PLAIN_AUTH_BYTES:
            self._may_be_plain = False  # looked at once: it costs a key agreement
            if start[0] == _PLAIN_AUTH_PREFIX and is_plain_auth(self._config.key, start):
                raise DecodeError("auth has the form from before EIP-8")
        length = packet_length(start)
        if len(self._buffer) < length:
            return False
        packet = self._take(length)
        if self._initiator is not None:
            secrets = self._initiator.receive_ack(packet)
            self._initiator = None
        else:
            ack, secrets = Recipient(self._config.key, self._entropy()).receive_auth(packet)
            self._out.append(ack)
        self._start_frames(secrets)
        return True

    def _start_frames(self, secrets: Secrets) -> None:
        self._remote_id = secrets.remote_id
        self._encoder = FrameEncoder(secrets.aes, secrets.mac, secrets.egress_seed)
        self._decoder = FrameDecoder(secrets.aes, secrets.mac, secrets.ingress_seed)
        self._state = SessionState.HELLO
        self._greet_if_wanted(secrets.remote_id)

    def _greet_if_wanted(self, remote_id: NodeId) -> None:
        config = self._config
        if self._refusal_of(remote_id) is Undecided.UNDECIDED:
            self._is_held = True
            return
        if remote_id == config.key.public_key:
            raise RemoteProtocolError(DisconnectReason.SELF_CONNECTION, "connected to ourselves")
        hello = p2p.Hello(
            p2p.P2P_VERSION,
            config.client_id,
            tuple(sorted(config.capabilities)),
            config.listen_port,
            config.key.public_key,
        )
        self._send_frame(p2p.MessageId.HELLO, hello.encode())

    def _refusal_of(self, remote_id: NodeId) -> Undecided | None:
        """Raise RemoteProtocolError if the peer is not wanted."""
        refused = None if self._config.refuse is None else self._config.refuse(remote_id)
        if isinstance(refused, DisconnectReason):
            raise RemoteProtocolError(refused, "not wanted here")
        return refused

    def _on_message(self, body: memoryview, now: float) -> None:
        message_id, data = split_message(body)
        if self._state is SessionState.HELLO:
            self._on_first_message(message_id, bytes(data), now)
            return
        if message_id == p2p.MessageId.DISCONNECT:
            payload = bytes(data)
            with contextlib.suppress(DecodeError):  # it is not compressed if it was said before our Hello was heard
                payload = self._inflate(data, p2p.MAX_P2P_MESSAGE_BYTES)
            self._on_disconnect(payload)
            return
        if message_id < RESERVED_MESSAGE_IDS:
            payload = self._inflate(data, p2p.MAX_P2P_MESSAGE_BYTES)
            self._on_p2p_message(message_id)
            self._events.append(BaseMessageReceived(len(payload)))
            return
        located = locate(self._shared, message_id)
        if located is None:
            raise RemoteProtocolError(DisconnectReason.PROTOCOL_BREACH, f"message id {message_id} is nobody's")
        most = self._max_message_bytes(is_one_part=len(body) <= PART_BYTES)
        if most > self._config.max_message_bytes:
            size = snappy.announced_bytes(data) if self._compressed else len(data)
            if size > most:
                self._events.append(MessageTooLong(size))
            elif size > self._config.max_message_bytes:
                self._events.append(LongMessageReceived(*located, data, self._compressed))
                return
        self._events.append(MessageReceived(*located, self._inflate(data, most)))

    def _on_first_message(self, message_id: int, data: bytes, now: float) -> None:
        """Hello, or a Disconnect in its place; neither is compressed."""
        if message_id == p2p.MessageId.DISCONNECT:
            self._on_disconnect(data)
            return
        if message_id != p2p.MessageId.HELLO:
            raise RemoteProtocolError(DisconnectReason.PROTOCOL_BREACH, f"message id {message_id} before Hello")
        hello = p2p.Hello.decode(data)
        self._compressed = hello.version >= _SNAPPY_VERSION  # from here on, also what we say to refuse it
        if hello.node_id != self._remote_id:
            raise RemoteProtocolError(DisconnectReason.UNEXPECTED_IDENTITY, "Hello names another node id")
        self._has_proved_itself = True
        if self._refusal_of(hello.node_id) is Undecided.UNDECIDED:  # there was none when we said ours
            raise RemoteProtocolError(DisconnectReason.ALREADY_CONNECTED, "not wanted here")
        self._shared = share(self._config.capabilities, hello.capabilities)
        if not self._shared:
            raise RemoteProtocolError(DisconnectReason.USELESS_PEER, "no capability in common")
        self._state = SessionState.OPEN
        self._liveness = Liveness(now, is_reading=self._is_reading)
        self._events.append(Opened(hello.node_id, hello.client_id, self._shared))

    def _on_p2p_message(self, message_id: int) -> None:
        if message_id == p2p.MessageId.PING:
            self._send_frame(p2p.MessageId.PONG, p2p.EMPTY_PAYLOAD)
        elif message_id == p2p.MessageId.HELLO:
            raise RemoteProtocolError(DisconnectReason.PROTOCOL_BREACH, "second Hello")

    def _on_disconnect(self, payload: bytes) -> None:
        reason = p2p.decode_disconnect(payload)
        name = "unknown reason" if reason is None else reason.name
        self._close(reason, by_peer=True, cause=f"peer disconnected: {name}")

    def _inflate(self, data: memoryview, max_bytes: int) -> bytes:
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
        self._frame = None
        self._body = bytearray()
        self._buffer.clear()
        self._events.append(Closed(reason, by_peer, cause))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken
