"""mailserver.api.server: WebSockets."""

import asyncio

import aiohttp
import pytest
from aiohttp import WSMsgType

from mailserver.api import server as server_module
from mailserver.api.dispatch import BATCH_TIMEOUT_S, CALL_TIMEOUT_S
from mailserver.api.errors import ErrorCode
from mailserver.api.server import MAX_CALLS_AT_ONCE
from tests.api.rpc_servers import ECHO, ECHOED, HANG, Running, running_server, said
from tests.raw_peer import close_stream
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration


async def websocket_by_hand(rpc: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a WebSocket."""
    reader, writer = await rpc.raw()
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


async def test_calls_over_a_websocket(rpc: Running) -> None:
    async with rpc.connect() as websocket:
        await websocket.send_str(ECHO)
        assert await websocket.receive_json() == ECHOED

        await websocket.send_str(f"[{ECHO}, {ECHO}]")
        assert await websocket.receive_json() == [ECHOED, ECHOED]

        await websocket.send_str("{")
        assert (await websocket.receive_json())["error"]["code"] == ErrorCode.PARSE_ERROR


async def test_long_call_does_not_hold_up_others(rpc: Running) -> None:
    async with rpc.connect() as websocket:
        await websocket.send_str(HANG)
        await websocket.send_str(ECHO)

        assert await websocket.receive_json() == ECHOED


async def test_only_so_many_calls_of_a_websocket_are_made_at_once(rpc: Running) -> None:
    _, writer = await websocket_by_hand(rpc)

    writer.write(frame(HANG) * (MAX_CALLS_AT_ONCE + 1))
    await until(lambda: rpc.calls.hanging == MAX_CALLS_AT_ONCE)
    await turns(20)

    assert rpc.calls.hanging == MAX_CALLS_AT_ONCE


async def test_calls_and_subscriptions_end_with_their_websocket(rpc: Running) -> None:
    async with rpc.connect() as websocket:
        await websocket.send_str('{"jsonrpc": "2.0", "method": "subscribe", "params": [10]}')
        await websocket.send_str(HANG)
        await until(lambda: rpc.calls.hanging == rpc.calls.subscribed == 1)

    await until(lambda: rpc.calls.hanging == rpc.calls.subscribed == 0)


async def test_calls_end_when_a_websocket_is_lost(rpc: Running) -> None:
    _, writer = await websocket_by_hand(rpc)
    writer.write(frame(HANG) * (MAX_CALLS_AT_ONCE + 1))
    await until(lambda: rpc.calls.hanging == MAX_CALLS_AT_ONCE)

    await close_stream(writer)

    await until(lambda: rpc.calls.hanging == 0)


async def test_answer_comes_before_the_first_notification(rpc: Running) -> None:
    async with rpc.connect() as websocket:
        await websocket.send_str('{"jsonrpc": "2.0", "method": "subscribe", "params": [3], "id": 7}')

        assert await websocket.receive_json() == {"jsonrpc": "2.0", "id": 7, "result": "ticks"}
        assert await websocket.receive_json() == {"jsonrpc": "2.0", "method": "tick", "params": "xxx"}


async def test_subscriber_who_does_not_read_is_slowed_and_then_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "WRITE_TIMEOUT_S", 0.3)
    async with running_server() as rpc:
        async with rpc.connect() as websocket:
            await websocket.send_str('{"jsonrpc": "2.0", "method": "subscribe", "params": [100000]}')
            await until(lambda: rpc.calls.subscribed == 1)

            await until(lambda: rpc.calls.subscribed == 0)  # nothing is read meanwhile

        assert rpc.calls.ticks < 200  # what the sockets' buffers hold, and not more


async def test_http_cannot_subscribe(rpc: Running) -> None:
    status, answer = await rpc.post('{"jsonrpc": "2.0", "method": "subscribe", "params": [1], "id": 1}')

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
    rpc: Running, message: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await websocket_by_hand(rpc)

    writer.write(message)

    heard = await said(reader)
    assert heard[0] == 0x88  # Close
    assert int.from_bytes(heard[2:4], "big") == code
    assert not caplog.records


async def test_websocket_that_gives_no_sign_of_life_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SILENCE_TIMEOUT_S", 0.05)
    async with running_server() as rpc:
        websocket = await rpc.client.ws_connect(rpc.url, autoping=False)
        await websocket.send_str('{"jsonrpc": "2.0", "method": "hang"}')
        await until(lambda: rpc.calls.hanging == 1)

        await until(lambda: rpc.calls.hanging == 0)  # the pings stay unanswered

        await websocket.close()


async def test_websocket_is_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PING_INTERVAL_S", 0.02)
    async with running_server() as rpc, asyncio.timeout(DEADLINE_S):
        websocket = await rpc.client.ws_connect(rpc.url, autoping=False)

        assert [(await websocket.receive()).type for _ in range(2)] == [WSMsgType.PING] * 2

        await websocket.close()


def test_silence_lasts_longer_than_calls_during_which_nothing_is_read() -> None:
    assert server_module.SILENCE_TIMEOUT_S >= BATCH_TIMEOUT_S + CALL_TIMEOUT_S


async def test_nothing_is_compressed(rpc: Running) -> None:
    async with rpc.client.ws_connect(rpc.url, compress=15) as websocket:
        assert not websocket.compress


async def test_what_is_no_websocket_handshake_is_refused(rpc: Running) -> None:
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "99"}

    async with rpc.client.get(rpc.url, headers=headers) as response:
        assert response.status == 426
