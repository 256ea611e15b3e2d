"""The interface as others' client libraries use it: jsonrpc-async over HTTP, jsonrpc-websocket over a WebSocket."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import jsonrpc_async
import jsonrpc_websocket
import pytest

from mailserver.api.errors import ErrorCode
from mailserver.api.server import RpcServer
from mailserver.mail.completion import Failure
from mailserver.mail.request import decode_request
from mailserver.waku.packets import PacketCode
from tests.api.nodes import RunningNode
from tests.mailservers import NEWS, NOW, PASSWORD_KEY
from tests.pairs import private_key
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.integration

TOKEN = "correct horse battery staple"
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}
TOPIC = f"0x{NEWS.hex()}"


@pytest.fixture
async def port(running: RunningNode) -> AsyncIterator[int]:
    """A node's interface, with a token."""
    server = RpcServer(running.dispatcher, token=TOKEN)
    try:
        yield await server.start("127.0.0.1", 0)
    finally:
        async with asyncio.timeout(DEADLINE_S):
            await server.stop()


@pytest.fixture
async def http(port: int) -> AsyncIterator[Any]:
    async with jsonrpc_async.Server(f"http://127.0.0.1:{port}/", headers=dict(AUTHORIZATION)) as client:
        yield client


@pytest.fixture
async def websocket(port: int) -> AsyncIterator[Any]:
    client = jsonrpc_websocket.Server(f"ws://127.0.0.1:{port}/", headers=dict(AUTHORIZATION))
    reading = await client.ws_connect()
    yield client
    await client.close()
    await reading


async def test_messages_are_posted_and_polled_over_http(http: Any) -> None:
    key_id = await http.waku_generateSymKeyFromPassword("news")
    filter_id = await http.waku_newMessageFilter({"symKeyID": key_id, "topics": [TOPIC], "minPow": 0.001})

    posted = await http.waku_post(
        {"symKeyID": key_id, "ttl": 10, "topic": TOPIC, "payload": "0xcafe", "powTime": 5, "powTarget": 0.002}
    )

    assert posted is True
    async with asyncio.timeout(DEADLINE_S):
        messages: list[Any] = []
        while not messages:
            messages = await http.waku_getFilterMessages(filter_id)
    assert [(message["payload"], message["timestamp"]) for message in messages] == [("0xcafe", NOW)]
    assert await http.waku_deleteMessageFilter(filter_id) is True


async def test_parameters_go_by_name_over_http(http: Any) -> None:
    assert await http.waku_setMinPoW(minPow=0.25) is True
    assert (await http.waku_info())["minPow"] == 0.25


async def test_notification_over_http_is_carried_out(http: Any) -> None:
    await http.waku_setMinPoW(0.5, _notification=True)

    assert (await http.waku_info())["minPow"] == 0.5


async def test_error_over_http(http: Any) -> None:
    with pytest.raises(jsonrpc_async.ProtocolError) as failed:
        await http.waku_getSymKey("00")

    assert failed.value.args[:2] == (ErrorCode.NOT_FOUND, "no symmetric key has this id")


async def test_without_the_token_http_gets_nothing(port: int) -> None:
    async with jsonrpc_async.Server(f"http://127.0.0.1:{port}/") as client:
        with pytest.raises(jsonrpc_async.TransportError, match="401"):
            await client.waku_version()


async def test_subscription_over_a_websocket(websocket: Any) -> None:
    notifications: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    websocket.waku_subscription = lambda subscription, result: notifications.put_nowait((subscription, result))
    key_id = await websocket.waku_newSymKey()
    subscription = await websocket.waku_subscribe("messages", {"symKeyID": key_id, "topics": [TOPIC]})

    for payload in ("0x01", "0x02"):
        await websocket.waku_post(
            {"symKeyID": key_id, "ttl": 10, "topic": TOPIC, "payload": payload, "powTime": 5, "powTarget": 0.0}
        )

    async with asyncio.timeout(DEADLINE_S):
        heard = [await notifications.get() for _ in range(2)]
    assert [(of, message["payload"]) for of, message in heard] == [(subscription, "0x01"), (subscription, "0x02")]
    assert await websocket.waku_unsubscribe(subscription) is True
    assert await websocket.waku_unsubscribe(subscription) is False


async def test_end_of_a_history_request_is_told_over_a_websocket(websocket: Any, running: RunningNode) -> None:
    notifications: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    websocket.wakuext_subscription = lambda subscription, result: notifications.put_nowait((subscription, result))
    enode = f"enode://{private_key('mailserver').public_key.hex()}@127.0.0.1:30303"
    await websocket.waku_markTrustedPeer(enode)
    mailserver = await running.dial("mailserver")
    key_id = await websocket.waku_addSymKey(f"0x{PASSWORD_KEY.hex()}")
    subscription = await websocket.wakuext_subscribe("completions")

    request_id = await websocket.wakuext_requestMessages(
        {"mailServerPeer": enode, "topics": [TOPIC], "symKeyID": key_id}
    )
    request = decode_request((await mailserver.hear_packet()).payload)
    mailserver.say(PacketCode.P2P_REQUEST_COMPLETE, Failure(request.request_id, "come back in 10 s").encode())

    async with asyncio.timeout(DEADLINE_S):
        of, result = await notifications.get()
    assert (of, result["requestID"], result["errorMessage"]) == (subscription, request_id, "come back in 10 s")
    assert await websocket.wakuext_unsubscribe(subscription) is True


async def test_calls_made_at_once_over_a_websocket(websocket: Any) -> None:
    pairs = await asyncio.gather(*(websocket.waku_newKeyPair() for _ in range(20)))

    keys = await asyncio.gather(*(websocket.waku_getPublicKey(pair) for pair in pairs))

    assert len(set(keys)) == 20


async def test_error_over_a_websocket(websocket: Any) -> None:
    with pytest.raises(jsonrpc_async.ProtocolError) as failed:
        await websocket.waku_setMinPoW(-1)

    assert failed.value.args[0] == ErrorCode.INVALID_PARAMS
    assert failed.value.args[1].startswith("minPow: ")


async def test_without_the_token_no_websocket_opens(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        client = jsonrpc_websocket.Server(f"ws://127.0.0.1:{port}/", session)
        with pytest.raises(jsonrpc_websocket.TransportError):
            await client.ws_connect()
