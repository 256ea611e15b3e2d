"""A line of those who wait for something that is handed on to them: a turn, or memory. Any of them may be gone.

Whoever waits is gone when its task is cancelled: before it is handed something, or at the same moment and without
knowing it yet. Neither keeps those behind it waiting, nor loses what was handed on.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from mailserver.limits.fair_queue import FairQueue

T = TypeVar("T")


class _Place(NamedTuple, Generic[T]):
    cost: int
    handed: "asyncio.Future[T]"


class WaitingLine(Generic[T]):
    """The line. Who waits take turns by what they cost, as in a `FairQueue`; those of one name keep their order."""

    def __init__(self, on_gone: Callable[[T | None], None]) -> None:
        """Have nobody waiting.

        Args:
            on_gone: told when somebody who waited is gone: what it was handed at the same moment, or None.
        """
        self._on_gone = on_gone
        self._places: FairQueue[_Place[T]] = FairQueue()

    def __bool__(self) -> bool:
        """Whether somebody waits."""
        return self.next_cost() is not None

    def next_cost(self) -> int | None:
        """What is next costs so much; None if nobody waits."""
        while (place := self._places.peek()) is not None:
            if not place.handed.done():
                return place.cost
            self._places.take()  # whoever waited here is gone
        return None

    async def wait(self, who: Hashable, cost: int) -> T:
        """Wait until something is handed on to us.

        Args:
            who: whoever has had much waits until the others have had as much.
        """
        handed: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._places.add(who, _Place(cost, handed), cost)
        try:
            return await handed
        except asyncio.CancelledError:
            self._on_gone(handed.result() if handed.done() and not handed.cancelled() else None)
            raise

    def hand_on(self, value: T) -> bool:
        """Hand something to whoever is next; return whether somebody waited for it."""
        if self.next_cost() is None:
            return False
        self._places.take().handed.set_result(value)
        return True
