"""mailserver.gateway.identify, over sockets on the loopback interface."""

from ipaddress import ip_network

import pytest

from mailserver import __version__
from mailserver.gateway.limits import HostLimits
from mailserver.libp2p.identify import IDENTIFY, Identify, IdentifyReader
from mailserver.libp2p.multiaddr import Multiaddr
from mailserver.libp2p.ping import PING
from tests.gateway.clients import HOST, LightClient, TcpWire, WebSocketWire, connected
from tests.gateway.hosts import ECHO, LATER, NO_LIMITS, OUR_ADDRESS, SILENT, running_host
from tests.libp2p.names import LISTENER, identity

pytestmark = pytest.mark.integration


async def identified(client: LightClient) -> Identify:
    """What the host tells of itself."""
    heard = await client.heard(await client.open(IDENTIFY))
    assert heard.is_closed
    reader = IdentifyReader()
    reader.receive_data(bytes(heard.data))
    return reader.finish()


async def test_client_is_told_who_we_are() -> None:
    async with running_host() as world, connected(world.port) as client:
        told = await identified(client)

        assert told.public_key == identity(LISTENER).public_key.encode()
        assert told.listen_addrs == (OUR_ADDRESS.encode(),)
        assert set(told.protocols) == {ECHO, LATER, SILENT, IDENTIFY, PING}
        assert told.protocol_version == "ipfs/0.1.0"
        assert told.agent_version == f"waku-mailserver/{__version__}"


async def test_client_is_told_from_where_it_has_come() -> None:
    async with running_host() as world, connected(world.port) as client:
        assert isinstance(client.wire, TcpWire)
        port = client.wire.writer.get_extra_info("sockname")[1]

        told = await identified(client)

        assert Multiaddr.decode(told.observed_addr) == Multiaddr.parse(f"/ip4/{HOST}/tcp/{port}")


async def test_over_a_web_socket_that_is_said_too() -> None:
    async with running_host() as world, connected(world.websocket_port, "websocket") as client:
        assert isinstance(client.wire, WebSocketWire)
        port = client.wire.socket.local_address[1]

        told = await identified(client)

        assert Multiaddr.decode(told.observed_addr) == Multiaddr.parse(f"/ip4/{HOST}/tcp/{port}/ws")


async def test_over_ipv6_the_address_is_one_of_ipv6() -> None:
    async with running_host() as world:
        port = await world.host.listen("::1", 0)
        wire = await TcpWire.open(port, "::1")
        client = await LightClient.over(wire)

        told = await identified(client)

        own = wire.writer.get_extra_info("sockname")[1]
        assert Multiaddr.decode(told.observed_addr) == Multiaddr.parse(f"/ip6/::1/tcp/{own}")
        await client.close()


async def test_behind_a_proxy_nothing_is_said_of_where_it_has_come_from() -> None:
    limits = HostLimits(admission=NO_LIMITS, trusted_proxies=(ip_network("127.0.0.0/8"),))
    async with running_host(limits) as world:
        client = await LightClient.over(await WebSocketWire.open(world.websocket_port, forwarded="192.0.2.1"))

        assert (await identified(client)).observed_addr == b""
        await client.close()
