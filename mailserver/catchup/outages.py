"""When trusted mailservers were out of reach while we ran: what was created meanwhile is asked for.

A mailserver that is connected relays to us whatever it takes. What it takes while it is not, or while the line stands
still, has expired when it is back, and nobody would send it: it must be fetched. Pure bookkeeping, without the network:
somebody looks at the connections every second. Times of the wall are Unix seconds, those of the loop monotonic.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mailserver.catchup.ranges import LATE_S
from mailserver.codec.keys import NodeId

BACK_INTERVAL_S = 60.0
"""How often at most one is asked that comes back, or sends what has expired: its line may go on and off for hours."""

AWAY_INTERVAL_S = 300.0
"""How often one is asked that stays away: it may answer requests all the same. Less than LATE_S: what a kill makes us
forget of an outage, the next start asks for."""

STILL_S = 20.0
"""A line by which nothing has come for so long stood still: either side pings every 15 s. Of what it was to carry, some
may have expired before it was sent."""

AT_ONCE_S = 10.0
"""A peer that is first connected within this time of the start is not asked. What was created since has not expired, as
deployed clients send with a ttl of 10 s or more: the peer relays it by that connection."""


class Contact(NamedTuple):
    """A live connection. `number`: none is used twice; `silent_s`: since when nothing has come by it; `late`: how many
    envelopes have come by it that had expired."""

    number: int
    silent_s: float
    late: int


class Contacts(NamedTuple):
    """All live connections. `sources`: those to mailservers that may be asked; `silent_s`: since when nothing has come
    by any connection, None if there is none."""

    sources: Mapping[NodeId, Contact]
    silent_s: float | None


class Outage:
    """What we may have missed of one mailserver."""

    def __init__(self, wall: float, now: float, *, asks_while_away: bool = True) -> None:
        """Begin to look, now. What it received before is asked for at the start, by `Catchup.add_missed`.

        Args:
            asks_while_away: whether it is asked also while it is out of reach.
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
        """Take its connection, None if there is none; return since when it is to be asked, if it is time for that."""
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
    """The same for all sources, and for the time in which nobody at all was connected: then all are asked."""

    def __init__(self, wall: float, now: float) -> None:
        """Begin to look, now."""
        self._everybody = Outage(wall, now, asks_while_away=False)
        self._sources: dict[NodeId, Outage] = {}

    def look(self, contacts: Contacts, sources: Iterable[NodeId], wall: float, now: float) -> dict[NodeId, int]:
        """Take all connections; return which of the sources are to be asked, and since when."""
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
