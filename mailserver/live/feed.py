"""One stream of accepted envelopes, and readers that follow it, each at its own pace.

Relay, filters and subscriptions all read here. Publishing never waits: envelopes go into a ring of bounded size. A
reader that falls further behind misses those that have left the ring, and is told how many.
"""

import asyncio
from collections import deque
from itertools import islice

from mailserver.live.seen import Sighting
from mailserver.waku.envelope import Envelope, EnvelopeHash

MAX_FEED_ENVELOPES = 16_384
MAX_FEED_BYTES = 16 * 1024 * 1024
"""What the ring holds: more than arrives between two turns of any healthy reader."""


class LiveEnvelope:
    """An accepted envelope on its way to whoever wants it."""

    __slots__ = ("_ahead", "_pow", "envelope", "hash", "is_own", "is_p2p", "sighting", "subnet")

    def __init__(
        self,
        envelope: Envelope,
        envelope_hash: EnvelopeHash,
        sighting: Sighting | None = None,
        *,
        subnet: bytes | None = None,
        ahead: int = 0,
        is_own: bool = False,
        is_p2p: bool = False,
    ) -> None:
        """Take an envelope as it was judged.

        Args:
            sighting: which peers have it; if not given, none do.
            subnet: the one that it came from first; None if it was made here.
            ahead: seconds by which it was created after our now, as `Envelope.pow` counts them.
            is_own: it was made here.
            is_p2p: it came outside gossip, from a trusted peer. It is for filters that allow that, and never relayed.
        """
        self.envelope = envelope
        self.hash = envelope_hash
        self.sighting = Sighting() if sighting is None else sighting
        self.subnet = subnet
        self.is_own = is_own
        self.is_p2p = is_p2p
        self._ahead = ahead
        self._pow: float | None = None

    @property
    def pow(self) -> float:
        """Its proof of work, hashed at the first call; if it is from the future, the lower one that receivers count."""
        if self._pow is None:
            self._pow = self.envelope.pow(self._ahead)
        return self._pow


class Feed:
    """The ring. Envelopes are numbered from the first one published."""

    def __init__(self, *, max_envelopes: int = MAX_FEED_ENVELOPES, max_bytes: int = MAX_FEED_BYTES) -> None:
        self._max_envelopes = max_envelopes
        self._max_bytes = max_bytes
        self._ring: deque[LiveEnvelope] = deque()
        self._bytes = 0
        self._first = 0  # the number of the oldest envelope that is held
        self._published = asyncio.Event()

    def publish(self, live: LiveEnvelope) -> None:
        """Hand an envelope to every reader."""
        ring = self._ring
        ring.append(live)
        self._bytes += len(live.envelope.raw)
        while len(ring) > self._max_envelopes or (self._bytes > self._max_bytes and len(ring) > 1):
            self._bytes -= len(ring.popleft().envelope.raw)
            self._first += 1
        self._published.set()

    def reader(self) -> "FeedReader":
        """A reader of what is published from now on."""
        return FeedReader(self)

    @property
    def end(self) -> int:
        """The number of the next envelope."""
        return self._first + len(self._ring)

    async def wait(self, position: int) -> None:
        """Wait until there is an envelope from `position` on."""
        while position >= self.end:
            if self._published.is_set():  # it has woken the readers that waited
                self._published = asyncio.Event()
            await self._published.wait()

    def since(self, position: int) -> tuple[list[LiveEnvelope], int]:
        """The envelopes from `position` on, and how many of them are no longer there."""
        missed = max(self._first - position, 0)
        # From the end, so that what was read before is not gone through each time.
        envelopes = list(islice(reversed(self._ring), self.end - position - missed))
        envelopes.reverse()
        return envelopes, missed


class FeedReader:
    """One reader of the feed. `missed` counts the envelopes that it was too slow for."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._position = feed.end
        self.missed = 0

    async def read(self) -> list[LiveEnvelope]:
        """Wait for envelopes; return all since the last call, oldest first."""
        await self._feed.wait(self._position)
        return self.read_nowait()

    def read_nowait(self) -> list[LiveEnvelope]:
        """All since the last call, oldest first; nothing if there was none."""
        envelopes, missed = self._feed.since(self._position)
        self._position = self._feed.end
        self.missed += missed
        return envelopes
