"""Which live envelopes we have had, from whom, and whether they are stored: so that each is relayed and stored once."""

from collections import deque
from functools import lru_cache

from mailserver.waku.envelope import EnvelopeHash

MAX_SEEN = 131_072
"""Most envelopes that are remembered. Beyond it the one first seen is forgotten: the store knows it all the same, and
it would take as many unexpired envelopes in the network for one of them to go round twice."""

MAX_SENDERS = 16
"""Most connections of which one envelope remembers that they have it, so that it does not go back to them; at the
bound the first is forgotten. Hardly more neighbours send us the same before we relay it. MAX_SEEN of them, each sent
by 500 peers, would take half a gigabyte; by 16 each, 50 MB."""

MAX_ALONE = 1024
"""Most peers for which the tuple of them alone is kept, to be shared; 150 bytes an entry."""

_LOOKED_AT = 2  # for each new envelope: more go than come, so that it shrinks again after a burst


class Sighting:
    """What we know of one envelope. `peers` are numbers of connections that have it: it came from them."""

    __slots__ = ("expiry", "is_stored", "peers")

    def __init__(self, expiry: int = 0) -> None:
        self.expiry = expiry
        self.is_stored = False
        self.peers: tuple[int, ...] = ()

    def add_peer(self, number: int) -> None:
        """Note that a peer has it; beyond MAX_SENDERS, who sent it first is forgotten."""
        if not self.peers:
            self.peers = _alone(number)
        elif number not in self.peers:
            self.peers = (*self.peers[-MAX_SENDERS + 1 :], number)


@lru_cache(MAX_ALONE)
def _alone(number: int) -> tuple[int, ...]:
    """One tuple for all that one peer alone has sent, as is usual: 5 MB of a hundred thousand."""
    return (number,)


class Seen:
    """The live envelopes that we have had, until they expire."""

    def __init__(self, *, max_seen: int = MAX_SEEN) -> None:
        self._max_seen = max_seen
        self._sightings: dict[EnvelopeHash, Sighting] = {}
        self._order: deque[EnvelopeHash] = deque()  # the one first seen first; with it a third of an OrderedDict

    def __len__(self) -> int:
        return len(self._sightings)

    def get(self, envelope_hash: EnvelopeHash) -> Sighting | None:
        """What we know of an envelope; None if it is new."""
        return self._sightings.get(envelope_hash)

    def add(self, envelope_hash: EnvelopeHash, expiry: int, now: float) -> Sighting:
        """Remember a new envelope until its expiry (Unix seconds); forget from the front what has expired.

        Whoever judges envelopes takes them up to the end of the second in which they expire.
        """
        for _ in range(min(_LOOKED_AT, len(self._order))):
            oldest = self._order[0]
            if len(self._sightings) < self._max_seen and self._sightings[oldest].expiry >= int(now):
                break
            del self._sightings[self._order.popleft()]
        sighting = self._sightings[envelope_hash] = Sighting(expiry)
        self._order.append(envelope_hash)
        return sighting
