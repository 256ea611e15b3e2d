"""Which inbound connections are admitted, by address. This is decided at accept: nothing has been read yet, and no
handshake has cost anything.

Addresses are text, as in a socket's peername. Times are monotonic seconds, given as arguments.
"""

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import NamedTuple

from mailserver.codec.keys import NodeId
from mailserver.limits.buckets import Buckets, Counts, LruMap, TokenBucket

BURST_S = 5.0
"""This many seconds' worth of connections may come at once: after a network outage, all clients reconnect together."""

ADDRESS_BURST_S = 10.0
"""The same for one address. The phones behind it reconnect together, too, and are too few for that to average out."""

SUBNET_FACTOR = 2
"""A subnet may open this many times as many connections per second as one address. One IPv6 customer has up to 65,536
addresses (/64s). Without a limit per subnet, it could use up the connections per second that all strangers share."""

FAILURE_WINDOW_S = 60.0
"""Failed handshakes of an address are counted for this long after the first one. Then the count starts again at 0."""

REFUSAL_S = 60.0
"""How long an address is refused after too many failed handshakes."""

FORGIVEN_FAILURES = 10
"""How many failures one successful handshake cancels. One broken phone that retries all the time must not lock out the
other phones behind its address. If this were more, a flooder could offset its failures with a few real handshakes."""

KNOWN_AFTER_S = 60.0
"""An address becomes known once one of its connections was open for this long. Known addresses share connections per
second of their own, so a flood from many new addresses does not lock them out. In this time, at most as many addresses
become known as there may be peers. If it were shorter, addresses that only connect and leave would become known."""

MAX_ADDRESSES = 16_384
"""Most addresses, and subnets, that are remembered for each purpose (connections per second, failures, known ones); 250
bytes per entry. With the default limits, 100 connections a second come in, and buckets are full again after 10 s, so
1,000 addresses matter at a time."""

ADDRESSES_PARSED = 4096
"""Of how many addresses it is remembered what they are: a request asks several times."""

_V6_ADDRESS_BYTES = 8  # a /64: the least that one customer has, who may use any address in it
_V6_SUBNET_BYTES = 6  # a /48: what one site has
_V4_SUBNET_BYTES = 3  # a /24


class AddressGroups(NamedTuple):
    """The keys by which an address is counted. Their lengths differ, so the four kinds cannot collide.

    `address`: for IPv4 its 4 bytes; for IPv6 the 8 bytes of its /64. `subnet`: for IPv4 the 3 bytes of its /24; for
    IPv6 the 6 bytes of its /48.
    """

    address: bytes
    subnet: bytes


UNKNOWN_GROUPS = AddressGroups(b"", b"")
"""The keys of whatever is not an IP address: the peer was gone before we asked for its address. All of them share one
count."""


@lru_cache(maxsize=ADDRESSES_PARSED)
def groups_of(address: str) -> AddressGroups:
    """Return the keys of an address. An IPv4 address mapped into IPv6 counts as IPv4."""
    ip = _parse(address)
    if ip is None:
        return UNKNOWN_GROUPS
    packed = ip.packed
    if isinstance(ip, IPv4Address):
        return AddressGroups(packed, packed[:_V4_SUBNET_BYTES])
    return AddressGroups(packed[:_V6_ADDRESS_BYTES], packed[:_V6_SUBNET_BYTES])


@lru_cache(maxsize=ADDRESSES_PARSED)
def _parse(address: str) -> IPv4Address | IPv6Address | None:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return None
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip


def index_to_evict(newcomer: str, present: Sequence[str]) -> int | None:
    """Choose which peer to disconnect in favour of a new one when all places are taken, so that subnets share them.

    Args:
        newcomer: the address of the new peer.
        present: the addresses of the connected peers, the longest connected first.
    Returns:
        An index into `present`: of the subnet with the most peers, the one that connected last. None if that subnet
        has at most one peer more than the newcomer's subnet: swapping would make the shares no fairer.
    """
    subnets = [groups_of(address).subnet for address in present]
    counts = Counter(subnets)
    if not counts:
        return None
    largest, places = counts.most_common(1)[0]
    if places < counts[groups_of(newcomer).subnet] + 2:
        return None
    return max(index for index, subnet in enumerate(subnets) if subnet == largest)


@dataclass(frozen=True, slots=True)
class Allowlist:
    """Networks and peers that are exempt from limits (10/WAKU-USAGE "Rate limiting": "whitelist selected IPs or peer
    IDs").

    An IPv4 address mapped into IPv6 is looked up as IPv4.
    """

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    node_ids: frozenset[NodeId] = frozenset()

    def has_address(self, address: str) -> bool:
        """Whether an address is in one of the networks."""
        if not self.networks:
            return False
        ip = _parse(address)
        return ip is not None and any(ip in network for network in self.networks)

    def has_peer(self, node_id: NodeId) -> bool:
        """Whether a peer is listed."""
        return node_id in self.node_ids


EMPTY_ALLOWLIST = Allowlist()


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits of inbound connections; 0 is no limit. For IPv6, an address is a /64, and a subnet is a /48.

    `max_per_address`: open connections of one address. 200: carrier-grade NAT puts thousands of phones behind one
    address, and some of them use the same mailserver at the same time.
    `max_per_subnet`: open connections of one subnet. 300: carriers have such addresses side by side. Of 500 peers, this
    leaves 200 places to everyone else.
    `per_second`: new connections per second of all unknown addresses, and as many of all known addresses, each with a
    burst of BURST_S. 100: a handshake costs about 1 ms, so both together take a fifth of a processor.
    `per_second_per_address`: new connections per second of one address, with a burst of ADDRESS_BURST_S. A subnet may
    have SUBNET_FACTOR times as many. 10: after a network outage, all 200 connections of an address are back within
    10 s, and all 300 of a subnet within 5 s.
    `max_failures`: failed handshakes of one address within FAILURE_WINDOW_S. The last of them has the address refused
    for REFUSAL_S. 50: a broken client that retries every 2 s stays below it, a scanner does not.
    """

    max_per_address: int = 200
    max_per_subnet: int = 300
    per_second: float = 100.0
    per_second_per_address: float = 10.0
    max_failures: int = 50


class AdmissionRefusal(Enum):
    """Why a connection is refused. The value is for the log; the peer is not told."""

    FAILED_TOO_OFTEN = "handshakes from its address failed too often"
    ADDRESS_FULL = "too many connections from its address"
    SUBNET_FULL = "too many connections from its subnet"
    TOO_FAST = "too many connections a second"
    ADDRESS_TOO_FAST = "too many connections a second from its address"
    SUBNET_TOO_FAST = "too many connections a second from its subnet"


class _Failures:
    """The failed handshakes of one address, and until when it is refused because of them."""

    __slots__ = ("_began", "_count", "_refused_until")

    def __init__(self, now: float) -> None:
        self._began = now
        self._count = 0
        self._refused_until = now

    def add(self, limits: AdmissionLimits, now: float) -> None:
        if not self._count or now - self._began > FAILURE_WINDOW_S:
            self._began, self._count = now, 0
        self._count += 1
        if self._count >= limits.max_failures:
            self._refused_until = now + REFUSAL_S
            self._count = 0

    def forgive(self) -> None:
        self._count = max(0, self._count - FORGIVEN_FAILURES)

    def is_refused(self, now: float) -> bool:
        return now < self._refused_until

    def is_like_new(self, now: float) -> bool:
        return now >= self._refused_until and (not self._count or now - self._began > FAILURE_WINDOW_S)


class Admission:
    """Decides whether an inbound connection is admitted, and counts the open ones.

    Connections from the allowlist are counted, and count for their subnet, but they are never refused, and do not count
    as connections per second.
    """

    def __init__(self, limits: AdmissionLimits, allowed: Allowlist = EMPTY_ALLOWLIST) -> None:
        self._limits = limits
        self._allowed = allowed
        self._of_address: Counts[bytes] = Counts()
        self._of_subnet: Counts[bytes] = Counts()
        self._failures: LruMap[bytes, _Failures] = LruMap(_Failures, _Failures.is_like_new, max_keys=MAX_ADDRESSES)
        self._known: OrderedDict[bytes, None] = OrderedDict()  # least recently used first
        self._unknown_bucket, self._known_bucket = _shared_bucket(limits), _shared_bucket(limits)
        self._address_buckets = _buckets(limits.per_second_per_address)
        self._subnet_buckets = _buckets(limits.per_second_per_address * SUBNET_FACTOR)
        self.refused = Counter(dict.fromkeys(AdmissionRefusal, 0))

    def change(self, limits: AdmissionLimits, allowed: Allowlist) -> None:
        """Put new limits in force. Open connections stay. A rate that changes starts with its full burst."""
        if limits.per_second != self._limits.per_second:
            self._unknown_bucket, self._known_bucket = _shared_bucket(limits), _shared_bucket(limits)
        if limits.per_second_per_address != self._limits.per_second_per_address:
            self._address_buckets = _buckets(limits.per_second_per_address)
            self._subnet_buckets = _buckets(limits.per_second_per_address * SUBNET_FACTOR)
        self._limits = limits
        self._allowed = allowed

    def admit(self, address: str, now: float) -> AdmissionRefusal | None:
        """Decide about a new connection. None: it is admitted, and counted until `release`. Else: why it is refused."""
        groups = groups_of(address)
        if not self._allowed.has_address(address):
            refusal = self._refusal(groups, now) or self._take_token(groups, now)
            if refusal is not None:
                self.refused[refusal] += 1
                return refusal
        self._of_address.add(groups.address)
        self._of_subnet.add(groups.subnet)
        return None

    def release(self, address: str) -> None:
        """Stop counting an admitted connection, which has ended.

        Raises:
            LocalProtocolError: this address has no connection.
        """
        groups = groups_of(address)
        self._of_address.remove(groups.address)
        self._of_subnet.remove(groups.subnet)

    def handshake_failed(self, address: str, now: float) -> None:
        """Count an admitted connection that ended without a handshake."""
        if self._limits.max_failures and not self._allowed.has_address(address):
            self._failures.of(groups_of(address).address, now).add(self._limits, now)

    def handshake_succeeded(self, address: str) -> None:
        """Note a handshake that succeeded. It cancels FORGIVEN_FAILURES failures, but does not end a refusal."""
        failures = self._failures.find(groups_of(address).address)
        if failures is not None:
            failures.forgive()

    def connection_ended(self, address: str, seconds: float) -> None:
        """Note that a connection has ended, which was open for `seconds`. A long one makes its address known."""
        if seconds >= KNOWN_AFTER_S:
            key = groups_of(address).address
            self._known[key] = None
            self._known.move_to_end(key)
            if len(self._known) > MAX_ADDRESSES:
                self._known.popitem(last=False)

    def _refusal(self, groups: AddressGroups, now: float) -> AdmissionRefusal | None:
        limits = self._limits
        failures = self._failures.find(groups.address)
        if limits.max_failures and failures is not None and failures.is_refused(now):
            return AdmissionRefusal.FAILED_TOO_OFTEN
        if limits.max_per_address and self._of_address.of(groups.address) >= limits.max_per_address:
            return AdmissionRefusal.ADDRESS_FULL
        if limits.max_per_subnet and self._of_subnet.of(groups.subnet) >= limits.max_per_subnet:
            return AdmissionRefusal.SUBNET_FULL
        return None

    def _take_token(self, groups: AddressGroups, now: float) -> AdmissionRefusal | None:
        """Take a token from each bucket, or from none if one is empty: refused attempts use up nothing of others."""
        own = None if self._address_buckets is None else self._address_buckets.of(groups.address, now)
        subnet = None if self._subnet_buckets is None else self._subnet_buckets.of(groups.subnet, now)
        if own is not None and own.wait(1, now):
            return AdmissionRefusal.ADDRESS_TOO_FAST
        if subnet is not None and subnet.wait(1, now):
            return AdmissionRefusal.SUBNET_TOO_FAST
        shared = self._known_bucket if groups.address in self._known else self._unknown_bucket
        if shared is not None and shared.wait(1, now):
            return AdmissionRefusal.TOO_FAST
        for bucket in (own, subnet, shared):
            if bucket is not None:
                bucket.take(1, now)
        return None


def _shared_bucket(limits: AdmissionLimits) -> TokenBucket | None:
    # It starts full at time 0 of the monotonic clock, so it is still full when it is first used.
    return TokenBucket(limits.per_second, limits.per_second * BURST_S, 0.0) if limits.per_second else None


def _buckets(rate: float) -> Buckets[bytes] | None:
    return Buckets(rate, rate * ADDRESS_BURST_S, max_keys=MAX_ADDRESSES) if rate else None
