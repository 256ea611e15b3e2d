"""Read-only connections, and whose statement is next if there are more readers than connections.

Statements are short (`store.sqlite.search`), and each waits for its own turn. The next one is of the address for which
the least work was done recently, and there of the peer for which the least was done. So an answer that takes little
work comes soon, however much others have asked for.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import aiosqlite

from mailserver.errors import StoreError
from mailserver.limits.fair_queue import GroupedFairQueue
from mailserver.store.interface import OURSELVES, Payer
from mailserver.store.sqlite import work as costs
from mailserver.store.sqlite.connections import open_reader
from mailserver.store.sqlite.failures import StoreFailures


class _Waiting(NamedTuple):
    payer: Payer
    likely: int
    turn: "asyncio.Future[aiosqlite.Connection]"


class ReaderPool:
    """The connections. Made by `open_readers`."""

    def __init__(self, connections: Sequence[aiosqlite.Connection], failures: StoreFailures) -> None:
        self._failures = failures
        # Last in, first out: the pages that a request has just read are in that connection's cache.
        self._idle = [*connections]
        self._waiting: GroupedFairQueue[_Waiting] = GroupedFairQueue()

    async def run(
        self,
        sql: str,
        parameters: Sequence[object],
        work: int = costs.STATEMENT,
        payer: Payer = OURSELVES,
        *,
        likely: int | None = None,
    ) -> Iterable[sqlite3.Row]:
        """Run one statement and return all its rows.

        Args:
            work: how much work it is, as far as that is known (`mailserver.store.sqlite.work`).
            payer: for whom it is. Of the payers that wait, the one for whom less work was done is next.
            likely: how much work it likely is, where `work` is the most that it can be. This decides its own turn; what
                it really was counts for the payer's next turn.
        Raises:
            StoreError: SQLite could not run it.
        """
        likely = work if likely is None else likely
        connection = await self._take(payer, likely)
        try:
            payer.charge(work)
            return await connection.execute_fetchall(sql, parameters)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the store: {self._failures.not_read(error)}") from error
        except asyncio.CancelledError:
            # Nobody waits for the rows any more: stop the statement, so that the connection is free at once.
            await connection.interrupt()
            raise
        finally:
            if work != likely:
                self._waiting.correct(payer.group, payer.member, work - likely)
            self._idle.append(connection)
            self._give()

    def correct(self, work: int, payer: Payer = OURSELVES) -> None:
        """The payer's statement was so much more work than was said; less if below 0."""
        payer.charge(work)
        self._waiting.correct(payer.group, payer.member, work)

    async def _take(self, payer: Payer, likely: int) -> aiosqlite.Connection:
        turn: asyncio.Future[aiosqlite.Connection] = asyncio.get_running_loop().create_future()
        self._waiting.add(payer.group, payer.member, _Waiting(payer, likely, turn), likely)
        self._give()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it got one at the same moment
                self._idle.append(turn.result())
                self._give()
            raise

    def _give(self) -> None:
        while self._idle and len(self._waiting):
            next_ = self._waiting.take()
            if next_.turn.done():  # its caller is gone
                self._waiting.correct(next_.payer.group, next_.payer.member, -next_.likely)
            else:
                next_.turn.set_result(self._idle.pop())


@dataclass(frozen=True, slots=True)
class PaidReader:
    """The connections as one payer uses them: a `mailserver.store.sqlite.lookups.Connection`."""

    pool: ReaderPool
    payer: Payer = OURSELVES

    async def run(
        self, sql: str, parameters: Sequence[object], work: int, likely: int | None = None
    ) -> Iterable[sqlite3.Row]:
        """Run one statement, when it is the payer's turn."""
        return await self.pool.run(sql, parameters, work, self.payer, likely=likely)

    def correct(self, work: int) -> None:
        """Charge the payer so much more; less if below 0."""
        self.pool.correct(work, self.payer)


@contextlib.asynccontextmanager
async def open_readers(path: Path, count: int, failures: StoreFailures) -> AsyncIterator[ReaderPool]:
    """Open `count` connections to the store at `path`; close them at the end.

    Raises:
        StoreError: there is no such store, or it cannot be read.
    """
    async with contextlib.AsyncExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = await open_reader(path)
            stack.push_async_callback(connection.close)
            connections.append(connection)
        yield ReaderPool(connections, failures)
