"""Keys that identify peers: our own, and those that others prove to hold.

Ours is Ed25519, which every libp2p can verify. Others may have any of the four kinds. Spec: libp2p/specs, peer-ids,
"Keys". A public key has one encoding only, as peer ids are made from it: any other is refused.
"""

from enum import IntEnum
from typing import TypeAlias

import coincurve
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from mailserver.codec import protobuf
from mailserver.errors import DecodeError
from mailserver.libp2p.peer_id import PeerId

SEED_BYTES = 32

MAX_PUBLIC_KEY_BYTES = 1200
"""An RSA key of MAX_RSA_BITS takes 1,066, the longest of all."""

MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
"""As go-libp2p and js-libp2p have it: longer keys are made to keep us busy."""

MAX_RSA_EXPONENT = (1 << 31) - 1
"""As Go has it. With an exponent as long as the key, one signature would take a hundred times as long."""

RSA_ALGORITHM = bytes.fromhex("300d06092a864886f70d0101010500")
RSA_ALGORITHM_AT = 4
"""The AlgorithmIdentifier of an RSA key, and where it stands in one of MIN_RSA_BITS or more. Nothing else is given to a
parser that takes keys of all kinds: for Diffie-Hellman it tests primes, which takes seconds for a key of 600 bytes."""

EC_BEGINNINGS = (
    bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d030107"),
    bytes.fromhex("3076301006072a8648ce3d020106052b81040022"),
    bytes.fromhex("30819b301006072a8648ce3d020106052b81040023"),
)
"""How keys of P-256, P-384 and P-521 begin in their only encoding: their lengths, and what names the curve."""

_COMPRESSED_POINT_BYTES = 33
_TYPE_FIELD, _DATA_FIELD = 1, 2
_FIELDS = 2
_SHA256 = hashes.SHA256()
_ECDSA = ec.ECDSA(_SHA256)
_PKCS1 = padding.PKCS1v15()


class KeyType(IntEnum):
    """The kinds of keys."""

    RSA = 0
    ED25519 = 1
    SECP256K1 = 2
    ECDSA = 3


_KEY_TYPES = frozenset(KeyType)
_Loaded: TypeAlias = Ed25519PublicKey | coincurve.PublicKey | ec.EllipticCurvePublicKey | rsa.RSAPublicKey


class PublicKey:
    """A peer's public key. `data` is as its kind says: a point, or a DER-encoded PKIX."""

    __slots__ = ("_loaded", "data", "key_type")

    def __init__(self, key_type: KeyType, data: bytes) -> None:
        """Load the key.

        Raises:
            DecodeError: it is none, not in the only encoding of its kind, or of a length that is not taken.
        """
        self.key_type = key_type
        self.data = data
        self._loaded = _load(key_type, data)

    @classmethod
    def decode(cls, encoded: bytes) -> "PublicKey":
        """Read the protobuf.

        Raises:
            DecodeError: malformed, of an unknown kind, not in its only encoding, or no key of its kind.
        """
        if len(encoded) > MAX_PUBLIC_KEY_BYTES:
            raise DecodeError("public key is too long", got=len(encoded), limit=MAX_PUBLIC_KEY_BYTES)
        values = {item.number: item.value for item in protobuf.read_fields(encoded, _FIELDS)}
        key_type, data = values.get(_TYPE_FIELD), values.get(_DATA_FIELD)
        if not isinstance(data, bytes):
            raise DecodeError("public key has no data")
        if key_type not in _KEY_TYPES:
            raise DecodeError("public key is of an unknown kind", got=key_type)
        key = cls(KeyType(key_type), data)
        if key.encode() != encoded:
            raise DecodeError("public key is not in its only encoding")
        return key

    def encode(self) -> bytes:
        """The protobuf, from which the peer id is made."""
        return protobuf.write_number(_TYPE_FIELD, self.key_type) + protobuf.write_bytes(_DATA_FIELD, self.data)

    @property
    def peer_id(self) -> PeerId:
        """Whose key it is."""
        return PeerId.of_key(self.encode())

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Whether this key's owner has signed the message. Spec: peer-ids, "Key Types", each kind's own way."""
        try:
            match self._loaded:
                case Ed25519PublicKey() as key:
                    key.verify(signature, message)
                case ec.EllipticCurvePublicKey() as key:
                    key.verify(signature, message, _ECDSA)
                case rsa.RSAPublicKey() as key:
                    key.verify(signature, message, _PKCS1, _SHA256)
                case point:
                    return point.verify(signature, message)  # DER, SHA-256, and s not above half the order
        except (InvalidSignature, ValueError):  # ValueError: coincurve, of what is no DER
            return False
        return True


def _load(key_type: KeyType, data: bytes) -> _Loaded:
    try:
        if key_type is KeyType.ED25519:
            return Ed25519PublicKey.from_public_bytes(data)
        if key_type is KeyType.SECP256K1:
            if len(data) != _COMPRESSED_POINT_BYTES:
                raise DecodeError("point is not compressed", got=len(data), limit=_COMPRESSED_POINT_BYTES)
            return coincurve.PublicKey(data)
        if not _is_of_kind(key_type, data):
            raise DecodeError(f"not a key of {key_type.name} that is taken", got=data[:32].hex())
        key = load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DecodeError(f"not a key of {key_type.name}") from error
    if isinstance(key, rsa.RSAPublicKey):
        if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
            raise DecodeError("RSA key is too short or too long", got=key.key_size, limit=MAX_RSA_BITS)
        exponent = key.public_numbers().e
        if exponent > MAX_RSA_EXPONENT:
            raise DecodeError("RSA exponent is too long", got=exponent.bit_length(), limit=MAX_RSA_EXPONENT)
    assert isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey), "it begins as such a key does"
    if key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) != data:
        raise DecodeError("public key is not in its only encoding")
    return key


def _is_of_kind(key_type: KeyType, data: bytes) -> bool:
    """Whether DER begins as a key of this kind does. The rest of it may still be anything."""
    if key_type is KeyType.RSA:
        return data.startswith(RSA_ALGORITHM, RSA_ALGORITHM_AT)
    return data.startswith(EC_BEGINNINGS)


class IdentityKey:
    """Our own key, Ed25519. Whoever has its seed is this peer."""

    __slots__ = ("_key", "public_key", "seed")

    def __init__(self, seed: bytes) -> None:
        """Take 32 random bytes.

        Raises:
            DecodeError: not 32 bytes.
        """
        if len(seed) != SEED_BYTES:
            raise DecodeError("seed has the wrong length", got=len(seed), limit=SEED_BYTES)
        self.seed = seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = PublicKey(KeyType.ED25519, self._key.public_key().public_bytes_raw())

    @property
    def peer_id(self) -> PeerId:
        """Who we are."""
        return self.public_key.peer_id

    def sign(self, message: bytes) -> bytes:
        """A signature of 64 bytes."""
        return self._key.sign(message)
