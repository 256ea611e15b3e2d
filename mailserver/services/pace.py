"""How fast we send to one peer: no faster than the rate limits that it has announced (6/WAKU1 "Rate Limits Field").

Live envelopes and history count, confirmations do not: the peer has asked for as many as it sends packets. Limits of
topics hold for live envelopes only: who asks for the history of a topic wants all of it.
"""

import asyncio

from mailserver.buckets import Buckets, TokenBucket
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import MAX_PACKET_BYTES, NO_RATE_LIMITS, PeerSettings, RateLimits

MAX_TOPICS = 1000
"""Topics of one peer whose use is remembered."""

BURST_S = 1.0
"""So many seconds' worth goes at once: the deployed node's buckets hold no more."""


class Pace:
    """The limits of one peer, and what of them is used."""

    def __init__(self) -> None:
        self._limits = (NO_RATE_LIMITS, NO_RATE_LIMITS)
        self._packets: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self._topic_packets: Buckets[Topic] | None = None
        self._topic_bytes: Buckets[Topic] | None = None
        self.max_packet_bytes = MAX_PACKET_BYTES

    def follow(self, settings: PeerSettings) -> None:
        """Take what the peer has announced last."""
        limits = settings.packet_rate_limits, settings.byte_rate_limits
        if limits == self._limits:
            return
        self._limits = limits
        packets, sizes = limits
        now = asyncio.get_running_loop().time()
        packet_rate, byte_rate = _lower(packets), _lower(sizes)
        self._packets = TokenBucket(packet_rate, packet_rate * BURST_S, now) if packet_rate else None
        self._bytes = TokenBucket(byte_rate, byte_rate * BURST_S, now) if byte_rate else None
        self._topic_packets = _by_topic(packets.topic)
        self._topic_bytes = _by_topic(sizes.topic)
        self.max_packet_bytes = min(MAX_PACKET_BYTES, byte_rate or MAX_PACKET_BYTES)

    @property
    def limits_topics(self) -> bool:
        """Whether it limits topics."""
        return self._topic_packets is not None or self._topic_bytes is not None

    def take_topic(self, topic: Topic, size: int) -> bool:
        """Count an envelope of so many bytes against its topic's limits, unless that is too much now."""
        now = asyncio.get_running_loop().time()
        costs = [
            (buckets.of(topic, now), cost)
            for buckets, cost in ((self._topic_packets, 1), (self._topic_bytes, size))
            if buckets is not None
        ]
        if any(bucket.wait(cost, now) > 0 for bucket, cost in costs):
            return False
        for bucket, cost in costs:
            bucket.take(cost, now)
        return True

    async def take(self, size: int) -> None:
        """Wait until a packet of so many bytes may be sent, and count it."""
        now = asyncio.get_running_loop().time()
        seconds = 0.0
        if self._packets is not None:
            seconds = self._packets.take(1, now)
        if self._bytes is not None:
            seconds = max(seconds, self._bytes.take(size, now))
        if seconds > 0:  # in debt: whoever comes meanwhile waits for longer, so the order stays
            await asyncio.sleep(seconds)


def _lower(limits: RateLimits) -> int:
    """What holds for us: to the peer we are one address and one peer. 0 is no limit."""
    return min(limits.ip or limits.peer, limits.peer or limits.ip)


def _by_topic(rate: int) -> Buckets[Topic] | None:
    return Buckets(rate, rate * BURST_S, max_keys=MAX_TOPICS) if rate else None
