"""A queue of tasks that wait for a shared resource: a turn, or memory. Any of them may be cancelled meanwhile.

A waiting task can be cancelled before it is woken, or just as it is woken and has not run yet. In neither case does it
block those behind it, and what it was woken with is not lost.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from mailserver.limits.fair_queue import FairQueue

T = TypeVar("T")


class _Waiter(NamedTuple, Generic[T]):
    cost: int
    woken: "asyncio.Future[T]"


class WaitQueue(Generic[T]):
    """The queue. Its order is that of a `FairQueue`: fair between sources, first in first out within one source."""

    def __init__(self, on_cancelled: Callable[[T | None], None]) -> None:
        """Start empty.

        Args:
            on_cancelled: called when a waiting task was cancelled, with the value that it was woken with in the same
                moment, or None if it had not been woken.
        """
        self._on_cancelled = on_cancelled
        self._waiters: FairQueue[_Waiter[T]] = FairQueue()

    def __bool__(self) -> bool:
        """Whether any task waits."""
        return self.next_cost() is not None

    def next_cost(self) -> int | None:
        """The cost of the task that is next; None if none waits."""
        while (waiter := self._waiters.peek()) is not None:
            if not waiter.woken.done():
                return waiter.cost
            self._waiters.take()  # it was cancelled
        return None

    async def wait(self, source: Hashable, cost: int) -> T:
        """Wait until `wake_next` reaches this task; return the value given there.

        Args:
            source: for whom the task waits. A source that has cost much waits until the others have cost as much.
        """
        woken: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiters.add(source, _Waiter(cost, woken), cost)
        try:
            return await woken
        except asyncio.CancelledError:
            self._on_cancelled(woken.result() if woken.done() and not woken.cancelled() else None)
            raise

    def wake_next(self, value: T) -> bool:
        """Wake the task that is next, and give it this value; return whether any task waited."""
        if self.next_cost() is None:
            return False
        self._waiters.take().woken.set_result(value)
        return True
