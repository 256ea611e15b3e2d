"""Our side of an RLPx session: who we are, what we support, and which peers we refuse."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DisconnectReason
from mailserver.rlpx.capabilities import Capability
from mailserver.rlpx.p2p import P2P_VERSION, Hello


class Undecided(Enum):
    """Whether we want a peer is not known yet. It will be within PROBE_TIMEOUT_S."""

    UNDECIDED = auto()


Refuse: TypeAlias = Callable[[NodeId], DisconnectReason | Undecided | None]
"""Says why we refuse a peer with this node id; None if we do not."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What a session of either role needs to know.

    `capabilities` maps what we support to the number of message ids that it takes. A peer that lacks one of `required`
    is useless, and so is one that shares none. `max_message_bytes` is the limit of
    a message's inflated payload. For peers for whose node id `may_send_long` returns True, the limit is
    `max_long_message_bytes`.

    `refuse` is called when the key exchange has shown the peer's node id. If it returns a reason, we send Disconnect in
    place of Hello. While it is undecided, Hello waits: see `Session.reconsider`. It is called again when the peer's
    Hello is in, as another peer may have taken the last place since.
    """

    key: PrivateKey
    client_id: str
    capabilities: Mapping[Capability, int]
    max_message_bytes: int
    listen_port: int = 0
    refuse: Refuse | None = None
    may_send_long: Callable[[NodeId], bool] | None = None
    max_long_message_bytes: int = 0
    required: frozenset[Capability] = frozenset()

    def hello(self) -> Hello:
        """Return our Hello."""
        capabilities = tuple(sorted(self.capabilities))
        return Hello(P2P_VERSION, self.client_id, capabilities, self.listen_port, self.key.public_key)
