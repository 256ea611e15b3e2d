"""The RLPx key exchange, either side: auth and ack in the format of EIP-8, and the secrets derived from them.

    initiator                                         recipient
    Initiator(...).auth  ------- auth packet ------>  Recipient(...).receive_auth(auth) -> ack, Secrets
    .receive_ack(ack) -> Secrets  <--- ack packet ---

The caller cuts packets from the stream with `packet_length`, and passes all randomness in an `Entropy`.
Spec: rlpx.md "Initial Handshake", EIP-8 "RLPx Handshake".
"""

from dataclasses import dataclass

from mailserver.codec import ecies, rlp
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, NodeId, PrivateKey, check_public_key, recover
from mailserver.errors import DecodeError

RLPX_VERSION = 4
SIZE_PREFIX_BYTES = 2
NONCE_BYTES = 32

MAX_HANDSHAKE_PACKET_BYTES = 4096
"""The longest auth or ack that we read: it bounds how much memory a stranger can take. EIP-8 packets have 300 to 600
bytes; later versions may add to that."""

MIN_PADDING_BYTES, MAX_PADDING_BYTES = 100, 300
"""How much random padding EIP-8 recommends. At least 100 bytes make a packet longer than any from before EIP-8."""

PLAIN_AUTH_BYTES = SIGNATURE_BYTES + 32 + PUBLIC_KEY_BYTES + NONCE_BYTES + 1 + ecies.OVERHEAD_BYTES
"""The fixed length of an auth packet from before EIP-8, 307 bytes: signature, hash, public key, nonce and a flag,
sealed."""


@dataclass(frozen=True, slots=True)
class Entropy:
    """All randomness of one side of one handshake.

    `nonce`: 32 bytes. `iv`: 16 bytes. `padding`: MIN_PADDING_BYTES to MAX_PADDING_BYTES bytes. `seal_key`: the
    ephemeral key of ECIES. `ephemeral_key`: that of the key exchange; it must be another key.
    """

    ephemeral_key: PrivateKey
    nonce: bytes
    seal_key: PrivateKey
    iv: bytes
    padding: bytes


@dataclass(frozen=True, slots=True)
class Secrets:
    """What both sides know after the key exchange, from the view of one side.

    `aes` and `mac` have 32 bytes. `egress_seed` and `ingress_seed` are what the two running MACs absorb first.
    """

    remote_id: NodeId
    aes: bytes
    mac: bytes
    egress_seed: bytes
    ingress_seed: bytes


def packet_length(start: bytes) -> int:
    """Read the size prefix of a handshake packet; return the packet's whole length, prefix included.

    Args:
        start: at least SIZE_PREFIX_BYTES bytes.
    Raises:
        DecodeError: the packet is shorter than an empty sealed box, or longer than MAX_HANDSHAKE_PACKET_BYTES.
    """
    length = SIZE_PREFIX_BYTES + int.from_bytes(start[:SIZE_PREFIX_BYTES], "big")
    if not SIZE_PREFIX_BYTES + ecies.OVERHEAD_BYTES < length <= MAX_HANDSHAKE_PACKET_BYTES:
        raise DecodeError("handshake packet has an impossible size", got=length, limit=MAX_HANDSHAKE_PACKET_BYTES)
    return length


def is_plain_auth(key: PrivateKey, start: bytes) -> bool:
    """Tell whether these bytes begin with an auth packet in the format from before EIP-8.

    Such a packet has no size prefix. The first two bytes of its sealed box look like a size of 1,024 to 1,279, so we
    would wait for bytes that never come. Nobody sends it today. We recognise it to refuse it at once.

    Args:
        start: at least PLAIN_AUTH_BYTES bytes.
    """
    try:
        ecies.open_sealed(key, start[:PLAIN_AUTH_BYTES])
    except DecodeError:
        return False
    return True


class Initiator:
    """The side that dialled. `auth` is the packet to send first."""

    def __init__(self, key: PrivateKey, remote_id: NodeId, entropy: Entropy) -> None:
        """Build the auth packet.

        Raises:
            DecodeError: `remote_id` is not a point on the curve.
        """
        self._key = key
        self._remote_id = remote_id
        self._entropy = entropy
        # The signature is by the ephemeral key, over static-shared-secret ^ nonce.
        static_shared = key.agree(remote_id)
        signature = entropy.ephemeral_key.sign(_xor(static_shared, entropy.nonce))
        body = rlp.encode([signature, key.public_key, entropy.nonce, rlp.encode_uint(RLPX_VERSION)])
        self.auth = _seal_packet(remote_id, body, entropy)

    def receive_ack(self, ack: bytes) -> Secrets:
        """Open the recipient's ack; return the secrets.

        Args:
            ack: the whole packet, size prefix included.
        Raises:
            DecodeError: the packet does not open with our key, or a field is malformed.
        """
        fields = _open_packet(self._key, ack, 2)
        remote_ephemeral_id = rlp.as_bytes(fields[0], PUBLIC_KEY_BYTES)
        remote_nonce = rlp.as_bytes(fields[1], NONCE_BYTES)
        entropy = self._entropy
        aes, mac = _derive(entropy.ephemeral_key.agree(remote_ephemeral_id), remote_nonce, entropy.nonce)
        return Secrets(
            self._remote_id,
            aes,
            mac,
            egress_seed=_xor(mac, remote_nonce) + self.auth,
            ingress_seed=_xor(mac, entropy.nonce) + ack,
        )


class Recipient:
    """The side that was dialled."""

    def __init__(self, key: PrivateKey, entropy: Entropy) -> None:
        self._key = key
        self._entropy = entropy

    def receive_auth(self, auth: bytes) -> tuple[bytes, Secrets]:
        """Open an auth packet; return the ack packet to send, and the secrets.

        Args:
            auth: the whole packet, size prefix included.
        Raises:
            DecodeError: the packet does not open with our key, or a field is malformed.
        """
        remote_id, remote_ephemeral_id, remote_nonce = open_auth(self._key, auth)
        body = rlp.encode([self._entropy.ephemeral_key.public_key, self._entropy.nonce, rlp.encode_uint(RLPX_VERSION)])
        ack = _seal_packet(remote_id, body, self._entropy)
        return ack, self.secrets(auth, ack, remote_id, remote_ephemeral_id, remote_nonce)

    def secrets(
        self, auth: bytes, ack: bytes, remote_id: NodeId, remote_ephemeral_id: bytes, remote_nonce: bytes
    ) -> Secrets:
        """Derive the secrets from both packets, as they were on the wire.

        Raises:
            DecodeError: `remote_ephemeral_id` is not a point on the curve.
        """
        entropy = self._entropy
        aes, mac = _derive(entropy.ephemeral_key.agree(remote_ephemeral_id), entropy.nonce, remote_nonce)
        return Secrets(
            remote_id,
            aes,
            mac,
            egress_seed=_xor(mac, remote_nonce) + ack,
            ingress_seed=_xor(mac, entropy.nonce) + auth,
        )


def open_auth(key: PrivateKey, auth: bytes) -> tuple[NodeId, NodeId, bytes]:
    """Open an auth packet; return the initiator's node id, ephemeral public key and nonce.

    Raises:
        DecodeError: the packet does not open with our key, a field is malformed, or the signature fits no key.
    """
    fields = _open_packet(key, auth, 3)
    signature = rlp.as_bytes(fields[0], SIGNATURE_BYTES)
    remote_id = check_public_key(rlp.as_bytes(fields[1], PUBLIC_KEY_BYTES))
    nonce = rlp.as_bytes(fields[2], NONCE_BYTES)
    return remote_id, recover(signature, _xor(key.agree(remote_id), nonce)), nonce


def _seal_packet(public_key: bytes, body: bytes, entropy: Entropy) -> bytes:
    plaintext = body + entropy.padding
    size = (len(plaintext) + ecies.OVERHEAD_BYTES).to_bytes(SIZE_PREFIX_BYTES, "big")
    return size + ecies.seal(public_key, plaintext, ephemeral_key=entropy.seal_key, iv=entropy.iv, authdata=size)


def _open_packet(key: PrivateKey, packet: bytes, min_fields: int) -> list[rlp.Item]:
    size = packet[:SIZE_PREFIX_BYTES]
    body = ecies.open_sealed(key, packet[SIZE_PREFIX_BYTES:], authdata=size)
    # EIP-8: ignore the version, additional list elements, and what follows the list.
    fields = rlp.as_list(rlp.decode_first(body))
    if len(fields) < min_fields:
        raise DecodeError("handshake packet has too few elements", got=len(fields), limit=min_fields)
    return fields


def _derive(ephemeral_shared: bytes, recipient_nonce: bytes, initiator_nonce: bytes) -> tuple[bytes, bytes]:
    # shared-secret = keccak256(ephemeral-key || keccak256(nonce || initiator-nonce))
    shared = keccak256(ephemeral_shared + keccak256(recipient_nonce + initiator_nonce))
    # aes-secret = keccak256(ephemeral-key || shared-secret)
    aes = keccak256(ephemeral_shared + shared)
    # mac-secret = keccak256(ephemeral-key || aes-secret)
    return aes, keccak256(ephemeral_shared + aes)


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).to_bytes(len(left), "big")
