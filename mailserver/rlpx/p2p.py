"""The payloads of the "p2p" capability: Hello, Disconnect, Ping, Pong (rlpx.md "p2p" Capability)."""

from dataclasses import dataclass
from enum import IntEnum

from mailserver.codec import rlp
from mailserver.codec.keys import PUBLIC_KEY_BYTES, NodeId
from mailserver.errors import DecodeError, DisconnectReason
from mailserver.rlpx.capabilities import Capability

P2P_VERSION = 5
"""The version that we announce. If both sides have 5 or more, messages are compressed (EIP-706)."""

MAX_P2P_MESSAGE_BYTES = 2048
"""The longest payload of a message of this capability. go-ethereum has the same limit. Hello is the longest message."""

MAX_CAPABILITIES = 64
MAX_CLIENT_ID_BYTES = 256

EMPTY_PAYLOAD = b"\xc0"
"""Ping and Pong carry an empty list."""


class MessageId(IntEnum):
    """The message ids of this capability. All others up to 0x0f are reserved; we ignore them."""

    HELLO = 0x00
    DISCONNECT = 0x01
    PING = 0x02
    PONG = 0x03


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of each side. `listen_port` is a legacy field: 0 if the node does not listen."""

    version: int
    client_id: str
    capabilities: tuple[Capability, ...]
    listen_port: int
    node_id: NodeId

    def encode(self) -> bytes:
        """Encode `[version, client-id, [[name, version], ...], listen-port, id]`."""
        return rlp.encode(
            [
                rlp.encode_uint(self.version),
                self.client_id.encode(),
                [[name.encode(), rlp.encode_uint(version)] for name, version in self.capabilities],
                rlp.encode_uint(self.listen_port),
                self.node_id,
            ]
        )

    @classmethod
    def decode(cls, payload: bytes) -> "Hello":
        """Decode a Hello of any version; additional list elements are ignored (EIP-8).

        Raises:
            DecodeError: the payload is not a list of at least five elements of the right kinds.
        """
        fields = rlp.decode_list(payload)
        if len(fields) < 5:
            raise DecodeError("Hello has too few elements", got=len(fields), limit=5)
        offered = rlp.as_list(fields[2])
        if len(offered) > MAX_CAPABILITIES:
            raise DecodeError("Hello offers too many capabilities", got=len(offered), limit=MAX_CAPABILITIES)
        return cls(
            version=rlp.as_uint(fields[0], 8),
            client_id=rlp.as_bytes(fields[1])[:MAX_CLIENT_ID_BYTES].decode("utf-8", "replace"),
            capabilities=tuple(_capability(item) for item in offered),
            listen_port=rlp.as_uint(fields[3], 8),
            node_id=NodeId(rlp.as_bytes(fields[4], PUBLIC_KEY_BYTES)),
        )


def _capability(item: rlp.Item) -> Capability:
    pair = rlp.as_list(item)
    if len(pair) < 2:
        raise DecodeError("capability has too few elements", got=len(pair), limit=2)
    return Capability(rlp.as_bytes(pair[0]).decode("utf-8", "replace"), rlp.as_uint(pair[1], 8))


def encode_disconnect(reason: DisconnectReason) -> bytes:
    """Encode `[reason]`."""
    return rlp.encode([rlp.encode_uint(reason)])


def decode_disconnect(payload: bytes) -> DisconnectReason | None:
    """Decode `[reason]`, or the bare integer that deployed clients send; return None for an unknown reason.

    Never raises: the connection ends, whatever the payload is.
    """
    try:
        item = rlp.decode(payload)
        if isinstance(item, list):
            item = item[0] if item else b""
        return DisconnectReason(rlp.as_uint(item, 1))
    except (DecodeError, ValueError):
        return None
