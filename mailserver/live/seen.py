"""Which live envelopes we have seen, from which peers, and whether they are stored: each is relayed and stored once."""

from collections import deque
from functools import lru_cache

from mailserver.waku.envelope import EnvelopeHash

MAX_SEEN = 131_072
"""Most envelopes that are remembered. Beyond this, the one seen first is forgotten. The store still knows it. An
envelope can be relayed twice only if the network has more unexpired envelopes than this."""

MAX_SENDERS = 16
"""Most connections per envelope that are remembered as its senders, so that it is not sent back to them. Beyond this,
the first is forgotten. Hardly ever do more peers send us the same envelope before we relay it. If MAX_SEEN envelopes
had 500 senders each, these would take half a gigabyte; with 16 each, they take 50 MB."""

MAX_ALONE = 1024
"""Most peers for which a tuple with that peer alone is kept for sharing; 150 bytes per entry."""

_CHECKED = 2  # old envelopes per new one; as that is more than one, memory shrinks again after a burst


class Sighting:
    """What we know of one envelope. `peers`: the numbers of the connections that it came from. `stored_in`: the store's
    generation (`store.interface.Store`) in which it was stored; None if it was not."""

    __slots__ = ("expiry", "peers", "stored_in")

    def __init__(self, expiry: int = 0) -> None:
        self.expiry = expiry
        self.peers: tuple[int, ...] = ()
        self.stored_in: int | None = None

    def add_peer(self, number: int) -> None:
        """Note that a peer has it. Beyond MAX_SENDERS, the first sender is forgotten."""
        if not self.peers:
            self.peers = _alone(number)
        elif number not in self.peers:
            self.peers = (*self.peers[-MAX_SENDERS + 1 :], number)


@lru_cache(MAX_ALONE)
def _alone(number: int) -> tuple[int, ...]:
    """One tuple that is shared by all envelopes which only this peer has sent, as is usual. For 100,000 it saves 5
    MB."""
    return (number,)


class Seen:
    """The live envelopes that we have seen, until they expire."""

    def __init__(self, *, max_seen: int = MAX_SEEN) -> None:
        self._max_seen = max_seen
        self._sightings: dict[EnvelopeHash, Sighting] = {}
        self._order: deque[EnvelopeHash] = deque()  # first seen first; takes a third of the memory of an OrderedDict

    def __len__(self) -> int:
        return len(self._sightings)

    def get(self, envelope_hash: EnvelopeHash) -> Sighting | None:
        """What we know of an envelope; None if it is new."""
        return self._sightings.get(envelope_hash)

    def add(self, envelope_hash: EnvelopeHash, expiry: int, now: float) -> Sighting:
        """Remember a new envelope until its expiry (Unix seconds); forget the oldest that have expired.

        An envelope is remembered until the end of the second in which it expires, as it is accepted until then.
        """
        for _ in range(min(_CHECKED, len(self._order))):
            oldest = self._order[0]
            if len(self._sightings) < self._max_seen and self._sightings[oldest].expiry >= int(now):
                break
            del self._sightings[self._order.popleft()]
        sighting = self._sightings[envelope_hash] = Sighting(expiry)
        self._order.append(envelope_hash)
        return sighting
