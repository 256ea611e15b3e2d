"""Two Sessions joined by a fake link in memory, and a toy capability for them to speak.

`Pair` runs both sides, for whole conversations. `ScriptedPeer` stands in for one of them, frame by frame, so that
it can break the rules; `open_session` brings a Session and such a peer past their Hellos. Keys, nonces and
padding are drawn from names: a test sees the same bytes on every run.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from mailserver.codec import rlp, snappy
from mailserver.codec.keys import PrivateKey
from mailserver.errors import DisconnectReason
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import Capability
from mailserver.rlpx.events import Event, MessageReceived, SessionClosed
from mailserver.rlpx.framing import HEADER_BYTES, MAC_BYTES, FrameDecoder, FrameEncoder, padded
from mailserver.rlpx.handshake import Entropy, Initiator, Recipient, Secrets, packet_length
from mailserver.rlpx.session import Session
from mailserver.rlpx.session_config import Refuse, SessionConfig

START = 1000.0
"""When every session starts, in monotonic seconds."""

TOY = Capability("toy", 1)
TOY_CODES = 200
"""More than 0x70, so that the toy has message ids on both sides of 0x80, where their encoding changes."""

TOY_OFFSET = 0x10
MAX_MESSAGE_BYTES = 4096

INITIATOR_KEY_NAME = "initiator"
RECIPIENT_KEY_NAME = "recipient"


def digest(name: str) -> bytes:
    """32 bytes that depend on `name` alone."""
    return sha256(name.encode()).digest()


def private_key(name: str) -> PrivateKey:
    """The key of whoever has this name."""
    return PrivateKey(digest(name))


def entropy(name: str) -> Entropy:
    """All randomness of one handshake of whoever has this name."""
    return Entropy(
        ephemeral_key=private_key(f"{name}, ephemeral"),
        nonce=digest(f"{name}, nonce"),
        seal_key=private_key(f"{name}, seal"),
        iv=digest(f"{name}, iv")[:16],
        padding=bytes(100),
    )


def entropy_of(name: str) -> Callable[[], Entropy]:
    """The same as a Session wants it: drawn when it is needed."""
    return lambda: entropy(name)


def session_config(
    name: str,
    *,
    capabilities: Mapping[Capability, int] | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    refuse: Refuse | None = None,
) -> SessionConfig:
    """The config of whoever has this name; speaks the toy capability unless told otherwise."""
    return SessionConfig(
        key=private_key(name),
        client_id=f"{name}/1",
        capabilities={TOY: TOY_CODES} if capabilities is None else capabilities,
        max_message_bytes=max_message_bytes,
        refuse=refuse,
    )


def initiating(config: SessionConfig, remote_key: PrivateKey, now: float = START) -> Session:
    """A Session that has dialled the owner of `remote_key`."""
    return Session(config, entropy_of(INITIATOR_KEY_NAME), now, remote_id=remote_key.public_key)


def receiving(config: SessionConfig, now: float = START) -> Session:
    """A Session that was dialled."""
    return Session(config, entropy_of(RECIPIENT_KEY_NAME), now)


def feed(session: Session, data: bytes, now: float = START, *, chunk_bytes: int | None = None) -> None:
    """Hand `data` to the session, whole or cut into chunks."""
    step = chunk_bytes or max(len(data), 1)
    for at in range(0, len(data), step):
        session.receive_data(data[at : at + step], now)


@dataclass
class Pair:
    """An initiator and a recipient; `pump` is the link between them."""

    initiator: Session
    recipient: Session

    @classmethod
    def join(
        cls,
        initiator_config: SessionConfig | None = None,
        recipient_config: SessionConfig | None = None,
    ) -> "Pair":
        """Both sides at START, with nothing delivered yet."""
        initiator_config = initiator_config or session_config(INITIATOR_KEY_NAME)
        recipient_config = recipient_config or session_config(RECIPIENT_KEY_NAME)
        return cls(initiating(initiator_config, recipient_config.key), receiving(recipient_config))

    @classmethod
    def open(cls) -> "Pair":
        """Both sides after the handshake, their Opened events taken."""
        pair = cls.join()
        pair.pump()
        pair.initiator.events()
        pair.recipient.events()
        return pair

    def pump(self, now: float = START, *, chunk_bytes: int | None = None) -> None:
        """Carry bytes both ways until neither side has more to send."""
        while True:
            rightward = b"".join(self.initiator.data_to_send())
            feed(self.recipient, rightward, now, chunk_bytes=chunk_bytes)
            leftward = b"".join(self.recipient.data_to_send())
            feed(self.initiator, leftward, now, chunk_bytes=chunk_bytes)
            if not rightward and not leftward:
                return


class ScriptedPeer:
    """The other end of one Session, done by hand; the key exchange is over once it exists.

    `compressed` says whether it compresses from now on; `greet` sets it as the rules say.
    """

    def __init__(self, session: Session, key: PrivateKey, secrets: Secrets, heard: bytes = b"") -> None:
        self.session = session
        self.key = key
        self.compressed = False
        self._encoder = FrameEncoder(secrets.aes, secrets.mac, secrets.egress_seed)
        self._decoder = FrameDecoder(secrets.aes, secrets.mac, secrets.ingress_seed)
        self._heard = bytearray(heard)

    @classmethod
    def dial(cls, session: Session, remote_key: PrivateKey, name: str = INITIATOR_KEY_NAME) -> "ScriptedPeer":
        """Do the initiator's part against a recipient Session."""
        initiator = Initiator(private_key(name), remote_key.public_key, entropy(name))
        session.receive_data(initiator.auth, START)
        answer = b"".join(session.data_to_send())
        ack_bytes = packet_length(answer)
        return cls(session, private_key(name), initiator.receive_ack(answer[:ack_bytes]), answer[ack_bytes:])

    @classmethod
    def accept(cls, session: Session, name: str = RECIPIENT_KEY_NAME) -> "ScriptedPeer":
        """Do the recipient's part against an initiator Session."""
        ack, secrets = Recipient(private_key(name), entropy(name)).receive_auth(b"".join(session.data_to_send()))
        session.receive_data(ack, START)
        return cls(session, private_key(name), secrets)

    def frame(self, message_id: int, payload: bytes) -> bytes:
        """Seal a message; the next frame continues from this one, so it must be sent."""
        return self.frame_of(
            rlp.encode(rlp.encode_uint(message_id)) + (snappy.compress(payload) if self.compressed else payload)
        )

    def frame_of(self, body: bytes) -> bytes:
        """Seal a frame body as it is."""
        return self._encoder.encode(body)

    def say(self, message_id: int, payload: bytes, now: float = START) -> None:
        """Send a message."""
        self.session.receive_data(self.frame(message_id, payload), now)

    def say_raw(self, message_id: int, data: bytes, now: float = START) -> None:
        """Send a message whose data is neither compressed nor checked."""
        self.session.receive_data(self.frame_of(rlp.encode(rlp.encode_uint(message_id)) + data), now)

    def greet(
        self,
        now: float = START,
        *,
        version: int = p2p.P2P_VERSION,
        capabilities: Iterable[Capability] = (TOY,),
        key: PrivateKey | None = None,
    ) -> None:
        """Send Hello."""
        hello = p2p.Hello(version, "scripted/1", tuple(capabilities), 0, (key or self.key).public_key)
        self.say(p2p.MessageId.HELLO, hello.encode(), now)
        self.compressed = version >= p2p.P2P_VERSION

    def hear(self) -> list[tuple[int, bytes]]:
        """Take what the session has sent since the last call: message ids and data as in the frames."""
        self._heard += b"".join(self.session.data_to_send())
        messages = []
        while self._heard:
            size = self._decoder.decode_header(bytes(self._heard[:HEADER_BYTES]), max_body_bytes=1 << 24)
            end = HEADER_BYTES + padded(size) + MAC_BYTES
            body = self._decoder.decode_body(bytes(self._heard[HEADER_BYTES:end]), size)
            del self._heard[:end]
            messages.append(split_message(body))
        return messages

    def hear_inflated(self) -> list[tuple[int, bytes]]:
        """The same for a session that compresses."""
        return [(message_id, snappy.decompress(data, max_bytes=1 << 24)) for message_id, data in self.hear()]


def split_message(body: bytes) -> tuple[int, bytes]:
    """Split a frame body into message id and data, by RLP alone."""
    encoded_id = rlp.encode(rlp.decode_first(body))
    return rlp.as_uint(rlp.decode(encoded_id), 1), body[len(encoded_id) :]


def recipient_and_peer(config: SessionConfig | None = None) -> tuple[Session, ScriptedPeer]:
    """A recipient Session after the key exchange, and who dialled it. Neither has heard a Hello."""
    config = config or session_config(RECIPIENT_KEY_NAME)
    session = receiving(config)
    return session, ScriptedPeer.dial(session, config.key)


def initiator_and_peer(config: SessionConfig | None = None) -> tuple[Session, ScriptedPeer]:
    """An initiator Session after the key exchange, and whom it dialled. Neither has heard a Hello."""
    session = initiating(config or session_config(INITIATOR_KEY_NAME), private_key(RECIPIENT_KEY_NAME))
    return session, ScriptedPeer.accept(session)


def open_session(
    config: SessionConfig | None = None, *, version: int = p2p.P2P_VERSION, now: float = START
) -> tuple[Session, ScriptedPeer]:
    """A recipient Session and its peer after both Hellos; what came before has been taken."""
    session, peer = recipient_and_peer(config)
    peer.greet(now, version=version)
    peer.hear()
    session.events()
    return session, peer


class AnyClosed:
    """Equal to a SessionClosed of any cause."""

    def __init__(self, reason: DisconnectReason | None, *, by_peer: bool) -> None:
        self.reason = reason
        self.by_peer = by_peer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SessionClosed) and (other.reason, other.by_peer) == (self.reason, self.by_peer)

    def __hash__(self) -> int:
        return hash((self.reason, self.by_peer))

    def __repr__(self) -> str:
        return f"AnyClosed({self.reason!r}, by_peer={self.by_peer})"


BREACH = AnyClosed(DisconnectReason.PROTOCOL_BREACH, by_peer=False)


def codes_and_payloads(events: Iterable[Event]) -> list[tuple[int, bytes]]:
    """The messages among the events."""
    return [(event.code, event.payload) for event in events if isinstance(event, MessageReceived)]
