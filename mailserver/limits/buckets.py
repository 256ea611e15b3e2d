"""Token buckets, and bounded maps to keep them in: the arithmetic of every limit. Times are monotonic seconds, given
as arguments.

What is limited is decided by the users of this module: connections in `limits.admission`, packets in
`limits.packet_rates`, history requests in `limits.request_quotas`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Generic, TypeVar

from mailserver.errors import LocalProtocolError

MIN_WAIT_S = 1e-6
"""A shorter wait counts as none. Levels and times are floats, so a caller that waits exactly as long as it was told
could otherwise be told to wait again. Even after a hundred years, the clock can tell half of this."""

_CHECKED_ENTRIES = 4
"""How many of the least recently used entries are checked for each new key. As that is more than one, the map shrinks
again after a burst; as it is few, a new key costs little."""

K = TypeVar("K")
E = TypeVar("E")


class TokenBucket:
    """A token bucket. It starts full, and gains `rate` tokens a second up to `capacity`. Both are above 0."""

    __slots__ = ("_at", "_capacity", "_level", "_rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self._rate = rate
        self._capacity = capacity
        self._level = capacity
        self._at = now

    def take(self, cost: float, now: float) -> float:
        """Take tokens, even below 0; return the seconds until the level is 0 again, 0.0 if it is not below 0."""
        level = self._level + (now - self._at) * self._rate
        if level > self._capacity:  # noqa: PLR1730 - this runs for every packet, and calling min() takes longer
            level = self._capacity
        self._level = level = level - cost
        self._at = now
        return 0.0 if level >= 0.0 else self._time_for(-level)

    def wait(self, cost: float, now: float) -> float:
        """Return the seconds until `cost` tokens are there, or `capacity` if that is less; 0.0 if they are."""
        lacking = min(cost, self._capacity) - self._level - (now - self._at) * self._rate
        return 0.0 if lacking <= 0.0 else self._time_for(lacking)

    def level(self, now: float) -> float:
        """How many tokens there are. Below 0, more were taken than there were."""
        return min(self._level + (now - self._at) * self._rate, self._capacity)

    def is_full(self, now: float) -> bool:
        """Whether the bucket is like a new one."""
        return self.wait(self._capacity, now) == 0.0

    def _time_for(self, tokens: float) -> float:
        seconds = tokens / self._rate
        return seconds if seconds >= MIN_WAIT_S else 0.0


class LruMap(Generic[K, E]):
    """A map with at most `max_keys` entries, so that strangers cannot fill our memory. Entries are made on first use.

    For each new key, some of the least recently used entries are checked, and those that are like new are evicted. If
    the map is full, the least recently used entry is evicted in any case.

    Args:
        make: makes an entry, given the time.
        is_like_new: whether an entry is like a new one at a given time, so that evicting it loses nothing.
    """

    def __init__(self, make: Callable[[float], E], is_like_new: Callable[[E, float], bool], *, max_keys: int) -> None:
        self._make = make
        self._is_like_new = is_like_new
        self._max_keys = max_keys
        self._entries: OrderedDict[K, E] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, key: K, now: float) -> E:
        """The entry of a key, made if there is none. It becomes the most recently used.

        Change it before you ask for another, and do not keep it: while it is like new, the next new key may evict it.
        """
        entry = self._entries.get(key)
        if entry is None:
            self._make_room(now)
            entry = self._entries[key] = self._make(now)
        else:
            self._entries.move_to_end(key)
        return entry

    def find(self, key: K) -> E | None:
        """The entry of a key, or None. This does not count as use."""
        return self._entries.get(key)

    def _make_room(self, now: float) -> None:
        oldest = list(islice(self._entries.items(), _CHECKED_ENTRIES))
        for key, entry in oldest:
            if self._is_like_new(entry, now):
                del self._entries[key]
        if len(self._entries) >= self._max_keys:
            self._entries.popitem(last=False)


class Buckets(LruMap[K, TokenBucket]):
    """A token bucket per key, all with the same rate and capacity.

    Keys are addresses, node ids or topics, never connections: a peer that reconnects finds its bucket as it left it.
    """

    def __init__(self, rate: float, capacity: float, *, max_keys: int) -> None:
        super().__init__(lambda now: TokenBucket(rate, capacity, now), TokenBucket.is_full, max_keys=max_keys)


def take_all(key: K, costs: Iterable[tuple[Buckets[K] | None, float]], now: float) -> bool:
    """Take tokens from several buckets of one key, or, if one has too few, from none; return whether they were taken.

    Args:
        costs: buckets, None where there is no limit, and how many tokens to take from the key's bucket there.
    """
    taken = [(buckets.of(key, now), cost) for buckets, cost in costs if buckets is not None]
    if any(bucket.wait(cost, now) for bucket, cost in taken):
        return False
    for bucket, cost in taken:
        bucket.take(cost, now)
    return True


class Counts(Generic[K]):
    """A count per key. A key whose count is 0 takes no memory."""

    def __init__(self) -> None:
        self._counts: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def of(self, key: K) -> int:
        """The count of a key."""
        return self._counts.get(key, 0)

    def add(self, key: K) -> None:
        """Add 1 to the count of a key."""
        self._counts[key] = self.of(key) + 1

    def remove(self, key: K) -> None:
        """Subtract 1 from the count of a key.

        Raises:
            LocalProtocolError: it is 0.
        """
        count = self._counts.pop(key, 0)
        if count == 0:
            raise LocalProtocolError("removed what was never added")
        if count > 1:
            self._counts[key] = count - 1
