"""Who is connected: one connection per peer, no more peers than there is room for, shared between subnets, and what all
of them are told."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason, MailserverError
from mailserver.limits.admission import crowded_out
from mailserver.peers.served_peer import ServedPeer
from mailserver.rlpx.session_config import Undecided
from mailserver.waku.packets import PeerSettings, StatusOptions


class PeerNotConnected(MailserverError):
    """There is no connection to the peer."""


class PeerNotTrusted(MailserverError):
    """The peer is not one of the trusted ones."""


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """What operators see of a connected peer. Addresses are HOST:PORT."""

    node_id: NodeId
    client_id: str
    local_address: str
    remote_address: str
    is_inbound: bool
    is_trusted: bool
    is_static: bool
    settings: PeerSettings


class Peers:
    """The peers that are being served. Static and trusted ones always find room; subnets share what there is."""

    def __init__(self, max_peers: int, *, trusted: Iterable[NodeId] = (), static: Iterable[NodeId] = ()) -> None:
        self.max_peers = max_peers
        self.trusted = set(trusted)
        self.static = set(static)
        self._peers: set[ServedPeer] = set()
        self._numbers = itertools.count(1)
        self._announced: StatusOptions | None = None

    def __iter__(self) -> Iterator[ServedPeer]:
        return iter(tuple(self._peers))

    def connected(self) -> list[ServedPeer]:
        """Those whose handshake is over."""
        return [peer for peer in self._peers if peer.connection.is_open]

    def next_number(self) -> int:
        """A number for a connection; none is used twice."""
        return next(self._numbers)

    def add(self, peer: ServedPeer) -> None:
        """A connection begins to be served; its peer counts once the handshake is over."""
        self._peers.add(peer)
        if self._announced is not None:  # our settings may have changed while the peer was dialled
            peer.connection.announce(self._announced)

    def discard(self, peer: ServedPeer) -> None:
        """It has ended."""
        self._peers.discard(peer)

    def find(self, node_id: NodeId) -> ServedPeer | None:
        """The connected peer of this id."""
        for peer in self._peers:
            if peer.connection.node_id == node_id and peer.connection.is_open:
                return peer
        return None

    def get(self, node_id: NodeId) -> ServedPeer:
        """The connected peer of this id.

        Raises:
            PeerNotConnected: there is none.
        """
        peer = self.find(node_id)
        if peer is None:
            raise PeerNotConnected(f"peer {node_id.hex()[:8]} is not connected")
        return peer

    def disconnect(self, node_id: NodeId, cause: str) -> bool:
        """End every connection to this peer, also before its handshake is over; return whether there was one."""
        ended = [peer.connection for peer in self._peers if peer.connection.node_id == node_id]
        for connection in ended:
            connection.disconnect(DisconnectReason.REQUESTED, cause)
        return bool(ended)

    def refuse(self, node_id: NodeId) -> DisconnectReason | Undecided | None:
        """Why one more connection to this peer is not wanted; None if it is. It has shown that it is the peer.

        A phone whose network has changed comes back before we know of the loss: so the connection that is there
        is probed, and gone within seconds if nobody is at its other end. It is undecided until then: a deployed client
        that is refused comes back after half a minute.
        """
        present = self.find(node_id)
        if present is not None:
            return DisconnectReason.ALREADY_CONNECTED if present.connection.probe() else Undecided.UNDECIDED
        if self.is_named(node_id) or len(self.connected()) < self.max_peers or self._makes_room(node_id):
            return None
        return DisconnectReason.TOO_MANY_PEERS

    def is_named(self, node_id: NodeId | None) -> bool:
        """Whether the operator has named this peer: it is static or trusted."""
        return node_id in self.static or node_id in self.trusted

    def _makes_room(self, node_id: NodeId) -> bool:
        """Whether there is a place for a newcomer where a subnet has more than its share of them.

        One of that is disconnected only when the newcomer has proved that it is the peer.
        """
        newcomers = [peer.connection for peer in self._peers if peer.connection.node_id == node_id]
        present = sorted(
            (peer.connection for peer in self.connected() if not self.is_named(peer.connection.node_id)),
            key=lambda connection: connection.opened_at or 0.0,
        )
        for newcomer in newcomers:
            index = crowded_out(newcomer.host, [connection.host for connection in present])
            if index is not None:
                if newcomer.is_authenticated:
                    present[index].disconnect(DisconnectReason.TOO_MANY_PEERS, "its subnet has more than its share")
                return True
        return False

    def announce(self, status: StatusOptions) -> None:
        """Tell every peer, now and as it comes, what has changed of what we announce."""
        self._announced = status
        for peer in self._peers:
            peer.connection.announce(status)

    def infos(self) -> list[PeerInfo]:
        """Describe who is connected."""
        infos = []
        for peer in self.connected():
            connection = peer.connection
            if connection.node_id is not None:
                infos.append(
                    PeerInfo(
                        node_id=connection.node_id,
                        client_id=connection.client_id,
                        local_address=connection.local_address,
                        remote_address=connection.remote_address,
                        is_inbound=connection.is_inbound,
                        is_trusted=connection.node_id in self.trusted,
                        is_static=connection.node_id in self.static,
                        settings=connection.settings,
                    )
                )
        return infos
