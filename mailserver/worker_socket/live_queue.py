"""Live envelopes that other workers have put, on their way to one of them: a bounded queue."""

import asyncio
from collections import deque
from collections.abc import Iterable

from mailserver.feed_socket.frames import FeedEnvelope

MAX_ENVELOPES = 16_384
MAX_BYTES = 16 * 1024 * 1024
"""How much waits at most: what the feed holds. Beyond this, the oldest are left out, and counted."""

READ_AT_ONCE = 256
"""How many are taken at once: what is judged at once."""


class LiveQueue:
    """A `store.others.Others`. `missed` counts what was left out because nobody took it in time, `outages` how often
    those who put it could not be heard."""

    def __init__(self) -> None:
        self.missed = self.outages = 0
        self._waiting: deque[FeedEnvelope] = deque()
        self._bytes = 0
        self._has_some = asyncio.Event()

    def add(self, envelopes: Iterable[FeedEnvelope]) -> None:
        """Add some at the end."""
        for envelope in envelopes:
            self._waiting.append(envelope)
            self._bytes += len(envelope.raw)
        while len(self._waiting) > MAX_ENVELOPES or self._bytes > MAX_BYTES:
            self._take()
            self.missed += 1
        if self._waiting:
            self._has_some.set()

    def note_outage(self) -> None:
        """They are heard again; whoever reads sees that."""
        self.outages += 1
        self._has_some.set()

    async def take(self) -> list[FeedEnvelope]:
        """Wait until there are some, or there was an outage; return the first READ_AT_ONCE at most."""
        await self._has_some.wait()
        taken = [self._take() for _ in range(min(READ_AT_ONCE, len(self._waiting)))]
        if not self._waiting:
            self._has_some.clear()
        return taken

    async def begin(self) -> None:
        """It hears as soon as it is there."""

    async def run(self) -> None:
        """There is nothing to do."""
        await asyncio.Event().wait()

    async def read(self) -> list[bytes]:
        """Wait for live envelopes of others; return some."""
        return [envelope.raw for envelope in await self.take()]

    async def figures(self) -> None:
        """They share no database."""

    def _take(self) -> FeedEnvelope:
        taken = self._waiting.popleft()
        self._bytes -= len(taken.raw)
        return taken
