"""Metrics, health and the status page over HTTP."""

from aiohttp import web

from mailserver.monitoring.exposition import Exposition
from mailserver.monitoring.http_server import NO_STORE, HttpServer, as_json
from mailserver.monitoring.page import load_page
from mailserver.monitoring.state import Monitoring


class Monitor(HttpServer):
    """Serves GET /, /status.json, /history.json, /metrics, /health and /ready."""

    def __init__(self, monitoring: Monitoring) -> None:
        self._monitoring = monitoring
        self._page = load_page()
        super().__init__(
            {
                "/": self._status_page,
                "/status.json": self._status,
                "/history.json": self._history,
                "/metrics": Exposition(monitoring.registry).answer,
                "/health": self._health,
                "/ready": self._ready,
            }
        )

    async def _status_page(self, request: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": self._page.policy, "Cache-Control": "no-cache"}
        return web.Response(body=self._page.html, content_type="text/html", charset="utf-8", headers=headers)

    async def _status(self, request: web.Request) -> web.Response:
        return as_json(200, self._monitoring.status().as_json())

    async def _history(self, request: web.Request) -> web.Response:
        text = await self._monitoring.history_json()
        return web.Response(text=text, content_type="application/json", headers=NO_STORE)

    async def _health(self, request: web.Request) -> web.Response:
        """Say that the daemon is alive: its event loop runs. Problems are listed, but a restart would solve none."""
        return as_json(200, {"status": "alive", **self._monitoring.health.as_json()})

    async def _ready(self, request: web.Request) -> web.Response:
        """Say whether the mailserver can do its work, by 200 or 503, and list the problems."""
        health = self._monitoring.health
        status = "ready" if health.is_ready else "not ready"
        return as_json(200 if health.is_ready else 503, {"status": status, **health.as_json()})
