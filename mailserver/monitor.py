"""What monitoring asks for, over HTTP: the metrics. It changes nothing and tells no secret."""

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

MAX_REQUEST_LINE_BYTES = 4096
MAX_HEADER_BYTES = 4096
KEEPALIVE_S = 75.0
STOP_TIMEOUT_S = 0.5


class Monitor:
    """Serves GET /metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        app = web.Application(client_max_size=0)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=STOP_TIMEOUT_S,
            keepalive_timeout=KEEPALIVE_S,
            max_line_size=MAX_REQUEST_LINE_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which is the one given unless that is 0.

        Raises:
            OSError: the address cannot be had.
        """
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError:
            await self._runner.cleanup()
            raise
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
