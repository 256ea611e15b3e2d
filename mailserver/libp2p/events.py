"""The events of `libp2p.connection`: what a connection tells its caller. What happens on a stream is
told in the muxer's own events: DataReceived, WriteClosed, StreamReset, and PeerGoingAway.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.peer_id import PeerId
from mailserver.libp2p.streams import DataReceived, PeerGoingAway, StreamId, StreamReset, WriteClosed


@dataclass(frozen=True, slots=True)
class Secured:
    """The peer has proved who it is, and the muxer is agreed on. From now on, streams may be opened."""

    peer_id: PeerId
    muxer: str


class StreamOpened(NamedTuple):
    """Both sides speak this protocol on a stream. It is a tuple, as one is made for each stream."""

    stream: StreamId
    protocol: str
    is_ours: bool


class ProtocolRefused(NamedTuple):
    """The peer does not speak the protocol of a stream of ours, which is gone."""

    stream: StreamId
    protocol: str


class StreamFailed(NamedTuple):
    """A stream did not come to a protocol as it should, and was reset. The connection goes on.

    Of the peer's streams, this is the first that is told; of ours, the last.
    """

    stream: StreamId
    cause: Cause
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection ended: by the peer's fault, or in the ordinary course."""

    fault: Libp2pFault | None


Event: TypeAlias = (
    Secured
    | StreamOpened
    | ProtocolRefused
    | StreamFailed
    | DataReceived
    | WriteClosed
    | StreamReset
    | PeerGoingAway
    | Closed
)
