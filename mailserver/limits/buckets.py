"""Token buckets, and what is kept by key: the arithmetic of every limit. Times are monotonic seconds, arguments.

Who is limited by what is decided where the buckets are used: connections in `limits.admission`, packets in
`limits.packet_rates`, history requests in `limits.request_quotas`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Generic, TypeVar

from mailserver.errors import LocalProtocolError

LEAST_WAIT_S = 1e-6
"""A shorter wait is none. Levels and times are floats: whoever comes back after exactly the wait that it was told would
otherwise be sent away again. A clock that has run for a hundred years can still tell half of it."""

_LOOKED_AT = 4  # entries, the longest unused, for each new key: more go than come, and a new key still costs little

K = TypeVar("K")
E = TypeVar("E")


class TokenBucket:
    """Gains `rate` tokens a second up to `capacity`; starts full. Both are above 0."""

    __slots__ = ("_at", "_capacity", "_level", "_rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self._rate = rate
        self._capacity = capacity
        self._level = capacity
        self._at = now

    def take(self, cost: float, now: float) -> float:
        """Take tokens, into debt if need be; return the seconds until it is out of debt, 0.0 if it is in none."""
        level = self._level + (now - self._at) * self._rate
        if level > self._capacity:  # noqa: PLR1730 - this is done for every packet, and a call takes longer
            level = self._capacity
        self._level = level = level - cost
        self._at = now
        return 0.0 if level >= 0.0 else self._time_for(-level)

    def wait(self, cost: float, now: float) -> float:
        """Return the seconds until so many tokens are there, all of `capacity` if that is less; 0.0 if they are."""
        lacking = min(cost, self._capacity) - self._level - (now - self._at) * self._rate
        return 0.0 if lacking <= 0.0 else self._time_for(lacking)

    def level(self, now: float) -> float:
        """How many tokens there are; below 0 if it is in debt."""
        return min(self._level + (now - self._at) * self._rate, self._capacity)

    def is_full(self, now: float) -> bool:
        """Whether it is no different from a new one."""
        return self.wait(self._capacity, now) == 0.0

    def _time_for(self, tokens: float) -> float:
        seconds = tokens / self._rate
        return seconds if seconds >= LEAST_WAIT_S else 0.0


class Entries(Generic[K, E]):
    """An entry per key, made when first asked for; at most `max_keys`, so that strangers cannot fill our memory.

    A new key makes room: of the longest unused entries, those go that have become spare, and at the bound the
    longest unused one, spare or not.

    Args:
        make: makes an entry; takes the time.
        is_spare: whether an entry is as good as a new one at a time, so that nothing is lost with it.
    """

    def __init__(self, make: Callable[[float], E], is_spare: Callable[[E, float], bool], *, max_keys: int) -> None:
        self._make = make
        self._is_spare = is_spare
        self._max_keys = max_keys
        self._entries: OrderedDict[K, E] = OrderedDict()  # longest unused first

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, key: K, now: float) -> E:
        """The entry of a key, a new one if there is none; it is now the last used.

        Change it before asking for another, and do not keep it: while it is spare, the next new key may end it.
        """
        entry = self._entries.get(key)
        if entry is None:
            self._make_room(now)
            entry = self._entries[key] = self._make(now)
        else:
            self._entries.move_to_end(key)
        return entry

    def find(self, key: K) -> E | None:
        """The entry of a key, or None. To look is not to use."""
        return self._entries.get(key)

    def _make_room(self, now: float) -> None:
        oldest = list(islice(self._entries.items(), _LOOKED_AT))
        for key, entry in oldest:
            if self._is_spare(entry, now):
                del self._entries[key]
        if len(self._entries) >= self._max_keys:
            self._entries.popitem(last=False)


class Buckets(Entries[K, TokenBucket]):
    """A token bucket per key, all of one rate and capacity. Full ones are spare.

    Keyed by who it is, and not by connection: whoever reconnects finds its debts again.
    """

    def __init__(self, rate: float, capacity: float, *, max_keys: int) -> None:
        super().__init__(lambda now: TokenBucket(rate, capacity, now), TokenBucket.is_full, max_keys=max_keys)


def take_all(key: K, costs: Iterable[tuple[Buckets[K] | None, float]], now: float) -> bool:
    """Take from the key's bucket of each kind, or, if one has too little, from none; return whether it was taken.

    Args:
        costs: the buckets of each kind, None where there is no limit, and how many tokens to take there.
    """
    taken = [(buckets.of(key, now), cost) for buckets, cost in costs if buckets is not None]
    if any(bucket.wait(cost, now) for bucket, cost in taken):
        return False
    for bucket, cost in taken:
        bucket.take(cost, now)
    return True


class Counts(Generic[K]):
    """How many there are of each key right now. A key of which there are none takes no memory."""

    def __init__(self) -> None:
        self._counts: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def of(self, key: K) -> int:
        """How many there are."""
        return self._counts.get(key, 0)

    def add(self, key: K) -> None:
        """One more."""
        self._counts[key] = self.of(key) + 1

    def remove(self, key: K) -> None:
        """One less.

        Raises:
            LocalProtocolError: there was none.
        """
        count = self._counts.pop(key, 0)
        if count == 0:
            raise LocalProtocolError("removed what was never added")
        if count > 1:
            self._counts[key] = count - 1
