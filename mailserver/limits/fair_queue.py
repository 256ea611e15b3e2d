"""A queue with several sources that takes turns among them, so that none waits for all that the others have queued.

Worst-case fair weighted fair queueing (WF2Q+, Bennett and Zhang, 1997), all sources of the same weight: what would have
begun by now, were all of them served bit by bit, goes, and of that what would end first. So who comes now and then is
next, however long others' items are and however many they have queued, and whoever takes more than its part waits.
"""

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Item(NamedTuple, Generic[T]):
    """`due` is when it begins, by the clock of the queue, or, once that is so, when it ends."""

    due: float
    number: int
    cost: int
    source: Hashable
    value: T


@dataclass(slots=True)
class _Source:
    """How many items it has queued, and when the last of them, or the last that it had, ends."""

    items: int = 0
    end: float = 0.0


class FairQueue(Generic[T]):
    """The queue. Costs are in any unit: its clock is how much of it each source has been served."""

    def __init__(self) -> None:
        self._clock = 0.0
        self._begun: list[_Item[T]] = []  # a heap, by their ends
        self._later: list[_Item[T]] = []  # a heap, by their beginnings
        self._sources: dict[Hashable, _Source] = {}
        self._ends: list[tuple[float, int, Hashable]] = []  # a heap: until when who has nothing queued is remembered
        self._queuing = 0
        self._next_number = 0

    def __contains__(self, source: Hashable) -> bool:
        known = self._sources.get(source)
        return known is not None and known.items > 0

    def __len__(self) -> int:
        """How much is queued."""
        return len(self._begun) + len(self._later)

    def __iter__(self) -> Iterator[T]:
        """All that is queued, in no order."""
        return (item.value for item in (*self._begun, *self._later))

    @property
    def remembered(self) -> int:
        """How many sources are remembered: those that have something queued, and those that have had their part."""
        return len(self._sources)

    def add(self, source: Hashable, value: T, cost: int) -> None:
        """Queue something behind all that this source has queued."""
        known = self._sources.get(source)
        if known is None:
            known = self._sources[source] = _Source()
        start = max(self._clock, known.end)
        self._queuing += not known.items
        known.items += 1
        known.end = start + cost
        heapq.heappush(self._later, _Item(start, self._next_number, cost, source, value))
        self._next_number += 1

    def peek(self) -> T | None:
        """What `take` returns; None if nothing is queued."""
        self._begin()
        return self._begun[0].value if self._begun else None

    def take(self) -> T:
        """Take out what is next.

        Raises:
            IndexError: nothing is queued.
        """
        self._begin()
        item = heapq.heappop(self._begun)
        self._clock += item.cost / self._queuing
        known = self._sources[item.source]
        known.items -= 1
        if not known.items:
            self._queuing -= 1
            heapq.heappush(self._ends, (known.end, item.number, item.source))
        self._forget()
        return item.value

    def correct(self, source: Hashable, cost: int) -> None:
        """What was taken of this source has cost so much more than was said, or less if it is below 0.

        It counts for what the source queues from now on.
        """
        known = self._sources.get(source)
        if known is None:  # by what was said it has had no more than others
            if cost <= 0:
                return
            known = self._sources[source] = _Source(end=self._clock)
        known.end += cost
        if not known.items:
            heapq.heappush(self._ends, (known.end, self._next_number, source))
            self._next_number += 1
            self._forget()

    def clear(self) -> None:
        """Forget everything."""
        self._begun.clear()
        self._later.clear()
        self._queuing = 0
        self._forget()

    def _begin(self) -> None:
        if not self._begun and self._later:
            self._clock = max(self._clock, self._later[0].due)
        while self._later and self._later[0].due <= self._clock:
            item = heapq.heappop(self._later)
            heapq.heappush(self._begun, item._replace(due=item.due + item.cost))

    def _forget(self) -> None:
        """Forget who has nothing queued and has had no more than others; everybody, if nothing is queued at all."""
        if not self._queuing:
            self._clock = 0.0
            self._sources.clear()
            self._ends.clear()
        while self._ends and self._ends[0][0] <= self._clock:
            end, _, source = heapq.heappop(self._ends)
            known = self._sources.get(source)
            if known is not None and not known.items and known.end <= end:
                del self._sources[source]


class GroupedFairQueue(Generic[T]):
    """A queue that takes turns among groups, and within each among its members: a group gets no more by having more."""

    def __init__(self) -> None:
        self._groups: FairQueue[Hashable] = FairQueue()
        self._members: dict[Hashable, FairQueue[T]] = {}  # of the groups that have something queued

    def __len__(self) -> int:
        """How much is queued."""
        return len(self._groups)

    def add(self, group: Hashable, member: Hashable, value: T, cost: int) -> None:
        """Queue something behind all that this member has queued."""
        self._groups.add(group, group, cost)
        self._members.setdefault(group, FairQueue()).add(member, value, cost)

    def take(self) -> T:
        """Take out what is next.

        Raises:
            IndexError: nothing is queued.
        """
        group = self._groups.take()
        members = self._members[group]
        value = members.take()
        if not len(members):
            del self._members[group]
        return value

    def correct(self, group: Hashable, member: Hashable, cost: int) -> None:
        """What was taken of this member has cost so much more than was said, or less if it is below 0."""
        self._groups.correct(group, cost)
        if group in self._members:
            self._members[group].correct(member, cost)
