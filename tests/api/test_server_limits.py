"""mailserver.api.server: what is too much, too slow or malformed."""

import io
import logging
from collections.abc import AsyncIterator

import pytest

from mailserver.api import server as server_module
from mailserver.api.dispatch import MAX_TEXT_BYTES
from mailserver.api.server import MAX_HEADER_BYTES, MAX_HEADERS
from tests.api.rpc_servers import ECHO, ECHOED, JSON, TOKEN, Running, answered_by_hand, request, running_server, said
from tests.waiting import until

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_beyond_the_limit_is_refused(rpc: Running, chunked: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(0, MAX_TEXT_BYTES + 1, 1 << 16):
            yield b" " * (1 << 16)

    body = chunks() if chunked else io.BytesIO(b" " * (MAX_TEXT_BYTES + 1))
    async with rpc.client.post(rpc.url, data=body, headers=JSON) as response:
        assert response.status == 413


async def test_long_body_is_answered(rpc: Running) -> None:
    assert await rpc.post(io.BytesIO(ECHO.ljust(MAX_TEXT_BYTES).encode())) == (200, ECHOED)


async def test_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BODY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(server_module, "LINGER_S", 0.05)
    async with running_server() as rpc:
        heard = await answered_by_hand(rpc, request("Host: localhost")[:-10])

    assert heard.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("idle", [b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
async def test_connection_without_a_whole_request_is_closed(monkeypatch: pytest.MonkeyPatch, idle: bytes) -> None:
    monkeypatch.setattr(server_module, "IDLE_TIMEOUT_S", 0.05)
    async with running_server() as rpc:
        assert await answered_by_hand(rpc, idle) == b""


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
    rpc: Running, headers: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    heard = await answered_by_hand(rpc, request("Host: localhost", *headers))

    assert heard[:12] in (b"HTTP/1.1 400", b"HTTP/1.0 400")
    assert rpc.calls.made == 0
    assert not caplog.records


@pytest.mark.parametrize("noise", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"\x00" * 10_000])
async def test_what_is_no_http_is_refused_and_not_logged(
    rpc: Running, noise: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await answered_by_hand(rpc, noise))[:12] in (b"HTTP/1.1 400", b"HTTP/1.0 400")
    assert not caplog.records


async def test_malformed_chunks_are_refused_and_not_logged(rpc: Running, caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"

    heard = await answered_by_hand(rpc, head, b"zz\r\n")

    assert heard[:12] in (b"HTTP/1.1 400", b"HTTP/1.0 400")
    assert not caplog.records


async def test_caller_who_does_not_read_its_answer_is_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "WRITE_TIMEOUT_S", 0.05)
    caplog.set_level(logging.DEBUG, server_module.log.name)
    body = '{"jsonrpc": "2.0", "method": "much", "params": [16000000], "id": 1}'
    async with running_server() as rpc:
        reader, writer = await rpc.raw()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request("Host: localhost", body=body))

        await until(lambda: "caller cut" in caplog.text)

        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await said(reader)) < 16_000_000


async def test_silent_strangers_push_out_each_other_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 3)
    async with running_server(token=TOKEN) as rpc, rpc.connect(Authorization=f"Bearer {TOKEN}") as websocket:
        silent = [await rpc.raw() for _ in range(2)]
        await until(lambda: rpc.connections == 3)
        newcomer = await rpc.raw()

        assert await said(silent[0][0]) == b""  # the older one
        newcomer[1].write(request("Host: localhost", f"Authorization: Bearer {TOKEN}"))
        assert b"200 OK" in await said(newcomer[0])
        assert not silent[1][0].at_eof()
        await websocket.send_str(ECHO)
        assert await websocket.receive_json() == ECHOED


async def test_where_all_have_passed_the_checks_there_is_no_room_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 2)
    async with running_server() as rpc, rpc.connect() as first:
        async with rpc.connect():
            assert await answered_by_hand(rpc, request("Host: localhost")) == b""
        await first.send_str(ECHO)
        assert await first.receive_json() == ECHOED


async def test_strangers_that_are_gone_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 2)
    async with running_server() as rpc:
        for _ in range(20):
            assert await answered_by_hand(rpc, request("Host: evil.example"))
        silent = await rpc.raw()

        assert b"200 OK" in await answered_by_hand(rpc, request("Host: localhost"))
        assert not silent[0].at_eof()
