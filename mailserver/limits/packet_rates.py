"""Rate limits: how many packets and bytes a peer may send, and how many envelopes a topic may get.

Kept by who it is, address and node id, and not by connection: who reconnects is where it was. Nothing here waits or
sends; the caller does, as it is told. Times are monotonic seconds, arguments. An address is what
`limits.admission.groups_of` makes of it: a /64 where it is IPv6.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason, RemoteProtocolError
from mailserver.limits.admission import NOBODY_ALLOWED, Allowed, groups_of
from mailserver.limits.buckets import Buckets, take_all
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import MAX_RECEIVED_PACKET_BYTES, RateLimits

RATE_BURST_S = 10.0
"""So many seconds' worth of packets or bytes may come at once: what a node has to tell when it connects."""

FAIR_SHARE = 0.05
"""Who takes less of a limit while it is slowed has its neighbours behind the same address to thank for that, and is not
disconnected. Of the default it is 125 packets, or 512 KiB, a second: many times what a phone sends."""

MAX_RATE_KEYS = 16_384
"""Most addresses, peers and topics whose rates are remembered, each; 300 bytes an entry. What is silent for
RATE_BURST_S has a full bucket again: this bounds what is active within some seconds."""

DEFAULT_PACKET_LIMITS = RateLimits(ip=2500, peer=500, topic=0)
"""500 a second, 5,000 at once: a month's catch-up is 3,000 requests, and a node that relays to us and confirms what we
relay sends some ten a second. Five times as much for an address, which many phones may share. None for topics: what
exceeds a topic's limit is lost for all its readers, and a stranger could use that up to silence the others."""

DEFAULT_BYTE_LIMITS = RateLimits(ip=10 * 1024 * 1024, peer=2 * 1024 * 1024, topic=0)
"""2 MiB a second are some thousand envelopes; 20 MiB at once. No less than a packet (6/WAKU1 "Rate Limits Field")."""

DEFAULT_TOLERANCE_S = 120.0
"""A well-connected peer tells us all that it has when we come back: 50,000 envelopes, a packet each, take 90 s. To cut
it off would help nobody: it begins anew when it reconnects. A flooder gets no more out of it than its limit allows."""


_ROUNDING = 1e-6  # tokens: levels and times are floats


@dataclass(frozen=True, slots=True)
class RateLimitSettings:
    """How much may come in a second (6/WAKU1 "Rate Limits Field", 10/WAKU-USAGE "Rate limiting"); 0 is no limit.

    `packets`: by address and by peer, packets; by topic, envelopes. `bytes`: the payloads of packets, and envelopes.
    `tolerance_s`: how long a peer may be at its limit without a break, slowed, before it is disconnected; 0: at
    once, `math.inf`: never. `allowed`: who is never limited.
    """

    packets: RateLimits = DEFAULT_PACKET_LIMITS
    bytes: RateLimits = DEFAULT_BYTE_LIMITS
    tolerance_s: float = DEFAULT_TOLERANCE_S
    allowed: Allowed = NOBODY_ALLOWED


@dataclass(frozen=True, slots=True)
class _Rates:
    """The buckets of one kind of rate limits; None where there is no limit."""

    ip: Buckets[bytes] | None
    peer: Buckets[bytes] | None
    topic: Buckets[bytes] | None

    @classmethod
    def of(cls, limits: RateLimits, least_burst: float) -> "_Rates":
        buckets = (
            Buckets[bytes](rate, max(rate * RATE_BURST_S, least_burst), max_keys=MAX_RATE_KEYS) if rate else None
            for rate in limits
        )
        return cls(*buckets)


class RateLimit(Enum):
    """Which rate limit. The value is its label: `ip` and `peer_id` are the Go node's words."""

    ADDRESS_PACKETS = "ip_packets"
    ADDRESS_BYTES = "ip_bytes"
    PEER_PACKETS = "peer_id_packets"
    PEER_BYTES = "peer_id_bytes"
    TOPIC = "topic"


class _Rule(NamedTuple):
    """One limit of a peer: `rate` a second, of bytes or of packets."""

    limit: RateLimit
    buckets: Buckets[bytes]
    key: bytes
    rate: int
    by_bytes: bool


class RateLimiter:
    """The rates of all peers and topics."""

    def __init__(self, settings: RateLimitSettings) -> None:
        self.settings = settings
        self._packets = _packet_rates(settings)
        self._bytes = _byte_rates(settings)
        self.exceeded = Counter(dict.fromkeys(RateLimit, 0))

    def change(self, settings: RateLimitSettings) -> None:
        """Put other limits in force, for connected peers, too. Limits that change start with their whole burst."""
        before, self.settings = self.settings, settings
        if settings.packets != before.packets:
            self._packets = _packet_rates(settings)
        if settings.bytes != before.bytes:
            self._bytes = _byte_rates(settings)

    def meter(self, address: str, node_id: NodeId) -> "Meter":
        """Begin to measure a connection of this peer."""
        return Meter(self, address, node_id)

    @property
    def limits_topics(self) -> bool:
        """Whether there are limits of topics at all. By default there are none."""
        return self._packets.topic is not None or self._bytes.topic is not None

    def take_topic(self, topic: Topic, size: int, now: float) -> bool:
        """Count an envelope of so many bytes against its topic's limits, unless that is too much now: then False.

        All peers together use up a topic's limits; envelopes of peers that are allowed are not to be counted.
        """
        is_within = take_all(topic, ((self._packets.topic, 1), (self._bytes.topic, size)), now)
        self.exceeded[RateLimit.TOPIC] += not is_within
        return is_within

    def rules(self, address: str, node_id: NodeId) -> list[_Rule]:
        """What a packet of this peer is counted by."""
        keys = groups_of(address).address, node_id
        kinds = (
            (self._packets, self.settings.packets, (RateLimit.ADDRESS_PACKETS, RateLimit.PEER_PACKETS), False),
            (self._bytes, self.settings.bytes, (RateLimit.ADDRESS_BYTES, RateLimit.PEER_BYTES), True),
        )
        return [
            _Rule(limit, buckets, key, rate, by_bytes)
            for kind, rates, limits, by_bytes in kinds
            for limit, buckets, key, rate in zip(
                limits, (kind.ip, kind.peer), keys, (rates.ip, rates.peer), strict=True
            )
            if buckets is not None
        ]


class Meter:
    """Measures what comes by one connection."""

    def __init__(self, limiter: RateLimiter, address: str, node_id: NodeId) -> None:
        self._limiter = limiter
        self._address = address
        self._node_id = node_id
        self._slowed_since = math.inf  # when its present time at the limit began
        self._slowed_packets = self._slowed_bytes = 0  # what it has sent since
        self._follow_settings()

    @property
    def is_allowed(self) -> bool:
        """Whether this peer is never limited."""
        if self._settings is not self._limiter.settings:
            self._follow_settings()
        return self._is_allowed

    def free(self, now: float) -> tuple[float, float]:
        """How many packets, and how many bytes, may come together before one of them passes a limit."""
        if self._settings is not self._limiter.settings:
            self._follow_settings()
        packets = size = math.inf
        for rule in self._rules:
            level = rule.buckets.of(rule.key, now).level(now)
            if rule.by_bytes:
                size = min(size, level)
            else:
                packets = min(packets, level)
        return packets, size

    def on_packets(self, sizes: Sequence[int], now: float) -> float:
        """Count packets of so many bytes that came together; return for how many seconds not to read from this peer,
        nearly always 0.0.

        Then the limits are kept whatever it sends: its bytes wait in its own TCP window. A pause has no bound but
        the debt: what each connection that shares the limit has sent together.

        Raises:
            RemoteProtocolError: it has been at its limit for longer than is tolerated, and that is its own doing.
        """
        if self._settings is not self._limiter.settings:
            self._follow_settings()
        pause, slowest = 0.0, None
        total = sum(sizes)
        for rule in self._rules:
            wait = rule.buckets.of(rule.key, now).take(total if rule.by_bytes else len(sizes), now)
            if wait > pause:
                pause, slowest = wait, rule
        if slowest is None:
            self._slowed_since = math.inf
        else:
            self._slow(slowest, _exceeding(sizes, pause * slowest.rate, by_bytes=slowest.by_bytes), now)
        return pause

    def _slow(self, rule: _Rule, sizes: Sequence[int], now: float) -> None:
        """Note packets beyond this limit, and judge the peer when it has been there for as long as is tolerated."""
        self._limiter.exceeded[rule.limit] += len(sizes)
        if self._slowed_since == math.inf:
            self._slowed_since = now
            self._slowed_packets = self._slowed_bytes = 0
        self._slowed_packets += len(sizes)
        self._slowed_bytes += sum(sizes)
        seconds = now - self._slowed_since
        if seconds < self._settings.tolerance_s:
            return
        taken = self._slowed_bytes if rule.by_bytes else self._slowed_packets
        if taken >= FAIR_SHARE * rule.rate * seconds:
            unit = "bytes" if rule.by_bytes else "packets"
            cause = f"peer does not keep to our limit of {rule.rate} {unit} a second"
            raise RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, cause)
        self._slowed_since = math.inf

    def _follow_settings(self) -> None:
        self._settings = self._limiter.settings
        allowed = self._settings.allowed
        self._is_allowed = allowed.has_address(self._address) or allowed.has_peer(self._node_id)
        self._rules = [] if self._is_allowed else self._limiter.rules(self._address, self._node_id)


def _exceeding(sizes: Sequence[int], debt: float, *, by_bytes: bool) -> Sequence[int]:
    """Those of some packets that are beyond a limit, which they have passed by so much: the last ones."""
    count = 0
    while count < len(sizes) and debt > _ROUNDING:
        count += 1
        debt -= sizes[-count] if by_bytes else 1
    return sizes[len(sizes) - count :]


def _packet_rates(settings: RateLimitSettings) -> _Rates:
    return _Rates.of(settings.packets, 1)


def _byte_rates(settings: RateLimitSettings) -> _Rates:
    return _Rates.of(settings.bytes, MAX_RECEIVED_PACKET_BYTES)  # no single packet is too much
