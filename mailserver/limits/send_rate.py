"""How fast we send to one peer: no faster than the rate limits that it has announced (6/WAKU1 "Rate Limits Field").

Every packet counts. Confirmations are sent at once, and delay what can wait: live envelopes, history, requests. Limits
of topics hold for live envelopes only: a client that asks for the history of a topic wants all of it.
"""

import asyncio

from mailserver.limits.buckets import Buckets, TokenBucket, take_all
from mailserver.waku.packets import MAX_PACKET_BYTES, NO_RATE_LIMITS, PeerSettings, RateLimits

MAX_TOPICS = 100
"""Most topics per peer whose use is remembered, which is for BURST_S after the last envelope. They take 40 kB, which
any peer can make us keep."""

USED_SHARE = 0.8
"""Which part of a limit we use. The peer's clock differs from ours, and deployed nodes refill their buckets ten times a
second by whole tokens, so that a limit of 24 packets lets 20 a second through."""

BURST_S = 0.5
"""This many seconds' worth is sent at once. The buckets of deployed nodes hold one second's worth, and packets that we
send apart may arrive together."""

MAX_DEBT_S = 1.0
"""For how long confirmations may delay what can wait: a peer that sends more packets than it takes still gets the
rest."""


class SendRate:
    """The limits that one peer has announced, and how much of them is used."""

    def __init__(self) -> None:
        self._limits = (NO_RATE_LIMITS, NO_RATE_LIMITS)
        self._packets: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self._topic_packets: Buckets[bytes] | None = None
        self._topic_bytes: Buckets[bytes] | None = None
        self._changed = asyncio.Event()
        self.max_packet_bytes = MAX_PACKET_BYTES

    def follow(self, settings: PeerSettings) -> None:
        """Apply what the peer has announced. Tasks that wait because of the limits before that start again."""
        limits = settings.packet_rate_limits, settings.byte_rate_limits
        if limits == self._limits:
            return
        self._limits = limits
        packets, sizes = limits
        now = asyncio.get_running_loop().time()
        packet_rate, byte_rate = _lower(packets) * USED_SHARE, _lower(sizes) * USED_SHARE
        self._packets = TokenBucket(packet_rate, _burst(packet_rate), now) if packet_rate else None
        self._bytes = TokenBucket(byte_rate, _burst(byte_rate), now) if byte_rate else None
        self._topic_packets = _by_topic(packets.topic)
        self._topic_bytes = _by_topic(sizes.topic)
        self.max_packet_bytes = int(min(MAX_PACKET_BYTES, _burst(byte_rate))) if byte_rate else MAX_PACKET_BYTES
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def is_limited(self) -> bool:
        """Whether the peer limits packets or bytes at all."""
        return self._packets is not None or self._bytes is not None

    @property
    def limits_topics(self) -> bool:
        """Whether the peer limits topics."""
        return self._topic_packets is not None or self._topic_bytes is not None

    def take_topic(self, topic: bytes, size: int) -> bool:
        """Count an envelope of `size` bytes against the limits of its topic; return False if it exceeds them."""
        now = asyncio.get_running_loop().time()
        return take_all(topic, ((self._topic_packets, 1), (self._topic_bytes, size)), now)

    async def take(self, size: int) -> None:
        """Wait until a packet of `size` bytes may be sent, and count it."""
        while (seconds := self._owe(size)) > 0:  # it is counted at once, so later packets wait longer: the order stays
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                return

    def count(self, size: int) -> None:
        """Count a packet of `size` bytes that is sent at once."""
        if self._packets is None and self._bytes is None:  # nearly always; this runs for each confirmation
            return
        now = asyncio.get_running_loop().time()
        for bucket, cost in ((self._packets, 1), (self._bytes, size)):
            if bucket is not None and bucket.wait(0, now) < MAX_DEBT_S:
                bucket.take(cost, now)

    def correct(self, more: int) -> None:
        """Correct the size of a packet that was counted: it is `more` bytes longer, or shorter if that is below 0."""
        if self._bytes is not None:
            self._bytes.take(more, asyncio.get_running_loop().time())

    def give_back(self, size: int) -> None:
        """Take back the count of a packet of `size` bytes, which had its turn and is not sent."""
        now = asyncio.get_running_loop().time()
        for bucket, cost in ((self._packets, 1), (self._bytes, size)):
            if bucket is not None:
                bucket.take(-cost, now)

    def _owe(self, size: int) -> float:
        now = asyncio.get_running_loop().time()
        seconds = 0.0
        if self._packets is not None:
            seconds = self._packets.take(1, now)
        if self._bytes is not None:
            seconds = max(seconds, self._bytes.take(size, now))
        return seconds


def _lower(limits: RateLimits) -> int:
    """The limit that holds for us, who are one address and one peer there. 0 is no limit."""
    return min(limits.ip or limits.peer, limits.peer or limits.ip)


def _burst(rate: float) -> float:
    return max(rate * BURST_S, 1)


def _by_topic(limit: int) -> Buckets[bytes] | None:
    rate = limit * USED_SHARE
    return Buckets(rate, _burst(rate), max_keys=MAX_TOPICS) if limit else None
