"""Which peers are connected. Each has one connection. Their number is limited, and subnets share the places fairly."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason, MailserverError
from mailserver.limits.admission import groups_of, index_to_evict
from mailserver.net.connection import Connection
from mailserver.peers.served_peer import ServedPeer
from mailserver.rlpx.session_config import Undecided
from mailserver.waku.packets import PeerSettings, StatusOptions


class PeerNotConnected(MailserverError):
    """The peer is not connected."""


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
    """The peers that are being served. Static and trusted peers are always admitted; subnets share the places."""

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
        """The peers whose handshake is over."""
        return [peer for peer in self._peers if peer.connection.is_open]

    def next_number(self) -> int:
        """Return a number for a new connection. No number is used twice."""
        return next(self._numbers)

    def add(self, peer: ServedPeer) -> None:
        """Add a connection that is now served. It counts as a peer once its handshake is over."""
        self._peers.add(peer)
        if self._announced is not None:  # our settings may have changed while we dialled the peer
            peer.connection.announce(self._announced)

    def discard(self, peer: ServedPeer) -> None:
        """Remove a connection, which has ended."""
        self._peers.discard(peer)

    def find(self, node_id: NodeId) -> ServedPeer | None:
        """The connected peer with this node id, or None."""
        for peer in self._peers:
            if peer.connection.node_id == node_id and peer.connection.is_open:
                return peer
        return None

    def get(self, node_id: NodeId) -> ServedPeer:
        """The connected peer with this node id.

        Raises:
            PeerNotConnected: there is none.
        """
        peer = self.find(node_id)
        if peer is None:
            raise PeerNotConnected(f"peer {node_id.hex()[:8]} is not connected")
        return peer

    def disconnect(self, node_id: NodeId, cause: str) -> bool:
        """End all connections to this peer, including those in their handshake; return whether there were any."""
        ended = [peer.connection for peer in self._peers if peer.connection.node_id == node_id]
        for connection in ended:
            connection.disconnect(DisconnectReason.REQUESTED, cause)
        return bool(ended)

    def refuse(self, node_id: NodeId) -> DisconnectReason | Undecided | None:
        """Decide whether to refuse a new connection to this peer: return the reason, None to accept, or UNDECIDED.

        When a phone changes its network, it reconnects before we notice that the old connection is dead. So the old one
        is probed. If the peer does not answer, it ends within seconds; until then, the new one is undecided. A deployed
        client that is refused would come back only after half a minute.
        """
        present = self.find(node_id)
        if present is not None:
            return DisconnectReason.ALREADY_CONNECTED if present.connection.probe() else Undecided.UNDECIDED
        if self.is_named(node_id) or len(self.connected()) < self.max_peers or self._can_evict_for(node_id):
            return None
        return DisconnectReason.TOO_MANY_PEERS

    def is_named(self, node_id: NodeId | None) -> bool:
        """Whether this peer is static or trusted: the operator has named it."""
        return node_id in self.static or node_id in self.trusted

    def _can_evict_for(self, node_id: NodeId) -> bool:
        """Whether the new peer may take the place of another, whose subnet has more than its share of the places.

        The other peer is disconnected only if the new one has proved that it owns its node id.
        """
        # Anybody may open any number of connections that claim one node id.
        newcomers = [
            peer.connection
            for peer in self._peers
            if peer.connection.node_id == node_id and peer.connection.closed is None
        ]
        present = sorted(
            (peer.connection for peer in self.connected() if not self.is_named(peer.connection.node_id)),
            key=lambda connection: connection.opened_at or 0.0,
        )
        hosts = [connection.host for connection in present]
        by_subnet: dict[bytes, list[Connection]] = {}
        for newcomer in newcomers:
            by_subnet.setdefault(groups_of(newcomer.host).subnet, []).append(newcomer)
        can_evict = False
        for connections in by_subnet.values():
            index = index_to_evict(connections[0].host, hosts)
            if index is None:
                continue
            can_evict = True
            if any(connection.is_authenticated for connection in connections):
                present[index].disconnect(DisconnectReason.TOO_MANY_PEERS, "its subnet has more than its share")
                break
        return can_evict

    def announce(self, status: StatusOptions) -> None:
        """Announce a new Status to all peers, connected now or later. Each is sent only what has changed."""
        self._announced = status
        for peer in self._peers:
            peer.connection.announce(status)

    def infos(self) -> list[PeerInfo]:
        """Describe the connected peers."""
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
