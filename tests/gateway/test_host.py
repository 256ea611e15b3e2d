"""mailserver.gateway.host, over sockets on the loopback interface."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_network

import pytest
from websockets.exceptions import InvalidMessage, InvalidStatus

from mailserver.gateway import host as host_module
from mailserver.gateway.limits import HostLimits
from mailserver.libp2p import connection as connection_module
from mailserver.limits import admission as admission_module
from mailserver.limits.admission import AdmissionRefusal
from mailserver.waku2.frames import encode_frame
from tests.gateway.clients import HOST, LightClient, TcpWire, WebSocketWire, Wire, connected
from tests.gateway.hosts import ECHO, LATER, NO_LIMITS, World, running_host
from tests.pairs import digest
from tests.waiting import until

pytestmark = pytest.mark.integration

KINDS = pytest.mark.parametrize("kind", ["tcp", "websocket"])
PROXY = HostLimits(admission=NO_LIMITS, trusted_proxies=(ip_network("127.0.0.0/8"),))


class Newcomers:
    """Clients that come from addresses of their choice, and go at the end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients: list[LightClient] = []

    async def wire(self, kind: str = "tcp", source: str | None = None) -> Wire:
        if kind == "tcp":
            return await TcpWire.open(self.world.port, source=source)
        return await WebSocketWire.open(self.world.websocket_port)

    async def come(self, source: str = HOST, *, name: str | None = None) -> LightClient:
        """Shake hands."""
        wire = await TcpWire.open(self.world.port, source=source)
        self.clients.append(await LightClient.over(wire, seed=None if name is None else digest(name)))
        return self.clients[-1]

    async def forwarded(self, host: str) -> LightClient:
        """Shake hands over WebSocket, by way of a proxy."""
        self.clients.append(await LightClient.over(await WebSocketWire.open(self.world.websocket_port, forwarded=host)))
        return self.clients[-1]

    async def begin(self, kind: str = "tcp", source: str | None = None) -> LightClient:
        """Say nothing yet."""
        client = LightClient.unsecured(await self.wire(kind, source), "/mplex/6.7.0")
        client.read_on()
        self.clients.append(client)
        return client

    async def go_on(self, client: LightClient) -> None:
        await client.flush()
        await client.until_secured()


@contextlib.asynccontextmanager
async def newcomers(world: World) -> AsyncIterator[Newcomers]:
    all_of_them = Newcomers(world)
    try:
        yield all_of_them
    finally:
        for client in all_of_them.clients:
            await client.close()


# Who comes and goes.


@KINDS
async def test_client_is_told_of_once_it_has_shaken_hands_and_when_it_goes(kind: str) -> None:
    async with running_host() as world:
        async with connected(world.port_of(kind), kind, seed=digest("ann")) as client:
            assert [peer.peer_id for peer in world.told.present] == [client.own_id]
            assert world.host.by_transport() == {kind: 1}
            assert world.host.handshakes == 0
        await until(lambda: len(world.told.gone) == 1)

        assert world.told.present == []
        assert len(world.host) == 0
        assert world.admission.told == [f"{HOST} succeeded", f"{HOST} ended", f"{HOST} left"]
        assert world.endings() == {}


async def test_two_connections_of_one_client_are_two_clients() -> None:
    async with running_host() as world, newcomers(world) as clients:
        await clients.come(name="ann")
        await clients.come(name="ann")

        assert len(world.host) == 2
        assert len({peer.peer_id for peer in world.told.present}) == 1


@KINDS
async def test_handshake_that_takes_too_long_has_failed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_TIMEOUT_S", 0.05)
    async with running_host() as world, newcomers(world) as clients:
        client = await clients.begin(kind)
        await client.until_closed()

        await until(lambda: world.admission.told == [f"{HOST} failed", f"{HOST} left"])
        assert world.endings() == {"libp2p_fault": 1}
        assert world.told.gone == []


async def test_request_for_a_web_socket_that_never_ends_is_a_handshake_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_TIMEOUT_S", 0.05)
    async with running_host() as world:
        wire = await TcpWire.open(world.websocket_port)
        await wire.write(b"GET / HTTP/1.1\r\n")

        assert await wire.read() == b""
        await wire.close()
        await until(lambda: world.admission.told == [f"{HOST} failed", f"{HOST} left"])


async def test_client_that_breaks_off_its_handshake_has_failed_and_one_that_says_nothing_has_not() -> None:
    async with running_host() as world:
        probe = await TcpWire.open(world.port)
        await probe.close()
        await until(lambda: world.admission.told == [f"{HOST} left"])

        rude = await TcpWire.open(world.port)
        await rude.write(b"\x13")
        await rude.close()
        await until(lambda: world.admission.told[1:] == [f"{HOST} failed", f"{HOST} left"])


async def test_fault_of_a_client_after_its_handshake_is_no_failed_handshake() -> None:
    async with running_host() as world, connected(world.port) as client:
        await client.wire.write(bytes(100))
        await client.until_closed()

        await until(lambda: world.admission.told == [f"{HOST} succeeded", f"{HOST} ended", f"{HOST} left"])
        assert world.endings() == {"libp2p_fault": 1}


async def test_address_that_stays_becomes_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "KNOWN_AFTER_S", 0.0)
    limits = HostLimits(admission=replace(NO_LIMITS, per_second=0.2))  # one at a time, and none within the test
    async with running_host(limits) as world, newcomers(world) as clients:
        async with connected(world.port):
            pass
        await until(lambda: len(world.told.gone) == 1)
        await clients.come()  # of those that are known
        stranger = await clients.begin(source="127.0.0.2")
        await stranger.until_closed()

        assert world.admission.refused[AdmissionRefusal.TOO_FAST] == 1


# Admission.


@KINDS
async def test_address_that_is_full_is_refused_before_it_has_said_anything(kind: str) -> None:
    limits = HostLimits(admission=replace(NO_LIMITS, max_per_address=1))
    async with running_host(limits) as world, newcomers(world) as clients:
        first = await clients.come()
        if kind == "tcp":
            await (await clients.begin()).until_closed()
        else:
            with pytest.raises((InvalidMessage, ConnectionError)):
                await WebSocketWire.open(world.websocket_port)
        refused = world.endings()
        await first.close()
        await until(lambda: len(world.host) == 0)

        await clients.come()

        assert refused == {"not_admitted": 1}
        assert world.admission.refused[AdmissionRefusal.ADDRESS_FULL] == 1


async def test_behind_a_proxy_each_client_is_counted_by_its_own_address() -> None:
    limits = replace(PROXY, admission=replace(NO_LIMITS, max_per_address=1))
    async with running_host(limits) as world, newcomers(world) as clients:
        await clients.forwarded("198.51.100.1")
        await clients.forwarded("198.51.100.2")
        third = LightClient.unsecured(
            await WebSocketWire.open(world.websocket_port, forwarded="198.51.100.2"), "/mplex/6.7.0"
        )
        third.read_on()
        clients.clients.append(third)
        await third.until_closed()

        assert [peer.host for peer in world.told.present] == ["198.51.100.1", "198.51.100.2"]
        assert world.endings() == {"not_admitted": 1}
        assert world.admission.told.count("198.51.100.2 left") == 0

        for client in clients.clients:
            await client.close()
        await until(lambda: world.admission.told.count("198.51.100.2 left") == 1)


@pytest.mark.parametrize(
    ("said", "host"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("203.0.113.9, 198.51.100.7", "198.51.100.7"),  # the first is what the client itself has said
        ("198.51.100.7,127.0.0.9", "198.51.100.7"),  # by way of two proxies
        ("garbage, 198.51.100.7", "198.51.100.7"),
        ("2001:db8::7", "2001:db8::7"),
        (None, HOST),
        ("127.0.0.8", "127.0.0.8"),
    ],
)
async def test_address_is_the_last_that_no_proxy_of_ours_has(said: str | None, host: str) -> None:
    async with running_host(PROXY) as world:
        client = await LightClient.over(await WebSocketWire.open(world.websocket_port, forwarded=said))

        assert [peer.host for peer in world.told.present] == [host]
        await client.close()


@pytest.mark.parametrize("said", ["garbage", "198.51.100.7,", "198.51.100.7:80", "garbage, 127.0.0.9"])
async def test_proxy_that_says_garbage_is_refused(said: str) -> None:
    async with running_host(PROXY) as world:
        with pytest.raises(InvalidStatus, match="400"):
            await WebSocketWire.open(world.websocket_port, forwarded=said)

        await until(lambda: world.host.handshakes == 0)
        assert world.admission.told == []


@pytest.mark.parametrize("said", ["198.51.100.7", "garbage"])
async def test_nobody_else_is_believed(said: str) -> None:
    async with running_host() as world:
        client = await LightClient.over(await WebSocketWire.open(world.websocket_port, forwarded=said))

        assert [peer.host for peer in world.told.present] == [HOST]
        await client.close()


# Handshakes.


async def test_at_too_many_handshakes_the_oldest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "MAX_PENDING", 2)
    async with running_host() as world, newcomers(world) as clients:
        first = await clients.begin()
        await until(lambda: world.host.handshakes == 1)
        second = await clients.begin()
        await until(lambda: world.host.handshakes == 2)

        third = await clients.begin()
        await first.until_closed()
        assert world.host.handshakes == 2

        await clients.go_on(second)
        await clients.go_on(third)
        assert len(world.host) == 2
        assert world.endings() == {"too_many_handshakes": 1}
        assert world.admission.told[0] == f"{HOST} left"  # that is not its fault


# Places.


async def test_when_all_places_are_taken_one_of_the_same_subnet_is_refused() -> None:
    async with running_host(HostLimits(2, NO_LIMITS)) as world, newcomers(world) as clients:
        first = await clients.come()
        await clients.come()
        late = await clients.begin()
        await late.flush()
        await late.until_closed()

        assert await first.ask(ECHO, b"still here") == b"still here"
        assert len(world.host) == 2
        assert world.endings() == {"too_many_clients": 1}
        assert world.told.gone == []

        await first.close()
        await until(lambda: len(world.host) == 1)
        await clients.come()


async def test_subnet_with_more_than_its_share_gives_a_place_to_another() -> None:
    async with running_host(replace(PROXY, max_clients=3)) as world, newcomers(world) as clients:
        first, _, third = [await clients.forwarded(f"192.0.2.{number}") for number in range(3)]

        await clients.forwarded("198.51.100.1")

        await third.until_closed()  # of its subnet, the one that came last
        assert [peer.host for peer in world.told.present] == ["192.0.2.0", "192.0.2.1", "198.51.100.1"]
        assert [peer.host for peer in world.told.gone] == ["192.0.2.2"]
        assert len(world.host) == world.told.most == 3
        assert world.endings() == {"too_many_clients": 1}
        assert await first.ask(ECHO, b"still here") == b"still here"
        await until(lambda: world.admission.told.count("192.0.2.2 left") == 1)
        assert world.admission.told.count("192.0.2.2 ended") == 1


# Stopping.


@KINDS
async def test_clients_are_told_goodbye_and_gone_when_it_has_stopped(kind: str) -> None:
    async with running_host() as world, connected(world.port_of(kind), kind) as client:
        await world.host.stop()

        assert len(world.host) == 0
        assert len(world.told.gone) == 1
        assert world.endings() == {"quitting": 1}
        await client.until_closed()
        with pytest.raises(ConnectionError):
            await TcpWire.open(world.port_of(kind))


@KINDS
async def test_handshakes_end_when_it_stops(kind: str) -> None:
    async with running_host() as world, newcomers(world) as clients:
        client = await clients.begin(kind)
        half = await TcpWire.open(world.websocket_port)
        await until(lambda: world.host.handshakes == 2)

        await world.host.stop()

        assert world.host.handshakes == 0
        await client.until_closed()
        assert await half.read() == b""
        await half.close()
        assert world.admission.told == [f"{HOST} left"] * 2


async def test_client_that_does_not_read_holds_up_the_stop_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "STOP_TIMEOUT_S", 0.1)
    async with running_host() as world, connected(world.port) as client:
        world.later.times = 8 * 1024
        world.later.go.set()
        await client.stop_reading()
        await client.open(LATER, encode_frame(bytes(1000)))
        await until(lambda: world.host.unread_bytes > 1_000_000)

        await world.host.stop()

        assert len(world.told.gone) == 1
        assert world.host.unread_bytes == 0
        assert world.endings() == {"quitting": 1}


async def test_without_clients_it_stops_at_once() -> None:
    async with running_host() as world:
        await world.host.stop()
        await world.host.stop()


@KINDS
async def test_socket_that_is_accepted_when_it_has_stopped_is_closed(kind: str) -> None:
    async with running_host() as world:
        await world.host.stop()
        listen = world.host.listen if kind == "tcp" else world.host.listen_websocket
        wire = await TcpWire.open(await listen(HOST, 0))

        assert await wire.read() == b""
        await wire.close()
        assert world.admission.told == []
        assert world.endings() == {}


async def test_answers_that_wait_end_with_their_client() -> None:
    async with running_host() as world:
        async with connected(world.port) as client:
            await client.open(LATER, encode_frame(b"1"))
            await client.open(LATER, encode_frame(b"2"))
            await until(lambda: world.later.begun == [b"1"])
        await until(lambda: len(world.told.gone) == 1)
        await until(lambda: not any(task.get_name().startswith("answers") for task in asyncio.all_tasks()))
        world.later.go.set()

        async with connected(world.port) as client:
            assert await client.ask(LATER, b"3") == b"3"
        assert world.later.begun == [b"1", b"3"]
