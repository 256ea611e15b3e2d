"""Noise_XX_25519_ChaChaPoly_SHA256: the handshake of three messages, either side, and the ciphers that it ends in.

Spec: The Noise Protocol Framework, revision 34, sections 5 and 7.5 ("XX"). The prologue is empty, as in libp2p.
"""

import hmac
from enum import Enum
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from mailserver.errors import DecodeError, LocalProtocolError
from mailserver.libp2p.faults import Cause, Libp2pFault

KEY_BYTES = 32
TAG_BYTES = 16

LAST_NONCE = (1 << 64) - 2
"""The one above is reserved (section 5.1)."""

_PROTOCOL_NAME = b"Noise_XX_25519_ChaChaPoly_SHA256"  # of 32 bytes, so it is its own hash (section 5.2)
_NONCE_PREFIX = bytes(4)


class CipherState:
    """A key, and how many messages it has sealed or opened: they are numbered, so none is lost, repeated or swapped."""

    __slots__ = ("_aead", "_nonce")

    def __init__(self, key: bytes, nonce: int = 0) -> None:
        self._aead = ChaCha20Poly1305(key)
        self._nonce = nonce

    def seal(self, plaintext: bytes, authdata: bytes = b"") -> bytes:
        """Return ciphertext and tag.

        Raises:
            LocalProtocolError: as many messages were sealed as there are numbers.
        """
        nonce = self._nonce
        if nonce > LAST_NONCE:
            raise LocalProtocolError("nonces are used up")
        self._nonce = nonce + 1
        return self._aead.encrypt(_NONCE_PREFIX + nonce.to_bytes(8, "little"), plaintext, authdata)

    def open(self, ciphertext: bytes, authdata: bytes = b"") -> bytes:
        """Return the plaintext.

        Raises:
            Libp2pFault: it is not what the other side sealed as the next message, or there are no more numbers.
        """
        nonce = self._nonce
        if nonce > LAST_NONCE:
            raise Libp2pFault(Cause.NONCES_USED_UP)
        self._nonce = nonce + 1
        try:
            return self._aead.decrypt(_NONCE_PREFIX + nonce.to_bytes(8, "little"), ciphertext, authdata)
        except InvalidTag as error:
            raise Libp2pFault(Cause.UNDECRYPTABLE) from error


class _Token(Enum):
    """What a message does: sends a key, or mixes in what two keys agree on."""

    E = ("e",)
    S = ("s",)
    EE = ("e", "e")
    ES = ("e", "s")
    SE = ("s", "e")


_MESSAGES = ((_Token.E,), (_Token.E, _Token.EE, _Token.S, _Token.ES), (_Token.S, _Token.SE))
"""Of XX; the initiator sends the first and the third."""


class HandshakeState:
    """One handshake. Whose turn it is follows from the number of messages; out of turn is a bug."""

    def __init__(self, static: X25519PrivateKey, ephemeral: X25519PrivateKey, *, is_initiator: bool) -> None:
        self._static = static
        self._ephemeral = ephemeral
        self._is_initiator = is_initiator
        self._messages = 0
        self._remote_static: X25519PublicKey | None = None
        self._remote_ephemeral: X25519PublicKey | None = None
        self._hash = sha256(_PROTOCOL_NAME).digest()  # and the prologue, which is empty
        self._chaining_key = _PROTOCOL_NAME
        self._cipher: CipherState | None = None

    @property
    def is_our_turn(self) -> bool:
        """Whether the next message is ours."""
        return not self.is_finished and (self._messages % 2 == 0) == self._is_initiator

    @property
    def is_finished(self) -> bool:
        """Whether all messages were exchanged."""
        return self._messages == len(_MESSAGES)

    @property
    def remote_static(self) -> bytes | None:
        """The other side's static key, once it has sent it."""
        return None if self._remote_static is None else self._remote_static.public_bytes_raw()

    def write_message(self, payload: bytes) -> bytes:
        """Make our next message.

        Raises:
            LocalProtocolError: it is not our turn.
            Libp2pFault: a key of the other side's is a point of low order.
        """
        if not self.is_our_turn:
            raise LocalProtocolError(f"message {self._messages} is not ours")
        message = b""
        for token in _MESSAGES[self._messages]:
            if token is _Token.E:
                key = self._ephemeral.public_key().public_bytes_raw()
                self._mix_hash(key)
                message += key
            elif token is _Token.S:
                message += self._seal_and_hash(self._static.public_key().public_bytes_raw())
            else:
                self._mix_key(self._agree(token))
        message += self._seal_and_hash(payload)
        self._messages += 1
        return message

    def read_message(self, message: bytes) -> bytes:
        """Read the other side's next message; return its payload.

        Raises:
            LocalProtocolError: it is our turn.
            Libp2pFault: too short, not decryptable, or a key is a point of low order.
        """
        if self.is_our_turn or self.is_finished:
            raise LocalProtocolError(f"message {self._messages} is not theirs")
        at = 0
        for token in _MESSAGES[self._messages]:
            if token is _Token.E:
                key = _taken(message, at, KEY_BYTES)
                at += KEY_BYTES
                self._remote_ephemeral = X25519PublicKey.from_public_bytes(key)
                self._mix_hash(key)
            elif token is _Token.S:
                sealed = _taken(message, at, KEY_BYTES + TAG_BYTES)
                at += KEY_BYTES + TAG_BYTES
                self._remote_static = X25519PublicKey.from_public_bytes(self._open_and_hash(sealed))
            else:
                self._mix_key(self._agree(token))
        payload = self._open_and_hash(message[at:])
        self._messages += 1
        return payload

    def split(self) -> tuple[CipherState, CipherState]:
        """The ciphers of what we send and what we receive, once the handshake is finished (section 5.2)."""
        if not self.is_finished:
            raise LocalProtocolError(f"handshake is at message {self._messages}")
        initiators, recipients = (CipherState(key) for key in _hkdf(self._chaining_key, b""))
        return (initiators, recipients) if self._is_initiator else (recipients, initiators)

    def _agree(self, token: _Token) -> bytes:
        """The secret of two keys: the first letter is the initiator's, the second the responder's."""
        ours, theirs = token.value if self._is_initiator else token.value[::-1]
        private = self._ephemeral if ours == "e" else self._static
        public = self._remote_ephemeral if theirs == "e" else self._remote_static
        assert public is not None, "the pattern sends each key before it is used"
        try:
            return private.exchange(public)
        except ValueError as error:  # the secret would be zero, whoever had the private key
            raise Libp2pFault(Cause.LOW_ORDER_POINT) from error

    def _mix_hash(self, data: bytes) -> None:
        self._hash = sha256(self._hash + data).digest()

    def _mix_key(self, secret: bytes) -> None:
        self._chaining_key, key = _hkdf(self._chaining_key, secret)
        self._cipher = CipherState(key)

    def _seal_and_hash(self, plaintext: bytes) -> bytes:
        sealed = plaintext if self._cipher is None else self._cipher.seal(plaintext, self._hash)
        self._mix_hash(sealed)
        return sealed

    def _open_and_hash(self, sealed: bytes) -> bytes:
        plaintext = sealed if self._cipher is None else self._cipher.open(sealed, self._hash)
        self._mix_hash(sealed)
        return plaintext


def _taken(message: bytes, at: int, count: int) -> bytes:
    taken = message[at : at + count]
    if len(taken) < count:
        raise Libp2pFault(Cause.UNDECRYPTABLE) from DecodeError("handshake message is too short", got=len(message))
    return taken


def _hkdf(chaining_key: bytes, secret: bytes) -> tuple[bytes, bytes]:
    """Two keys of one (section 4.3)."""
    temporary = hmac.digest(chaining_key, secret, "sha256")
    first = hmac.digest(temporary, b"\x01", "sha256")
    return first, hmac.digest(temporary, first + b"\x02", "sha256")
