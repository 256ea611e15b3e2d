"""Turns at what takes long, above all at opening and sealing frames, shared by all connections: whoever sends and gets
little is not kept waiting by the others.

A frame takes us some 50 us however short it is, so many peers that each keep to their limits could still have us open
their frames for seconds before an honest one's is looked at.
"""

import asyncio
import math
import time
from collections.abc import Hashable

from mailserver.limits.wait_queue import WaitQueue

FRAMES_AT_ONCE = 8
"""No more frames of one peer are opened before others have their turn: less than a millisecond."""

FREE_FRAMES = 8
HANDSHAKE_FRAMES = 10
"""A handshake takes us as long as so many frames: whoever comes waits for a turn with it, or hundreds that come at once
would have all others wait at each step of an answer."""

INTERVAL_S = 1.0
"""Who has sent fewer frames in this time waits for no turn: a client asks a few times a second."""

BURST_S = 0.01
"""So long such work may go on within one turn of the event loop: 500 peers that say something at once would hold
everything else up for a quarter of a second. Whoever comes later in it waits for a later one, who has little first."""

LATER_AT_ONCE = 4
"""So many of them go on in each of those."""

LITTLE_BYTES = 4096
"""Up to here all have as little, and go on as they came: a request for history has half of it."""


class Turns:
    """Those who do much of some work: one of them at a time, and between two of them all that is quickly done. Who has
    little to do is not kept waiting by those who have much."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: WaitQueue[bool] = WaitQueue(self._on_gone)
        self._burst_began: float | None = None
        self._later: WaitQueue[bool] = WaitQueue(lambda _: None)

    async def wait_while_crowded(self, size: int, who: Hashable) -> None:
        """Wait until what others do at the same time leaves the event loop free: most often not at all.

        Args:
            size: bytes; whoever has less goes before others.
        """
        loop, now = asyncio.get_running_loop(), time.perf_counter()  # the loop's clock may stand still during a turn
        if self._burst_began is None:
            self._burst_began = now
            loop.call_soon(self._on_next_loop_turn)
        if now - self._burst_began >= BURST_S or self._later:
            await self._later.wait(who, max(LITTLE_BYTES, size))

    def _on_next_loop_turn(self) -> None:
        for _ in range(LATER_AT_ONCE):
            if not self._later.wake_next(True):
                break
        if self._later:
            asyncio.get_running_loop().call_soon(self._on_next_loop_turn)
        else:
            self._burst_began = None

    async def wait(self, work: int = 1, who: Hashable = None) -> None:
        """Wait for a turn to do so much work.

        Args:
            who: whoever has had much waits until the others have had as much. None: somebody new.
        """
        if self._is_taken:
            await self._waiting.wait(object() if who is None else who, work)
        self._is_taken = True
        try:
            await asyncio.sleep(0)
        finally:
            self._give()

    def _on_gone(self, turn: bool | None) -> None:
        if turn:
            self._give()

    def _give(self) -> None:
        self._is_taken = self._waiting.wake_next(True)


class TurnShare:
    """What one connection makes us do of some work: beyond so much of it, it waits for its turn."""

    __slots__ = ("_began", "_done", "_free", "_turns")

    def __init__(self, turns: Turns, free: int) -> None:
        """Have done nothing yet; `free`: less than this waits for no turn, each INTERVAL_S, and after each turn."""
        self._turns = turns
        self._free = free
        self._began = -math.inf
        self._done = 0

    async def take(self, work: int, size: int = 0) -> None:
        """Count so much work, and wait for a turn to do it, if that is too much, or others do theirs just now.

        Args:
            size: bytes that are to be worked on; while nobody knows how much work that is, who has little goes first.
        """
        now = asyncio.get_running_loop().time()
        if now - self._began >= INTERVAL_S:
            self._began, self._done = now, 0
        self._done += work
        if self._done >= self._free:
            await self._turns.wait(self._done, self)
            self._done = 0
        else:
            await self._turns.wait_while_crowded(size, self)

    def correct(self, more: int) -> None:
        """Count more work, or less, than was taken for the last."""
        self._done = max(0, self._done + more)
