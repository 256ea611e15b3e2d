"""All metrics as Prometheus reads them, at a bounded cost, whoever asks how often."""

import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from mailserver.limits.buckets import TokenBucket

MAX_SHARE = 0.05
"""How much of the event loop's time goes into writing metrics at most. A text takes some milliseconds, so whoever asks
without a pause would else take most of it."""

BURST_S = 0.5
"""How much may go into it at once: a hundred texts or so, which is what dashboards and people ask for."""


class Exposition:
    """Writes the metrics of a registry. While its share of time is used up, the last text is given again."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        """Take what is written.

        Args:
            worked: how long this thread has worked until now, in seconds. What it waited for others does not count.
        """
        self._registry = registry
        self._clock = clock
        self._worked = worked
        self._budget = TokenBucket(MAX_SHARE, BURST_S, clock())
        self._text = b""

    def text(self) -> bytes:
        """The metrics of this moment, or of the last moment for which there was time."""
        if not self._text or self._budget.level(self._clock()) >= 0:
            began = self._worked()
            self._text = generate_latest(self._registry)
            self._budget.take(self._worked() - began, self._clock())
        return self._text

    async def answer(self, request: web.Request) -> web.Response:
        """Answer GET /metrics."""
        return web.Response(body=self.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})
