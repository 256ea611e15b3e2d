"""A semaphore that is fair: the waiting task whose group and member have used it least is next.

Groups and members are, for example, a peer's address and the peer. A small job is done soon, however much work others
have asked for.
"""

import asyncio
from collections.abc import Hashable
from typing import NamedTuple

from mailserver.limits.fair_queue import GroupedFairQueue


class _Waiter(NamedTuple):
    group: Hashable
    member: Hashable
    work: int
    acquired: "asyncio.Future[None]"


class FairSemaphore:
    """Lets `count` tasks work at a time."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: GroupedFairQueue[_Waiter] = GroupedFairQueue()

    async def acquire(self, group: Hashable, member: Hashable, work: int) -> None:
        """Wait until this task may do `work`. Afterwards it must `release`."""
        acquired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(group, member, _Waiter(group, member, work, acquired), work)
        self._wake()
        try:
            await acquired
        except asyncio.CancelledError:
            if acquired.done() and not acquired.cancelled():  # it was cancelled just as it was woken
                self.release()
            raise

    def release(self) -> None:
        """Let the next task work."""
        self._free += 1
        self._wake()

    def _wake(self) -> None:
        while self._free and len(self._waiting):
            waiter = self._waiting.take()
            if waiter.acquired.done():  # it was cancelled, so its work is not done
                self._waiting.correct(waiter.group, waiter.member, -waiter.work)
            else:
                self._free -= 1
                waiter.acquired.set_result(None)
