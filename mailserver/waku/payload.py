"""What is inside an envelope's data: sealing and opening, symmetric and asymmetric (7/WAKU-DATA).

Plaintext: flags(1) || payload length (1 to 3 bytes, little-endian) || payload || padding || [signature(65)].
The specification allows 4 bytes of length, but the two bits of the flags cannot express that.
Symmetric: AES-256-GCM, ciphertext || tag(16) || nonce(12). Asymmetric: ECIES to a secp256k1 key.
All randomness is an argument.
"""

from dataclasses import dataclass
from hashlib import pbkdf2_hmac

from mailserver.codec import aes, ecies
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import SIGNATURE_BYTES, NodeId, PrivateKey, recover
from mailserver.errors import DecodeError

SYMMETRIC_KEY_BYTES = 32
PADDING_BLOCK_BYTES = 256
MAX_PADDING_BYTES = PADDING_BLOCK_BYTES - 1

PASSWORD_ITERATIONS = 65_356
"""PBKDF2 rounds of deployed clients (yes, 65,356)."""

_SIZE_MASK = 0b011
_SIGNED = 0b100
_FLAGS_BYTES = 1


@dataclass(frozen=True, slots=True)
class OpenedPayload:
    """An opened payload.

    `signer`: the public key that signed it, None if it is not signed. `padding`: the bytes between payload and
    signature: random ones, or what the sender has put there.
    """

    payload: bytes
    signer: NodeId | None
    padding: bytes


def key_from_password(password: str) -> bytes:
    """Derive the symmetric key as deployed clients do: PBKDF2-HMAC-SHA256 with an empty salt. It takes 30 ms."""
    return pbkdf2_hmac("sha256", password.encode(), b"", PASSWORD_ITERATIONS, SYMMETRIC_KEY_BYTES)


def seal_symmetric(
    payload: bytes,
    key: bytes,
    *,
    nonce: bytes,
    padding: bytes,
    exact_padding: bool = False,
    signing_key: PrivateKey | None = None,
) -> bytes:
    """Seal with a 32-byte key.

    Args:
        nonce: 12 random bytes, never twice with one key.
        padding: at least MAX_PADDING_BYTES random bytes; as many of them are used as are needed.
        exact_padding: `padding` is used as it is, whatever its length, and the plaintext fills no blocks
            (9/WAKU-RPC `waku_post`).
    """
    return aes.gcm_seal(key, nonce, _compose(payload, padding, signing_key, exact_padding=exact_padding)) + nonce


def seal_asymmetric(
    payload: bytes,
    public_key: bytes,
    *,
    ephemeral_key: PrivateKey,
    iv: bytes,
    padding: bytes,
    exact_padding: bool = False,
    signing_key: PrivateKey | None = None,
) -> bytes:
    """Seal to a 64-byte public key.

    Args:
        ephemeral_key: a new one each time.
        iv: 16 random bytes.
        padding, exact_padding: see `seal_symmetric`.
    Raises:
        DecodeError: `public_key` is no point of the curve.
    """
    plaintext = _compose(payload, padding, signing_key, exact_padding=exact_padding)
    return ecies.seal(public_key, plaintext, ephemeral_key=ephemeral_key, iv=iv)


def open_symmetric(data: bytes, key: bytes) -> OpenedPayload:
    """Open with a 32-byte key.

    Raises:
        DecodeError: it was sealed with another key, is damaged, or the plaintext has another form.
    """
    if len(data) < aes.GCM_NONCE_BYTES:
        raise DecodeError("sealed data is shorter than its nonce", got=len(data), limit=aes.GCM_NONCE_BYTES)
    return _parse(aes.gcm_open(key, data[-aes.GCM_NONCE_BYTES :], data[: -aes.GCM_NONCE_BYTES]))


def open_asymmetric(data: bytes, key: PrivateKey) -> OpenedPayload:
    """Open with a private key.

    Raises:
        DecodeError: it was sealed with another key, is damaged, or the plaintext has another form.
    """
    return _parse(ecies.open_sealed(key, data))


def _compose(payload: bytes, padding: bytes, signing_key: PrivateKey | None, *, exact_padding: bool) -> bytes:
    size = payload_size(len(payload))
    flags = len(size) | (_SIGNED if signing_key is not None else 0)
    if not exact_padding:
        # The whole plaintext, with the signature, is a multiple of PADDING_BLOCK_BYTES.
        unpadded = _FLAGS_BYTES + len(size) + len(payload) + (SIGNATURE_BYTES if signing_key is not None else 0)
        needed = -unpadded % PADDING_BLOCK_BYTES
        if len(padding) < needed:
            raise ValueError(f"{needed} bytes of padding needed, {len(padding)} given")
        padding = padding[:needed]
    plaintext = bytes([flags]) + size + payload + padding
    if signing_key is not None:
        plaintext += signing_key.sign(keccak256(plaintext))
    return plaintext


def payload_size(length: int) -> bytes:
    """The payload length field: little-endian, in as few bytes as hold it, at least one.

    Raises:
        ValueError: 16 MiB or more takes 4 bytes, which the flags cannot express.
    """
    if length >= 1 << 24:
        raise ValueError(f"payload of {length} bytes is too long")
    return length.to_bytes(max(1, (length.bit_length() + 7) // 8), "little")


def _parse(plaintext: bytes) -> OpenedPayload:
    if not plaintext:
        raise DecodeError("payload has no flags")
    size_bytes = plaintext[0] & _SIZE_MASK
    end = len(plaintext)
    signer = None
    if plaintext[0] & _SIGNED:
        end -= SIGNATURE_BYTES
        if end < _FLAGS_BYTES:
            raise DecodeError("payload is shorter than its signature", got=len(plaintext))
        signer = recover(plaintext[end:], keccak256(plaintext[:end]))
    start = _FLAGS_BYTES + size_bytes
    length = int.from_bytes(plaintext[_FLAGS_BYTES:start], "little")
    if start + length > end:
        raise DecodeError("payload length is beyond the data", got=length, limit=end - start)
    return OpenedPayload(plaintext[start : start + length], signer, plaintext[start + length : end])
