"""libp2p's Noise: who is at the other end, and the sealed messages that a connection is cut into.

Either side proves in the handshake that the owner of its identity key has signed its static key. Every message, of the
handshake and after it, has its length in two bytes before it. Spec: libp2p/specs, noise; inlined-muxer-negotiation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from mailserver.codec import protobuf
from mailserver.errors import DecodeError
from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.identity import IdentityKey, PublicKey
from mailserver.libp2p.noise_xx import TAG_BYTES, CipherState, HandshakeState

NOISE = "/noise"

MAX_MESSAGE_BYTES = 65_535
MAX_PLAINTEXT_BYTES = MAX_MESSAGE_BYTES - TAG_BYTES

MAX_HANDSHAKE_MESSAGE_BYTES = 4096
"""The longest lawful one has an RSA key and its signature (2,300), muxers and hashes of certificates."""

MAX_PAYLOAD_FIELDS = 64
"""Of a payload, and of its extensions: they name muxers and hashes of certificates, of which clients have two or three.
A message of the shortest fields would have 2,000, which take longer than the rest of a handshake."""

_LENGTH_BYTES = 2
_SIGNED_PREFIX = b"noise-libp2p-static-key:"
_IDENTITY_KEY, _IDENTITY_SIG, _EXTENSIONS = 1, 2, 4  # fields of NoiseHandshakePayload
_STREAM_MUXERS = 2  # field of NoiseExtensions


class NoiseKeys:
    """What we bring to every handshake: our identity, a static key that it has signed, the muxers that we speak.

    The static key may be drawn anew at each start, and is never stored (noise, "Static Key Authentication").
    """

    def __init__(self, identity: IdentityKey, static_secret: bytes, muxers: Sequence[str]) -> None:
        """Sign the static key.

        Args:
            static_secret: 32 random bytes.
            muxers: protocols, the best first.
        """
        self.identity = identity
        self.muxers = tuple(muxers)
        self.static = X25519PrivateKey.from_private_bytes(static_secret)
        public = self.static.public_key().public_bytes_raw()
        self.payload = HandshakePayload(
            identity.public_key.encode(), identity.sign(_SIGNED_PREFIX + public), self.muxers
        ).encode()


@dataclass(frozen=True, slots=True)
class HandshakePayload:
    """NoiseHandshakePayload: the identity key as its protobuf, what it has signed, and the sender's muxers in order."""

    identity_key: bytes
    identity_sig: bytes
    muxers: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The protobuf."""
        extensions = b"".join(protobuf.write_bytes(_STREAM_MUXERS, muxer.encode()) for muxer in self.muxers)
        return (
            protobuf.write_bytes(_IDENTITY_KEY, self.identity_key)
            + protobuf.write_bytes(_IDENTITY_SIG, self.identity_sig)
            + (protobuf.write_bytes(_EXTENSIONS, extensions) if extensions else b"")
        )

    @classmethod
    def decode(cls, data: bytes) -> "HandshakePayload":
        """Read the protobuf. As other decoders do, other fields are ignored, and those of another wire type; of one
        that comes twice, the last counts, but extensions add up.

        Raises:
            DecodeError: malformed.
        """
        fields = _bytes_of(data)
        extensions = b"".join(value for number, value in fields if number == _EXTENSIONS)
        muxers = tuple(
            value.decode("utf-8", "replace") for number, value in _bytes_of(extensions) if number == _STREAM_MUXERS
        )
        values = dict(fields)
        return cls(values.get(_IDENTITY_KEY, b""), values.get(_IDENTITY_SIG, b""), muxers)

    def verify(self, static_key: bytes) -> PublicKey:
        """Return the identity key, whose owner has signed the static key.

        Raises:
            Libp2pFault: it is no key, or has signed something else.
        """
        try:
            key = PublicKey.decode(self.identity_key)
        except DecodeError as error:
            raise Libp2pFault(Cause.BAD_IDENTITY_KEY) from error
        if not key.has_signed(_SIGNED_PREFIX + static_key, self.identity_sig):
            raise Libp2pFault(Cause.WRONG_SIGNATURE)
        return key


def _bytes_of(data: bytes) -> list[tuple[int, bytes]]:
    fields = protobuf.read_fields(data, MAX_PAYLOAD_FIELDS)
    return [(field.number, field.value) for field in fields if isinstance(field.value, bytes)]


class NoiseHandshake:
    """The handshake of one connection, either side.

    `remote_key`: who is at the other end, once that is proved. `remote_muxers`: what it has said to speak, in order.
    """

    def __init__(self, keys: NoiseKeys, ephemeral_secret: bytes, *, is_dialer: bool) -> None:
        """Start.

        Args:
            ephemeral_secret: 32 random bytes, for this handshake only.
        """
        self.remote_key: PublicKey | None = None
        self.remote_muxers: tuple[str, ...] = ()
        self._payload = keys.payload
        ephemeral = X25519PrivateKey.from_private_bytes(ephemeral_secret)
        self._state = HandshakeState(keys.static, ephemeral, is_initiator=is_dialer)

    def begin(self) -> bytes:
        """The dialer's first message, framed. It carries nothing: it is not sealed."""
        return _framed(self._state.write_message(b""))

    def advance(self, received: bytearray) -> bytes | None:
        """Read the next message, if it has come as a whole, and remove it; return what to send, or None if none came.

        Raises:
            Libp2pFault: too long, not decryptable, or not of whom it says.
        """
        message = _taken(received, MAX_HANDSHAKE_MESSAGE_BYTES)
        if message is None:
            return None
        payload = self._state.read_message(message)
        static_key = self._state.remote_static
        if static_key is not None:  # the first message has neither a static key nor a payload
            self._learn(payload, static_key)
        return _framed(self._state.write_message(self._payload)) if self._state.is_our_turn else b""

    def _learn(self, data: bytes, static_key: bytes) -> None:
        try:
            payload = HandshakePayload.decode(data)
        except DecodeError as error:
            raise Libp2pFault(Cause.BAD_IDENTITY_KEY) from error
        self.remote_key = payload.verify(static_key)
        self.remote_muxers = payload.muxers

    @property
    def is_finished(self) -> bool:
        """Whether both sides have proved who they are."""
        return self._state.is_finished

    def channel(self) -> "NoiseChannel":
        """What the connection goes on with, once the handshake is finished."""
        return NoiseChannel(*self._state.split())


class NoiseChannel:
    """Sealed messages, both ways."""

    __slots__ = ("_egress", "_ingress")

    def __init__(self, egress: CipherState, ingress: CipherState) -> None:
        self._egress = egress
        self._ingress = ingress

    def seal(self, pieces: Sequence[bytes]) -> list[bytes]:
        """Seal bytes, given in pieces, in as few messages as can be."""
        plaintext = b"".join(pieces)
        if 0 < len(plaintext) <= MAX_PLAINTEXT_BYTES:  # as most: a push, which is sealed for each of a thousand clients
            return [_framed(self._egress.seal(plaintext))]
        return [
            _framed(self._egress.seal(plaintext[at : at + MAX_PLAINTEXT_BYTES]))
            for at in range(0, len(plaintext), MAX_PLAINTEXT_BYTES)
        ]

    def open(self, received: bytearray) -> bytes | None:
        """Open the next message, if it has come as a whole, and remove it; None if it has not.

        Raises:
            Libp2pFault: it is not what the other side has sealed as its next.
        """
        message = _taken(received, MAX_MESSAGE_BYTES)
        return None if message is None else self._ingress.open(message)


def _framed(message: bytes) -> bytes:
    return len(message).to_bytes(_LENGTH_BYTES, "big") + message


def _taken(received: bytearray, most: int) -> bytes | None:
    """Remove the next message and return it without its length; None if it has not come as a whole."""
    if len(received) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(received[:_LENGTH_BYTES], "big")
    if length > most:
        raise Libp2pFault(Cause.FRAME_TOO_LONG, got=length, limit=most)
    end = _LENGTH_BYTES + length
    if len(received) < end:
        return None
    message = bytes(received[_LENGTH_BYTES:end])
    del received[:end]
    return message
