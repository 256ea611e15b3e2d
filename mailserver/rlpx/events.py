"""What a session tells its caller: the events of `rlpx.session`."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason
from mailserver.rlpx.capabilities import Capability, SharedCapability


@dataclass(frozen=True, slots=True)
class Opened:
    """Both Hellos are in; messages may flow."""

    node_id: NodeId
    client_id: str
    shared: tuple[SharedCapability, ...]


class MessageReceived(NamedTuple):
    """A message of a shared capability; `payload` is inflated. A tuple, as it is made for each packet."""

    capability: Capability
    code: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class LongMessageReceived:
    """A message of a shared capability that inflates to more than `max_message_bytes`.

    `data` is as it came, and compressed or not: to inflate it takes a while, which is for the caller to choose.
    """

    capability: Capability
    code: int
    data: memoryview
    is_compressed: bool


@dataclass(frozen=True, slots=True)
class MessageTooLong:
    """A peer that may send long messages has sent one that is too long even so, of `size` bytes inflated. It goes."""

    size: int


@dataclass(frozen=True, slots=True)
class BaseMessageReceived:
    """A message of the base protocol ("p2p"), which the session has acted on. `size`: of its payload, in bytes."""

    size: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The session ended. `reason` is what was sent, or received if `by_peer`; None if nothing was said."""

    reason: DisconnectReason | None
    by_peer: bool
    cause: str


Event: TypeAlias = Opened | MessageReceived | LongMessageReceived | MessageTooLong | BaseMessageReceived | Closed
