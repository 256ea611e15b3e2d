"""Metrics and health of the gateway over HTTP."""

from collections.abc import Callable, Sequence

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from mailserver.monitoring.http_server import HttpServer, as_json


class GatewayMonitor(HttpServer):
    """Serves GET /metrics, /health and /ready."""

    def __init__(self, registry: CollectorRegistry, problems: Callable[[], Sequence[str]]) -> None:
        """Take what is told.

        Args:
            problems: returns what keeps the gateway from doing all of its work.
        """
        self._registry = registry
        self._problems = problems
        super().__init__({"/metrics": self._metrics, "/health": self._health, "/ready": self._ready})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _health(self, request: web.Request) -> web.Response:
        """Say that the gateway is alive: its event loop runs."""
        return as_json(200, {"status": "alive", "problems": list(self._problems())})

    async def _ready(self, request: web.Request) -> web.Response:
        """Say whether the gateway can do all of its work, by 200 or 503, and list the problems."""
        problems = list(self._problems())
        status = "not ready" if problems else "ready"
        return as_json(503 if problems else 200, {"status": status, "problems": problems})
