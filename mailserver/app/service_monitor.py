"""Metrics and health over HTTP of a process that runs beside the daemon: the gateway, and `community serve`."""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from aiohttp import web
from prometheus_client.registry import CollectorRegistry

from mailserver.app.process import listen
from mailserver.monitoring.exposition import Exposition
from mailserver.monitoring.http_server import HttpServer, as_json

log = logging.getLogger(__name__)


class ServiceMonitor(HttpServer):
    """Serves GET /metrics, /health and /ready."""

    def __init__(self, registry: CollectorRegistry, problems: Callable[[], Sequence[str]]) -> None:
        """Take what is told.

        Args:
            problems: returns what keeps the process from doing all of its work.
        """
        self._problems = problems
        super().__init__({"/metrics": Exposition(registry).answer, "/health": self._health, "/ready": self._ready})

    async def _health(self, request: web.Request) -> web.Response:
        """Say that the process is alive: its event loop runs."""
        return as_json(200, {"status": "alive", "problems": list(self._problems())})

    async def _ready(self, request: web.Request) -> web.Response:
        """Say whether the process can do all of its work, by 200 or 503, and list the problems."""
        problems = list(self._problems())
        status = "not ready" if problems else "ready"
        return as_json(503 if problems else 200, {"status": status, "problems": problems})


@contextlib.asynccontextmanager
async def monitored(
    address: str, registry: CollectorRegistry, problems: Callable[[], Sequence[str]]
) -> AsyncIterator[None]:
    """Serve metrics and health as long as the context is entered.

    Args:
        address: HOST:PORT, the setting `metrics`; empty: serve nothing.
    Raises:
        StartupError: the address cannot be used.
    """
    if not address:
        yield
        return
    monitor = ServiceMonitor(registry, problems)
    log.info("serving metrics port=%d", await listen(monitor.start, "metrics", address))
    try:
        yield
    finally:
        await monitor.stop()
