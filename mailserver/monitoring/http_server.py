"""A small HTTP server for GET requests that change nothing and reveal no secret.

Pages of other sites cannot read it: no answer permits another origin, and on loopback it answers only to the names of
this machine (against DNS rebinding). On other addresses, everybody who can reach it may read it.
"""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Handler

from mailserver.net.loopback import is_loopback_only, names_loopback

MAX_CONNECTIONS = 16
"""Maximum number of connections. One more drops the oldest, so that silent connections keep nobody out."""

MAX_HEADERS = 64
MAX_HEADER_BYTES = 4096
"""Maximum number of header lines of a request, and maximum length of each and of the request line."""

KEEPALIVE_S = 75.0
"""How long a connection may be idle. Prometheus asks once a minute or more often."""

LINGER_S = 1.0
"""How long the body of a request is read and discarded. No request here needs one."""

STOP_TIMEOUT_S = 0.25
"""How long callers have to read their answers when the daemon stops."""

NO_STORE = {"Cache-Control": "no-store"}
"""Headers of answers that are true only at this moment."""

PROTECTION = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer: browsers must not guess its type, and pages of other sites must not read it."""


class _Connection(asyncio.Protocol):
    """One connection, from when it is accepted to its end.

    aiohttp knows of it only later: of those that are accepted together, it would know none that could be dropped.
    """

    def __init__(self, http: web.RequestHandler, connections: "dict[_Connection, None]") -> None:
        """Add this to `connections`, from which it is taken when it ends."""
        self._http = http
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._is_dropped = False
        connections[self] = None

    def drop(self) -> None:
        """End this at once, or as soon as it has begun."""
        del self._connections[self]
        self._is_dropped = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have all of asyncio.Transport, but do not derive from it.
        self._transport = cast(asyncio.Transport, transport)
        self._http.connection_made(self._transport)
        if self._is_dropped:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.pop(self, None)
        self._http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._http.data_received(data)

    def eof_received(self) -> None:
        self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()


class HttpServer:
    """Serves GET requests of some paths."""

    def __init__(self, paths: Mapping[str, Handler]) -> None:
        """Take what answers each path."""
        self._server: asyncio.Server | None = None
        self._is_loopback = False
        self._connections: dict[_Connection, None] = {}  # oldest first
        app = web.Application(middlewares=[self._guard])
        app.on_response_prepare.append(_protect)
        for path, handler in paths.items():
            app.router.add_get(path, handler)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=STOP_TIMEOUT_S,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
            max_headers=MAX_HEADERS,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which is `port` unless that is 0.

        Raises:
            OSError: the address cannot be used.
        """
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._on_accept, host, port, backlog=MAX_CONNECTIONS)
        except OSError:
            await self._runner.cleanup()
            raise
        self._is_loopback = is_loopback_only(self._server.sockets)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def _on_accept(self) -> asyncio.Protocol:
        http = self._runner.server
        assert http is not None
        connection = _Connection(http(), self._connections)
        if len(self._connections) > MAX_CONNECTIONS:
            next(iter(self._connections)).drop()
        return connection

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._is_loopback and not names_loopback(request.headers.get("Host", "")):
            raise web.HTTPForbidden(text="Host is not localhost, 127.0.0.1 or [::1]\n")
        return await handler(request)


async def _protect(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(PROTECTION)


def as_json(status: int, answer: dict[str, object]) -> web.Response:
    """An answer that is true only at this moment."""
    return web.json_response(answer, status=status, headers=NO_STORE, dumps=partial(json.dumps, indent=1))
