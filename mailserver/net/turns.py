"""Turns at what takes long, above all at opening and sealing frames, shared by all connections: whoever sends and gets
little is not kept waiting by the others.

A frame takes us some 50 us however short it is, so many peers that each keep to their limits could still have us open
their frames for seconds before an honest one's is looked at.
"""

import asyncio
import math

FRAMES_AT_ONCE = 8
"""No more frames of one peer are opened before others have their turn: less than a millisecond."""

FREE_FRAMES = 8
INTERVAL_S = 1.0
"""Who has sent fewer frames in this time waits for no turn: a client asks a few times a second. If 500 peers make use
of it, at once, all others wait for a quarter of a second."""


class Turns:
    """The queue of those who send much: one of them at a time, and between two of them all that is quickly done."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Wait for a turn."""
        async with self._lock:
            await asyncio.sleep(0)


class Share:
    """What one connection makes us do of some work: beyond so much of it, it waits for its turn."""

    __slots__ = ("_began", "_done", "_free", "_turns")

    def __init__(self, turns: Turns, free: int) -> None:
        """Have done nothing yet; `free`: so much waits for no turn, each INTERVAL_S, and after each turn."""
        self._turns = turns
        self._free = free
        self._began = -math.inf
        self._done = 0

    async def take(self, work: int) -> None:
        """Count so much work, and wait for a turn to do it, if that is too much."""
        now = asyncio.get_running_loop().time()
        if now - self._began > INTERVAL_S:
            self._began, self._done = now, 0
        self._done += work
        if self._done > self._free:
            await self._turns.wait()
            self._done = 0


class Pacer:
    """Whether one connection has to wait for its turns. Times are monotonic seconds."""

    __slots__ = ("_began", "_frames")

    def __init__(self, now: float) -> None:
        self._began = now
        self._frames = 0

    def must_wait(self, frames: int, now: float) -> bool:
        """Say whether a peer that has sent so many frames, in all, has sent too many in this interval."""
        if now - self._began >= INTERVAL_S:
            self._began, self._frames = now, frames
        return frames - self._frames >= FREE_FRAMES
