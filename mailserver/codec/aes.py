"""AES in the modes that RLPx and Waku use. Only this module chooses the implementation.

`cryptography` (OpenSSL) is quick where it matters. The frame ciphers run for every frame: 0.3 us per KiB and 0.15 us
per block, and pycryptodome takes ten times as much. AES-GCM runs for every live envelope that a filter might open: 2 us
for 256 bytes, and 45 us in pycryptodome. AES-SIV runs for every id in which somebody looks for messages: 6 us. What is
sealed to a public key takes 4 us, and 11 in pycryptodome, whose import is a tenth of a daemon's start.
"""

from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

from mailserver.errors import DecodeError

GCM_NONCE_BYTES = 12
GCM_TAG_BYTES = 16
SIV_BYTES = 16


def ctr_stream(key: bytes) -> Callable[[bytes], bytes]:
    """AES-CTR with a zero IV as one running stream; encrypting and decrypting are the same.

    Spec: rlpx.md "Framing": one stream per direction that is never restarted.
    """
    # A zero IV is safe only because each connection derives a new key.
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update


def block_cipher(key: bytes) -> Callable[[bytes], bytes]:
    """AES of single 16-byte blocks, for the MAC seeds (rlpx.md "MAC")."""
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update  # noqa: S305 (single blocks, as RLPx says)


def ctr(key: bytes, iv: bytes, data: bytes) -> bytes:
    """AES-CTR of one message with a 16-byte initial counter block (ECIES)."""
    return Cipher(algorithms.AES(key), modes.CTR(iv)).encryptor().update(data)


def gcm_seal(key: bytes, nonce: bytes, plaintext: bytes) -> bytes:
    """AES-GCM without additional data; return ciphertext || tag(16)."""
    return AESGCM(key).encrypt(nonce, plaintext, None)


def gcm_open(key: bytes, nonce: bytes, sealed: bytes) -> bytes:
    """Open ciphertext || tag(16).

    Raises:
        DecodeError: too short, or the tag differs.
    """
    if len(sealed) < GCM_TAG_BYTES:
        raise DecodeError("AES-GCM ciphertext is shorter than its tag", got=len(sealed), limit=GCM_TAG_BYTES)
    try:
        return AESGCM(key).decrypt(nonce, sealed, None)
    except InvalidTag as error:
        raise DecodeError("AES-GCM tag differs") from error


def siv_seal(key: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """AES-SIV without a nonce; return synthetic IV(16) || ciphertext, always the same for the same arguments.

    Args:
        key: 32, 48 or 64 bytes, of which half authenticates.
        plaintext: one byte or more.
        associated: what the one who opens it must have, too.
    Spec: RFC 5297.
    """
    return AESSIV(key).encrypt(plaintext, [associated])


def siv_open(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Open synthetic IV(16) || ciphertext.

    Raises:
        DecodeError: too short, or it was not sealed with this key and this associated data.
    """
    if len(sealed) <= SIV_BYTES:
        raise DecodeError("AES-SIV ciphertext is too short", got=len(sealed), limit=SIV_BYTES + 1)
    try:
        return AESSIV(key).decrypt(sealed, [associated])
    except InvalidTag as error:
        raise DecodeError("AES-SIV tag differs") from error
