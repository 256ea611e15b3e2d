"""Whose bytes are taken next, so that clients that cause much work do not delay the others.

A megabyte of the shortest frames takes a second. Hundreds of clients may send that at once, each of them within its own
limits. So beyond MAX_ITERATION_S in one iteration of the event loop, what has come waits for a later one; whoever has
caused least work goes first. Nobody has more than one piece waiting: reading from its socket is paused meanwhile.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable

MAX_ITERATION_S = 0.01
"""How long the work of one iteration of the loop may take. The last piece may take longer."""

SECONDS_PER_BYTE = 1e-6
"""What a byte may cost that nobody has looked at."""

FORGIVEN_PER_SECOND = 0.01
"""How much work, in seconds, of a client is forgotten each second: what it may cause in the long run."""


class GatewayTurns:
    """The pieces that wait. `clock` returns seconds, also amidst an iteration of the loop."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []  # a heap, the cheapest first
        self._began: float | None = None

    def may_go(self, now: float) -> bool:
        """Whether there is time for more in this iteration. While others wait, there is none: they have used it up."""
        if self._began is None:
            self._began = now
            asyncio.get_running_loop().call_soon(self._next)
        return now - self._began < MAX_ITERATION_S

    def wait(self, cost: float, work: Callable[[], None]) -> None:
        """Do this work in a later iteration."""
        heapq.heappush(self._waiting, (cost, next(self._numbers), work))

    def _next(self) -> None:
        self._began = self.clock()
        try:
            while self._waiting:
                heapq.heappop(self._waiting)[2]()
                if self.clock() - self._began >= MAX_ITERATION_S:
                    break
        finally:  # whatever became of one piece, the others go on
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)
            else:
                self._began = None


class Turn:
    """The work of one client."""

    __slots__ = ("_at", "_spent", "_turns")

    def __init__(self, turns: GatewayTurns) -> None:
        self._turns = turns
        self._spent = 0.0
        self._at = turns.clock()

    def do(self, work: Callable[[], None], size: int) -> bool:
        """Do this work now, or in a later iteration; return whether it is done.

        Args:
            size: how many bytes it is about.
        """
        now = self._turns.clock()
        if self._turns.may_go(now):
            self._do(work)
            return True
        spent = max(0.0, self._spent - (now - self._at) * FORGIVEN_PER_SECOND)
        self._turns.wait(spent + size * SECONDS_PER_BYTE, lambda: self._do(work))
        return False

    def _do(self, work: Callable[[], None]) -> None:
        began = self._turns.clock()
        work()
        now = self._turns.clock()
        self._spent = max(0.0, self._spent - (now - self._at) * FORGIVEN_PER_SECOND) + now - began
        self._at = now
