"""mailserver.api.admin: in the shape of geth's answers."""

import asyncio

import pytest

from mailserver.api.errors import ErrorCode
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode
from mailserver.errors import DisconnectReason
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from mailserver.waku.packets import StatusOptions
from tests.api.nodes import CallFailed, RunningNode
from tests.mailservers import CLIENT_ID
from tests.pairs import private_key
from tests.raw_peer import RawPeer, close_stream, read_handshake_packet
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration


async def test_node_info(running: RunningNode) -> None:
    enode = running.node.enode

    assert await running.call("admin_nodeInfo") == {
        "id": keccak256(enode.node_id).hex(),
        "name": CLIENT_ID,
        "enode": str(enode),
        "ip": "127.0.0.1",
        "ports": {"discovery": 0, "listener": enode.port},
        "listenAddr": f"127.0.0.1:{enode.port}",
        "protocols": {"waku": {"version": "1.0", "maxMessageSize": MAX_ENVELOPE_BYTES, "minimumPoW": 0.0}},
    }


async def test_address_of_ipv6_is_in_brackets(running: RunningNode) -> None:
    running.node.listen_address = ("::", 30303)

    assert (await running.call("admin_nodeInfo"))["listenAddr"] == "[::]:30303"


async def test_peers(running: RunningNode) -> None:
    assert await running.call("admin_peers") == []
    peer = await running.dial("peer", status=StatusOptions(pow_requirement=0.5, light_node=True, confirmations=True))
    node_id = peer.key.public_key
    host, port = peer.writer.get_extra_info("sockname")
    await running.call("waku_markTrustedPeer", f"enode://{node_id.hex()}@127.0.0.1:30303")
    await until(lambda: running.node.peers()[0].settings.light_node)

    assert await running.call("admin_peers") == [
        {
            "enode": f"enode://{node_id.hex()}@{host}:{port}",
            "id": keccak256(node_id).hex(),
            "name": "raw/1",
            "caps": ["waku/1"],
            "network": {
                "localAddress": f"127.0.0.1:{running.node.enode.port}",
                "remoteAddress": f"{host}:{port}",
                "inbound": True,
                "trusted": True,
                "static": False,
            },
            "protocols": {"waku": {"version": 1, "minimumPoW": 0.5, "lightNode": True, "confirmations": True}},
        }
    ]


async def test_added_peer_is_dialled(running: RunningNode) -> None:
    dialled: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(lambda *streams: dialled.put_nowait(streams), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]

        answer = await running.call("admin_addPeer", str(Enode(private_key("static").public_key, "127.0.0.1", port)))
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await dialled.get()
            auth = await read_handshake_packet(reader)

        await close_stream(writer)
    assert answer is True
    assert auth


async def test_removed_peer_is_disconnected(running: RunningNode) -> None:
    peer: RawPeer = await running.dial("peer")
    enode = f"enode://{peer.key.public_key.hex()}@127.0.0.1:30303"

    assert await running.call("admin_removePeer", enode) is True

    assert await peer.hear_hangup() is DisconnectReason.REQUESTED
    assert await running.call("admin_removePeer", enode) is True


@pytest.mark.parametrize("method", ["admin_addPeer", "admin_removePeer"])
async def test_wrong_enode(running: RunningNode, method: str) -> None:
    with pytest.raises(CallFailed) as failed:
        await running.call(method, "enode://")

    assert failed.value.code == ErrorCode.INVALID_PARAMS
    assert failed.value.message == "enode: not an enode URL (enode://<128 hex digits>@host:port)"
