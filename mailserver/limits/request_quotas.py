"""Quotas of history requests (8/WAKU-MAIL): how many requests and envelopes a peer may have, and how many at once.

Kept by who it is, address and node id, and not by connection: who reconnects is where it was. Nothing here waits or
sends; the caller does, as it is told. Times are monotonic seconds, arguments. An address is what
`limits.admission.groups_of` makes of it: a /64 where it is IPv6.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

from mailserver.codec.keys import NodeId
from mailserver.limits.admission import NOBODY_ALLOWED, Allowed, groups_of
from mailserver.limits.buckets import Buckets, Counts, Entries
from mailserver.mail.request import Cursor

REQUEST_BURST_MINUTES = 5
"""So many minutes' worth of requests may come at once: the first pages of a month (see `PEER_REQUEST_LIMITS`)."""

ENVELOPE_BURST_MINUTES = 10
"""So many minutes' worth of envelopes may be delivered at once: the same month."""

LEAST_PAGE_COST = 100
"""What an answer costs at least, in envelopes: to look up a page takes the store as long as to send about so many.
Pages of one envelope, each followed by its cursor, would cost next to nothing otherwise."""

WORK_PER_ENVELOPE = 50
"""So much work of the store (`store.sqlite.work`) is as much as an envelope that is delivered, which takes about as
long. A page that is found at once takes a quarter of what its envelopes pay for. To look for 1,000 topics on 30 days
costs as much as 4,200 envelopes, also where nothing is found; deployed clients ask for 10 topics of a day."""

MAX_CURSORS = 32
"""Cursors of one peer that are remembered, the last ones given: twice the requests that it may have under way."""

MAX_FOLLOWED = 3
"""How often one cursor may be followed: the answer can be lost with the connection, or come too late. From then on
it is a new request: a cursor is given for a page, and would else buy any number of them."""

CURSORS_KEPT_S = 3600.0
"""A peer that got no cursor for so long has given up; its next request is a new one."""

MAX_CURSOR_PEERS = 2048
"""Most peers whose cursors are remembered, each with up to 8 kB: four times as many as are connected."""

MAX_REQUEST_KEYS = 16_384
"""Most peers and addresses whose requests are remembered, each; 200 bytes an entry. Buckets are full again after
ENVELOPE_BURST_MINUTES at most. Beyond the bound, the longest silent are forgiven: who makes up as many node ids as that
has a new burst with each anyway, and the limits of its address."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of history requests (8/WAKU-MAIL) by peer, or by address; 0 is no limit.

    `requests_per_minute`: with a burst of REQUEST_BURST_MINUTES. To follow the cursor of one's own answer is no new
    request. `envelopes_per_minute`: delivered, with a burst of ENVELOPE_BURST_MINUTES; an answer counts as
    LEAST_PAGE_COST at least, and as what it has the store do (`Bill`). `concurrent`: requests that wait or are being
    answered.
    """

    requests_per_minute: int = 0
    envelopes_per_minute: int = 0
    concurrent: int = 0


PEER_REQUEST_LIMITS = RequestLimits(requests_per_minute=600, envelopes_per_minute=200_000, concurrent=16)
"""By peer. A deployed client that was away for a month asks for 30 windows of 24 h, each for 10 of its topics.
With 1,000 topics that is 3,000 requests, which is the burst: it may ask as fast as it likes. Their pages may hold
2,000,000 envelopes. It has 3 requests under way at once; 16 leave room for those that it has given up."""

ADDRESS_REQUEST_LIMITS = RequestLimits(requests_per_minute=6000, envelopes_per_minute=2_000_000, concurrent=640)
"""By address: ten such clients at the same time, or three thousand that were away for a day and have 100 topics. 640 at
once are more than 3 requests of each of the 200 connections that an address may have. Who makes up a new node id for
each connection has these limits all the same."""


class _Quotas:
    """What the requesters of one kind, peers or addresses, have used of their limits, by key."""

    def __init__(self, limits: RequestLimits) -> None:
        self._active: Counts[bytes] = Counts()  # bounded by what connections may have waiting
        self.change(limits)

    def change(self, limits: RequestLimits) -> None:
        self._max_active = limits.concurrent or math.inf
        self._requests = _per_minute(limits.requests_per_minute, REQUEST_BURST_MINUTES)
        self._envelopes = _per_minute(limits.envelopes_per_minute, ENVELOPE_BURST_MINUTES)

    def has_place(self, key: bytes) -> bool:
        return self._active.of(key) < self._max_active

    def enter(self, key: bytes) -> None:
        self._active.add(key)

    def leave(self, key: bytes) -> None:
        self._active.remove(key)

    def wait(self, key: bytes, now: float, *, is_new: bool) -> float:
        """Return the seconds until one more page may be asked for."""
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
    """The cursors that one peer was given last, and how often each may still be followed."""

    __slots__ = ("_given_at", "_left")

    def __init__(self, now: float) -> None:
        self._left: OrderedDict[Cursor, int] = OrderedDict()
        self._given_at = now

    def give(self, cursor: Cursor, now: float) -> None:
        self._given_at = now
        self._left[cursor] = MAX_FOLLOWED
        self._left.move_to_end(cursor)
        if len(self._left) > MAX_CURSORS:
            self._left.popitem(last=False)

    def has(self, cursor: Cursor) -> bool:
        return cursor in self._left

    def follow(self, cursor: Cursor) -> None:
        self._left[cursor] -= 1
        if not self._left[cursor]:
            del self._left[cursor]

    def are_old(self, now: float) -> bool:
        return now - self._given_at > CURSORS_KEPT_S


class RequestLimiter:
    """The history requests of all peers."""

    def __init__(
        self,
        peer: RequestLimits = PEER_REQUEST_LIMITS,
        address: RequestLimits = ADDRESS_REQUEST_LIMITS,
        allowed: Allowed = NOBODY_ALLOWED,
    ) -> None:
        self._peer_limits = peer
        self._address_limits = address
        self.allowed = allowed
        self.peers = _Quotas(peer)
        self.addresses = _Quotas(address)
        self.cursors: Entries[NodeId, _Cursors] = Entries(_Cursors, _Cursors.are_old, max_keys=MAX_CURSOR_PEERS)

    def change(self, peer: RequestLimits, address: RequestLimits, allowed: Allowed) -> None:
        """Put other limits in force, for requests that wait, too. Limits that change start with their whole burst."""
        if peer != self._peer_limits:
            self.peers.change(peer)
        if address != self._address_limits:
            self.addresses.change(address)
        self._peer_limits = peer
        self._address_limits = address
        self.allowed = allowed

    def requester(self, address: str, node_id: NodeId) -> "Requester":
        """Begin to count the requests of a connection of this peer."""
        return Requester(self, address, node_id)


class Requester:
    """One connection, as one that asks for history. Of each request, in this order: `enter`, `admit`, `bill` if it was
    admitted, `give` if its answer ends with a cursor, and `leave` in any case."""

    def __init__(self, limiter: RequestLimiter, address: str, node_id: NodeId) -> None:
        self._limiter = limiter
        self._address = address
        self._node_id = node_id
        self._quotas: tuple[tuple[_Quotas, bytes], ...] = (
            (limiter.peers, node_id),
            (limiter.addresses, groups_of(address).address),
        )

    def __str__(self) -> str:
        return f"{self._node_id.hex()[:8]}@{self._address}"

    @property
    def node_id(self) -> NodeId:
        """Who asks."""
        return self._node_id

    @property
    def address(self) -> bytes:
        """What it shares with all that ask from the same address."""
        return groups_of(self._address).address

    @property
    def is_allowed(self) -> bool:
        """Whether this peer is never limited."""
        allowed = self._limiter.allowed
        return allowed.has_peer(self._node_id) or allowed.has_address(self._address)

    def enter(self) -> bool:
        """Begin a request, which counts until `leave`; False if too many are under way: then it has not begun."""
        if not (all(quotas.has_place(key) for quotas, key in self._quotas) or self.is_allowed):
            return False
        for quotas, key in self._quotas:
            quotas.enter(key)
        return True

    def leave(self) -> None:
        """End a request.

        Raises:
            LocalProtocolError: none has begun.
        """
        for quotas, key in self._quotas:
            quotas.leave(key)

    def admit(self, cursor: Cursor | None, now: float) -> float:
        """Return 0.0 if a page may be looked up now, else the seconds until to come back; then nothing is taken.

        Args:
            cursor: of the request. Who follows one that it was given takes no request, but needs envelopes to be
                left. That holds for the last MAX_CURSORS, each MAX_FOLLOWED times, also after a reconnect.
        """
        if self.is_allowed:
            return 0.0
        cursors = self._limiter.cursors.find(self._node_id)
        followed = cursor if cursors is not None and cursor is not None and cursors.has(cursor) else None
        wait = max(quotas.wait(key, now, is_new=followed is None) for quotas, key in self._quotas)
        if wait:
            return wait
        if cursors is not None and followed is not None:
            cursors.follow(followed)
        else:
            for quotas, key in self._quotas:
                quotas.take_request(key, now)
        return 0.0

    def bill(self, now: float) -> "Bill":
        """Begin to take envelopes for an answer: as many as the least that it can cost, at once."""
        return Bill(self, now)

    def take(self, envelopes: float, now: float) -> None:
        """Take so many envelopes, into debt if need be; give them back where it is below 0."""
        if not self.is_allowed:
            for quotas, key in self._quotas:
                quotas.take_envelopes(key, envelopes, now)

    def give(self, cursor: Cursor, now: float) -> None:
        """Remember the cursor that an answer ends with."""
        if not self.is_allowed:
            self._limiter.cursors.of(self._node_id, now).give(cursor, now)


class Bill:
    """What one answer costs, taken from the limits of its requester while it is made, so whatever becomes of it: as
    many envelopes as are delivered, or as the store could have had delivered in the time that it takes, if these are
    more."""

    __slots__ = ("_envelopes", "_requester", "_taken", "_work")

    def __init__(self, requester: Requester, now: float) -> None:
        self._requester = requester
        self._envelopes = self._work = 0
        self._taken = 0.0
        self._take(now)

    def charge_envelopes(self, count: int, now: float) -> None:
        """So many are delivered."""
        self._envelopes += count
        self._take(now)

    def charge_work(self, work: int, now: float) -> None:
        """The store works so much; below 0, less than was said."""
        self._work += work
        self._take(now)

    def _take(self, now: float) -> None:
        cost = max(LEAST_PAGE_COST, self._envelopes, self._work / WORK_PER_ENVELOPE)
        if cost != self._taken:
            self._requester.take(cost - self._taken, now)
            self._taken = cost
