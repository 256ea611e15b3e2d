"""The whole session machine, without I/O: Session and WakuPeer against a peer who does as the fuzzer's bytes say.

Twins get the same bytes, one whole, the other cut into pieces: they must do the same. The peer is a second
implementation of its side, down to the frames, so that it can be lawful far into a session and break any rule there.
"""

from collections.abc import Callable, Iterator

from mailserver.codec import rlp, snappy
from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason, LocalProtocolError, RemoteProtocolError
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import Capability
from mailserver.rlpx.events import BaseMessageReceived, Event, MessageReceived, SessionClosed, SessionOpened
from mailserver.rlpx.framing import HEADER_BYTES, MAC_BYTES, FrameDecoder, encode_message_id, padded, split_message
from mailserver.rlpx.handshake import Initiator, Recipient, Secrets, packet_length
from mailserver.rlpx.liveness import IDLE_TIMEOUT_S, PING_INTERVAL_S, PROBE_TIMEOUT_S
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.session import HANDSHAKE_TIMEOUT_S, Session
from mailserver.rlpx.session_config import SessionConfig, Undecided
from mailserver.waku.envelope import encode_envelope, encode_envelopes
from mailserver.waku.packets import PACKET_CODE_COUNT, MessageResponse, PacketCode, StatusOptions
from mailserver.waku.peer import Event as WakuEvent
from mailserver.waku.peer import PeerState, StatusReceived, WakuPeer
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.fuzz.targets.rlpx import AnyFrames
from tests.pairs import INITIATOR_KEY_NAME, RECIPIENT_KEY_NAME, START, entropy, entropy_of, private_key

WAKU = Capability("waku", 1)
MAX_MESSAGE_BYTES = 1024
MAX_ACTIONS = 64

INITIATOR_KEY, RECIPIENT_KEY = private_key(INITIATOR_KEY_NAME), private_key(RECIPIENT_KEY_NAME)
REFUSALS = (None, None, None, DisconnectReason.TOO_MANY_PEERS, Undecided.UNDECIDED)
OFFERS = ((WAKU,), (), (Capability("waku", 0),), (Capability("eth", 63), WAKU, WAKU))
LATER_S = (0.0, 0.5, PROBE_TIMEOUT_S, HANDSHAKE_TIMEOUT_S, PING_INTERVAL_S, IDLE_TIMEOUT_S, 1e6)

ENVELOPE = encode_envelope(1_796_097_472, 50, b"\x9a\xcb\x04\x42", b"data", 7).raw
PAYLOADS = {
    PacketCode.STATUS: StatusOptions(light_node=True).encode(),
    PacketCode.MESSAGES: encode_envelopes([ENVELOPE, ENVELOPE]),
    PacketCode.BATCH_ACKNOWLEDGED: rlp.encode(bytes(32)),
    PacketCode.MESSAGE_RESPONSE: MessageResponse(bytes(32)).encode(),
    PacketCode.STATUS_UPDATE: StatusOptions(confirmations=True).encode(),
    PacketCode.P2P_REQUEST_COMPLETE: rlp.encode(bytes(64)),
    PacketCode.P2P_REQUEST: ENVELOPE,
    PacketCode.P2P_MESSAGE: encode_envelopes([ENVELOPE]),
}
Refusal = DisconnectReason | Undecided | None
FORWARD = [SessionState.HANDSHAKE, SessionState.HELLO, SessionState.OPEN, SessionState.CLOSED]


class Machine:
    """One side as a connection drives it: a session, its WakuPeer, and all that either has said so far."""

    def __init__(self, *, is_initiator: bool, light_node: bool, refusal: Refusal) -> None:
        key, name = (INITIATOR_KEY, INITIATOR_KEY_NAME) if is_initiator else (RECIPIENT_KEY, RECIPIENT_KEY_NAME)
        self.refusal = refusal
        config = SessionConfig(key, f"{name}/1", {WAKU: PACKET_CODE_COUNT}, MAX_MESSAGE_BYTES, refuse=self._refuse)
        remote_id = RECIPIENT_KEY.public_key if is_initiator else None
        self.session = Session(config, entropy_of(name), START, remote_id=remote_id)
        self.peer = WakuPeer(light_node=light_node)
        self.said = bytearray()
        self.events: list[Event | WakuEvent] = []
        self._states = [self.session.state]
        self._broken: RemoteProtocolError | None = None
        self.do(lambda session: None)  # whoever dials speaks first

    def _refuse(self, remote_id: NodeId) -> Refusal:
        return self.refusal

    def do(self, act: Callable[[Session], object]) -> None:
        """Do something to the session, then what a connection does after everything."""
        act(self.session)
        for event in self.session.events():
            assert SessionClosed not in map(type, self.events), f"{event} after Closed"
            self.events.append(event)
            if isinstance(event, MessageReceived):
                self._on_message(event)
        for data in self.session.data_to_send():
            self.said += data
        self._check()

    def settle(self) -> None:
        """End the session if a packet broke a rule: after all bytes that came together, however they were cut."""
        broken, self._broken = self._broken, None
        if broken is not None:
            self.do(lambda session: session.disconnect(broken.reason, str(broken)))

    def _on_message(self, event: MessageReceived) -> None:
        assert event.capability == WAKU
        assert len(event.payload) <= MAX_MESSAGE_BYTES
        if self._broken is not None:
            return
        before = self.peer.state, self.peer.settings
        try:
            self.events.append(self.peer.receive_packet(event.code, event.payload))
        except RemoteProtocolError as error:
            assert (self.peer.state, self.peer.settings) == before
            self._broken = error
            return
        if before[0] is PeerState.AWAIT_STATUS:
            assert isinstance(self.events[-1], StatusReceived)
            assert self.peer.state is PeerState.READY

    def _check(self) -> None:
        """What always holds."""
        state = self.session.state
        assert FORWARD.index(self._states[-1]) <= FORWARD.index(state)
        self._states.append(state)
        kinds = [type(event) for event in self.events]
        assert kinds.count(SessionClosed) == (state is SessionState.CLOSED)
        assert kinds.count(SessionOpened) <= 1
        if SessionOpened in kinds:
            assert kinds[0] is SessionOpened
        else:
            assert MessageReceived not in kinds
            assert BaseMessageReceived not in kinds
            assert state is not SessionState.OPEN
        assert (self.session.next_timer() is None) == (state is SessionState.CLOSED)
        if self.session.is_undecided:
            assert state is SessionState.HELLO
            assert self.refusal is Undecided.UNDECIDED

    @property
    def ending(self) -> SessionClosed | None:
        """How the session ended, if it has."""
        return next((event for event in self.events if isinstance(event, SessionClosed)), None)


class Conversation:
    """The peer, and the twins that it talks to."""

    def __init__(self, choices: Choices, *, we_dial: bool) -> None:
        light_node, refusal = choices.flag(), choices.pick(REFUSALS)
        self.twins = [Machine(is_initiator=we_dial, light_node=light_node, refusal=refusal) for _ in range(2)]
        self.choices = choices
        self.now = START
        self._we_dial = we_dial
        self._name = RECIPIENT_KEY_NAME if we_dial else INITIATOR_KEY_NAME
        self._secrets: Secrets | None = None
        self._frames: AnyFrames | None = None
        self._compressed = False
        self._decoder: FrameDecoder | None = None
        self._heard = 0
        self._last = b""

    def feed(self, data: bytes) -> None:
        """Send the same bytes to both, to one of them in pieces, of which it takes a frame at a time."""
        cuts = self.choices.pick((0, 1, 7, 32)) or max(len(data), 1)
        whole, cut = self.twins
        whole.do(lambda session: session.receive_data(data, self.now))
        for at in range(0, len(data), cuts):
            piece = data[at : at + cuts]
            cut.do(lambda session, piece=piece: session.receive_data(piece, self.now, max_frames=1))  # type: ignore[misc]
            self._finish(cut)
        self._settle()

    def _finish(self, cut: Machine) -> None:
        while cut.session.has_more:
            cut.do(lambda session: session.receive_data(b"", self.now, max_frames=1))

    def _settle(self) -> None:
        for twin in self.twins:
            twin.settle()

    def decide(self) -> None:
        """Change our mind about the peer, and have it asked for again."""
        refusal = self.choices.pick(REFUSALS)
        whole, cut = self.twins
        whole.refusal = cut.refusal = refusal
        whole.do(lambda session: session.reconsider(self.now))
        cut.do(lambda session: session.reconsider(self.now, max_frames=1))
        self._finish(cut)
        self._settle()

    def both(self, act: Callable[[Session], object]) -> None:
        """Do the same to both."""
        for twin in self.twins:
            twin.do(act)

    def shake_hands(self) -> None:
        """Do the peer's part of the key exchange, soundly or not quite."""
        if self._secrets is not None:
            return
        if self._we_dial:
            recipient = Recipient(RECIPIENT_KEY, entropy(RECIPIENT_KEY_NAME))
            packet, secrets = recipient.receive_auth(bytes(self.twins[0].said))
            self._heard = len(self.twins[0].said)
            self._begin(secrets)
            self.feed(self._damaged(packet))
            return
        initiator = Initiator(INITIATOR_KEY, RECIPIENT_KEY.public_key, entropy(INITIATOR_KEY_NAME))
        self.feed(self._damaged(initiator.auth))
        said = bytes(self.twins[0].said)
        if said:
            self._heard = packet_length(said)
            self._begin(initiator.receive_ack(said[: self._heard]))

    def _begin(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._frames = AnyFrames(secrets.aes, secrets.mac, secrets.egress_seed)
        self._decoder = FrameDecoder(secrets.aes, secrets.mac, secrets.ingress_seed)

    def _damaged(self, data: bytes) -> bytes:
        """The same, or now and then with a bit flipped, cut, or something behind it."""
        match self.choices.below(16):
            case 1:
                at = self.choices.below(len(data))
                return data[:at] + bytes([data[at] ^ 1 << self.choices.below(8)]) + data[at + 1 :]
            case 2:
                return data[: self.choices.below(len(data))]
            case 3:
                return data + self.choices.take(40)
        return data

    def say_body(self, body: bytes, *, size: int | None = None) -> None:
        """Send a frame, perhaps of a false size, perhaps damaged."""
        if self._frames is None:
            return
        size = len(body) if size is None else size
        header = self._frames.header(size.to_bytes(3, "big") + b"\xc2\x80\x80" + bytes(10))
        self._last = header + self._frames.body(body + bytes(padded(len(body)) - len(body)))
        self.feed(self._damaged(self._last))

    def say(self, message_id: int, payload: bytes) -> None:
        """Send a message, compressed if it should be, or now and then the other way."""
        compressed = self._compressed ^ (self.choices.below(16) == 1)
        self.say_body(encode_message_id(message_id) + (snappy.compress(payload) if compressed else payload))

    def greet(self) -> None:
        """Send Hello, as it should be or not quite."""
        version, offer = self.choices.pick((5, 4, 55, 0)), self.choices.pick(OFFERS)
        key = self.choices.pick((private_key(self._name), private_key(self._name), private_key("another")))
        hello = p2p.Hello(version, "fuzzed/1", offer, self.choices.below(65536), key.public_key)
        self.say(p2p.MessageId.HELLO, hello.encode())
        self._compressed = version >= p2p.P2P_VERSION

    def say_packet(self) -> None:
        """Send a packet of Waku: a sound one, or with any payload."""
        code = self.choices.pick(tuple(PacketCode))
        payload = PAYLOADS[code] if self.choices.flag() else self.choices.take(300)
        self.say(0x10 + code, payload)

    def pass_time(self) -> None:
        """Let time pass, up to the timer or by itself, and have the timer handled as a connection does."""
        timer = self.twins[0].session.next_timer()
        later = self.choices.pick((*LATER_S, None))
        self.now = max(self.now, timer) if later is None and timer is not None else self.now + (later or 0.0)
        self.both(lambda session: session.handle_timer(self.now))
        for twin in self.twins:  # else a connection would turn in circles
            timer = twin.session.next_timer()
            assert timer is None or timer > self.now

    def send(self) -> None:
        """Send something of ours: lawful only while the session is open."""
        code, payload = self.choices.below(256), self.choices.take(40)
        lawful = self.twins[0].session.state is SessionState.OPEN and code < PACKET_CODE_COUNT
        for twin in self.twins:
            try:
                twin.do(lambda session: session.send(WAKU, code, payload))
            except LocalProtocolError:
                assert not lawful
            else:
                assert lawful

    def act(self) -> None:
        """Do one thing."""
        choices = self.choices
        match choices.below(21):
            case 0:
                self.shake_hands()
            case 1:
                self.greet()
            case 2 | 3 | 4 | 5:
                self.say_packet()
            case 6:
                self.say(choices.pick((p2p.MessageId.PING, p2p.MessageId.PONG)), choices.take(4))
            case 7:
                self.say(p2p.MessageId.DISCONNECT, choices.take(4))
            case 8:
                self.say(choices.below(256), choices.take(300))
            case 9:
                self.say_body(choices.take(300))
            case 10:
                self.say_body(choices.take(40), size=choices.below(1 << 24))
            case 11:
                self.feed(choices.take(400))
            case 12:
                self.feed(self._last)
            case 13 | 14:
                self.pass_time()
            case 15:
                self.send()
            case 16:
                self.both(Session.pause_reading)
            case 17:
                self.both(lambda session: session.resume_reading(self.now))
            case 18:
                self.both(lambda session: session.probe(self.now))
            case 19:
                self._end()
            case _:
                self.decide()

    def _end(self) -> None:
        if self.choices.flag():
            self.both(Session.receive_eof)
        else:
            reason = self.choices.pick(tuple(DisconnectReason))
            self.both(lambda session: session.disconnect(reason, "as the fuzzer likes"))

    def check(self) -> None:
        """The twins have done the same, and what they have said is lawful to its last frame."""
        whole, cut = self.twins
        assert whole.events == cut.events
        assert whole.said == cut.said
        assert whole.session.state is cut.session.state
        assert whole.session.next_timer() == cut.session.next_timer()
        if self._decoder is None:
            return
        said = bytes(whole.said)
        messages = []
        at = self._heard
        while at < len(said):
            size = self._decoder.decode_header(said[at : at + HEADER_BYTES], max_body_bytes=1 << 24)
            end = at + HEADER_BYTES + padded(size) + MAC_BYTES
            messages.append(split_message(self._decoder.decode_body(said[at + HEADER_BYTES : end], size)))
            at = end
        _check_said(messages, whole)


def _check_said(messages: list[tuple[int, bytes]], machine: Machine) -> None:
    ids = [message_id for message_id, _ in messages]
    assert p2p.MessageId.HELLO not in ids[1:]
    assert p2p.MessageId.DISCONNECT not in ids[:-1]
    assert all(message_id in tuple(p2p.MessageId) or message_id >= 0x10 for message_id in ids)
    ending = machine.ending
    if ending is not None and not ending.by_peer and ids:
        assert ids[-1] == p2p.MessageId.DISCONNECT
        last = messages[-1][1]
        expected = p2p.encode_disconnect(DisconnectReason(ending.reason or 0))
        assert last in (expected, snappy.compress(expected))
    else:
        assert p2p.MessageId.DISCONNECT not in ids


def fuzz_session(data: bytes, *, we_dial: bool) -> None:
    """Whatever the peer does, in whatever pieces: nothing raises, and the machine keeps to its rules."""
    conversation = Conversation(Choices(data), we_dial=we_dial)
    for _ in range(MAX_ACTIONS):
        if not conversation.choices.more:
            break
        conversation.act()
    conversation.check()


def seeds() -> Iterator[bytes]:
    """Sessions that get far: `head`, then a byte for each choice."""
    opened = bytes([0, 0]) + bytes([0, 0, 0]) + bytes([1, 0, 0, 0, 0, 0, 0, 0, 0])
    ready = opened + _packet(PacketCode.STATUS)
    yield opened
    for code in PacketCode:
        yield ready + _packet(code)
    yield ready + bytes([15, 1, 2, 65, 66, 13, 7, 13, 6, 18, 13, 2])
    yield ready + bytes([16, 13, 5, 17, 13, 5])
    yield bytes([0, 4]) + opened[2:] + _packet(PacketCode.STATUS) + bytes([20, 0]) + _packet(PacketCode.MESSAGES)
    yield ready + bytes([19, 1, 8]) + bytes([6, 0, 0])
    yield bytes([11, 1, 1]) + b"\1" * 300
    yield rlp.encode([b"any"]) * 30


def _packet(code: PacketCode) -> bytes:
    """The choices that make a sound packet."""
    return bytes([2, tuple(PacketCode).index(code), 1, 0, 0, 0])


TARGETS = {
    "recipient": Target(lambda data: fuzz_session(data, we_dial=False), seeds),
    "initiator": Target(lambda data: fuzz_session(data, we_dial=True), seeds),
}
