"""A fair queue: several sources add items, and `take` serves the sources by turns.

The algorithm is worst-case fair weighted fair queueing (WF2Q+, Bennett and Zhang, 1997) with equal weights. Imagine
that all sources were served at the same time, each at the same rate. Of the items that would have started by now,
`take` returns the one that would finish first. So an item of a source that is rarely here is taken next, however many
and however long the items of others are. A source that has been served more than its share waits.
"""

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Item(NamedTuple, Generic[T]):
    """`due`, by the clock of the queue: when the item would start, and once it has started, when it would finish."""

    due: float
    number: int
    cost: int
    source: Hashable
    value: T


@dataclass(slots=True)
class _Source:
    """How many items of a source are queued, and when its last item would finish, or would have finished."""

    items: int = 0
    finish: float = 0.0


class FairQueue(Generic[T]):
    """The queue. Costs may be in any unit. Its clock counts the cost for which each busy source has been served."""

    def __init__(self) -> None:
        self._clock = 0.0
        self._started: list[_Item[T]] = []  # a heap, by finish
        self._later: list[_Item[T]] = []  # a heap, by start
        self._sources: dict[Hashable, _Source] = {}
        self._idle: list[tuple[float, int, Hashable]] = []  # a heap: until when a source without items is remembered
        self._busy = 0  # how many sources have items
        self._next_number = 0

    def __contains__(self, source: Hashable) -> bool:
        known = self._sources.get(source)
        return known is not None and known.items > 0

    def __len__(self) -> int:
        """How many items are queued."""
        return len(self._started) + len(self._later)

    def __iter__(self) -> Iterator[T]:
        """All items that are queued, in no order."""
        return (item.value for item in (*self._started, *self._later))

    @property
    def remembered(self) -> int:
        """How many sources are remembered: those with items, and those that were served more than others."""
        return len(self._sources)

    def add(self, source: Hashable, value: T, cost: int) -> None:
        """Add an item behind all other items of this source."""
        known = self._sources.get(source)
        if known is None:
            known = self._sources[source] = _Source()
        start = max(self._clock, known.finish)
        self._busy += not known.items
        known.items += 1
        known.finish = start + cost
        heapq.heappush(self._later, _Item(start, self._next_number, cost, source, value))
        self._next_number += 1

    def peek(self) -> T | None:
        """The item that `take` would return; None if the queue is empty."""
        self._start_due()
        return self._started[0].value if self._started else None

    def take(self) -> T:
        """Remove and return the next item.

        Raises:
            IndexError: the queue is empty.
        """
        self._start_due()
        item = heapq.heappop(self._started)
        self._clock += item.cost / self._busy
        known = self._sources[item.source]
        known.items -= 1
        if not known.items:
            self._busy -= 1
            heapq.heappush(self._idle, (known.finish, item.number, item.source))
        self._forget()
        return item.value

    def correct(self, source: Hashable, cost: int) -> None:
        """Correct the cost of what was taken of this source: it was more by `cost`, or less if that is below 0.

        It counts for what the source adds from now on.
        """
        known = self._sources.get(source)
        if known is None:  # it is not ahead of others
            if cost <= 0:
                return
            known = self._sources[source] = _Source(finish=self._clock)
        known.finish += cost
        if not known.items:
            heapq.heappush(self._idle, (known.finish, self._next_number, source))
            self._next_number += 1
            self._forget()

    def clear(self) -> None:
        """Remove all items, and forget all sources."""
        self._started.clear()
        self._later.clear()
        self._busy = 0
        self._forget()

    def _start_due(self) -> None:
        if not self._started and self._later:
            self._clock = max(self._clock, self._later[0].due)
        while self._later and self._later[0].due <= self._clock:
            item = heapq.heappop(self._later)
            heapq.heappush(self._started, item._replace(due=item.due + item.cost))

    def _forget(self) -> None:
        """Forget sources that have no items and are not ahead of others; all of them, if the queue is empty."""
        if not self._busy:
            self._clock = 0.0
            self._sources.clear()
            self._idle.clear()
        while self._idle and self._idle[0][0] <= self._clock:
            finish, _, source = heapq.heappop(self._idle)
            known = self._sources.get(source)
            if known is not None and not known.items and known.finish <= finish:
                del self._sources[source]


class GroupedFairQueue(Generic[T]):
    """A fair queue of groups, and within each group of its members: a group gains nothing by having more members."""

    def __init__(self) -> None:
        self._groups: FairQueue[Hashable] = FairQueue()
        self._members: dict[Hashable, FairQueue[T]] = {}  # of groups that have items

    def __len__(self) -> int:
        """How many items are queued."""
        return len(self._groups)

    def add(self, group: Hashable, member: Hashable, value: T, cost: int) -> None:
        """Add an item behind all other items of this member."""
        self._groups.add(group, group, cost)
        self._members.setdefault(group, FairQueue()).add(member, value, cost)

    def take(self) -> T:
        """Remove and return the next item.

        Raises:
            IndexError: the queue is empty.
        """
        group = self._groups.take()
        members = self._members[group]
        value = members.take()
        if not len(members):
            del self._members[group]
        return value

    def correct(self, group: Hashable, member: Hashable, cost: int) -> None:
        """Correct the cost of what was taken of this member: it was more by `cost`, or less if that is below 0."""
        self._groups.correct(group, cost)
        if group in self._members:
            self._members[group].correct(member, cost)
