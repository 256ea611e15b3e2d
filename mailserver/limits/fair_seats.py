"""A few seats that are used in turns: of those that wait, whoever has had less work done of late is next.

By group and then by member, such as a peer's address and the peer. So work that is little is done soon, however much
others have asked for.
"""

import asyncio
from collections.abc import Hashable
from typing import NamedTuple

from mailserver.limits.fair_queue import GroupedFairQueue


class _Waiting(NamedTuple):
    group: Hashable
    member: Hashable
    work: int
    turn: "asyncio.Future[None]"


class FairSeats:
    """So many seats."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: GroupedFairQueue[_Waiting] = GroupedFairQueue()

    async def take(self, group: Hashable, member: Hashable, work: int) -> None:
        """Wait for a seat, for work that is so much. Whoever gets one gives it back."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(group, member, _Waiting(group, member, work, turn), work)
        self._call_next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given one at the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        """A seat is free again."""
        self._free += 1
        self._call_next()

    def _call_next(self) -> None:
        while self._free and len(self._waiting):
            next_ = self._waiting.take()
            if next_.turn.done():  # whoever waited is gone
                self._waiting.correct(next_.group, next_.member, -next_.work)
            else:
                self._free -= 1
                next_.turn.set_result(None)
