"""mailserver.api.server: over real sockets, called by aiohttp's client and by hand, as browsers and worse would."""

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from mailserver.api import server as server_module
from mailserver.api.caller import Call
from mailserver.api.dispatch import BATCH_TIMEOUT_S, CALL_TIMEOUT_S, MAX_TEXT_BYTES, Dispatcher, Method
from mailserver.api.errors import ErrorCode
from mailserver.api.params import Fields, Json, text, whole
from mailserver.api.server import MAX_CALLS_AT_ONCE, MAX_HEADER_BYTES, MAX_HEADERS, RpcServer
from mailserver.errors import StartupError
from tests.raw_peer import close_stream
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration

TOKEN = "correct horse battery staple"
JSON = {"Content-Type": "application/json"}
ECHO = '{"jsonrpc": "2.0", "method": "echo", "params": ["hello"], "id": 1}'
ECHOED = {"jsonrpc": "2.0", "id": 1, "result": "hello"}
HANG = '{"jsonrpc": "2.0", "method": "hang", "id": "h"}'


class Calls:
    """The methods of these tests, and what became of them."""

    def __init__(self) -> None:
        self.made = 0
        self.hanging = 0
        self.subscribed = 0
        self.ticks = 0

    async def echo(self, params: Fields, call: Call) -> Json:
        self.made += 1
        return params.required("text", text(1000))

    async def hang(self, params: Fields, call: Call) -> Json:
        self.hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.hanging -= 1
        return None

    async def much(self, params: Fields, call: Call) -> Json:
        return "x" * params.required("length", whole(0, 1 << 24))

    async def subscribe(self, params: Fields, call: Call) -> Json:
        """Notify without end, each time with so many characters."""
        call.caller.check_room()
        length = params.required("length", whole(0, 1 << 24))

        async def tick() -> None:
            await call.answered.wait()
            while True:
                await call.caller.notify("tick", lambda: "x" * length)
                self.ticks += 1
                await asyncio.sleep(0)

        def ended() -> None:
            self.subscribed -= 1

        self.subscribed += 1
        call.caller.follow("ticks", tick(), ended)
        return "ticks"

    def table(self) -> dict[str, Method]:
        return {
            "echo": Method(self.echo, ("text",)),
            "hang": Method(self.hang),
            "much": Method(self.much, ("length",)),
            "subscribe": Method(self.subscribe, ("length",)),
        }


class Running:
    """A server that runs, and its callers."""

    def __init__(self, server: RpcServer, port: int, calls: Calls, client: aiohttp.ClientSession) -> None:
        self.server = server
        self.port = port
        self.calls = calls
        self.client = client
        self.url = f"http://127.0.0.1:{port}/"
        self.writers: list[asyncio.StreamWriter] = []

    async def post(self, body: str | bytes | io.BytesIO = ECHO, **headers: str) -> tuple[int, Any]:
        """POST with these headers beside those that must be there; status and parsed or raw body."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.post(self.url, data=body, headers={**JSON, **named}) as response:
            content = await response.text()
            return response.status, json.loads(content) if response.status == 200 and content else content

    def connect(self, **headers: str) -> "contextlib.AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]":
        """Open a WebSocket."""
        return self.client.ws_connect(self.url, headers=headers, max_msg_size=0)

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and say nothing."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer


@contextlib.asynccontextmanager
async def running_server(*, token: str | None = None, host: str = "127.0.0.1") -> AsyncIterator[Running]:
    calls = Calls()
    server = RpcServer(Dispatcher(calls.table(), {}), token=token)
    port = await server.start(host, 0)
    async with aiohttp.ClientSession() as client:
        running = Running(server, port, calls, client)
        try:
            yield running
        finally:
            for writer in running.writers:
                await close_stream(writer)
            async with asyncio.timeout(DEADLINE_S):
                await server.stop()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with running_server() as running:
        yield running


async def said(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the other side closes or cuts the connection."""
    async with asyncio.timeout(DEADLINE_S):
        heard = b""
        try:
            while chunk := await reader.read(1 << 16):
                heard += chunk
        except ConnectionError:
            pass
        return heard


def request(*headers: str, method: str = "POST", body: str = ECHO) -> bytes:
    """A request by hand."""
    lines = [f"{method} / HTTP/1.1", *headers, "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "Connection: close", "", body]).encode()


async def answered_by_hand(running: Running, *data: bytes) -> bytes:
    """What is said to these bytes until the connection ends."""
    reader, writer = await running.raw()
    writer.write(b"".join(data))
    return await said(reader)


async def websocket_by_hand(running: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a WebSocket."""
    reader, writer = await running.raw()
    writer.write(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    return reader, writer


def frame(text: str) -> bytes:
    """A frame with a short text, masked with zeros."""
    assert len(text) < 126
    return bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text.encode()


# HTTP


async def test_call_is_answered(running: Running) -> None:
    async with running.client.post(running.url, data=ECHO, headers=JSON) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "application/json"
        assert await response.json() == ECHOED


async def test_error_is_an_answer_like_any(running: Running) -> None:
    status, answer = await running.post(b"\xff")

    assert (status, answer["error"]["code"]) == (200, ErrorCode.PARSE_ERROR)


async def test_notification_has_an_empty_answer(running: Running) -> None:
    assert await running.post('{"jsonrpc": "2.0", "method": "echo", "params": ["a"]}') == (200, "")
    assert running.calls.made == 1


async def test_charset_of_the_content_type_does_not_matter(running: Running) -> None:
    assert await running.post(Content_Type="application/json; charset=utf-8") == (200, ECHOED)


@pytest.mark.parametrize(
    "content_type", ["text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_other_content_types_are_refused(running: Running, content_type: str) -> None:
    status, _ = await running.post(Content_Type=content_type)

    assert status == 415
    assert running.calls.made == 0


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "identity"])
async def test_compressed_bodies_are_refused(running: Running, coding: str) -> None:
    headers = ("Host: localhost", f"Content-Encoding: {coding}")

    assert (await answered_by_hand(running, request(*headers))).startswith(b"HTTP/1.1 415 ")


@pytest.mark.parametrize(("method", "status"), [("GET", 426), ("HEAD", 405), ("OPTIONS", 405), ("PUT", 405)])
async def test_other_methods_are_refused(running: Running, method: str, status: int) -> None:
    async with running.client.request(method, running.url) as response:
        assert response.status == status
        assert not [name for name in response.headers if name.startswith("Access-Control-")]


async def test_other_paths_are_not_found(running: Running) -> None:
    async with running.client.post(f"{running.url}rpc", data=ECHO, headers=JSON) as response:
        assert response.status == 404


# Who calls


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]", "localhost:8545", "127.0.0.1:1", "[::1]:65535"]
)
async def test_names_of_this_machine_pass(running: Running, host: str) -> None:
    assert await running.post(Host=host) == (200, ECHOED)


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
async def test_names_that_may_mean_another_machine_are_refused(running: Running, host: str) -> None:
    status, _ = await running.post(Host=host)

    assert status == 403
    assert running.calls.made == 0
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await running.client.ws_connect(running.url, headers={"Host": host})
    assert refused.value.status == 403


@pytest.mark.parametrize("headers", [[], ["Host:"], ["Host: localhost", "Host: evil.example"]])
async def test_host_must_be_there_once(running: Running, headers: list[str]) -> None:
    assert (await answered_by_hand(running, request(*headers)))[:10] in (b"HTTP/1.1 4", b"HTTP/1.0 4")
    assert running.calls.made == 0


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
async def test_pages_from_elsewhere_are_refused(running: Running, origin: str) -> None:
    origin = origin.format(port=running.port)

    status, _ = await running.post(Origin=origin)

    assert status == 403
    assert running.calls.made == 0
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await running.client.ws_connect(running.url, headers={"Origin": origin})
    assert refused.value.status == 403


async def test_clients_that_name_this_very_port_as_their_origin_pass(running: Running) -> None:
    origin = f"http://127.0.0.1:{running.port}"

    assert await running.post(Origin=origin) == (200, ECHOED)
    async with running.connect(Origin=origin) as websocket:
        await websocket.send_str(ECHO)
        assert await websocket.receive_json() == ECHOED


@pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER {TOKEN}"])
async def test_token_lets_in(authorization: str) -> None:
    async with running_server(token=TOKEN) as running:
        assert await running.post(Authorization=authorization) == (200, ECHOED)
        async with running.connect(Authorization=authorization) as websocket:
            await websocket.send_str(ECHO)
            assert await websocket.receive_json() == ECHOED


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"],
)
async def test_without_the_token_nobody_gets_in(authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}

    async with running_server(token=TOKEN) as running:
        async with running.client.post(running.url, data=ECHO, headers={**JSON, **headers}) as response:
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await running.client.ws_connect(running.url, headers=headers)
        assert refused.value.status == 401
        assert running.calls.made == 0


async def test_token_is_asked_before_the_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LINGER_S", 0.05)
    async with running_server(token=TOKEN) as running:
        heard = await answered_by_hand(running, request("Host: localhost").replace(ECHO.encode(), b""))

    assert heard.startswith(b"HTTP/1.1 401 ")


async def test_address_that_others_can_reach_needs_a_token() -> None:
    server = RpcServer(Dispatcher({}, {}), token=None)

    with pytest.raises(StartupError, match="needs a token"):
        await server.start("0.0.0.0", 0)


async def test_where_others_can_reach_it_any_name_will_do() -> None:
    async with running_server(token=TOKEN, host="0.0.0.0") as running:
        assert await running.post(Host="mailserver.example", Authorization=f"Bearer {TOKEN}") == (200, ECHOED)


async def test_port_in_use_cannot_be_had(running: Running) -> None:
    with pytest.raises(OSError, match="in use"):
        await RpcServer(Dispatcher({}, {}), token=None).start("127.0.0.1", running.port)


# What is too much


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_beyond_the_limit_is_refused(running: Running, chunked: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(0, MAX_TEXT_BYTES + 1, 1 << 16):
            yield b" " * (1 << 16)

    body = chunks() if chunked else io.BytesIO(b" " * (MAX_TEXT_BYTES + 1))
    async with running.client.post(running.url, data=body, headers=JSON) as response:
        assert response.status == 413


async def test_long_body_is_answered(running: Running) -> None:
    assert await running.post(io.BytesIO(ECHO.ljust(MAX_TEXT_BYTES).encode())) == (200, ECHOED)


async def test_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BODY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(server_module, "LINGER_S", 0.05)
    async with running_server() as running:
        heard = await answered_by_hand(running, request("Host: localhost")[:-10])

    assert heard.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("idle", [b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
async def test_connection_without_a_whole_request_is_closed(monkeypatch: pytest.MonkeyPatch, idle: bytes) -> None:
    monkeypatch.setattr(server_module, "IDLE_TIMEOUT_S", 0.05)
    async with running_server() as running:
        assert await answered_by_hand(running, idle) == b""


@pytest.mark.parametrize(
    "headers",
    [
        [f"X-{number}: 1" for number in range(MAX_HEADERS + 1)],
        [f"X-Long: {'x' * (MAX_HEADER_BYTES + 1)}"],
        [f"X-{'x' * (MAX_HEADER_BYTES + 1)}: 1"],
        ["\0"],
        ["Transfer-Encoding: chunked"],
    ],
)
async def test_malformed_and_excessive_headers_are_refused_and_not_logged(
    running: Running, headers: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    heard = await answered_by_hand(running, request("Host: localhost", *headers))

    assert heard[:12] in (b"HTTP/1.1 400", b"HTTP/1.0 400")
    assert running.calls.made == 0
    assert not caplog.records


@pytest.mark.parametrize("noise", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"\x00" * 10_000])
async def test_what_is_no_http_is_refused_and_not_logged(
    running: Running, noise: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await answered_by_hand(running, noise))[:12] in (b"HTTP/1.1 400", b"HTTP/1.0 400")
    assert not caplog.records


async def test_malformed_chunks_are_refused_and_not_logged(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"

    heard = await answered_by_hand(running, head, b"zz\r\n")

    assert heard[:12] in (b"HTTP/1.1 400", b"HTTP/1.0 400")
    assert not caplog.records


async def test_caller_who_does_not_read_its_answer_is_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "WRITE_TIMEOUT_S", 0.05)
    caplog.set_level(logging.DEBUG, server_module.log.name)
    body = '{"jsonrpc": "2.0", "method": "much", "params": [16000000], "id": 1}'
    async with running_server() as running:
        reader, writer = await running.raw()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request("Host: localhost", body=body))

        await until(lambda: "caller cut" in caplog.text)

        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await said(reader)) < 16_000_000


async def test_silent_strangers_push_out_each_other_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 3)
    async with running_server(token=TOKEN) as running, running.connect(Authorization=f"Bearer {TOKEN}") as websocket:
        silent = [await running.raw() for _ in range(2)]
        await turns()
        newcomer = await running.raw()

        assert await said(silent[0][0]) == b""  # the older one
        newcomer[1].write(request("Host: localhost", f"Authorization: Bearer {TOKEN}"))
        assert b"200 OK" in await said(newcomer[0])
        assert not silent[1][0].at_eof()
        await websocket.send_str(ECHO)
        assert await websocket.receive_json() == ECHOED


async def test_where_all_have_passed_the_checks_there_is_no_room_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 2)
    async with running_server() as running, running.connect() as first:
        async with running.connect():
            assert await answered_by_hand(running, request("Host: localhost")) == b""
        await first.send_str(ECHO)
        assert await first.receive_json() == ECHOED


async def test_strangers_that_are_gone_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 2)
    async with running_server() as running:
        for _ in range(20):
            assert await answered_by_hand(running, request("Host: evil.example"))
        silent = await running.raw()

        assert b"200 OK" in await answered_by_hand(running, request("Host: localhost"))
        assert not silent[0].at_eof()


# WebSockets


async def test_calls_over_a_websocket(running: Running) -> None:
    async with running.connect() as websocket:
        await websocket.send_str(ECHO)
        assert await websocket.receive_json() == ECHOED

        await websocket.send_str(f"[{ECHO}, {ECHO}]")
        assert await websocket.receive_json() == [ECHOED, ECHOED]

        await websocket.send_str("{")
        assert (await websocket.receive_json())["error"]["code"] == ErrorCode.PARSE_ERROR


async def test_long_call_does_not_hold_up_others(running: Running) -> None:
    async with running.connect() as websocket:
        await websocket.send_str(HANG)
        await websocket.send_str(ECHO)

        assert await websocket.receive_json() == ECHOED


async def test_only_so_many_calls_of_a_websocket_are_made_at_once(running: Running) -> None:
    _, writer = await websocket_by_hand(running)

    writer.write(frame(HANG) * (MAX_CALLS_AT_ONCE + 1))
    await until(lambda: running.calls.hanging == MAX_CALLS_AT_ONCE)
    await turns(20)

    assert running.calls.hanging == MAX_CALLS_AT_ONCE


async def test_calls_and_subscriptions_end_with_their_websocket(running: Running) -> None:
    async with running.connect() as websocket:
        await websocket.send_str('{"jsonrpc": "2.0", "method": "subscribe", "params": [10]}')
        await websocket.send_str(HANG)
        await until(lambda: running.calls.hanging == running.calls.subscribed == 1)

    await until(lambda: running.calls.hanging == running.calls.subscribed == 0)


async def test_calls_end_when_a_websocket_is_lost(running: Running) -> None:
    _, writer = await websocket_by_hand(running)
    writer.write(frame(HANG) * (MAX_CALLS_AT_ONCE + 1))
    await until(lambda: running.calls.hanging == MAX_CALLS_AT_ONCE)

    await close_stream(writer)

    await until(lambda: running.calls.hanging == 0)


async def test_answer_comes_before_the_first_notification(running: Running) -> None:
    async with running.connect() as websocket:
        await websocket.send_str('{"jsonrpc": "2.0", "method": "subscribe", "params": [3], "id": 7}')

        assert await websocket.receive_json() == {"jsonrpc": "2.0", "id": 7, "result": "ticks"}
        assert await websocket.receive_json() == {"jsonrpc": "2.0", "method": "tick", "params": "xxx"}


async def test_subscriber_who_does_not_read_is_slowed_and_then_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "WRITE_TIMEOUT_S", 0.3)
    async with running_server() as running:
        async with running.connect() as websocket:
            await websocket.send_str('{"jsonrpc": "2.0", "method": "subscribe", "params": [100000]}')
            await until(lambda: running.calls.subscribed == 1)

            await until(lambda: running.calls.subscribed == 0)  # nothing is read meanwhile

        assert running.calls.ticks < 200  # what the sockets' buffers hold, and not more


async def test_http_cannot_subscribe(running: Running) -> None:
    status, answer = await running.post('{"jsonrpc": "2.0", "method": "subscribe", "params": [1], "id": 1}')

    assert (status, answer["error"]["code"]) == (200, ErrorCode.NO_NOTIFICATIONS)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\x82\x81\0\0\0\0{", aiohttp.WSCloseCode.UNSUPPORTED_DATA),  # binary
        (b"\x81\x81\0\0\0\0\xff", aiohttp.WSCloseCode.INVALID_TEXT),
        (b"\x81\xff\0\0\0\0\x00\xff\0\0\0\0\0\0", aiohttp.WSCloseCode.MESSAGE_TOO_BIG),  # 16 MB announced
        (b"\xf1\x81\0\0\0\0{", aiohttp.WSCloseCode.PROTOCOL_ERROR),  # reserved bits
    ],
)
async def test_websocket_that_breaks_the_rules_is_closed_with_a_reason(
    running: Running, message: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await websocket_by_hand(running)

    writer.write(message)

    heard = await said(reader)
    assert heard[0] == 0x88  # Close
    assert int.from_bytes(heard[2:4], "big") == code
    assert not caplog.records


async def test_websocket_that_gives_no_sign_of_life_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SILENCE_TIMEOUT_S", 0.05)
    async with running_server() as running:
        websocket = await running.client.ws_connect(running.url, autoping=False)
        await websocket.send_str('{"jsonrpc": "2.0", "method": "hang"}')
        await until(lambda: running.calls.hanging == 1)

        await until(lambda: running.calls.hanging == 0)  # the pings stay unanswered

        await websocket.close()


async def test_websocket_is_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PING_INTERVAL_S", 0.02)
    async with running_server() as running, asyncio.timeout(DEADLINE_S):
        websocket = await running.client.ws_connect(running.url, autoping=False)

        assert [(await websocket.receive()).type for _ in range(2)] == [WSMsgType.PING] * 2

        await websocket.close()


def test_silence_lasts_longer_than_calls_during_which_nothing_is_read() -> None:
    assert server_module.SILENCE_TIMEOUT_S >= BATCH_TIMEOUT_S + CALL_TIMEOUT_S


async def test_nothing_is_compressed(running: Running) -> None:
    async with running.client.ws_connect(running.url, compress=15) as websocket:
        assert not websocket.compress


async def test_what_is_no_websocket_handshake_is_refused(running: Running) -> None:
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "99"}

    async with running.client.get(running.url, headers=headers) as response:
        assert response.status == 426


# Endings


async def test_call_ends_when_its_caller_hangs_up(running: Running) -> None:
    reader, writer = await running.raw()
    writer.write(request("Host: localhost", body=HANG))
    await until(lambda: running.calls.hanging == 1)

    await close_stream(writer)

    await until(lambda: running.calls.hanging == 0)
    assert await said(reader) == b""


async def test_stop_says_goodbye_to_websockets_and_ends_calls() -> None:
    async with running_server() as running:
        websocket = await running.client.ws_connect(running.url)
        await websocket.send_str(HANG)
        posted = asyncio.create_task(running.post(HANG))
        await until(lambda: running.calls.hanging == 2)
        closing = asyncio.create_task(websocket.receive())

        async with asyncio.timeout(DEADLINE_S):
            await running.server.stop()
            message = await closing

        assert running.calls.hanging == 0
        assert (message.type, message.data) == (WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)
        with pytest.raises(aiohttp.ClientError):
            await posted
        with pytest.raises(ConnectionRefusedError):
            await running.raw()


async def test_stop_does_not_wait_for_who_does_not_read() -> None:
    loop = asyncio.get_running_loop()
    async with running_server() as running:
        websocket = await running.client.ws_connect(running.url)
        await websocket.send_str('{"jsonrpc": "2.0", "method": "subscribe", "params": [1000000]}')
        await until(lambda: running.calls.subscribed == 1)
        await turns(50)

        began = loop.time()
        await running.server.stop()

        assert loop.time() - began < 3 * server_module.STOP_TIMEOUT_S + 1
        assert running.calls.subscribed == 0
        await websocket.close()


async def test_server_that_never_started_can_be_stopped() -> None:
    await RpcServer(Dispatcher({}, {}), token=None).stop()
