"""mailserver.client.mail_client: connecting, and what the node announces."""

import asyncio
import socket

import pytest

from mailserver.client.mail_client import connect
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost, DisconnectReason
from mailserver.net.connection import Connection
from mailserver.net.inbound import Event
from mailserver.store.sqlite.store import SqliteStore
from mailserver.waku import peer as waku_peer_module
from mailserver.waku.bloom import EMPTY_BLOOM, Interest
from mailserver.waku.packets import RateLimits, StatusOptions
from mailserver.waku.peer import StatusReceived
from tests.client.nodes import KEY, listening, mailserver, node, silent
from tests.mailservers import STATUS
from tests.pairs import private_key
from tests.raw_peer import RawPeer
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration


async def test_client_announces_itself_as_a_light_node_that_wants_nothing() -> None:
    heard: list[Event] = []

    async def note(connection: Connection, event: Event) -> None:
        heard.append(event)

    async with node(note) as client:
        await until(lambda: bool(heard))

        assert isinstance(heard[0], StatusReceived)
        settings = heard[0].settings
        assert settings.light_node
        assert settings.interest == Interest(bloom=EMPTY_BLOOM)
        assert client.settings.confirmations


async def test_node_that_is_a_light_node_too_cannot_be_used() -> None:
    with pytest.raises(ConnectionLost) as lost:
        async with node(silent, StatusOptions(light_node=True)):
            pass

    assert lost.value.reason is DisconnectReason.USELESS_PEER


async def test_nobody_there_is_an_ordinary_error() -> None:
    async with listening(lambda connection: connection.run(lambda event: silent(connection, event)), STATUS) as enode:
        pass

    with pytest.raises(ConnectionLost, match="cannot connect"):
        async with connect(enode, "client/1"):
            pass


async def test_node_with_another_key_is_not_talked_to() -> None:
    async def serve(connection: Connection) -> None:
        await connection.run(lambda event: silent(connection, event))

    async with listening(serve, STATUS) as enode:
        another = Enode(private_key("another").public_key, enode.host, enode.port)
        with pytest.raises(ConnectionLost, match="another node id than the enode says"):
            async with connect(another, "client/1"):
                pass


async def test_node_that_never_says_status_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waku_peer_module, "STATUS_TIMEOUT_S", 0.2)

    async def try_to_connect(enode: Enode) -> None:
        async with asyncio.timeout(DEADLINE_S), connect(enode, "client/1"):
            pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        connecting = asyncio.create_task(try_to_connect(Enode(KEY.public_key, *server.getsockname())))
        end, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(server), DEADLINE_S)
        raw = await RawPeer.accept(end)
        raw.write(raw.hello())

        await raw.hear()
        raw.compressed = True

        with pytest.raises(ConnectionLost, match=r"no Status within 0\.2 s"):
            await connecting
        await raw.close()


async def test_error_of_the_caller_comes_out_and_the_node_hears_goodbye(store: SqliteStore) -> None:
    class Mine(Exception):
        pass

    with pytest.raises(Mine):
        async with mailserver(store):
            raise Mine


async def test_limits_of_the_node_are_known_to_the_client() -> None:
    status = StatusOptions(pow_requirement=0.5, packet_rate_limits=RateLimits(1, 2, 3), confirmations=True)

    async with node(silent, status) as client:
        assert client.settings.pow_requirement == 0.5
        assert client.settings.packet_rate_limits == RateLimits(1, 2, 3)
