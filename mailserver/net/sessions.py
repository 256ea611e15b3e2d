"""Our side of every session: the capabilities that we support, and the randomness of a handshake."""

import secrets
from collections.abc import Callable
from typing import TypeAlias

from mailserver.codec.ecies import IV_BYTES
from mailserver.codec.keys import PRIVATE_KEY_BYTES, NodeId, PrivateKey
from mailserver.rlpx import handshake
from mailserver.rlpx.capabilities import Capability
from mailserver.rlpx.session_config import Refuse, SessionConfig
from mailserver.waku.packets import MAX_LONG_PACKET_BYTES, MAX_RECEIVED_PACKET_BYTES, PACKET_CODE_COUNT, PacketCode
from mailserver.wakuid.packets import ID_PACKET_CODE_COUNT, WAKUID, IdPacketCode

WAKU = Capability("waku", 1)
"""The capability that every peer must have. `waku/0` is deprecated: a peer that has nothing else is useless."""

Code: TypeAlias = PacketCode | IdPacketCode
"""A packet of one of our capabilities. Its type says of which: see CAPABILITIES."""

CAPABILITIES: dict[type[Code], Capability] = {PacketCode: WAKU, IdPacketCode: WAKUID}


def session_config(
    key: PrivateKey,
    client_id: str,
    *,
    listen_port: int = 0,
    refuse: Refuse | None = None,
    is_named: Callable[[NodeId], bool] | None = None,
) -> SessionConfig:
    """Describe our side of a session for Waku v1.

    Args:
        is_named: whether the operator has named a peer, so that its packets may be long; None: no peer's may.
    """
    return SessionConfig(
        key=key,
        client_id=client_id,
        capabilities={WAKU: PACKET_CODE_COUNT, WAKUID: ID_PACKET_CODE_COUNT},
        required=frozenset({WAKU}),
        max_message_bytes=MAX_RECEIVED_PACKET_BYTES,
        listen_port=listen_port,
        refuse=refuse,
        may_send_long=is_named,
        max_long_message_bytes=MAX_LONG_PACKET_BYTES,
    )


def random_key() -> PrivateKey:
    """Make a new private key."""
    return PrivateKey(secrets.token_bytes(PRIVATE_KEY_BYTES))


def random_entropy() -> handshake.Entropy:
    """Draw the randomness of one handshake."""
    spread = handshake.MAX_PADDING_BYTES - handshake.MIN_PADDING_BYTES + 1
    return handshake.Entropy(
        ephemeral_key=random_key(),
        nonce=secrets.token_bytes(handshake.NONCE_BYTES),
        seal_key=random_key(),
        iv=secrets.token_bytes(IV_BYTES),
        padding=secrets.token_bytes(handshake.MIN_PADDING_BYTES + secrets.randbelow(spread)),
    )
