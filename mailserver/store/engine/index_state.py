"""How far the index of message ids has come, as those see it who look for ids."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from mailserver.errors import StoreError
from mailserver.store.engine.index_wait import MAX_UNINDEXED_ROWS
from mailserver.store.message_ids import NotIndexedYet

INDEX_WAIT_S = 10.0
"""How long to wait until what was stored before is indexed. To index MAX_UNINDEXED_ROWS took 4.3 s on a machine with a
load of twice its cores."""


class StateReader(Protocol):
    """What reads the state of the index, at its payer's expense."""

    async def index_goal(self) -> tuple[str | None, int | None, int]:
        """To which network topic the ids belong, up to which row all are indexed, and which is the last row there is.

        Raises:
            StoreError: the store cannot be read.
        """


class IndexDamaged(StoreError):
    """What the index says of ids does not fit, so the store is indexed anew."""

    def __str__(self) -> str:
        return "the index of message ids is damaged, and is made anew"


@dataclass(frozen=True, slots=True)
class IndexState:
    """The index of a store whose ids belong to `network_topic`.

    `moves` waits until the index may have come further. `begin_anew` has the store indexed anew, if the index says that
    the rows up to this one are indexed. `longer_s`: for how much longer to wait than INDEX_WAIT_S, where the index
    cannot be made to hurry.
    """

    network_topic: str
    moves: Callable[[], Awaitable[None]]
    begin_anew: Callable[[int], Awaitable[None]]
    longer_s: float = 0.0

    async def until_indexed(self, reader: StateReader) -> int:
        """Wait until the rows that are there now are indexed; return the `seq` of the last.

        Raises:
            NotIndexedYet: too many are not, or it takes too long.
        """
        network_topic, until_seq, goal = await reader.index_goal()
        left = self._left(goal, network_topic, until_seq)
        if left > MAX_UNINDEXED_ROWS:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):  # it is told that ids are looked for, but so much is not waited for
                    await self.moves()
            raise NotIndexedYet(left)
        try:
            async with asyncio.timeout(INDEX_WAIT_S + self.longer_s):
                while left:
                    await self.moves()
                    network_topic, until_seq, _ = await reader.index_goal()
                    left = self._left(goal, network_topic, until_seq)
        except TimeoutError as error:
            raise NotIndexedYet(left) from error
        return goal

    def check(self, goal: int, network_topic: str | None, until_seq: int | None) -> None:
        """Check that the rows up to `goal` are indexed: the index may have been found not to fit, and is built anew.

        Raises:
            NotIndexedYet: they are not.
        """
        left = self._left(goal, network_topic, until_seq)
        if left:
            raise NotIndexedYet(left)

    async def give_up(self, goal: int) -> None:
        """Have the store indexed anew: what the index said when the rows up to `goal` were indexed does not fit.

        Raises:
            StoreError: the writer could not.
        """
        await self.begin_anew(goal)

    def _left(self, goal: int, network_topic: str | None, until_seq: int | None) -> int:
        """How many of the rows up to `goal` are not indexed, at most; at least 1 if no ids are of our network topic."""
        if network_topic != self.network_topic or until_seq is None:
            return max(1, goal)
        return max(0, goal - until_seq)
