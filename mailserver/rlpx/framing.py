"""RLPx frames: header, padding, and the two running MACs (rlpx.md "Framing", "MAC").

A frame is header(16) || header-mac(16) || body, padded to 16 || frame-mac(16). Each direction has its own cipher stream
and MAC state. When a MAC has differed once, the decoder cannot recover: drop the connection.
"""

import hmac
from typing import TypeVar

from mailserver.codec import aes
from mailserver.codec.keccak import running_keccak
from mailserver.errors import DecodeError

HEADER_BYTES = 32
"""The header and its MAC."""

MAC_BYTES = 16
MAX_FRAME_BODY_BYTES = 0xFF_FFFF
"""The most that the three bytes of frame-size can hold."""

BLOCK_BYTES = 16
"""The body of a frame is padded to whole blocks."""

_Buffer = TypeVar("_Buffer", bytes, memoryview, bytes | memoryview)
_HEADER_DATA = b"\xc2\x80\x80"  # header-data = [capability-id 0, context-id 0]; both are unused
_HEADER_REST = _HEADER_DATA + bytes(BLOCK_BYTES - 3 - len(_HEADER_DATA))
_PADDINGS = tuple(bytes(size) for size in range(BLOCK_BYTES))


def padded(size: int) -> int:
    """Round a frame-size up to whole cipher blocks."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


class PartialFrame:
    """A frame whose header has been read, and whose body is not complete.

    `body_bytes`: its frame-size. `wire_bytes`: the length of what follows the header: the padded body and its MAC.
    `message_bytes`: the inflated length that the first bytes of the message announce; None before they have come. It is
    not authenticated until the frame is complete.
    """

    __slots__ = ("body_bytes", "message_bytes", "wire_bytes")

    def __init__(self, body_bytes: int) -> None:
        self.body_bytes = body_bytes
        self.wire_bytes = padded(body_bytes) + MAC_BYTES
        self.message_bytes: int | None = None


class _Mac:
    """One direction's running MAC.

    `_digest` is the digest of the state between two frames. A digest costs as much as absorbing a block, so none is
    computed twice.
    """

    __slots__ = ("_digest", "_encrypt", "_keccak")

    def __init__(self, mac_secret: bytes, seed: bytes) -> None:
        self._keccak = running_keccak(seed)
        self._encrypt = aes.block_cipher(mac_secret)
        self._digest = self._keccak.digest()[:MAC_BYTES]

    def of_header(self, header_ciphertext: bytes) -> bytes:
        # header-mac-seed = aes(mac-secret, keccak256.digest(mac)[:16]) ^ header-ciphertext
        return self._absorb(self._digest, header_ciphertext)

    def add_part(self, body_ciphertext: bytes) -> None:
        self._keccak.update(body_ciphertext)

    def of_parts(self) -> bytes:
        # frame-mac-seed = aes(mac-secret, keccak256.digest(mac)[:16]) ^ keccak256.digest(mac)[:16]
        digest = self._keccak.digest()[:MAC_BYTES]
        self._digest = mac = self._absorb(digest, digest)
        return mac

    def _absorb(self, digest: bytes, value: bytes) -> bytes:
        """Absorb aes(mac-secret, digest) ^ value; return the MAC: the first half of the digest after that."""
        seed = int.from_bytes(self._encrypt(digest), "big") ^ int.from_bytes(value, "big")
        self._keccak.update(seed.to_bytes(MAC_BYTES, "big"))
        return self._keccak.digest()[:MAC_BYTES]


class FrameEncoder:
    """Seals frame bodies, in the order in which they are sent."""

    __slots__ = ("_encrypt", "_mac")

    def __init__(self, aes_secret: bytes, mac_secret: bytes, egress_seed: bytes) -> None:
        self._encrypt = aes.ctr_stream(aes_secret)
        self._mac = _Mac(mac_secret, egress_seed)

    def encode(self, body: bytes) -> bytes:
        """Return the whole frame for `body` (message id and data; at most MAX_FRAME_BODY_BYTES)."""
        size = len(body)
        # Header and body are encrypted by one cipher stream, in this order.
        sealed = self._encrypt(b"".join((size.to_bytes(3, "big"), _HEADER_REST, body, _PADDINGS[-size % BLOCK_BYTES])))
        header, ciphertext = sealed[:BLOCK_BYTES], sealed[BLOCK_BYTES:]
        mac = self._mac
        header_mac = mac.of_header(header)
        mac.add_part(ciphertext)
        return b"".join((header, header_mac, ciphertext, mac.of_parts()))


class FrameDecoder:
    """Opens frames, in the order in which they arrive: header, body, header, body."""

    __slots__ = ("_decrypt", "_mac")

    def __init__(self, aes_secret: bytes, mac_secret: bytes, ingress_seed: bytes) -> None:
        self._decrypt = aes.ctr_stream(aes_secret)
        self._mac = _Mac(mac_secret, ingress_seed)

    def decode_header(self, data: bytes, *, max_body_bytes: int) -> int:
        """Authenticate and decrypt one frame header; return frame-size in bytes, padding excluded.

        Args:
            data: HEADER_BYTES bytes: header-ciphertext, then header-mac.
            max_body_bytes: the longest body that we accept.
        Raises:
            DecodeError: the MAC differs, or frame-size is 0 or above `max_body_bytes`.
        Spec: rlpx.md "Framing", "MAC". The MAC is checked before anything is decrypted.
        """
        if not hmac.compare_digest(data[16:], self._mac.of_header(data[:16])):
            raise DecodeError("frame header MAC differs")
        size = int.from_bytes(self._decrypt(data[:16])[:3], "big")
        if not 0 < size <= max_body_bytes:
            raise DecodeError("frame is empty or too long", got=size, limit=max_body_bytes)
        return size

    def decode_body(self, data: bytes, size: int) -> bytes:
        """Authenticate and decrypt one frame body of `size` bytes; return it without padding.

        Args:
            data: padded(size) + MAC_BYTES bytes: frame-ciphertext, then frame-mac.
        Raises:
            DecodeError: the MAC differs.
        """
        body = self.decode_part(data[:-MAC_BYTES])
        self.check_body(data[-MAC_BYTES:])
        return body[:size]

    def decode_part(self, data: bytes) -> bytes:
        """Decrypt the next part of a frame body: whole blocks. It is not authenticated before `check_body`."""
        self._mac.add_part(data)
        return self._decrypt(data)

    def check_body(self, mac: bytes) -> None:
        """Authenticate a frame body after all its parts have been decrypted.

        Args:
            mac: MAC_BYTES bytes: frame-mac.
        Raises:
            DecodeError: the MAC differs.
        """
        if not hmac.compare_digest(mac, self._mac.of_parts()):
            raise DecodeError("frame body MAC differs")


def encode_message_id(message_id: int) -> bytes:
    """Encode the message id that begins a frame body: an RLP integer below 256 (rlpx.md "Framing")."""
    if message_id == 0:
        return b"\x80"
    return bytes([message_id]) if message_id < 0x80 else bytes([0x81, message_id])


def split_message(body: _Buffer) -> tuple[int, _Buffer]:
    """Split a frame body into message id and data (rlpx.md "Framing"). The body has at least one byte.

    Raises:
        DecodeError: the message id is not an RLP integer below 256.
    """
    first = body[0]
    if 0 < first < 0x80:
        return first, body[1:]
    if first == 0x80:
        return 0, body[1:]
    if first == 0x81 and len(body) > 1 and body[1] >= 0x80:
        return body[1], body[2:]
    raise DecodeError("message id is not an RLP integer below 256", got=bytes(body[:3]).hex())
