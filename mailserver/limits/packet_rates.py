"""Rate limits: how many packets and bytes a peer may send, and how many envelopes a topic may get.

Usage is counted per address and per node id, not per connection, so a peer gains nothing by reconnecting. Nothing here
waits or sends: the caller is told for how long to pause. Times are monotonic seconds, given as arguments. For IPv6, an
address is a /64 (`limits.admission.groups_of`).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason, RemoteProtocolError
from mailserver.limits.admission import EMPTY_ALLOWLIST, Allowlist, groups_of
from mailserver.limits.buckets import Buckets, take_all
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import MAX_RECEIVED_PACKET_BYTES, RateLimits

RATE_BURST_S = 10.0
"""This many seconds' worth of packets or bytes may come at once: a node has much to say when it connects."""

FAIR_SHARE = 0.05
"""A slowed peer that uses less than this part of the limit is not disconnected: it is slowed because of other peers
behind its address. Of the default limits, this is 125 packets, or 512 KiB, a second: many times what a phone sends."""

MAX_RATE_KEYS = 16_384
"""Most addresses, most peers, and most topics whose rates are remembered; 300 bytes per entry. A bucket that is not
used for RATE_BURST_S is full again, so this bounds how many can be active within some seconds."""

DEFAULT_PACKET_LIMITS = RateLimits(ip=2500, peer=500, topic=0)
"""A peer may send 500 packets a second, and 5,000 at once: a client that asks for a month of history sends 3,000
requests, and a node that relays to us and confirms what we relay sends some ten packets a second. An address may send
five times as much, as many phones may share it. Topics have no limit: whatever exceeds it is lost for all readers of
the topic, so a stranger could use up the limit to silence others."""

DEFAULT_BYTE_LIMITS = RateLimits(ip=10 * 1024 * 1024, peer=2 * 1024 * 1024, topic=0)
"""A peer may send 2 MiB a second, which is some thousand envelopes, and 20 MiB at once. A limit must not be less than
one packet (6/WAKU1 "Rate Limits Field")."""

DEFAULT_TOLERANCE_S = 120.0
"""When we come back, a well-connected peer sends us all that it has: 50,000 envelopes, one per packet, take 90 s. If we
disconnected it, it would reconnect and start again. A flooder gains nothing: it is slowed to its limit all the
while."""


_ROUNDING = 1e-6  # tokens; levels and times are floats


@dataclass(frozen=True, slots=True)
class RateLimitSettings:
    """Limits per second (6/WAKU1 "Rate Limits Field", 10/WAKU-USAGE "Rate limiting"); 0 is no limit.

    `packets`: packets per address and per peer; envelopes per topic. `bytes`: bytes of payloads per address and per
    peer; bytes of envelopes per topic. `tolerance_s`: how long a peer may stay at its limit, slowed, before it is
    disconnected. 0 disconnects it at once, `math.inf` never. `allowed`: who is exempt.
    """

    packets: RateLimits = DEFAULT_PACKET_LIMITS
    bytes: RateLimits = DEFAULT_BYTE_LIMITS
    tolerance_s: float = DEFAULT_TOLERANCE_S
    allowed: Allowlist = EMPTY_ALLOWLIST


@dataclass(frozen=True, slots=True)
class _Rates:
    """The buckets of one kind of rate limits, packets or bytes; None where there is no limit."""

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
    """Which rate limit. The value is its label in the metrics; `ip` and `peer_id` are the words of the Go node."""

    ADDRESS_PACKETS = "ip_packets"
    ADDRESS_BYTES = "ip_bytes"
    PEER_PACKETS = "peer_id_packets"
    PEER_BYTES = "peer_id_bytes"
    TOPIC = "topic"


class _Rule(NamedTuple):
    """One limit that holds for a peer: `rate` bytes or packets a second."""

    limit: RateLimit
    buckets: Buckets[bytes]
    key: bytes
    rate: int
    by_bytes: bool


class RateLimiter:
    """The rate limits of all peers and topics, and how much of them is used."""

    def __init__(self, settings: RateLimitSettings) -> None:
        self.settings = settings
        self._packets = _packet_rates(settings)
        self._bytes = _byte_rates(settings)
        self.exceeded = Counter(dict.fromkeys(RateLimit, 0))

    def change(self, settings: RateLimitSettings) -> None:
        """Put new limits in force, also for connected peers. Limits that change start with their full burst."""
        before, self.settings = self.settings, settings
        if settings.packets != before.packets:
            self._packets = _packet_rates(settings)
        if settings.bytes != before.bytes:
            self._bytes = _byte_rates(settings)

    def meter(self, address: str, node_id: NodeId) -> "PacketMeter":
        """Make a meter for a connection of this peer."""
        return PacketMeter(self, address, node_id)

    @property
    def limits_topics(self) -> bool:
        """Whether topics have limits at all. By default they have none."""
        return self._packets.topic is not None or self._bytes.topic is not None

    def take_topic(self, topic: Topic, size: int, now: float) -> bool:
        """Count an envelope of `size` bytes against the limits of its topic; return False if it exceeds them.

        All peers share the limits of a topic. Do not count envelopes of exempt peers.
        """
        is_within = take_all(topic, ((self._packets.topic, 1), (self._bytes.topic, size)), now)
        self.exceeded[RateLimit.TOPIC] += not is_within
        return is_within

    def rules(self, address: str, node_id: NodeId) -> list[_Rule]:
        """The limits that hold for the packets of this peer."""
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


class PacketMeter:
    """Counts what one connection receives against the limits of its peer."""

    def __init__(self, limiter: RateLimiter, address: str, node_id: NodeId) -> None:
        self._limiter = limiter
        self._address = address
        self._node_id = node_id
        self._slowed_since = math.inf  # since when it has been at a limit without a break
        self._slowed_packets = self._slowed_bytes = 0  # what it has sent since then
        self._follow_settings()

    @property
    def is_exempt(self) -> bool:
        """Whether this peer is exempt from limits."""
        if self._settings is not self._limiter.settings:
            self._follow_settings()
        return self._is_exempt

    def headroom(self, now: float) -> tuple[float, float]:
        """How many packets, and how many bytes, the peer may send now before it passes a limit."""
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
        """Count packets of these sizes, which came together; return for how many seconds not to read from this peer,
        nearly always 0.0.

        The pause enforces the limit, whatever the peer sends: its bytes wait in its own TCP window. A pause is as long
        as the bucket needs to recover from what all connections that share the limit have sent.

        Raises:
            RemoteProtocolError: it has been at a limit for longer than is tolerated, and not because of other peers.
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
        """Count packets beyond this limit, and judge the peer if it has been at its limit for longer than tolerated."""
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
        self._is_exempt = allowed.has_address(self._address) or allowed.has_peer(self._node_id)
        self._rules = [] if self._is_exempt else self._limiter.rules(self._address, self._node_id)


def _exceeding(sizes: Sequence[int], debt: float, *, by_bytes: bool) -> Sequence[int]:
    """The packets that are beyond a limit: the last ones, until they make up for the debt."""
    count = 0
    while count < len(sizes) and debt > _ROUNDING:
        count += 1
        debt -= sizes[-count] if by_bytes else 1
    return sizes[len(sizes) - count :]


def _packet_rates(settings: RateLimitSettings) -> _Rates:
    return _Rates.of(settings.packets, 1)


def _byte_rates(settings: RateLimitSettings) -> _Rates:
    return _Rates.of(settings.bytes, MAX_RECEIVED_PACKET_BYTES)  # so that one packet alone never exceeds the limit
