"""Metrics, health and the status page over HTTP. It changes nothing and reveals no secret.

Pages of other sites cannot read it: no answer permits another origin, and on loopback it answers only to the names of
this machine (against DNS rebinding). On other addresses, everybody who can reach it may read it.
"""

import asyncio
import json
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from mailserver.monitoring.page import load_page
from mailserver.monitoring.state import Monitoring
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


class Monitor:
    """Serves GET /, /status.json, /history.json, /metrics, /health and /ready."""

    def __init__(self, monitoring: Monitoring) -> None:
        self._monitoring = monitoring
        self._server: asyncio.Server | None = None
        self._is_loopback = False
        self._page = load_page()
        app = web.Application(middlewares=[self._guard])
        app.on_response_prepare.append(_protect)
        app.router.add_get("/", self._status_page)
        app.router.add_get("/status.json", self._status)
        app.router.add_get("/history.json", self._history)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
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
        connected = http.connections  # oldest first
        if len(connected) >= MAX_CONNECTIONS and connected[0].transport is not None:
            connected[0].transport.abort()
        return http()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._is_loopback and not names_loopback(request.headers.get("Host", "")):
            raise web.HTTPForbidden(text="Host is not localhost, 127.0.0.1 or [::1]\n")
        return await handler(request)

    async def _status_page(self, request: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": self._page.policy, "Cache-Control": "no-cache"}
        return web.Response(body=self._page.html, content_type="text/html", charset="utf-8", headers=headers)

    async def _status(self, request: web.Request) -> web.Response:
        return _as_json(200, self._monitoring.status().as_json())

    async def _history(self, request: web.Request) -> web.Response:
        text = await self._monitoring.history_json()
        return web.Response(text=text, content_type="application/json", headers=NO_STORE)

    async def _metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self._monitoring.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _health(self, request: web.Request) -> web.Response:
        """Say that the daemon is alive: its event loop runs. Problems are listed, but a restart would solve none."""
        return _as_json(200, {"status": "alive", **self._monitoring.health.as_json()})

    async def _ready(self, request: web.Request) -> web.Response:
        """Say whether the mailserver can do its work, by 200 or 503, and list the problems."""
        health = self._monitoring.health
        status = "ready" if health.is_ready else "not ready"
        return _as_json(200 if health.is_ready else 503, {"status": status, **health.as_json()})


async def _protect(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(PROTECTION)


def _as_json(status: int, answer: dict[str, object]) -> web.Response:
    return web.json_response(answer, status=status, headers=NO_STORE, dumps=partial(json.dumps, indent=1))
