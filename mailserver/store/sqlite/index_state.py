"""How far the index of message ids has come, as those see it who look for ids."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from mailserver.errors import StoreError
from mailserver.store.engine import work
from mailserver.store.message_ids import NotIndexedYet
from mailserver.store.sqlite.id_index import give_up
from mailserver.store.sqlite.index_wait import MAX_UNINDEXED_ROWS
from mailserver.store.sqlite.reader_pool import PaidReader

INDEX_WAIT_S = 10.0
"""How long to wait until what was stored before is indexed. To index MAX_UNINDEXED_ROWS took 4.3 s on a machine with a
load of twice its cores."""

STATE = "(SELECT network_topic FROM id_index), (SELECT until_seq FROM id_index)"
"""SQL: what `check` looks at."""

_GOAL = f"SELECT {STATE}, (SELECT coalesce(max(seq), 0) FROM envelopes)"


class IndexDamaged(StoreError):
    """What the index says of ids does not fit, so the store is indexed anew."""

    def __str__(self) -> str:
        return "the index of message ids is damaged, and is made anew"


@dataclass(frozen=True, slots=True)
class IndexState:
    """The index of a store whose ids belong to `network_topic`.

    `moves` waits until the index may have come further; `between_commits` runs a job on the writer's connection.
    """

    network_topic: str
    moves: Callable[[], Awaitable[None]]
    between_commits: Callable[[Callable[[sqlite3.Connection], None]], Awaitable[None]]

    async def until_indexed(self, readers: PaidReader) -> int:
        """Wait until the rows that are there now are indexed; return the `seq` of the last.

        Raises:
            NotIndexedYet: too many are not, or it takes too long.
        """
        ((*state, goal),) = await readers.run(_GOAL, (), work.STATEMENT)
        left = self._left(goal, *state)
        if left > MAX_UNINDEXED_ROWS:
            raise NotIndexedYet(left)
        try:
            async with asyncio.timeout(INDEX_WAIT_S):
                while left:
                    await self.moves()
                    ((*state, _),) = await readers.run(_GOAL, (), work.STATEMENT)
                    left = self._left(goal, *state)
        except TimeoutError as error:
            raise NotIndexedYet(left) from error
        return int(goal)

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
        await self.between_commits(partial(give_up, until_seq=goal))

    def _left(self, goal: int, network_topic: str | None, until_seq: int | None) -> int:
        """How many of the rows up to `goal` are not indexed, at most; at least 1 if no ids are of our network topic."""
        if network_topic != self.network_topic or until_seq is None:
            return max(1, goal)
        return max(0, goal - until_seq)
