"""The whole libp2p connection, without I/O, against a peer who does as the fuzzer's bytes say.

Twins get the same bytes, one whole, the other cut into pieces: they must do the same. The peer does its side by hand,
so that it can be lawful as far as its streams and break any rule there. `handshake` begins with the first byte,
`connection` once the muxer is agreed on.
"""

from collections.abc import Callable, Iterator
from functools import cache

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from mailserver.errors import LocalProtocolError
from mailserver.libp2p.connection import HANDSHAKE_TIMEOUT_S, NEGOTIATION_TIMEOUT_S, Connection
from mailserver.libp2p.events import Closed, Event, ProtocolRefused, Secured, StreamFailed, StreamOpened
from mailserver.libp2p.faults import Libp2pFault
from mailserver.libp2p.multistream import HEADER
from mailserver.libp2p.noise import NOISE, HandshakePayload, NoiseChannel, NoiseKeys
from mailserver.libp2p.noise_xx import HandshakeState
from mailserver.libp2p.streams import (
    MAX_CONNECTION_BYTES,
    MAX_STREAM_BYTES,
    DataReceived,
    StreamId,
    StreamReset,
    WriteClosed,
)
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.fuzz.targets.muxers import mplex_frame, yamux_frame
from tests.libp2p.links import CHAT, ECHO, SERVED, lines, muxer_of
from tests.libp2p.names import DIALER, LISTENER, MUXERS, ephemeral_of, identity, noise_keys
from tests.pairs import START, digest

MAX_ACTIONS = 64
MAX_STREAMS = 3

MEMORY_BYTES = 8 * 1024 * 1024
"""Two connections, with what they may have unread."""

LISTS = (MUXERS, MUXERS[1:], (), MUXERS[::-1], ("/other/1.0.0",))
TEXTS = (HEADER, NOISE, CHAT, ECHO, *MUXERS, "na", "ls", "/other/1.0.0", "x" * 1023, "x" * 1024)
LATER_S = (0.0, 0.5, NEGOTIATION_TIMEOUT_S, HANDSHAKE_TIMEOUT_S, 1e6)


@cache
def keys_of(name: str, muxers: tuple[str, ...] = MUXERS) -> NoiseKeys:
    """Made once: signing takes time."""
    return noise_keys(name, muxers)


class Machine:
    """One connection as a gateway drives it, and what its events have said so far."""

    def __init__(self, *, is_dialer: bool) -> None:
        name = DIALER if is_dialer else LISTENER
        self.connection = Connection(
            keys_of(name), SERVED, ephemeral_of(name), START, is_dialer=is_dialer, max_streams=MAX_STREAMS
        )
        self.said = b""
        self.events: list[Event] = []
        self.proposed: list[StreamId] = []  # streams of ours that are not answered
        self.unread: dict[StreamId, int] = {}  # of streams that are open
        self.ended: set[StreamId] = set()  # those whose other half is closed
        self.known: set[StreamId] = set()
        self.take()

    def take(self) -> None:
        """What a gateway does after everything."""
        for event in self.connection.events():
            assert Closed not in map(type, self.events), f"{event} after Closed"
            assert not isinstance(event, Secured) or not self.events
            self.events.append(event)
            self._on_event(event)
        self.said += b"".join(self.connection.data_to_send())
        assert sum(self.unread.values()) <= MAX_CONNECTION_BYTES
        if self.is_closed:
            assert self.connection.next_timer() is None
            assert not self.connection.may_open
            assert self.connection.queued_bytes == 0

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return Closed in map(type, self.events)

    def _on_event(self, event: Event) -> None:
        match event:
            case StreamOpened(stream, protocol, is_ours):
                assert protocol in SERVED
                if is_ours:
                    self.proposed.remove(stream)
                else:
                    assert stream not in self.known
                self.known.add(stream)
                self.unread[stream] = 0
            case DataReceived(stream, data):
                assert data
                assert stream not in self.ended
                self.unread[stream] += len(data)
                assert self.unread[stream] <= MAX_STREAM_BYTES
            case WriteClosed(stream):
                assert stream in self.unread
                assert stream not in self.ended
                self.ended.add(stream)
            case StreamReset(stream):
                self.forget(stream)
            case StreamFailed(stream, _, is_ours):
                assert is_ours == (stream in self.known)
                if is_ours:
                    self.forget(stream)
            case ProtocolRefused(stream, protocol):
                assert protocol not in SERVED
                self.proposed.remove(stream)

    def forget(self, stream: StreamId) -> None:
        """The stream is gone."""
        if stream in self.proposed:
            self.proposed.remove(stream)
        else:
            del self.unread[stream]
            self.ended.discard(stream)


class Conversation:
    """The peer, and the twins that it talks to."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.we_dial = choices.flag()
        self.muxers = choices.pick(LISTS)
        self.twins = [Machine(is_dialer=self.we_dial) for _ in range(2)]
        self.now = START
        self.name = LISTENER if self.we_dial else DIALER
        static, ephemeral = (
            X25519PrivateKey.from_private_bytes(digest(f"{self.name}, {key}")) for key in ("static", "e")
        )
        self.handshake = HandshakeState(static, ephemeral, is_initiator=not self.we_dial)
        self.channel: NoiseChannel | None = None
        self.heard = 0
        self.last = b""
        self.is_upgrading = False
        self.has_proved = False

    @property
    def sound_payload(self) -> bytes:
        """That of a peer that is who it says."""
        return keys_of(self.name, tuple(self.muxers)).payload

    # What the peer does

    def feed(self, data: bytes) -> None:
        """Send the same bytes to both, to one of them in pieces."""
        cuts = (0 if self.is_upgrading else self.choices.pick((0, 1, 7, 32))) or max(len(data), 1)
        whole, cut = self.twins
        whole.connection.receive_data(data, self.now)
        for at in range(0, len(data), cuts):
            cut.connection.receive_data(data[at : at + cuts], self.now)
        self.both(lambda machine: None)

    def both(self, act: Callable[[Machine], object]) -> None:
        """Do the same to both."""
        for twin in self.twins:
            act(twin)
            twin.take()

    def say(self, data: bytes) -> None:
        """Send bytes, in Noise if there is a channel, or now and then with a bit flipped, cut, or repeated."""
        if self.channel is not None:
            data = b"".join(self.channel.seal([data]))
        match 0 if self.is_upgrading else self.choices.below(16):
            case 1 if data:
                at = self.choices.below(len(data))
                data = data[:at] + bytes([data[at] ^ 1 << self.choices.below(8)]) + data[at + 1 :]
            case 2:
                data = data[: self.choices.below(len(data) + 1)]
            case 3:
                data = self.last
        self.last = data
        self.feed(data)

    def say_next_message(self, payload: bytes) -> None:
        """Go on with Noise, as far as the connection has come."""
        try:
            self._read_message()
            if self.handshake.is_our_turn:
                if self.handshake.remote_static is None and not self.we_dial:
                    payload = b""  # in the first message, which is in clear
                else:
                    self.has_proved = payload == self.sound_payload
                message = self.handshake.write_message(payload)
                self.say(len(message).to_bytes(2, "big") + message)
                self._read_message()
        except Libp2pFault:  # after what the fuzzer has damaged
            return
        if self.handshake.is_finished and self.channel is None:
            self.channel = NoiseChannel(*self.handshake.split())

    def _read_message(self) -> None:
        """Read the connection's next message, if it is its turn and has sent one."""
        if self.handshake.is_our_turn or self.handshake.is_finished:
            return
        said = self.twins[0].said[self.heard :]
        if self.heard == 0:
            if not said.startswith(lines(HEADER, NOISE)):
                return
            self.heard = len(lines(HEADER, NOISE))
            said = said[self.heard :]
        end = 2 + int.from_bytes(said[:2], "big")
        if 2 < end <= len(said):
            self.heard += end
            self.handshake.read_message(said[2:end])

    def upgrade(self) -> None:
        """Do all of the upgrade soundly, whatever the fuzzer likes."""
        self.is_upgrading = True
        self.feed(lines(HEADER, NOISE))
        for _ in range(2):
            self.say_next_message(self.sound_payload)
        self.is_upgrading = False

    def payload(self) -> bytes:
        """A payload of the handshake, sound or not quite."""
        match self.choices.below(6):
            case 1:
                return keys_of("another").payload
            case 2:
                return self.choices.take(200)
            case 3:
                return HandshakePayload(self.choices.take(50), self.choices.take(70), tuple(self.muxers)).encode()
            case 4:
                return HandshakePayload(identity(self.name).public_key.encode(), self.choices.take(70)).encode()
        return self.sound_payload

    # What both do

    def pass_time(self) -> None:
        """Let time pass, up to the timer or by itself, and have the timer handled as a gateway does."""
        timer = self.twins[0].connection.next_timer()
        later = self.choices.pick((*LATER_S, None))
        self.now = max(self.now, timer) if later is None and timer is not None else self.now + (later or 0.0)
        self.both(lambda machine: machine.connection.handle_timer(self.now))
        for twin in self.twins:  # else a gateway would turn in circles
            timer = twin.connection.next_timer()
            assert timer is None or timer > self.now

    def open_stream(self) -> None:
        """Open a stream of ours; lawful where `may_open` says so."""
        protocol = self.choices.pick((CHAT, ECHO, "/other/1.0.0"))

        def act(machine: Machine) -> None:
            is_lawful = machine.connection.may_open
            try:
                stream = machine.connection.open_stream(protocol, self.now)
            except LocalProtocolError:
                assert not is_lawful
            else:
                assert is_lawful
                assert stream not in machine.known
                machine.known.add(stream)
                machine.proposed.append(stream)

        self.both(act)

    def use_stream(self) -> None:
        """Send on, consume of, or end any stream that was ever there."""
        known = sorted(self.twins[0].known)
        if not known:
            return
        stream, kind, data = self.choices.pick(known), self.choices.below(4), self.choices.take(60)

        def act(machine: Machine) -> None:
            connection = machine.connection
            if kind == 0:
                connection.consumed(stream, machine.unread.get(stream, 0))
                if stream in machine.unread:
                    machine.unread[stream] = 0
            elif kind == 1:
                connection.reset(stream)
                if not machine.is_closed and (stream in machine.unread or stream in machine.proposed):
                    machine.forget(stream)
            elif kind == 2:
                connection.close_write(stream)
                assert connection.unsent(stream) >= 0
            else:
                try:
                    connection.send(stream, data)
                except LocalProtocolError:
                    connection.close_write(stream)  # lawful only where it was closed before: nothing is sent
                    assert connection.data_to_send() == []

        self.both(act)

    def end(self) -> None:
        """The transport breaks, or we have had enough."""
        if self.choices.flag():
            self.both(lambda machine: machine.connection.receive_eof(self.now))
        else:
            self.both(lambda machine: machine.connection.close())

    def check(self) -> None:
        """The twins have done the same, and said the same, however they have sealed it."""
        whole, cut = self.twins
        assert list(map(repr, whole.events)) == list(map(repr, cut.events))
        assert whole.unread == cut.unread
        assert whole.connection.next_timer() == cut.connection.next_timer()
        if self.channel is None:
            assert whole.said == cut.said
            return
        assert whole.said[: self.heard] == cut.said[: self.heard]
        opened = [self._opened(twin.said[self.heard :]) for twin in self.twins]
        assert opened[0] == opened[1]

    def _opened(self, said: bytes) -> bytes:
        channel, received = NoiseChannel(*self.handshake.split()), bytearray(said)
        plaintext = b""
        while (message := channel.open(received)) is not None:
            plaintext += message
        assert not received
        return plaintext


def fuzz_handshake(data: bytes) -> None:
    """Whatever a peer does from its first byte on: nothing raises, and whoever is secured has proved who it is."""
    talk = Conversation(Choices(data))
    choices = talk.choices
    for _ in range(MAX_ACTIONS):
        if not choices.more:
            break
        match choices.below(10):
            case 0:
                talk.say(lines(HEADER, NOISE))
            case 1 | 2 | 3:
                talk.say_next_message(talk.payload())
            case 4 | 5:
                talk.say(b"".join(lines(choices.pick(TEXTS)) for _ in range(1 + choices.below(12))))
            case 6:
                talk.feed(choices.take(300))
            case 7:
                talk.say(choices.take(300))
            case 8:
                talk.pass_time()
            case _:
                talk.end()
    talk.check()
    secured = [event for event in talk.twins[0].events if isinstance(event, Secured)]
    assert all(talk.has_proved and event.peer_id == identity(talk.name).peer_id for event in secured)


def fuzz_connection(data: bytes) -> None:
    """Whatever a peer does with streams, and we with ours: nothing raises, and each stream ends once."""
    talk = Conversation(Choices(data))
    choices = talk.choices
    talk.muxers = choices.pick((MUXERS[:1], MUXERS[1:]))
    talk.upgrade()
    kind = talk.muxers[0]
    muxer = muxer_of(kind, is_dialer=not talk.we_dial)
    frame = yamux_frame if kind == MUXERS[0] else mplex_frame
    streams: list[StreamId] = []
    for _ in range(MAX_ACTIONS):
        if not choices.more:
            break
        action = choices.below(12)
        match action:
            case 0:
                if muxer.may_open:
                    streams.append(muxer.open_stream())
            case 1 | 2 if streams:
                muxer.send(choices.pick(streams), lines(HEADER, choices.pick((CHAT, ECHO, *TEXTS))))
            case 3 if streams:
                muxer.send(choices.pick(streams), choices.take(60))
            case 4 if streams:
                stream = choices.pick(streams)
                (muxer.close_write if choices.flag() else muxer.reset)(stream)
                streams.remove(stream)
            case 5:
                talk.say(b"".join(muxer.data_to_send()))
            case 6:
                talk.say(frame(choices, choices.take(60)))
            case 7:
                talk.open_stream()
            case 8 | 9:
                talk.use_stream()
            case 10:
                talk.pass_time()
            case 11:
                if choices.flag():
                    talk.say(choices.take(100))
                else:
                    talk.end()
    talk.check()


def handshake_seeds() -> Iterator[bytes]:
    """Sound upgrades of both roles, with and without a list of muxers."""
    for role in range(2):
        for muxers in range(len(LISTS)):
            yield bytes([role, muxers, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0])
            yield bytes([role, muxers, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 4, 1, 0, 5, 0, 0, 0])
    yield bytes([0, 0, 4, 11, *[0] * 12, 0, 0])
    yield bytes([0, 0, 0, 0, 1, 8, 3])


def connection_seeds() -> Iterator[bytes]:
    """Streams that get far."""
    for role in range(2):
        for muxer in range(2):
            head = bytes([role, 0, muxer])
            begun = head + bytes([0, 1, 0, 0, 3, 0, 4, 1, 2, 3, 4, 5, 0, 0])
            yield begun
            yield begun + bytes([8, 0, 3, 3, 65, 66, 67, 8, 0, 0, 0, 4, 0, 1, 5, 0, 0, 8, 0, 2, 0])
            yield head + bytes([7, 0, 7, 1, 8, 0, 3, 2, 65, 66, 10, 2])
            yield head + bytes([0, 1, 0, 2, 3, 0, 2, 10, 10, 5, 0, 0])
            yield begun + bytes([11, 0, 0])


TARGETS = {
    "handshake": Target(fuzz_handshake, handshake_seeds, memory_bytes=MEMORY_BYTES),
    "connection": Target(fuzz_connection, connection_seeds, memory_bytes=MEMORY_BYTES),
}
