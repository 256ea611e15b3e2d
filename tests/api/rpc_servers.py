"""JSON-RPC servers with simple methods, and callers that speak HTTP through a library or by hand."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from mailserver.api.caller import Call
from mailserver.api.dispatch import Dispatcher, Method
from mailserver.api.params import Fields, Json, text, whole
from mailserver.api.server import RpcServer
from tests.raw_peer import close_stream
from tests.waiting import DEADLINE_S

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

    @property
    def connections(self) -> int:
        """How many the server has taken that still stand."""
        http = self.server._runner.server  # noqa: SLF001 - nobody else knows
        assert http is not None
        return len(http.connections)

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
