"""Peer ids: the multihash of a peer's public key, which is how libp2p names a peer.

Spec: libp2p/specs, peer-ids, "Peer Ids". Read in both forms of text, written in the first: base58btc of the multihash,
or a CIDv1 in base32.
"""

import base64
from dataclasses import dataclass
from hashlib import sha256

from mailserver.errors import DecodeError
from mailserver.libp2p import base58

MAX_IDENTITY_BYTES = 42
"""A key that is encoded in so many bytes is its own multihash; a longer one is hashed."""

MAX_CID_CHARACTERS = 128
"""Of the second form, which has 74 at most."""

_IDENTITY, _SHA2_256 = 0x00, 0x12  # codes of multihash
_DIGEST_BYTES = 32
_CID_PREFIX = bytes([0x01, 0x72])  # CIDv1, libp2p-key
_BASE32 = "b"  # of multibase


@dataclass(frozen=True, slots=True, order=True)
class PeerId:
    """A peer's identity: `multihash` is code, length and digest. `str()` is base58btc."""

    multihash: bytes

    def __str__(self) -> str:
        return base58.encode(self.multihash)

    @classmethod
    def of_key(cls, encoded: bytes) -> "PeerId":
        """The peer id of a public key, given as its encoded protobuf."""
        if len(encoded) <= MAX_IDENTITY_BYTES:
            return cls(bytes([_IDENTITY, len(encoded)]) + encoded)
        return cls(bytes([_SHA2_256, _DIGEST_BYTES]) + sha256(encoded).digest())

    @classmethod
    def decode(cls, multihash: bytes) -> "PeerId":
        """Take a multihash.

        Raises:
            DecodeError: of another hash than the two, or its length is not what it says, or not the hash's.
        """
        if len(multihash) < 2 or multihash[1] != len(multihash) - 2:
            raise DecodeError("multihash has the wrong length", got=len(multihash))
        code, length = multihash[0], multihash[1]
        if not (
            (code == _SHA2_256 and length == _DIGEST_BYTES) or (code == _IDENTITY and 0 < length <= MAX_IDENTITY_BYTES)
        ):
            raise DecodeError("multihash is none of a peer id", got=multihash[:2].hex())
        return cls(multihash)

    @classmethod
    def parse(cls, text: str) -> "PeerId":
        """Read either form.

        Raises:
            DecodeError: neither of them, or not a peer id.
        """
        if text.startswith(("1", "Qm")):
            return cls.decode(base58.decode(text))
        if not text.startswith(_BASE32) or len(text) > MAX_CID_CHARACTERS:
            raise DecodeError("not a peer id", got=repr(text[:MAX_CID_CHARACTERS]))
        digits = text[1:]
        try:
            cid = base64.b32decode(digits.upper() + "=" * (-len(digits) % 8))
        except ValueError as error:
            raise DecodeError("CID is not base32", got=repr(text)) from error
        if not cid.startswith(_CID_PREFIX):
            raise DecodeError("CID is none of a libp2p key", got=cid[:2].hex())
        return cls.decode(cid.removeprefix(_CID_PREFIX))
