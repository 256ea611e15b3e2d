"""Who may connect to us, by address: decided at accept, before a byte is read and anything is spent on a handshake.

Addresses are text, as a socket's peername has them. Times are monotonic seconds, arguments.
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
from mailserver.limits.buckets import Buckets, Counts, Entries, TokenBucket

BURST_S = 5.0
"""So many seconds' worth of connections may come at once: after a cut of the network all clients come back together."""

ADDRESS_BURST_S = 10.0
"""The same for one address: the phones behind it come back together, and there are fewer of them to even that out."""

SUBNET_RATE = 2
"""A subnet may open so many times the connections a second of one address: a line with IPv6 has up to 65,536 addresses
(/64s), and could else take the connections of everybody, who then cannot connect."""

FAILURE_WINDOW_S = 60.0
"""Failed handshakes of an address are counted so long from the first of them; then the count begins anew."""

REFUSED_S = 60.0
"""How long an address is refused whose handshakes failed too often."""

FORGIVEN_FAILURES = 10
"""So many failures does a handshake that succeeds make up for: behind an address from which phones come and go, one
that is broken and tries again all the time is not the rule. More would let a flooder pay with few true handshakes."""

KNOWN_AFTER_S = 60.0
"""An address that was connected for so long without a break is known. Known ones have connections per second of their
own: strangers from any number of addresses, who use up those of strangers, do not lock them out. Less would make
addresses known that only come and go; so many as there are places become known in that time, at most."""

MAX_ADDRESSES = 16_384
"""Most addresses, and subnets, that are remembered for their connections per second, their failures, and as known; 250
bytes each. By the defaults 100 connections a second come in, and what they took is back after 10 s: 1,000 addresses
matter at a time."""

_V6_ADDRESS_BYTES = 8  # a /64: what one customer has at least, with as many addresses in it as it likes
_V6_SUBNET_BYTES = 6  # a /48: what one site has
_V4_SUBNET_BYTES = 3  # a /24


class AddressGroups(NamedTuple):
    """What an address is counted by: itself and its neighbourhood. The lengths tell the four kinds apart.

    `address`: 4 bytes for IPv4; for IPv6 the 8 of its /64. `subnet`: the 3 of the /24; for IPv6 the 6 of the /48.
    """

    address: bytes
    subnet: bytes


UNKNOWN_GROUPS = AddressGroups(b"", b"")
"""Of what is no IP address: a peer that was gone before we asked for its address. All these count together."""


@lru_cache(maxsize=4096)
def groups_of(address: str) -> AddressGroups:
    """Tell what an address is counted by; IPv4 mapped into IPv6 counts as IPv4."""
    ip = _parse(address)
    if ip is None:
        return UNKNOWN_GROUPS
    packed = ip.packed
    if isinstance(ip, IPv4Address):
        return AddressGroups(packed, packed[:_V4_SUBNET_BYTES])
    return AddressGroups(packed[:_V6_ADDRESS_BYTES], packed[:_V6_SUBNET_BYTES])


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return None
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip


def crowded_out(newcomer: str, present: Sequence[str]) -> int | None:
    """Who has to make room where all places are taken, so that each subnet gets its share of them.

    Args:
        newcomer: the address of who comes.
        present: the addresses of those who are here, the first to come first.
    Returns:
        An index into `present`: the last to come of the subnet that has most places. None if even that has no more
        than one more than the newcomer's: then somebody would only have to go so that another can come.
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
class Allowed:
    """Who is never limited (10/WAKU-USAGE "Rate limiting": "whitelist selected IPs or peer IDs").

    IPv4 mapped into IPv6 is looked for in networks of IPv4.
    """

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    node_ids: frozenset[NodeId] = frozenset()

    def has_address(self, address: str) -> bool:
        """Whether the address lies in one of the networks."""
        if not self.networks:
            return False
        ip = _parse(address)
        return ip is not None and any(ip in network for network in self.networks)

    def has_peer(self, node_id: NodeId) -> bool:
        """Whether the peer is named."""
        return node_id in self.node_ids


NOBODY_ALLOWED = Allowed()


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits of inbound connections; 0 is no limit. An address is a /64 and a subnet a /48 where they are IPv6.

    `max_per_address`: connections at a time. 200, as network operators put thousands of phones behind one address
    (carrier-grade NAT), and some of them use one mailserver at a time.
    `max_per_subnet`: the same of one subnet. 300, as operators have such addresses side by side; of 500 peers that
    leaves 200 places to everybody else.
    `per_second`: new connections of all strangers, and as many of all known addresses, each with a burst of BURST_S.
    100, as a handshake costs about 1 ms: both together take a fifth of a processor.
    `per_second_per_address`: with a burst of ADDRESS_BURST_S; a subnet has SUBNET_RATE times as many. 10: after a cut
    of the network all 200 of one address are back within 10 s, and all 300 of one subnet within 5 s.
    `max_failures`: failed handshakes of one address within FAILURE_WINDOW_S; with the last of them, the address is
    refused for REFUSED_S. 50: a broken client that tries each 2 s stays below, a scanner does not.
    """

    max_per_address: int = 200
    max_per_subnet: int = 300
    per_second: float = 100.0
    per_second_per_address: float = 10.0
    max_failures: int = 50


class Refusal(Enum):
    """Why a connection is not taken. The value is for the log; the peer is told nothing."""

    FAILED_TOO_OFTEN = "handshakes from its address failed too often"
    ADDRESS_FULL = "too many connections from its address"
    SUBNET_FULL = "too many connections from its subnet"
    TOO_FAST = "too many connections a second"
    ADDRESS_TOO_FAST = "too many connections a second from its address"
    SUBNET_TOO_FAST = "too many connections a second from its subnet"


class _Failures:
    """The failed handshakes of one address, and until when it is refused for them."""

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
            self._refused_until = now + REFUSED_S
            self._count = 0

    def forgive(self) -> None:
        self._count = max(0, self._count - FORGIVEN_FAILURES)

    def is_refused(self, now: float) -> bool:
        return now < self._refused_until

    def is_over(self, now: float) -> bool:
        return now >= self._refused_until and (not self._count or now - self._began > FAILURE_WINDOW_S)


class Admission:
    """Decides about each inbound connection, and counts those that there are.

    Those who are allowed are counted, too, and take up room of their subnet, but are never refused and take none of
    the connections per second.
    """

    def __init__(self, limits: AdmissionLimits, allowed: Allowed = NOBODY_ALLOWED) -> None:
        self._limits = limits
        self._allowed = allowed
        self._of_address: Counts[bytes] = Counts()
        self._of_subnet: Counts[bytes] = Counts()
        self._failures: Entries[bytes, _Failures] = Entries(_Failures, _Failures.is_over, max_keys=MAX_ADDRESSES)
        self._known: OrderedDict[bytes, None] = OrderedDict()  # longest unused first
        self._strangers, self._known_ones = _everybody(limits), _everybody(limits)
        self._addresses = _buckets(limits.per_second_per_address)
        self._subnets = _buckets(limits.per_second_per_address * SUBNET_RATE)
        self.refused = Counter(dict.fromkeys(Refusal, 0))

    def change(self, limits: AdmissionLimits, allowed: Allowed) -> None:
        """Put other limits in force. Connections stay; a rate that changes starts with its whole burst."""
        if limits.per_second != self._limits.per_second:
            self._strangers, self._known_ones = _everybody(limits), _everybody(limits)
        if limits.per_second_per_address != self._limits.per_second_per_address:
            self._addresses = _buckets(limits.per_second_per_address)
            self._subnets = _buckets(limits.per_second_per_address * SUBNET_RATE)
        self._limits = limits
        self._allowed = allowed

    def admit(self, address: str, now: float) -> Refusal | None:
        """Decide about a new connection. None: it is taken, and counted until `release`; else why it is refused."""
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
        """A connection that was admitted has ended.

        Raises:
            LocalProtocolError: none of this address was left.
        """
        groups = groups_of(address)
        self._of_address.remove(groups.address)
        self._of_subnet.remove(groups.subnet)

    def failed(self, address: str, now: float) -> None:
        """An admitted connection ended without a handshake."""
        if self._limits.max_failures and not self._allowed.has_address(address):
            self._failures.of(groups_of(address).address, now).add(self._limits, now)

    def succeeded(self, address: str) -> None:
        """The handshake of an admitted connection is over. It makes up for failures, but ends no refusal."""
        failures = self._failures.find(groups_of(address).address)
        if failures is not None:
            failures.forgive()

    def served(self, address: str, seconds: float) -> None:
        """A connection of this address has ended that was open for so long."""
        if seconds >= KNOWN_AFTER_S:
            key = groups_of(address).address
            self._known[key] = None
            self._known.move_to_end(key)
            if len(self._known) > MAX_ADDRESSES:
                self._known.popitem(last=False)

    def _refusal(self, groups: AddressGroups, now: float) -> Refusal | None:
        limits = self._limits
        failures = self._failures.find(groups.address)
        if limits.max_failures and failures is not None and failures.is_refused(now):
            return Refusal.FAILED_TOO_OFTEN
        if limits.max_per_address and self._of_address.of(groups.address) >= limits.max_per_address:
            return Refusal.ADDRESS_FULL
        if limits.max_per_subnet and self._of_subnet.of(groups.subnet) >= limits.max_per_subnet:
            return Refusal.SUBNET_FULL
        return None

    def _take_token(self, groups: AddressGroups, now: float) -> Refusal | None:
        """Take from all buckets, or, if one has too little, from none: an address that tries on takes from nobody."""
        own = None if self._addresses is None else self._addresses.of(groups.address, now)
        subnet = None if self._subnets is None else self._subnets.of(groups.subnet, now)
        if own is not None and own.wait(1, now):
            return Refusal.ADDRESS_TOO_FAST
        if subnet is not None and subnet.wait(1, now):
            return Refusal.SUBNET_TOO_FAST
        everybody = self._known_ones if groups.address in self._known else self._strangers
        if everybody is not None and everybody.wait(1, now):
            return Refusal.TOO_FAST
        for bucket in (own, subnet, everybody):
            if bucket is not None:
                bucket.take(1, now)
        return None


def _everybody(limits: AdmissionLimits) -> TokenBucket | None:
    # Made at the time 0 of the monotonic clock, full: whenever it is used first, it is no different.
    return TokenBucket(limits.per_second, limits.per_second * BURST_S, 0.0) if limits.per_second else None


def _buckets(rate: float) -> Buckets[bytes] | None:
    return Buckets(rate, rate * ADDRESS_BURST_S, max_keys=MAX_ADDRESSES) if rate else None
