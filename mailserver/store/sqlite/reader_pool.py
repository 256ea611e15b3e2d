"""Read-only connections, and the turns in which they are used: `store.engine.fair_pool` says who is next.

Statements are short (`store.engine.search`), and each waits for its own turn.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import aiosqlite

from mailserver.errors import StoreError
from mailserver.store.engine import work as costs
from mailserver.store.engine.fair_pool import FairPool
from mailserver.store.interface import OURSELVES, Payer
from mailserver.store.sqlite.connections import open_reader
from mailserver.store.sqlite.failures import StoreFailures


class ReaderPool:
    """The connections. Made by `open_readers`."""

    def __init__(self, connections: Sequence[aiosqlite.Connection], failures: StoreFailures) -> None:
        self._failures = failures
        self._pool = FairPool(connections)

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
            work: how much work it is, as far as that is known (`mailserver.store.engine.work`).
            payer: for whom it is. Of the payers that wait, the one for whom less work was done is next.
            likely: how much work it likely is, where `work` is the most that it can be. This decides its own turn; what
                it really was counts for the payer's next turn.
        Raises:
            StoreError: SQLite could not run it.
        """
        likely = work if likely is None else likely
        connection = await self._pool.take(payer, likely)
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
                self._pool.correct(work - likely, payer)
            self._pool.give_back(connection)

    @contextlib.asynccontextmanager
    async def turn(self, work: int, payer: Payer = OURSELVES) -> AsyncIterator[None]:
        """A turn for work that is no statement on these connections. One of them is idle meanwhile.

        Args:
            work: how much it is at most; `correct` gives back what it was not.
        """
        connection = await self._pool.take(payer, work)
        try:
            payer.charge(work)
            yield
        finally:
            self._pool.give_back(connection)

    def correct(self, work: int, payer: Payer = OURSELVES) -> None:
        """The payer's statement was so much more work than was said; less if below 0."""
        payer.charge(work)
        self._pool.correct(work, payer)


@dataclass(frozen=True, slots=True)
class PaidReader:
    """The connections as one payer uses them: a `mailserver.store.sqlite.lookups.ReadConnection`."""

    pool: ReaderPool
    payer: Payer = OURSELVES

    async def run(
        self, sql: str, parameters: Sequence[object], work: int, likely: int | None = None
    ) -> Iterable[sqlite3.Row]:
        """Run one statement, when it is the payer's turn."""
        return await self.pool.run(sql, parameters, work, self.payer, likely=likely)

    def turn(self, work: int) -> AbstractAsyncContextManager[None]:
        """A turn of the payer for other work."""
        return self.pool.turn(work, self.payer)

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
