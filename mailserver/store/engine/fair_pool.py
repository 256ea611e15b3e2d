"""Whose turn it is to use one of few things, such as connections, if there are more payers than things.

The next turn is of the address for which the least work was done recently, and there of the peer for which the least
was done. So what takes little work comes soon, however much others have asked for.
"""

import asyncio
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from mailserver.limits.fair_queue import GroupedFairQueue
from mailserver.store.interface import Payer

T = TypeVar("T")


class _Waiting(NamedTuple, Generic[T]):
    payer: Payer
    likely: int
    turn: "asyncio.Future[T]"


class FairPool(Generic[T]):
    """The things, and who waits for one."""

    def __init__(self, things: Iterable[T]) -> None:
        # Last in, first out: the pages that a request has just read are in that connection's cache.
        self._idle = [*things]
        self._waiting: GroupedFairQueue[_Waiting[T]] = GroupedFairQueue()

    async def take(self, payer: Payer, likely: int) -> T:
        """Wait for a turn; the thing must be given back.

        Args:
            likely: how much work it likely is. Of the payers that wait, the one for whom less work was done is next.
        """
        if self._idle:  # then nobody waits, and with the last who does the queue forgets whom it has served
            return self._idle.pop()
        turn: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.add(payer.group, payer.member, _Waiting(payer, likely, turn), likely)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it got one at the same moment
                self.give_back(turn.result())
            raise

    def give_back(self, thing: T) -> None:
        """End a turn."""
        self._idle.append(thing)
        self._give()

    def correct(self, work: int, payer: Payer) -> None:
        """The payer's turn was so much more work than was likely; less if below 0. It counts for its next turn."""
        self._waiting.correct(payer.group, payer.member, work)

    def _give(self) -> None:
        while self._idle and len(self._waiting):
            next_ = self._waiting.take()
            if next_.turn.done():  # its caller is gone
                self._waiting.correct(next_.payer.group, next_.payer.member, -next_.likely)
            else:
                next_.turn.set_result(self._idle.pop())
