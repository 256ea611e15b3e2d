"""Live envelopes as a program reads them: in the order in which the node relays them, with a bound on what waits."""

import asyncio
from collections import deque
from collections.abc import Sequence

from mailserver.errors import ConnectionLost
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope

MAX_WAITING_ENVELOPES = 4096
MAX_WAITING_BYTES = 16 * 1024 * 1024
"""What waits for the reader at most: far more than a node relays in the time that a program thinks about one envelope.
Beyond it the oldest are dropped. The connection is not paused instead: answers and confirmations come by it, too."""


class LiveMessages:
    """An async iterator over live envelopes. It ends only with the connection, by ConnectionLost.

    `missed` counts the envelopes that were dropped because too many waited, `unwanted` those that were left out because
    nobody had asked for their topic.
    """

    def __init__(self, interest: Interest) -> None:
        self.missed = 0
        self.unwanted = 0
        self._interest = interest
        self._waiting: deque[Envelope] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._lost: ConnectionLost | None = None

    def put(self, envelopes: Sequence[Envelope]) -> None:
        """Take a packet's envelopes."""
        for envelope in envelopes:
            if not self._interest.wants(envelope.topic):
                self.unwanted += 1
                continue
            self._waiting.append(envelope)
            self._bytes += len(envelope.raw)
        while len(self._waiting) > MAX_WAITING_ENVELOPES or self._bytes > MAX_WAITING_BYTES:
            self._take()
            self.missed += 1
        self._changed.set()

    def end(self, lost: ConnectionLost) -> None:
        """The connection has ended: raise this once everything that waits is read."""
        self._lost = lost
        self._changed.set()

    def __aiter__(self) -> "LiveMessages":
        return self

    async def __anext__(self) -> Envelope:
        """Wait for the next envelope.

        Raises:
            ConnectionLost: the connection has ended, and all that came before is read.
        """
        while not self._waiting:
            if self._lost is not None:
                raise ConnectionLost(self._lost.reason, self._lost.cause)  # a new one: it refers to this object
            self._changed.clear()
            await self._changed.wait()
        return self._take()

    def _take(self) -> Envelope:
        envelope = self._waiting.popleft()
        self._bytes -= len(envelope.raw)
        return envelope
