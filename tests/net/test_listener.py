"""mailserver.net.listener, on a free port of the loopback interface."""

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator

import pytest

from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason
from mailserver.net import listener as listener_module
from mailserver.net.connection import Connection
from mailserver.net.listener import Listener
from mailserver.rlpx import p2p
from mailserver.rlpx import session as session_module
from mailserver.waku.packets import StatusOptions
from mailserver.waku.peer import Event
from tests.pairs import private_key
from tests.raw_peer import Hangup, RawPeer, at_end, close_stream, open_stream
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration

KEY = private_key("server")
STATUS = StatusOptions(pow_requirement=0.0, light_node=False, confirmations=True)
MAX_PEERS = 3


class Host:
    """A listener and its connections; `bug` makes the serving of the next one fail."""

    def __init__(self) -> None:
        self.listener = Listener(KEY, "server/1", STATUS, max_peers=MAX_PEERS, serve=self._serve)
        self.address = ("127.0.0.1", 0)
        self.connections: list[Connection] = []
        self.raws: list[RawPeer] = []
        self.bug = False

    async def start(self) -> None:
        self.address = ("127.0.0.1", await self.listener.start("127.0.0.1", 0))

    async def _serve(self, connection: Connection) -> None:
        if self.bug:
            self.bug = False
            raise ZeroDivisionError
        self.connections.append(connection)
        await connection.run(_ignore)

    async def dial(self, name: str, *, remote_id: NodeId = KEY.public_key) -> RawPeer:
        """Connect and do the key exchange."""
        self.raws.append(await RawPeer.dial(self.address, remote_id, name=name))
        return self.raws[-1]

    async def dial_open(self, name: str) -> RawPeer:
        """The same with Hello and Status."""
        return await (await self.dial(name)).greet()

    async def close(self) -> None:
        self.listener.stop()
        for raw in self.raws:
            await raw.close()
        for connection in self.connections:
            connection.abort("the test is over")
        await asyncio.wait_for(self.listener.join(), DEADLINE_S)


async def _ignore(event: Event) -> None:
    """Whatever the peer says."""


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    await host.start()
    yield host
    await host.close()


async def refusal(raw: RawPeer) -> DisconnectReason | None:
    """What the peer hears in place of Hello."""
    message_id, payload = await raw.hear()
    assert message_id == p2p.MessageId.DISCONNECT
    return p2p.decode_disconnect(payload)


async def test_port_0_is_any_free_port(host: Host) -> None:
    raw = await host.dial("client")

    hello = p2p.Hello.decode((await raw.hear()).payload)

    assert host.address[1] > 0
    assert hello.listen_port == host.address[1]
    assert hello.node_id == KEY.public_key


async def test_port_that_is_taken_is_an_error(host: Host) -> None:
    with pytest.raises(OSError, match="in use"):
        await Host().listener.start(*host.address)


async def test_listener_that_never_started_stops() -> None:
    Host().listener.stop()


async def test_each_peer_is_served(host: Host) -> None:
    for name in ("one", "two", "three"):
        await host.dial_open(name)

    await until(lambda: [connection.is_open for connection in host.connections] == [True] * 3)
    assert len({str(connection) for connection in host.connections}) == 3


async def test_peer_above_the_limit_hears_so_and_the_others_stay(host: Host) -> None:
    for number in range(MAX_PEERS):
        await host.dial_open(f"client {number}")

    reason = await refusal(await host.dial("one too many"))

    assert reason is DisconnectReason.TOO_MANY_PEERS
    assert sum(connection.is_open for connection in host.connections) == MAX_PEERS


async def test_place_of_a_peer_that_left_is_free_again(host: Host) -> None:
    for number in range(MAX_PEERS):
        await host.dial_open(f"client {number}")

    await host.raws[0].close()
    await until(lambda: not host.connections[0].is_open)

    await host.dial_open("the next")


async def test_peers_that_arrive_together_do_not_exceed_the_limit(host: Host) -> None:
    # All of them have done the key exchange before the first one says Hello.
    raws = [await host.dial(f"client {number}") for number in range(MAX_PEERS + 2)]

    opened = 0
    reasons = []
    for raw in raws:
        raw.write(raw.hello())
        message_id, payload = await raw.hear()
        if message_id == p2p.MessageId.DISCONNECT:
            reasons.append(p2p.decode_disconnect(payload))
            continue
        raw.compressed = True
        try:
            await raw.hear_packet()
            opened += 1
        except Hangup as hangup:
            reasons.append(hangup.reason)

    assert opened == MAX_PEERS
    assert reasons == [DisconnectReason.TOO_MANY_PEERS] * 2


async def test_strangers_in_their_handshake_take_no_place_of_a_peer(host: Host) -> None:
    streams = [await open_stream(host.address) for _ in range(MAX_PEERS + 2)]

    await host.dial_open("client")

    for _, writer in streams:
        await close_stream(writer)


async def test_connection_to_ourselves_is_refused(host: Host) -> None:
    raw = await host.dial("server")  # with the listener's own key

    assert await refusal(raw) is DisconnectReason.SELF_CONNECTION


async def test_half_open_handshakes_push_out_each_other_and_not_the_peers(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "MAX_PENDING", 4)
    peer = await host.dial_open("first")

    streams = [await open_stream(host.address) for _ in range(12)]
    honest = await host.dial_open("honest")

    for reader, _ in streams[:8]:
        assert await at_end(reader)
    assert not streams[-1][0].at_eof()
    for raw in (peer, honest):
        raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))
        assert (await raw.hear()).message_id == p2p.MessageId.PONG
    for _, writer in streams:
        await close_stream(writer)


async def test_half_open_handshakes_end_by_themselves(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 0.05)

    streams = [await open_stream(host.address) for _ in range(5)]

    for reader, writer in streams:
        assert await at_end(reader)
        await close_stream(writer)
    await until(lambda: len(host.connections) == 5 and all(connection.closed for connection in host.connections))


def test_handshake_timeout_is_that_of_deployed_clients() -> None:
    assert session_module.HANDSHAKE_TIMEOUT_S == 5.0
    assert listener_module.MAX_PENDING >= 100


async def test_goodbye_is_readable_by_a_peer_that_goes_on_sending(host: Host) -> None:
    for number in range(5):
        raw = await host.dial_open(f"client {number}")
        flooding = asyncio.create_task(flood(raw))
        hearing = asyncio.create_task(raw.hear_hangup())
        await turns(50)

        host.connections[-1].disconnect(DisconnectReason.CLIENT_QUITTING, "we are done")

        assert await hearing is DisconnectReason.CLIENT_QUITTING
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        await raw.close()


async def flood(raw: RawPeer) -> None:
    """Send packets without end that mean nothing."""
    while True:
        raw.say(99, random.randbytes(50_000))
        await raw.writer.drain()


async def test_nobody_gets_in_after_stop_and_the_peers_stay(host: Host) -> None:
    peer = await host.dial_open("first")

    host.listener.stop()
    await turns()

    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await open_stream(host.address)
    peer.write(peer.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))
    assert (await peer.hear()).message_id == p2p.MessageId.PONG


async def test_join_waits_for_the_last_connection(host: Host) -> None:
    peer = await host.dial_open("first")
    host.listener.stop()
    joining = asyncio.create_task(host.listener.join())
    await turns()
    waited = not joining.done()

    await peer.close()

    await asyncio.wait_for(joining, DEADLINE_S)
    assert waited


async def test_fault_of_ours_ends_one_connection_and_is_logged(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    peer = await host.dial_open("first")
    host.bug = True

    with pytest.raises(Hangup):
        await host.dial("unlucky")

    peer.write(peer.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))
    assert (await peer.hear()).message_id == p2p.MessageId.PONG
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [(record.name, record.exc_info is not None) for record in errors] == [(listener_module.__name__, True)]


async def test_connection_reset_before_anyone_looked_at_it_is_forgotten(host: Host) -> None:
    for _ in range(20):
        stream = socket.create_connection(host.address)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        stream.close()

    await host.dial_open("client")
    await until(lambda: sum(connection.closed is None for connection in host.connections) == 1)
