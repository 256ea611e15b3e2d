"""secp256k1 keys as devp2p uses them: node ids, key agreement, recoverable signatures, enode URLs.

libsecp256k1 does the arithmetic (by coincurve). A public key is always its 64 bytes without the 0x04 prefix.
"""

import re
from dataclasses import dataclass
from typing import NewType

import coincurve

from mailserver.errors import DecodeError

NodeId = NewType("NodeId", bytes)
"""A node's identity: its 64-byte secp256k1 public key (rlpx.md "Node Identity")."""

PRIVATE_KEY_BYTES = 32
PUBLIC_KEY_BYTES = 64
COMPRESSED_KEY_BYTES = 33
SIGNATURE_BYTES = 65
MAX_PORT = 65535

_ENODE = re.compile(
    r"enode://(?P<id>[0-9a-fA-F]{128})@(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})"
    r"(?:\?[^#\s]*)?"
)


class PrivateKey:
    """A secp256k1 private key, valid by construction."""

    __slots__ = ("_key", "public_key")

    def __init__(self, secret: bytes) -> None:
        """Take 32 bytes.

        Raises:
            DecodeError: not 32 bytes, zero, or not below the group order.
        """
        if len(secret) != PRIVATE_KEY_BYTES:
            raise DecodeError("private key has the wrong length", got=len(secret), limit=PRIVATE_KEY_BYTES)
        try:
            self._key = coincurve.PrivateKey(secret)
        except ValueError as error:
            raise DecodeError("private key is not on the curve") from error
        self.public_key = NodeId(self._key.public_key.format(compressed=False)[1:])

    @property
    def secret(self) -> bytes:
        """The 32 bytes of the key."""
        return bytes(self._key.secret)

    def agree(self, public_key: bytes) -> bytes:
        """Key agreement: the 32-byte x coordinate of the shared point, not hashed (rlpx.md "ECIES").

        Raises:
            DecodeError: `public_key` is no point of the curve.
        """
        return bytes(_point(public_key).multiply(self._key.secret).format(compressed=True)[1:])

    def sign(self, digest: bytes) -> bytes:
        """Sign a 32-byte digest: r(32) || s(32) || v(1), v in 0..3."""
        return bytes(self._key.sign_recoverable(digest, hasher=None))


def recover(signature: bytes, digest: bytes) -> NodeId:
    """Return the public key whose owner signed the 32-byte `digest`.

    Args:
        signature: r(32) || s(32) || v(1); v is 0..3, or 27..30 as some specifications write it.
    Raises:
        DecodeError: not 65 bytes, v out of range, or no key fits.
    """
    if len(signature) != SIGNATURE_BYTES:
        raise DecodeError("signature has the wrong length", got=len(signature), limit=SIGNATURE_BYTES)
    v = signature[64]
    if v >= 27:
        v -= 27
    try:
        key = coincurve.PublicKey.from_signature_and_message(signature[:64] + bytes([v]), digest, hasher=None)
    except ValueError as error:
        raise DecodeError("signature fits no key") from error
    return NodeId(key.format(compressed=False)[1:])


def check_public_key(public_key: bytes) -> NodeId:
    """Return the 64 bytes as a NodeId.

    Raises:
        DecodeError: not 64 bytes, or no point of the curve.
    """
    _point(public_key)
    return NodeId(public_key)


def compress(public_key: NodeId) -> bytes:
    """A public key in 33 bytes: 2 or 3, as y is even or odd, and x."""
    return bytes([2 + (public_key[-1] & 1)]) + public_key[: PUBLIC_KEY_BYTES // 2]


def decompress(compressed: bytes) -> NodeId:
    """The public key of such 33 bytes.

    Raises:
        DecodeError: not 33 bytes, or no point of the curve.
    """
    if len(compressed) != COMPRESSED_KEY_BYTES:
        raise DecodeError("compressed key has the wrong length", got=len(compressed), limit=COMPRESSED_KEY_BYTES)
    try:
        return NodeId(coincurve.PublicKey(compressed).format(compressed=False)[1:])
    except ValueError as error:
        raise DecodeError("compressed key is not on the curve") from error


def _point(public_key: bytes) -> coincurve.PublicKey:
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise DecodeError("public key has the wrong length", got=len(public_key), limit=PUBLIC_KEY_BYTES)
    try:
        return coincurve.PublicKey(b"\x04" + public_key)
    except ValueError as error:
        raise DecodeError("public key is not on the curve") from error


@dataclass(frozen=True, slots=True)
class Enode:
    """Where a node listens and who it is: `enode://<128 hex>@host:port`."""

    node_id: NodeId
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"enode://{self.node_id.hex()}@{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Enode":
        """Read an enode URL; `?discport=` and other query parameters are ignored.

        Raises:
            DecodeError: the form is wrong, the port is 0 or above 65535, or the id is no point of the curve.
        """
        match = _ENODE.fullmatch(text.strip())
        if match is None:
            raise DecodeError("not an enode URL (enode://<128 hex digits>@host:port)")
        port = int(match["port"])
        if not 0 < port <= MAX_PORT:
            raise DecodeError("enode port is out of range", got=port, limit=MAX_PORT)
        return cls(check_public_key(bytes.fromhex(match["id"])), match["v6"] or match["host"], port)
