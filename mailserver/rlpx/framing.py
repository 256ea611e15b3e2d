"""RLPx frames: header, padding, and the two running MACs (rlpx.md "Framing", "MAC").

A frame is header(16) || header-mac(16) || body, padded to 16 || frame-mac(16), each direction with its own
cipher stream and MAC state. A decoder whose MAC once differed is out of step for good: drop the connection.
"""

import hmac
from dataclasses import dataclass
from typing import TypeVar

from mailserver.codec import aes
from mailserver.codec.keccak import running_keccak
from mailserver.errors import DecodeError

HEADER_BYTES = 32
"""Header and its MAC."""

MAC_BYTES = 16
MAX_FRAME_BODY_BYTES = 0xFF_FFFF
"""What the three bytes of frame-size can say."""

BLOCK_BYTES = 16
"""The body of a frame comes in whole blocks."""

_Buffer = TypeVar("_Buffer", bytes, memoryview)
_HEADER_DATA = b"\xc2\x80\x80"  # header-data = [capability-id 0, context-id 0]; both are unused
_HEADER_REST = _HEADER_DATA + bytes(BLOCK_BYTES - 3 - len(_HEADER_DATA))


def padded(size: int) -> int:
    """Round a frame-size up to whole cipher blocks."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(slots=True, eq=False)
class ComingFrame:
    """A frame whose header has been read, and whose body has not all come. `body_bytes` is its frame-size.

    `message_bytes` is how long its first bytes say that the message is once inflated, None before they have come. They
    are not authenticated before all of the frame is there.
    """

    body_bytes: int
    message_bytes: int | None = None

    @property
    def wire_bytes(self) -> int:
        """What comes after the header: the padded body and its MAC."""
        return padded(self.body_bytes) + MAC_BYTES


class _Mac:
    """One direction's running MAC."""

    def __init__(self, mac_secret: bytes, seed: bytes) -> None:
        self._keccak = running_keccak(seed)
        self._encrypt = aes.block_cipher(mac_secret)

    def of_header(self, header_ciphertext: bytes) -> bytes:
        # header-mac-seed = aes(mac-secret, keccak256.digest(mac)[:16]) ^ header-ciphertext
        return self._step(header_ciphertext)

    def add_part(self, body_ciphertext: bytes) -> None:
        self._keccak.update(body_ciphertext)

    def of_parts(self) -> bytes:
        # frame-mac-seed = aes(mac-secret, keccak256.digest(mac)[:16]) ^ keccak256.digest(mac)[:16]
        return self._step(self._keccak.digest()[:MAC_BYTES])

    def _step(self, value: bytes) -> bytes:
        encrypted = self._encrypt(self._keccak.digest()[:MAC_BYTES])
        seed = int.from_bytes(encrypted, "big") ^ int.from_bytes(value, "big")
        self._keccak.update(seed.to_bytes(MAC_BYTES, "big"))
        return self._keccak.digest()[:MAC_BYTES]


class FrameEncoder:
    """Seals frame bodies, in the order in which they are sent."""

    def __init__(self, aes_secret: bytes, mac_secret: bytes, egress_seed: bytes) -> None:
        self._encrypt = aes.ctr_stream(aes_secret)
        self._mac = _Mac(mac_secret, egress_seed)

    def encode(self, body: bytes) -> bytes:
        """Return the whole frame for `body` (message id and data; at most MAX_FRAME_BODY_BYTES)."""
        header = self._encrypt(len(body).to_bytes(3, "big") + _HEADER_REST)
        header_mac = self._mac.of_header(header)
        ciphertext = self._encrypt(body + bytes(padded(len(body)) - len(body)))
        self._mac.add_part(ciphertext)
        return b"".join((header, header_mac, ciphertext, self._mac.of_parts()))


class FrameDecoder:
    """Opens frames, in the order in which they arrive: header, body, header, body."""

    def __init__(self, aes_secret: bytes, mac_secret: bytes, ingress_seed: bytes) -> None:
        self._decrypt = aes.ctr_stream(aes_secret)
        self._mac = _Mac(mac_secret, ingress_seed)

    def decode_header(self, data: bytes, *, max_body_bytes: int) -> int:
        """Authenticate and decrypt one frame header; return frame-size in bytes, padding excluded.

        Args:
            data: HEADER_BYTES bytes: header-ciphertext, then header-mac.
            max_body_bytes: what we are ready to hold.
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
        """Decrypt the next part of a frame body: whole blocks. Believe nothing of it before `check_body`."""
        self._mac.add_part(data)
        return self._decrypt(data)

    def check_body(self, mac: bytes) -> None:
        """Authenticate a frame body when all its parts have been decrypted.

        Args:
            mac: MAC_BYTES bytes: frame-mac.
        Raises:
            DecodeError: the MAC differs.
        """
        if not hmac.compare_digest(mac, self._mac.of_parts()):
            raise DecodeError("frame body MAC differs")


def encode_message_id(message_id: int) -> bytes:
    """Encode the message id, below 256, that a frame body begins with: an RLP integer (rlpx.md "Framing")."""
    if message_id == 0:
        return b"\x80"
    return bytes([message_id]) if message_id < 0x80 else bytes([0x81, message_id])


def split_message(body: _Buffer) -> tuple[int, _Buffer]:
    """Split a frame body of a byte or more into message id and data (rlpx.md "Framing").

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
