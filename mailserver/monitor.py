"""What monitoring asks for, over HTTP: the metrics. It changes nothing and tells no secret."""

import asyncio

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

MAX_CONNECTIONS = 16
"""Most connections; one more drops the oldest. So nobody is kept out by who connects and says nothing."""

MAX_HEADERS = 64
MAX_HEADER_BYTES = 4096
"""Most header lines of a request, and the length of each and of the request line."""

KEEPALIVE_S = 75.0
"""How long a connection may be idle: Prometheus asks once a minute, or more often."""

LINGER_S = 1.0
"""How long a body is read and dropped; no request here needs one."""

STOP_TIMEOUT_S = 0.5
"""How long answers may take to be read when stopping."""


class Monitor:
    """Serves GET /metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._server: asyncio.Server | None = None
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
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
        """Listen; return the port, which is the one given unless that is 0.

        Raises:
            OSError: the address cannot be had.
        """
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._on_accept, host, port, backlog=MAX_CONNECTIONS)
        except OSError:
            await self._runner.cleanup()
            raise
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

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
