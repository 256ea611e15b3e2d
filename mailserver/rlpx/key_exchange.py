"""One side's part in the key exchange: cuts auth or ack from the stream of bytes, and answers it.

Spec: rlpx.md "Initial Handshake". `rlpx.handshake` encodes and decodes the packets.
"""

from collections.abc import Callable

from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DecodeError
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

_PLAIN_AUTH_PREFIX = 0x04


class KeyExchange:
    """The key exchange of one session: from the first byte until both sides have the keys."""

    __slots__ = ("_entropy", "_initiator", "_key", "_may_be_plain", "_out", "_received")

    def __init__(
        self, key: PrivateKey, remote_id: NodeId | None, entropy: Callable[[], Entropy], received: bytearray
    ) -> None:
        """Start as initiator if `remote_id` is given, else as recipient.

        Args:
            entropy: called once, when randomness is needed.
            received: the bytes that have come. Its owner appends to it; this object removes what it has read.
        Raises:
            DecodeError: `remote_id` is not a point on the curve.
        """
        self._key = key
        self._entropy = entropy
        self._received = received
        self._initiator = None if remote_id is None else Initiator(key, remote_id, entropy())
        self._may_be_plain = remote_id is None
        self._out = [] if self._initiator is None else [self._initiator.auth]

    @property
    def is_initiator(self) -> bool:
        """Whether we dialled."""
        return self._initiator is not None

    def data_to_send(self) -> list[bytes]:
        """Return the packets to send that were made since the last call."""
        out, self._out = self._out, []
        return out

    def advance(self) -> Secrets | None:
        """Return the secrets when the peer's packet is complete; None before that.

        Raises:
            DecodeError: the packet is malformed, or not for us.
        """
        received = self._received
        if len(received) < SIZE_PREFIX_BYTES:
            return None
        start = bytes(received[:PLAIN_AUTH_BYTES])
        if self._may_be_plain and len(start) == PLAIN_AUTH_BYTES:
            self._may_be_plain = False  # tried only once, as it costs a key agreement
            if start[0] == _PLAIN_AUTH_PREFIX and is_plain_auth(self._key, start):
                raise DecodeError("auth is in the format from before EIP-8")
        length = packet_length(start)
        if len(received) < length:
            return None
        packet = bytes(received[:length])
        del received[:length]
        if self._initiator is not None:
            return self._initiator.receive_ack(packet)
        ack, secrets = Recipient(self._key, self._entropy()).receive_auth(packet)
        self._out.append(ack)
        return secrets
