"""Shares the event loop's time between connections, so that a peer that causes much work does not delay the others.

The work is, above all, opening and sealing frames. A frame takes about 50 us however short it is. Without this, many
peers, each within its rate limits, could have us open their frames for seconds before an honest peer's turn comes.
"""

import asyncio
import math
import time
from collections.abc import Hashable

from mailserver.limits.wait_queue import WaitQueue

FRAMES_AT_ONCE = 8
"""How many frames of one peer are opened before others have their turn: less than a millisecond."""

FREE_FRAMES = 8
HANDSHAKE_FRAMES = 10
"""A peer that sends fewer than FREE_FRAMES per INTERVAL_S never waits for a turn to have them opened. A handshake takes
as long as HANDSHAKE_FRAMES, so it always waits: hundreds of handshakes at once would delay all other peers."""

INTERVAL_S = 1.0
"""A connection's budget is full again after this time. A client sends a few requests a second."""

MAX_ITERATION_S = 0.01
"""For how long work without a turn may go on within one iteration of the event loop. 500 peers that all send something
at the same time would block the loop for a quarter of a second. Beyond this time, they wait for a later iteration, and
small jobs go first."""

RESUMED_PER_ITERATION = 4
"""How many of these go on in each later iteration."""

MIN_JOB_BYTES = 4096
"""Shorter jobs count as long as this, so they keep the order in which they came. A request for history is half as
long."""


class LoopScheduler:
    """Decides whose work is next. Large jobs run one at a time, and between two of them the loop runs everything
    else."""

    def __init__(self) -> None:
        self._is_busy = False
        self._waiting: WaitQueue[bool] = WaitQueue(self._on_cancelled)
        self._iteration_began: float | None = None
        self._postponed: WaitQueue[bool] = WaitQueue(lambda _: None)

    async def yield_if_busy(self, size: int, source: Hashable) -> None:
        """Wait for a later iteration of the loop if this one has lasted for MAX_ITERATION_S. Mostly it has not.

        Args:
            size: bytes to be worked on; smaller jobs go first.
        """
        loop, now = asyncio.get_running_loop(), time.perf_counter()  # the loop's clock may stand still in an iteration
        if self._iteration_began is None:
            self._iteration_began = now
            loop.call_soon(self._on_next_iteration)
        if now - self._iteration_began >= MAX_ITERATION_S or self._postponed:
            await self._postponed.wait(source, max(MIN_JOB_BYTES, size))

    def _on_next_iteration(self) -> None:
        for _ in range(RESUMED_PER_ITERATION):
            if not self._postponed.wake_next(True):
                break
        if self._postponed:
            asyncio.get_running_loop().call_soon(self._on_next_iteration)
        else:
            self._iteration_began = None

    async def wait_turn(self, work: int = 1, source: Hashable = None) -> None:
        """Wait for a turn to do this much work.

        Args:
            source: for whom the work is. A source that has had much work done waits until the others have had as much.
                None: a source of its own.
        """
        if self._is_busy:
            await self._waiting.wait(object() if source is None else source, work)
        self._is_busy = True
        try:
            await asyncio.sleep(0)
        finally:
            self._wake_next()

    def _on_cancelled(self, turn: bool | None) -> None:
        if turn:
            self._wake_next()

    def _wake_next(self) -> None:
        self._is_busy = self._waiting.wake_next(True)


class WorkBudget:
    """How much of some work one connection may cause without waiting. When it is used up, each job waits for a turn."""

    __slots__ = ("_began", "_done", "_free", "_scheduler")

    def __init__(self, scheduler: LoopScheduler, free: int) -> None:
        """Start with a full budget.

        Args:
            free: how much work is done without a turn. The budget is full again after INTERVAL_S, and after each turn.
        """
        self._scheduler = scheduler
        self._free = free
        self._began = -math.inf
        self._done = 0

    async def take(self, work: int, size: int = 0) -> None:
        """Count work that is about to be done. Wait for a turn if the budget is used up, else only if the loop is busy.

        Args:
            size: bytes to be worked on. While the loop is busy, small jobs go first.
        """
        now = asyncio.get_running_loop().time()
        if now - self._began >= INTERVAL_S:
            self._began, self._done = now, 0
        self._done += work
        if self._done >= self._free:
            await self._scheduler.wait_turn(self._done, self)
            self._done = 0
        else:
            await self._scheduler.yield_if_busy(size, self)

    def correct(self, more: int) -> None:
        """Correct the work that was counted last: it was more by this, or less if it is below 0."""
        self._done = max(0, self._done + more)
