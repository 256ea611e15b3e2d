"""The stream of all accepted envelopes, and its readers, each of which reads at its own speed.

Relay, filters and subscriptions read the feed. Publishing never waits: envelopes go into a ring buffer of bounded size.
A reader that falls behind by more than the ring misses envelopes, and is told how many.
"""

import asyncio
from collections import deque
from itertools import islice

from mailserver.live.seen import Sighting
from mailserver.waku.envelope import Envelope, EnvelopeHash

MAX_FEED_ENVELOPES = 16_384
MAX_FEED_BYTES = 16 * 1024 * 1024
"""What the ring holds: more than arrives between two reads of any healthy reader."""


class LiveEnvelope:
    """An accepted envelope on its way to the peers and applications that want it."""

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
        """Wrap an envelope that was accepted.

        Args:
            sighting: which peers have it; by default none. subnet: the subnet from which it came first; None if it was
            made here. ahead: how many seconds after our present it was created; see `Envelope.pow`. is_own: it was made
            here. is_p2p: it came as a P2P Message from a trusted peer. It is never relayed, and only for filters that
            allow it.
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
        """Its proof of work, computed at the first call; if it is from the future, the lower value that peers
        compute."""
        if self._pow is None:
            self._pow = self.envelope.pow(self._ahead)
        return self._pow


class LeftOut:
    """What was never published, though it is live: what other mailservers on the database have stored, and was not
    heard of. Whoever reads the store, too, finds it there.

    `times`: how often something may have been left out. `envelopes`: how many in all, as far as that is known.
    """

    def __init__(self) -> None:
        self.times = self.envelopes = 0
        self._more = asyncio.Event()

    def note(self, envelopes: int) -> None:
        """Something may have been left out: so many, at most; 0 if nobody knows how many."""
        self.times += 1
        self.envelopes += envelopes
        self._more.set()
        self._more = asyncio.Event()

    async def wait(self, times: int) -> None:
        """Wait until something was left out more often than so many times."""
        while self.times <= times:
            await self._more.wait()


class Feed:
    """The ring. Envelopes are numbered in the order in which they were published."""

    def __init__(self, *, max_envelopes: int = MAX_FEED_ENVELOPES, max_bytes: int = MAX_FEED_BYTES) -> None:
        self._max_envelopes = max_envelopes
        self._max_bytes = max_bytes
        self._ring: deque[LiveEnvelope] = deque()
        self._bytes = 0
        self._first = 0  # the number of the oldest envelope that is held
        self._published = asyncio.Event()
        self.left_out = LeftOut()

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
        """Make a reader of what is published from now on."""
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

    def since(self, position: int, limit: int | None = None) -> tuple[list[LiveEnvelope], int]:
        """The first `limit` envelopes from `position` on, or all; and how many before them are no longer there."""
        ring = self._ring
        missed = max(self._first - position, 0)
        left = self.end - position - missed
        count = left if limit is None else min(left, limit)
        if left > len(ring) // 2:  # walk through as few of the others as need be
            start = len(ring) - left
            return list(islice(ring, start, start + count)), missed
        envelopes = list(islice(reversed(ring), left - count, left))
        envelopes.reverse()
        return envelopes, missed


class FeedReader:
    """One reader of the feed. `missed` counts the envelopes that it missed because it was too slow."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._position = feed.end
        self.missed = 0

    async def read(self, limit: int | None = None) -> list[LiveEnvelope]:
        """Wait for envelopes; return those since the last call, oldest first: all, or at most `limit`."""
        await self._feed.wait(self._position)
        return self.read_nowait(limit)

    def read_nowait(self, limit: int | None = None) -> list[LiveEnvelope]:
        """The same without waiting; nothing if there was none."""
        envelopes, missed = self._feed.since(self._position, limit)
        self._position += missed + len(envelopes)
        self.missed += missed
        return envelopes
