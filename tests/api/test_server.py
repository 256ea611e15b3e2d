"""mailserver.api.server over real sockets: calls over HTTP, who may call, and how it ends."""

import asyncio

import aiohttp
import pytest
from aiohttp import WSMsgType

from mailserver.api import server as server_module
from mailserver.api.dispatch import Dispatcher
from mailserver.api.errors import ErrorCode
from mailserver.api.server import RpcServer
from mailserver.errors import StartupError
from tests.api.rpc_servers import (
    ECHO,
    ECHOED,
    HANG,
    JSON,
    TOKEN,
    Running,
    answered_by_hand,
    request,
    running_server,
    said,
)
from tests.raw_peer import close_stream
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration


# HTTP


async def test_call_is_answered(rpc: Running) -> None:
    async with rpc.client.post(rpc.url, data=ECHO, headers=JSON) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "application/json"
        assert await response.json() == ECHOED


async def test_error_is_an_answer_like_any(rpc: Running) -> None:
    status, answer = await rpc.post(b"\xff")

    assert (status, answer["error"]["code"]) == (200, ErrorCode.PARSE_ERROR)


async def test_notification_has_an_empty_answer(rpc: Running) -> None:
    assert await rpc.post('{"jsonrpc": "2.0", "method": "echo", "params": ["a"]}') == (200, "")
    assert rpc.calls.made == 1


async def test_charset_of_the_content_type_does_not_matter(rpc: Running) -> None:
    assert await rpc.post(Content_Type="application/json; charset=utf-8") == (200, ECHOED)


@pytest.mark.parametrize(
    "content_type", ["text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_other_content_types_are_refused(rpc: Running, content_type: str) -> None:
    status, _ = await rpc.post(Content_Type=content_type)

    assert status == 415
    assert rpc.calls.made == 0


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "identity"])
async def test_compressed_bodies_are_refused(rpc: Running, coding: str) -> None:
    headers = ("Host: localhost", f"Content-Encoding: {coding}")

    assert (await answered_by_hand(rpc, request(*headers))).startswith(b"HTTP/1.1 415 ")


@pytest.mark.parametrize(("method", "status"), [("GET", 426), ("HEAD", 405), ("OPTIONS", 405), ("PUT", 405)])
async def test_other_methods_are_refused(rpc: Running, method: str, status: int) -> None:
    async with rpc.client.request(method, rpc.url) as response:
        assert response.status == status
        assert not [name for name in response.headers if name.startswith("Access-Control-")]


async def test_other_paths_are_not_found(rpc: Running) -> None:
    async with rpc.client.post(f"{rpc.url}rpc", data=ECHO, headers=JSON) as response:
        assert response.status == 404


# Who calls


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]", "localhost:8545", "127.0.0.1:1", "[::1]:65535"]
)
async def test_names_of_this_machine_pass(rpc: Running, host: str) -> None:
    assert await rpc.post(Host=host) == (200, ECHOED)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8545",
        "localhost.evil.example",
        "evil.localhost",
        "127.0.0.1.evil.example",
        "127.0.0.2",
        "0.0.0.0",
        "127.1",
        "::1",
        "localhost:",
        "localhost:evil.example",
        "user@localhost",
    ],
)
async def test_names_that_may_mean_another_machine_are_refused(rpc: Running, host: str) -> None:
    status, _ = await rpc.post(Host=host)

    assert status == 403
    assert rpc.calls.made == 0
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await rpc.client.ws_connect(rpc.url, headers={"Host": host})
    assert refused.value.status == 403


@pytest.mark.parametrize("headers", [[], ["Host:"], ["Host: localhost", "Host: evil.example"]])
async def test_host_must_be_there_once(rpc: Running, headers: list[str]) -> None:
    assert (await answered_by_hand(rpc, request(*headers)))[:10] in (b"HTTP/1.1 4", b"HTTP/1.0 4")
    assert rpc.calls.made == 0


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "file://",
        "",
        "http://localhost",
        "http://127.0.0.1:1",
        "https://127.0.0.1:{port}",
    ],
)
async def test_pages_from_elsewhere_are_refused(rpc: Running, origin: str) -> None:
    origin = origin.format(port=rpc.port)

    status, _ = await rpc.post(Origin=origin)

    assert status == 403
    assert rpc.calls.made == 0
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await rpc.client.ws_connect(rpc.url, headers={"Origin": origin})
    assert refused.value.status == 403


async def test_clients_that_name_this_very_port_as_their_origin_pass(rpc: Running) -> None:
    origin = f"http://127.0.0.1:{rpc.port}"

    assert await rpc.post(Origin=origin) == (200, ECHOED)
    async with rpc.connect(Origin=origin) as websocket:
        await websocket.send_str(ECHO)
        assert await websocket.receive_json() == ECHOED


@pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER {TOKEN}"])
async def test_token_lets_in(authorization: str) -> None:
    async with running_server(token=TOKEN) as rpc:
        assert await rpc.post(Authorization=authorization) == (200, ECHOED)
        async with rpc.connect(Authorization=authorization) as websocket:
            await websocket.send_str(ECHO)
            assert await websocket.receive_json() == ECHOED


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"],
)
async def test_without_the_token_nobody_gets_in(authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}

    async with running_server(token=TOKEN) as rpc:
        async with rpc.client.post(rpc.url, data=ECHO, headers={**JSON, **headers}) as response:
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await rpc.client.ws_connect(rpc.url, headers=headers)
        assert refused.value.status == 401
        assert rpc.calls.made == 0


async def test_token_is_asked_before_the_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LINGER_S", 0.05)
    async with running_server(token=TOKEN) as rpc:
        heard = await answered_by_hand(rpc, request("Host: localhost").replace(ECHO.encode(), b""))

    assert heard.startswith(b"HTTP/1.1 401 ")


async def test_address_that_others_can_reach_needs_a_token() -> None:
    server = RpcServer(Dispatcher({}, {}), token=None)

    with pytest.raises(StartupError, match="needs a token"):
        await server.start("0.0.0.0", 0)


async def test_where_others_can_reach_it_any_name_will_do() -> None:
    async with running_server(token=TOKEN, host="0.0.0.0") as rpc:
        assert await rpc.post(Host="mailserver.example", Authorization=f"Bearer {TOKEN}") == (200, ECHOED)


async def test_port_in_use_cannot_be_had(rpc: Running) -> None:
    with pytest.raises(OSError, match="in use"):
        await RpcServer(Dispatcher({}, {}), token=None).start("127.0.0.1", rpc.port)


# Endings


async def test_call_ends_when_its_caller_hangs_up(rpc: Running) -> None:
    reader, writer = await rpc.raw()
    writer.write(request("Host: localhost", body=HANG))
    await until(lambda: rpc.calls.hanging == 1)

    await close_stream(writer)

    await until(lambda: rpc.calls.hanging == 0)
    assert await said(reader) == b""


async def test_stop_says_goodbye_to_websockets_and_ends_calls() -> None:
    async with running_server() as rpc:
        websocket = await rpc.client.ws_connect(rpc.url)
        await websocket.send_str(HANG)
        posted = asyncio.create_task(rpc.post(HANG))
        await until(lambda: rpc.calls.hanging == 2)
        closing = asyncio.create_task(websocket.receive())

        async with asyncio.timeout(DEADLINE_S):
            await rpc.server.stop()
            message = await closing

        assert rpc.calls.hanging == 0
        assert (message.type, message.data) == (WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)
        with pytest.raises(aiohttp.ClientError):
            await posted
        with pytest.raises(ConnectionRefusedError):
            await rpc.raw()


async def test_stop_does_not_wait_for_who_does_not_read() -> None:
    loop = asyncio.get_running_loop()
    async with running_server() as rpc:
        websocket = await rpc.client.ws_connect(rpc.url)
        await websocket.send_str('{"jsonrpc": "2.0", "method": "subscribe", "params": [1000000]}')
        await until(lambda: rpc.calls.subscribed == 1)
        await turns(50)

        began = loop.time()
        await rpc.server.stop()

        assert loop.time() - began < 3 * server_module.STOP_TIMEOUT_S + 1
        assert rpc.calls.subscribed == 0
        await websocket.close()


async def test_server_that_never_started_can_be_stopped() -> None:
    await RpcServer(Dispatcher({}, {}), token=None).stop()
