"""This node and its peers, in the form of geth's `admin` methods."""

from mailserver.api.caller import Call
from mailserver.api.dispatch import Method
from mailserver.api.params import Fields, Json, enode
from mailserver.api.waku import VERSION
from mailserver.codec.keccak import keccak256
from mailserver.net.sessions import WAKU
from mailserver.peers.connected import PeerInfo
from mailserver.peers.node import Node

NO_DISCOVERY_PORT = 0


class AdminMethods:
    """The node's address and its peers."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def table(self) -> dict[str, Method]:
        """The methods by name."""
        return {
            "admin_nodeInfo": Method(self._node_info),
            "admin_peers": Method(self._peers),
            "admin_addPeer": Method(self._add_peer, ("enode",)),
            "admin_removePeer": Method(self._remove_peer, ("enode",)),
            "admin_removeTrustedPeer": Method(self._remove_trusted_peer, ("enode",)),
        }

    async def _node_info(self, params: Fields, call: Call) -> Json:
        node = self._node
        host, port = node.listen_address
        return {
            "id": keccak256(node.enode.node_id).hex(),
            "name": node.client_id,
            "enode": str(node.enode),
            "ip": node.enode.host,
            "ports": {"discovery": NO_DISCOVERY_PORT, "listener": node.enode.port},
            "listenAddr": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            "protocols": {
                WAKU.name: {
                    "version": VERSION,
                    "maxMessageSize": node.requirements.max_envelope_bytes,
                    "minimumPoW": node.requirements.min_pow,
                }
            },
        }

    async def _peers(self, params: Fields, call: Call) -> Json:
        return [_shown(peer) for peer in self._node.peers()]

    async def _add_peer(self, params: Fields, call: Call) -> Json:
        """Stay connected to a peer. True means that it will be dialled, not that it is connected."""
        self._node.add_peer(params.required("enode", enode))
        return True

    async def _remove_peer(self, params: Fields, call: Call) -> Json:
        """Returns true even if there was no such peer, as in geth."""
        self._node.remove_peer(params.required("enode", enode).node_id)
        return True

    async def _remove_trusted_peer(self, params: Fields, call: Call) -> Json:
        """The reverse of waku_markTrustedPeer, under geth's name. The peer stays connected."""
        self._node.mark_untrusted(params.required("enode", enode).node_id)
        return True


def _shown(peer: PeerInfo) -> Json:
    settings = peer.settings
    return {
        "enode": f"enode://{peer.node_id.hex()}@{peer.remote_address}",
        "id": keccak256(peer.node_id).hex(),
        "name": peer.client_id,
        "caps": [f"{WAKU.name}/{WAKU.version}"],
        "network": {
            "localAddress": peer.local_address,
            "remoteAddress": peer.remote_address,
            "inbound": peer.is_inbound,
            "trusted": peer.is_trusted,
            "static": peer.is_static,
        },
        "protocols": {
            WAKU.name: {
                "version": WAKU.version,
                "minimumPoW": settings.pow_requirement,
                "lightNode": settings.light_node,
                "confirmations": settings.confirmations,
            }
        },
    }
