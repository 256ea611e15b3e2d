"""What an RLPx session is told of our side: who we are, what we speak, and whom we do not want."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DisconnectReason
from mailserver.rlpx.capabilities import Capability


class Undecided(Enum):
    """It is not known yet whether a peer is wanted; it will be within PROBE_TIMEOUT_S."""

    UNDECIDED = auto()


Refuse: TypeAlias = Callable[[NodeId], DisconnectReason | Undecided | None]
"""Why a peer with this node id is not wanted; None if it is."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What both roles need.

    `capabilities` maps what we speak to the number of message ids that it takes. `max_message_bytes` bounds a
    message's inflated payload; that of peers of which `may_be_long` says so, by their proven node id, is bounded by
    `max_long_message_bytes`. `refuse` is asked when the peer has shown who it is, and a reason is said in place of
    Hello; while it is undecided, Hello waits, see `reconsider`. It is asked again when the peer's Hello is in: others
    may have taken the last place meanwhile.
    """

    key: PrivateKey
    client_id: str
    capabilities: Mapping[Capability, int]
    max_message_bytes: int
    listen_port: int = 0
    refuse: Refuse | None = None
    may_be_long: Callable[[NodeId], bool] | None = None
    max_long_message_bytes: int = 0
