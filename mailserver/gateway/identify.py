"""Tells clients who we are (libp2p/specs, "identify"), and sends back their pings ("ping")."""

from collections.abc import Callable, Iterable
from ipaddress import ip_address

from mailserver import __version__
from mailserver.gateway.handlers import PingHandler
from mailserver.gateway.peer import MakeHandler, Peer
from mailserver.libp2p.identify import IDENTIFY, Identify
from mailserver.libp2p.identity import IdentityKey
from mailserver.libp2p.multiaddr import AddressProtocol, Multiaddr
from mailserver.libp2p.ping import PING
from mailserver.libp2p.streams import StreamId

PROTOCOL_VERSION = "ipfs/0.1.0"
AGENT_VERSION = f"waku-mailserver/{__version__}"


def own_protocols(
    key: IdentityKey, addresses: Callable[[], Iterable[Multiaddr]], protocols: Iterable[str]
) -> dict[str, MakeHandler]:
    """The protocols of libp2p itself, for the table of a `Host`.

    Args:
        addresses: returns what we listen on. protocols: what else we speak.
    """
    spoken = (*protocols, IDENTIFY, PING)

    def identify(peer: Peer, stream: StreamId) -> None:
        """Whoever opens the stream is told at once."""
        told = Identify(
            public_key=key.public_key.encode(),
            listen_addrs=tuple(address.encode() for address in addresses()),
            protocols=spoken,
            observed_addr=_observed(peer),
            protocol_version=PROTOCOL_VERSION,
            agent_version=AGENT_VERSION,
        )
        peer.send(stream, told.encode())
        peer.close_write(stream)

    return {IDENTIFY: identify, PING: PingHandler}


def _observed(peer: Peer) -> bytes:
    """From where a client has come, as it looks from here; nothing where a proxy does not tell the port."""
    host, port = peer.transport.peer
    if not host or host != peer.host:
        return b""
    address = ip_address(host.partition("%")[0])
    kind = AddressProtocol.IP4 if address.version == 4 else AddressProtocol.IP6
    parts = ((kind, str(address)), (AddressProtocol.TCP, str(port)))
    return Multiaddr(parts if peer.transport.kind == "tcp" else (*parts, (AddressProtocol.WS, ""))).encode()
