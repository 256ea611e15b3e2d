"""A queue with several sources that takes turns among them, so that none waits for all that the others have queued.

Deficit round robin (Shreedhar and Varghese, 1995): in each round every source is credited the same, and what it has
queued goes, in its order, as far as its credit reaches. Who had nothing queued begins ahead of the round, as in
RFC 8290: what comes now and then goes at once, however many others always have something waiting.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Item(NamedTuple, Generic[T]):
    value: T
    cost: int


class _Source(Generic[T]):
    """What one source has queued, and its credit."""

    __slots__ = ("credit", "items", "key")

    def __init__(self, key: Hashable, credit: int) -> None:
        self.key = key
        self.credit = credit
        self.items: deque[_Item[T]] = deque()


class FairQueue(Generic[T]):
    """The queue. `per_turn` is what a source is credited at its turn, in the unit of the items' costs."""

    def __init__(self, per_turn: int) -> None:
        self._per_turn = per_turn
        self._sources: dict[Hashable, _Source[T]] = {}
        self._new: deque[_Source[T]] = deque()
        self._round: deque[_Source[T]] = deque()

    def __contains__(self, key: Hashable) -> bool:
        source = self._sources.get(key)
        return source is not None and bool(source.items)

    def __len__(self) -> int:
        """How many sources are remembered: those that have something queued, and some that had until now."""
        return len(self._sources)

    def __iter__(self) -> Iterator[T]:
        """All that is queued, source by source."""
        return (item.value for source in self._sources.values() for item in source.items)

    def add(self, key: Hashable, value: T, cost: int) -> None:
        """Queue something behind all that this source has queued."""
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _Source(key, self._per_turn)
            self._new.append(source)
        source.items.append(_Item(value, cost))

    def peek(self) -> T | None:
        """Whose turn it is: what `take` returns; None if nothing is queued."""
        while turns := self._new or self._round:
            source = turns[0]
            if source.items and source.credit >= source.items[0].cost:
                return source.items[0].value
            turns.popleft()
            if source.items:
                source.credit += self._per_turn
                self._round.append(source)
            elif turns is self._new:  # else whoever always has one thing waiting would always be ahead of the round
                self._round.append(source)
            else:
                del self._sources[source.key]
        return None

    def take(self) -> T:
        """Take out what is next.

        Raises:
            IndexError: nothing is queued.
        """
        if self.peek() is None:
            raise IndexError("nothing is queued")
        source = (self._new or self._round)[0]
        value, cost = source.items.popleft()
        source.credit -= cost
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._sources.clear()
        self._new.clear()
        self._round.clear()
