"""Two Connections joined by a fake link in memory, and a peer that is done by hand, so that it can break the rules."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from mailserver.libp2p import mplex, yamux
from mailserver.libp2p.connection import Connection
from mailserver.libp2p.events import Closed, Event, Secured
from mailserver.libp2p.multistream import HEADER, encode_line
from mailserver.libp2p.noise import NOISE, NoiseChannel
from mailserver.libp2p.noise_xx import HandshakeState
from mailserver.libp2p.peer_id import PeerId
from mailserver.libp2p.streams import MAX_STREAMS, Muxer
from tests.libp2p.names import DIALER, LISTENER, MUXERS, ephemeral_of, identity, noise_keys
from tests.pairs import START, digest

CHAT = "/chat/1.0.0"
ECHO = "/echo/1.0.0"
SERVED = frozenset({CHAT, ECHO})

LISTENERS_EPHEMERAL = ephemeral_of(LISTENER)


def dialing(
    muxers: Sequence[str] = MUXERS,
    *,
    expected: PeerId | None = None,
    protocols: Container[str] = SERVED,
    max_streams: int = MAX_STREAMS,
) -> Connection:
    """A Connection that has dialled."""
    return Connection(
        noise_keys(DIALER, muxers),
        protocols,
        ephemeral_of(DIALER),
        START,
        is_dialer=True,
        expected=expected,
        max_streams=max_streams,
    )


def listening(
    muxers: Sequence[str] = MUXERS,
    *,
    ephemeral_secret: Callable[[], bytes] = LISTENERS_EPHEMERAL,
    protocols: Container[str] = SERVED,
    max_streams: int = MAX_STREAMS,
) -> Connection:
    """A Connection that was dialled."""
    return Connection(
        noise_keys(LISTENER, muxers), protocols, ephemeral_secret, START, is_dialer=False, max_streams=max_streams
    )


def feed(connection: Connection, data: bytes, now: float = START, *, chunk_bytes: int | None = None) -> None:
    """Hand `data` to the connection, whole or cut into chunks."""
    step = chunk_bytes or max(len(data), 1)
    for at in range(0, len(data), step):
        connection.receive_data(data[at : at + step], now)


@dataclass
class Pair:
    """A dialer and a listener; `pump` is the link between them."""

    dialer: Connection
    listener: Connection

    @classmethod
    def open(cls, muxer: str = yamux.PROTOCOL, *, max_streams: int = MAX_STREAMS) -> "Pair":
        """Both sides secured, their events taken."""
        pair = cls(dialing((muxer,), max_streams=max_streams), listening((muxer,), max_streams=max_streams))
        pair.pump()
        assert pair.dialer.events() == [Secured(identity(LISTENER).peer_id, muxer)]
        assert pair.listener.events() == [Secured(identity(DIALER).peer_id, muxer)]
        return pair

    def pump(self, now: float = START, *, chunk_bytes: int | None = None) -> None:
        """Carry bytes both ways until neither side has more to send."""
        while True:
            rightward = b"".join(self.dialer.data_to_send())
            feed(self.listener, rightward, now, chunk_bytes=chunk_bytes)
            leftward = b"".join(self.listener.data_to_send())
            feed(self.dialer, leftward, now, chunk_bytes=chunk_bytes)
            if not rightward and not leftward:
                return


def muxer_of(protocol: str, *, is_dialer: bool) -> Muxer:
    """A muxer to make frames with."""
    return yamux.Yamux(is_dialer=is_dialer) if protocol == yamux.PROTOCOL else mplex.Mplex()


def lines(*texts: str) -> bytes:
    """Lines of multistream."""
    return b"".join(encode_line(text) for text in texts)


class ScriptedPeer:
    """The other end of one Connection, done by hand. `heard` is what the connection has sent and nobody has read."""

    def __init__(self, connection: Connection, *, is_dialer: bool) -> None:
        self.connection = connection
        self.heard = b""
        self.name = DIALER if is_dialer else LISTENER
        self.is_dialer = is_dialer
        static = X25519PrivateKey.from_private_bytes(digest(f"{self.name}, static"))
        ephemeral = X25519PrivateKey.from_private_bytes(digest(f"{self.name}, ephemeral"))
        self.handshake = HandshakeState(static, ephemeral, is_initiator=is_dialer)
        self.payload = noise_keys(self.name).payload
        self.channel: NoiseChannel | None = None
        self.hear()

    def say(self, data: bytes, now: float = START) -> None:
        """Send bytes as they are; listen to what comes back."""
        self.connection.receive_data(data, now)
        self.hear()

    def hear(self) -> None:
        """Take what the connection sends."""
        self.heard += b"".join(self.connection.data_to_send())

    def heard_lines(self, *texts: str) -> None:
        """Read lines that must be these."""
        expected = lines(*texts)
        assert self.heard[: len(expected)] == expected
        self.heard = self.heard[len(expected) :]

    def heard_message(self) -> bytes:
        """Read a message of Noise, still sealed."""
        end = 2 + int.from_bytes(self.heard[:2], "big")
        message, self.heard = self.heard[2:end], self.heard[end:]
        assert len(message) == end - 2
        return message

    def say_message(self, message: bytes) -> None:
        """Send a message of Noise."""
        self.say(len(message).to_bytes(2, "big") + message)

    def agree_on_noise(self) -> None:
        """Do multistream."""
        self.say(lines(HEADER, NOISE))
        self.heard_lines(HEADER, NOISE)

    def shake_hands(self) -> None:
        """Do Noise, with `payload`."""
        if self.is_dialer:
            self.say_message(self.handshake.write_message(b""))
            self.handshake.read_message(self.heard_message())
            self.say_message(self.handshake.write_message(self.payload))
        else:
            self.handshake.read_message(self.heard_message())
            self.say_message(self.handshake.write_message(self.payload))
            self.handshake.read_message(self.heard_message())
        self.channel = NoiseChannel(*self.handshake.split())

    def say_sealed(self, *pieces: bytes, now: float = START) -> None:
        """Send bytes inside Noise, in one message."""
        assert self.channel is not None
        self.say(b"".join(self.channel.seal(pieces)), now)

    def heard_sealed(self) -> bytes:
        """Read all that has come inside Noise."""
        assert self.channel is not None
        received = bytearray(self.heard)
        plaintext = b"".join(iter(lambda: self.channel.open(received) or b"", b""))  # type: ignore[union-attr]
        self.heard = bytes(received)
        return plaintext

    @classmethod
    def of_listener(cls, muxers: Sequence[str] = MUXERS) -> "ScriptedPeer":
        """One that dials a listener."""
        return cls(listening(muxers), is_dialer=True)

    @classmethod
    def of_dialer(cls, muxers: Sequence[str] = MUXERS, *, expected: PeerId | None = None) -> "ScriptedPeer":
        """One that is dialled."""
        return cls(dialing(muxers, expected=expected), is_dialer=False)


def closed(events: Sequence[Event]) -> Closed:
    """The last event, which must be that the connection ended, and the only one that says so."""
    assert [type(event) for event in events].count(Closed) == 1
    last = events[-1]
    assert isinstance(last, Closed)
    return last
