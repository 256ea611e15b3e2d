"""Quotas of history requests (8/WAKU-MAIL): how many requests and envelopes a peer may have, and how many at once.

Usage is counted per address and per node id, not per connection, so a peer gains nothing by reconnecting. Nothing here
waits or sends: the caller refuses a request when it is told to. Times are monotonic seconds, given as arguments. For
IPv6, an address is a /64 (`limits.admission.groups_of`).
"""

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from mailserver.codec.keys import NodeId
from mailserver.limits.admission import EMPTY_ALLOWLIST, Allowlist, groups_of
from mailserver.limits.buckets import Buckets, Counts, LruMap

REQUEST_BURST_MINUTES = 5
"""This many minutes' worth of requests may come at once: the first pages of a month (see `PEER_REQUEST_LIMITS`)."""

ENVELOPE_BURST_MINUTES = 10
"""This many minutes' worth of envelopes may be delivered at once: all pages of that month."""

MIN_PAGE_COST = 100
"""What an answer costs at least, in envelopes: to find a page takes about as long as to send this many envelopes.
Without it, a client could ask for pages of one envelope each, and follow their cursors, at almost no cost."""

WORK_PER_ENVELOPE = 50
"""This much work of the store (`store.engine.work`) costs as much as one delivered envelope, and takes about as long. A
page that is found at once takes a quarter of the work that its envelopes pay for. A search for 1,000 topics on 30 days
costs as much as 4,200 envelopes, even if it finds nothing. Deployed clients ask for 10 topics of one day."""

MAX_CURSORS = 32
"""How many of the cursors given to a peer are remembered, the last ones: twice as many as it may have requests under
way."""

MAX_FOLLOWS = 3
"""How often a client may follow one cursor: an answer can be lost with the connection, or come too late. After that, it
counts as a new request. Otherwise one cursor would pay for any number of pages."""

CURSORS_KEPT_S = 3600.0
"""A peer that was given no cursor for this long has stopped; its next request counts as a new one."""

MAX_CURSOR_PEERS = 2048
"""Most peers whose cursors are remembered, up to 8 kB for each: four times as many as are connected."""

MAX_REQUEST_KEYS = 16_384
"""Most peers, and most addresses, whose usage is remembered; 200 bytes per entry. Buckets are full again after
ENVELOPE_BURST_MINUTES at most. Beyond this number, the usage of those that were silent longest is forgotten. An
attacker gains nothing from that: each of its node ids has a burst of its own anyway, and all share the limits of the
address."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of history requests (8/WAKU-MAIL) per peer, or per address; 0 is no limit.

    `requests_per_minute`: new requests, with a burst of REQUEST_BURST_MINUTES. A request that follows a cursor which
    the same peer was given is not new. `envelopes_per_minute`: delivered envelopes, with a burst of
    ENVELOPE_BURST_MINUTES. An answer counts as at least MIN_PAGE_COST envelopes, and as more if the store works much
    for it (`Bill`). `concurrent`: requests that wait or are being answered.
    """

    requests_per_minute: int = 0
    envelopes_per_minute: int = 0
    concurrent: int = 0


PEER_REQUEST_LIMITS = RequestLimits(requests_per_minute=600, envelopes_per_minute=200_000, concurrent=16)
"""Per peer. A deployed client that was away for a month asks for 30 windows of 24 h, and in each request for 10 of its
topics. With 1,000 topics these are 3,000 requests. That is the burst, so it may send them as fast as it likes. Their
pages may hold 2,000,000 envelopes. It has 3 requests under way at once; 16 leave room for those that it has given
up."""

ADDRESS_REQUEST_LIMITS = RequestLimits(requests_per_minute=6000, envelopes_per_minute=2_000_000, concurrent=640)
"""Per address: enough for ten such clients at the same time, or for three thousand that were away for a day and have
100 topics. 640 at once are more than 3 requests of each of the 200 connections that an address may have. They also hold
for an attacker that uses a new node id for each connection."""


class _Quotas:
    """How much all peers, or all addresses, have used of their limits."""

    def __init__(self, limits: RequestLimits) -> None:
        self._active: Counts[bytes] = Counts()  # bounded by how many requests each connection may have waiting
        self.change(limits)

    def change(self, limits: RequestLimits) -> None:
        self._max_active = limits.concurrent or math.inf
        self._requests = _per_minute(limits.requests_per_minute, REQUEST_BURST_MINUTES)
        self._envelopes = _per_minute(limits.envelopes_per_minute, ENVELOPE_BURST_MINUTES)

    def has_room(self, key: bytes) -> bool:
        return self._active.of(key) < self._max_active

    def begin(self, key: bytes) -> None:
        self._active.add(key)

    def end(self, key: bytes) -> None:
        self._active.remove(key)

    def wait(self, key: bytes, now: float, *, is_new: bool) -> float:
        """Return the seconds until one more page may be requested; 0.0 if it may be now."""
        needed = (self._envelopes, self._requests if is_new else None)
        return max((buckets.of(key, now).wait(1, now) for buckets in needed if buckets is not None), default=0.0)

    def take_request(self, key: bytes, now: float) -> None:
        if self._requests is not None:
            self._requests.of(key, now).take(1, now)

    def take_envelopes(self, key: bytes, count: float, now: float) -> None:
        if self._envelopes is not None:
            self._envelopes.of(key, now).take(count, now)


def _per_minute(count: int, burst_minutes: int) -> Buckets[bytes] | None:
    return Buckets(count / 60, count * burst_minutes, max_keys=MAX_REQUEST_KEYS) if count else None


class _Cursors:
    """The last cursors that one peer was given, and how often it may still follow each."""

    __slots__ = ("_given_at", "_left", "_looks")

    def __init__(self, now: float) -> None:
        self._left: OrderedDict[Hashable, int] = OrderedDict()
        self._given_at = now
        self._looks = 0

    def remember(self, cursor: Hashable, now: float) -> None:
        self._given_at = now
        self._left[cursor] = MAX_FOLLOWS
        self._left.move_to_end(cursor)
        if len(self._left) > MAX_CURSORS:
            self._left.popitem(last=False)
        self._looks = min(self._looks + MAX_FOLLOWS, MAX_FOLLOWS * MAX_CURSORS)

    def look(self) -> bool:
        """Whether one more request may be looked at because it could follow one of these; it is counted."""
        if not self._looks:
            return False
        self._looks -= 1
        return True

    def has(self, cursor: Hashable) -> bool:
        return cursor in self._left

    def follow(self, cursor: Hashable) -> None:
        self._left[cursor] -= 1
        if not self._left[cursor]:
            del self._left[cursor]

    def are_expired(self, now: float) -> bool:
        return now - self._given_at > CURSORS_KEPT_S


class RequestLimiter:
    """The quotas of all peers and addresses."""

    def __init__(
        self,
        peer: RequestLimits = PEER_REQUEST_LIMITS,
        address: RequestLimits = ADDRESS_REQUEST_LIMITS,
        allowed: Allowlist = EMPTY_ALLOWLIST,
    ) -> None:
        self._peer_limits = peer
        self._address_limits = address
        self.allowed = allowed
        self.peers = _Quotas(peer)
        self.addresses = _Quotas(address)
        self.cursors: LruMap[NodeId, _Cursors] = LruMap(_Cursors, _Cursors.are_expired, max_keys=MAX_CURSOR_PEERS)

    def change(self, peer: RequestLimits, address: RequestLimits, allowed: Allowlist) -> None:
        """Put new limits in force, also for waiting requests. Limits that change start with their full burst."""
        if peer != self._peer_limits:
            self.peers.change(peer)
        if address != self._address_limits:
            self.addresses.change(address)
        self._peer_limits = peer
        self._address_limits = address
        self.allowed = allowed

    def requester(self, address: str, node_id: NodeId) -> "Requester":
        """Make a requester for a connection of this peer."""
        return Requester(self, address, node_id)


class Requester:
    """One connection that requests history. For each request, call in this order: `begin`; `wait`; `admit`; if it was
    admitted, `bill`, and `remember_cursor` if the answer ends with a cursor; and `end` in any case."""

    def __init__(self, limiter: RequestLimiter, address: str, node_id: NodeId) -> None:
        self._limiter = limiter
        self._address = address
        self._node_id = node_id
        self._quotas: tuple[tuple[_Quotas, bytes], ...] = (
            (limiter.peers, node_id),
            (limiter.addresses, groups_of(address).address),
        )
        self._is_exempt_by: tuple[Allowlist, bool] = EMPTY_ALLOWLIST, False

    def __str__(self) -> str:
        return f"{self._node_id.hex()[:8]}@{self._address}"

    @property
    def node_id(self) -> NodeId:
        """The node id of the peer."""
        return self._node_id

    @property
    def address(self) -> bytes:
        """The key of its address, shared by all peers behind that address."""
        return groups_of(self._address).address

    @property
    def is_exempt(self) -> bool:
        """Whether this peer is exempt from limits."""
        # To look for an address in networks takes longer than all else that is charged; there are other lists seldom.
        allowed, is_exempt = self._is_exempt_by
        if allowed is not self._limiter.allowed:
            allowed = self._limiter.allowed
            is_exempt = allowed.has_peer(self._node_id) or allowed.has_address(self._address)
            self._is_exempt_by = allowed, is_exempt
        return is_exempt

    def begin(self) -> bool:
        """Begin a request, which counts until `end`. Return False, and count nothing, if too many are under way."""
        if not (all(quotas.has_room(key) for quotas, key in self._quotas) or self.is_exempt):
            return False
        for quotas, key in self._quotas:
            quotas.begin(key)
        return True

    def end(self) -> None:
        """End a request.

        Raises:
            LocalProtocolError: no request has begun.
        """
        for quotas, key in self._quotas:
            quotas.end(key)

    def wait(self, now: float, *, may_follow: bool) -> float:
        """Return 0.0 if a request may be looked at, which is not decoded yet. Else return the seconds as `admit` would.

        Whoever has used up its requests may still follow its cursors. So for each cursor that it was given, MAX_FOLLOWS
        requests are looked at all the same: any number would cost us time, and it nothing.

        Args:
            may_follow: requests of this kind may follow a cursor.
        """
        if self.is_exempt:
            return 0.0
        wait = self._wait(now, is_new=True)
        if not wait or not may_follow:
            return wait
        cursors = self._limiter.cursors.find(self._node_id)
        wait_to_follow = self._wait(now, is_new=False)
        return wait_to_follow or (0.0 if cursors is not None and cursors.look() else wait)

    def _wait(self, now: float, *, is_new: bool) -> float:
        return max(quotas.wait(key, now, is_new=is_new) for quotas, key in self._quotas)

    def admit(self, cursor: Hashable | None, now: float) -> float:
        """Return 0.0 if a page may be searched now. Else return the seconds until it may be, and count nothing.

        Args:
            cursor: of the request, in whatever form its protocol has it. A request that follows a cursor which the peer
                was given does not count as a new one; only the limit of envelopes holds for it. This applies to the
                last MAX_CURSORS cursors, to each of them MAX_FOLLOWS times, and also after a reconnect.
        """
        if self.is_exempt:
            return 0.0
        cursors = self._limiter.cursors.find(self._node_id)
        followed = cursor if cursors is not None and cursor is not None and cursors.has(cursor) else None
        if wait := self._wait(now, is_new=followed is None):
            return wait
        if cursors is not None and followed is not None:
            cursors.follow(followed)
        else:
            for quotas, key in self._quotas:
                quotas.take_request(key, now)
        return 0.0

    def bill(self, now: float) -> "Bill":
        """Open the bill of an answer. The least that an answer costs is charged at once."""
        return Bill(self, now)

    def take(self, envelopes: float, now: float) -> None:
        """Count envelopes against the limits, even beyond them. A negative number gives envelopes back."""
        if not self.is_exempt:
            for quotas, key in self._quotas:
                quotas.take_envelopes(key, envelopes, now)

    def remember_cursor(self, cursor: Hashable, now: float) -> None:
        """Remember the cursor with which an answer ends, so that the peer may follow it."""
        if not self.is_exempt:
            self._limiter.cursors.of(self._node_id, now).remember(cursor, now)


class Bill:
    """What one answer costs, in envelopes: those delivered, or the work of the store in envelopes, whichever is more.

    It is charged while the answer is made, so it is charged even if the answer fails or the client leaves.
    """

    __slots__ = ("_envelopes", "_requester", "_taken", "_work")

    def __init__(self, requester: Requester, now: float) -> None:
        self._requester = requester
        self._envelopes = self._work = 0
        self._taken = 0.0
        self._take(now)

    def charge_envelopes(self, count: int, now: float) -> None:
        """Charge for `count` delivered envelopes."""
        self._envelopes += count
        self._take(now)

    def charge_work(self, work: int, now: float) -> None:
        """Charge for work of the store; a negative amount if it was less than was charged before."""
        self._work += work
        self._take(now)

    def _take(self, now: float) -> None:
        cost = max(MIN_PAGE_COST, self._envelopes, self._work / WORK_PER_ENVELOPE)
        if cost != self._taken:
            self._requester.take(cost - self._taken, now)
            self._taken = cost
