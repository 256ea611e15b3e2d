"""When trusted mailservers were out of reach while we ran. What was created in that time must be asked for.

A mailserver that is connected relays to us whatever it takes. What it takes while it is not connected, or while the
connection is stalled, has expired by the time it is back, and nobody would send it: it must be fetched. This is pure
bookkeeping, without the network: the caller looks at the connections every second. Times named `wall` are Unix seconds,
those named `now` are monotonic.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mailserver.catchup.ranges import LATE_S
from mailserver.codec.keys import NodeId

BACK_INTERVAL_S = 60.0
"""A mailserver that comes back, or sends expired envelopes, is asked at most this often: its line may flap."""

AWAY_INTERVAL_S = 300.0
"""How often a mailserver that stays away is asked: it may still answer requests. This is less than LATE_S: if a kill
makes us forget an outage, the next start asks for it."""

STILL_S = 20.0
"""A connection that brings nothing for so long is stalled: each side pings every 15 s. Some of what was to be sent over
it may have expired first."""

AT_ONCE_S = 10.0
"""A peer that connects for the first time within this time after the start is not asked. What was created since the
start has not expired, as deployed clients send with a ttl of 10 s or more: the peer relays it over that connection."""


class Contact(NamedTuple):
    """A live connection. `number`: no two have the same; `silent_s`: for how long nothing has come over it; `late`: how
    many expired envelopes have come over it."""

    number: int
    silent_s: float
    late: int


class Contacts(NamedTuple):
    """All live connections. `sources`: those to mailservers that may be asked; `silent_s`: for how long nothing has
    come over any connection, None if there is none."""

    sources: Mapping[NodeId, Contact]
    silent_s: float | None


class Outage:
    """What we may have missed from one mailserver."""

    def __init__(self, wall: float, now: float, *, asks_while_away: bool = True) -> None:
        """Begin to look now. What it took earlier is asked for at the start, by `Catchup.add_missed`.

        Args:
            asks_while_away: whether it is asked even while it is out of reach.
        """
        self._asks_while_away = asks_while_away
        self._began = now
        self._heard = wall
        self._since: float | None = None
        self._number: int | None = None
        self._late = 0
        self._lost_at: float | None = None
        self._asked_at = -BACK_INTERVAL_S

    def look(self, contact: Contact | None, wall: float, now: float) -> int | None:
        """Look at its connection, None if there is none. If it is time to ask it, return from when on."""
        if contact is not None:
            self._look_at(contact, wall, now)
        elif self._number is not None:
            self._since = self._heard if self._since is None else self._since
            self._number, self._lost_at = None, now
        if self._since is None or now < self._due_at(contact):
            return None
        since = max(int(self._since) - LATE_S, 0)
        self._asked_at = now
        self._since = wall if contact is None else None
        return since

    def _look_at(self, contact: Contact, wall: float, now: float) -> None:
        if contact.number != self._number:
            is_first = self._number is None and self._lost_at is None
            if self._since is None and not (is_first and now < self._began + AT_ONCE_S):
                self._since = self._heard
            self._number, self._late = contact.number, 0
        self._heard = wall - contact.silent_s
        if self._since is None and contact.silent_s >= STILL_S:
            self._since = self._heard
        if contact.late > self._late:
            self._late = contact.late
            self._since = wall if self._since is None else self._since

    def _due_at(self, contact: Contact | None) -> float:
        if contact is not None:
            return self._asked_at + BACK_INTERVAL_S if contact.silent_s < STILL_S else math.inf
        if not self._asks_while_away or self._lost_at is None:
            return math.inf
        return max(self._asked_at, self._lost_at) + AWAY_INTERVAL_S


class Outages:
    """The outages of all sources. If no peer at all was connected, all sources are asked for that time."""

    def __init__(self, wall: float, now: float) -> None:
        """Begin to look now."""
        self._everybody = Outage(wall, now, asks_while_away=False)
        self._sources: dict[NodeId, Outage] = {}

    def look(self, contacts: Contacts, sources: Iterable[NodeId], wall: float, now: float) -> dict[NodeId, int]:
        """Look at all connections; return which sources to ask, and from when on."""
        anybody = None if contacts.silent_s is None else Contact(0, contacts.silent_s, 0)
        since_all = self._everybody.look(anybody, wall, now)
        due: dict[NodeId, int] = {}
        known, self._sources = self._sources, {}
        for source in sources:
            outage = known.get(source) or Outage(wall, now)
            self._sources[source] = outage
            since = outage.look(contacts.sources.get(source), wall, now)
            both = [bound for bound in (since, since_all) if bound is not None]
            if both:
                due[source] = min(both)
        return due
