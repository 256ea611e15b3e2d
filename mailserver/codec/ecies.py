"""ECIES as RLPx and 7/WAKU-DATA use it: seal to a public key, open with the private one.

Form: R(65) || iv(16) || c || tag(32). Spec: rlpx.md "ECIES Encryption". The ephemeral key and the IV are
arguments: this module draws no randomness.
"""

import hmac
from hashlib import sha256

from mailserver.codec import aes
from mailserver.codec.keys import PUBLIC_KEY_BYTES, PrivateKey
from mailserver.errors import DecodeError

IV_BYTES = 16
TAG_BYTES = 32
OVERHEAD_BYTES = 1 + PUBLIC_KEY_BYTES + IV_BYTES + TAG_BYTES
"""What sealing adds: the point's 0x04 prefix, the ephemeral public key, the IV and the tag: 113 bytes."""

_UNCOMPRESSED = 0x04


def seal(public_key: bytes, plaintext: bytes, *, ephemeral_key: PrivateKey, iv: bytes, authdata: bytes = b"") -> bytes:
    """Encrypt to `public_key` (64 bytes); `authdata` is authenticated but not part of the result.

    Raises:
        DecodeError: `public_key` is no point of the curve.
    """
    encryption_key, mac_key = _derive(ephemeral_key.agree(public_key))
    ciphertext = iv + aes.ctr(encryption_key, iv, plaintext)
    tag = hmac.digest(mac_key, ciphertext + authdata, "sha256")
    return bytes([_UNCOMPRESSED]) + ephemeral_key.public_key + ciphertext + tag


def open_sealed(private_key: PrivateKey, sealed: bytes, *, authdata: bytes = b"") -> bytes:
    """Decrypt what `seal` made. The tag is checked before anything is decrypted.

    Raises:
        DecodeError: too short, R is no point of the curve, or the tag differs.
    """
    if len(sealed) < OVERHEAD_BYTES or sealed[0] != _UNCOMPRESSED:
        raise DecodeError("ECIES ciphertext is too short or of another form", got=len(sealed), limit=OVERHEAD_BYTES)
    ephemeral_public_key = sealed[1 : 1 + PUBLIC_KEY_BYTES]
    ciphertext, tag = sealed[1 + PUBLIC_KEY_BYTES : -TAG_BYTES], sealed[-TAG_BYTES:]
    encryption_key, mac_key = _derive(private_key.agree(ephemeral_public_key))
    if not hmac.compare_digest(tag, hmac.digest(mac_key, ciphertext + authdata, "sha256")):
        raise DecodeError("ECIES tag differs")
    return aes.ctr(encryption_key, ciphertext[:IV_BYTES], ciphertext[IV_BYTES:])


def _derive(shared: bytes) -> tuple[bytes, bytes]:
    # kE || kM = KDF(S, 32), the concatenation KDF of NIST SP 800-56: one round of SHA-256, counter 1.
    # The tag's key is sha256(kM).
    derived = sha256(b"\x00\x00\x00\x01" + shared).digest()
    return derived[:16], sha256(derived[16:]).digest()
