"""The events of `rlpx.session`: what a session tells its caller."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason
from mailserver.rlpx.capabilities import Capability, SharedCapability


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """Both Hellos are in. From now on, messages may be sent."""

    node_id: NodeId
    client_id: str
    shared: tuple[SharedCapability, ...]


class MessageReceived(NamedTuple):
    """A message of a shared capability; `payload` is inflated. It is a tuple, as one is made for each packet."""

    capability: Capability
    code: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class LongMessageReceived:
    """A message of a shared capability that inflates to more than `max_message_bytes`.

    `data` is as it came. Inflating it takes a while, so the caller decides where that happens.
    """

    capability: Capability
    code: int
    data: memoryview
    is_compressed: bool


@dataclass(frozen=True, slots=True)
class MessageTooLong:
    """A peer that may send long messages has sent one above even that limit, of `size` bytes. The session ends."""

    size: int


@dataclass(frozen=True, slots=True)
class BaseMessageReceived:
    """A message of the base protocol ("p2p"), which the session has acted on. `size`: the bytes of its payload."""

    size: int


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session ended. `reason` was sent in Disconnect, or received if `by_peer`; None if there was no Disconnect."""

    reason: DisconnectReason | None
    by_peer: bool
    cause: str


Event: TypeAlias = (
    SessionOpened | MessageReceived | LongMessageReceived | MessageTooLong | BaseMessageReceived | SessionClosed
)
