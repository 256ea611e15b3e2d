"""The connections that read, and the turns in which they are used: `store.engine.fair_pool` says who is next.

Statements are short (`store.engine.search`), and each waits for its own turn. Each brings its rows packed into one, and
says besides up to when anything was ever removed: other mailservers may delete, and a search is asked for what they
have deleted before it (`StoredHistory.removed_until`).

If a client hangs up amid a statement, the statement goes on to its end, and its connection has no other turn before. To
break it off would cost the connection: clients that hang up again and again would have the server make new ones, which
is far more work than their statements. Only one that takes long is broken off: the database says nothing any more.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from mailserver.errors import StoreError
from mailserver.store.engine import work as costs
from mailserver.store.engine.fair_pool import FairPool
from mailserver.store.interface import OURSELVES, Payer
from mailserver.store.postgres.connections import DatabaseLink
from mailserver.store.postgres.failures import StoreFailures, Unreachable

REMOVED = "(SELECT until FROM removed), (SELECT pruned FROM removed)"
"""SQL: the first two columns of every statement that a search runs."""


class Removed:
    """Up to which second of creation anything was removed, and was pruned, as far as was heard of it."""

    def __init__(self, until: int, pruned: int) -> None:
        self.until = until
        self.pruned = pruned

    def note(self, until: int, pruned: int) -> None:
        """Somebody has heard of it. It never goes back."""
        self.until, self.pruned = max(self.until, until), max(self.pruned, pruned)


LEFT_ALONE_S = 1.0
"""How long a statement that nobody waits for may still take. Ours take milliseconds."""


class ReaderPool:
    """The connections."""

    def __init__(self, links: Sequence[DatabaseLink], failures: StoreFailures, removed: Removed) -> None:
        self._failures = failures
        self._removed = removed
        self._pool = FairPool(links)
        self._running: set[asyncio.Task[Any]] = set()  # else nothing has those that nobody waits for

    async def run(
        self,
        sql: str,
        parameters: Sequence[object] = (),
        work: int = costs.STATEMENT,
        payer: Payer = OURSELVES,
        *,
        likely: int | None = None,
    ) -> tuple[Any, ...]:
        """Run one statement; return its one row.

        Args:
            work: how much work it is, as far as that is known (`store.engine.work`).
            payer: for whom it is. Of the payers that wait, the one for whom less work was done is next.
            likely: how much work it likely is, where `work` is the most that it can be. This decides its own turn; what
                it really was counts for the payer's next turn.
        Raises:
            StoreError: the database could not run it.
        """
        likely = work if likely is None else likely
        link = await self._pool.take(payer, likely)
        turn = asyncio.create_task(self._turn(link, sql, parameters, work - likely, payer))
        self._running.add(turn)
        turn.add_done_callback(self._ended)
        payer.charge(work)
        try:
            row = await asyncio.shield(turn)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(LEFT_ALONE_S, turn.cancel)
            raise
        except Unreachable as error:
            raise StoreError(f"cannot read the store: {error}") from error
        except asyncpg.PostgresError as error:
            raise StoreError(f"cannot read the store: {self._failures.not_read(error)}") from error
        return tuple(row)

    def _ended(self, turn: asyncio.Task[Any]) -> None:
        self._running.discard(turn)
        if not turn.cancelled():
            turn.exception()  # is raised by whoever waits for it: perhaps nobody does any more

    async def _turn(
        self, link: DatabaseLink, sql: str, parameters: Sequence[object], unlikely: int, payer: Payer
    ) -> Any:
        """Run one statement on a connection, and give that back."""
        try:
            return await link.run(lambda connection: connection.fetchrow(sql, *parameters))
        finally:
            if unlikely:
                self._pool.correct(unlikely, payer)
            self._pool.give_back(link)

    async def search(
        self, sql: str, parameters: Sequence[object], work: int, payer: Payer, likely: int | None = None
    ) -> tuple[Any, ...]:
        """Run one statement of a search; return the columns behind REMOVED."""
        until, pruned, *columns = await self.run(sql, parameters, work, payer, likely=likely)
        self._removed.note(until, pruned)
        return tuple(columns)

    @contextlib.asynccontextmanager
    async def turn(self, work: int, payer: Payer = OURSELVES) -> AsyncIterator[None]:
        """A turn for work that is no statement on these connections. One of them is idle meanwhile.

        Args:
            work: how much it is at most; `correct` gives back what it was not.
        """
        link = await self._pool.take(payer, work)
        try:
            payer.charge(work)
            yield
        finally:
            self._pool.give_back(link)

    def correct(self, work: int, payer: Payer = OURSELVES) -> None:
        """The payer's statement was so much more work than was said; less if below 0."""
        payer.charge(work)
        self._pool.correct(work, payer)


@dataclass(frozen=True, slots=True)
class PaidReader:
    """The connections as one payer uses them."""

    pool: ReaderPool
    payer: Payer = OURSELVES

    async def run(
        self, sql: str, parameters: Sequence[object], work: int, likely: int | None = None
    ) -> tuple[Any, ...]:
        """Run one statement, when it is the payer's turn; return its one row."""
        return await self.pool.run(sql, parameters, work, self.payer, likely=likely)

    async def search(
        self, sql: str, parameters: Sequence[object], work: int, likely: int | None = None
    ) -> tuple[Any, ...]:
        """Run one statement of a search; return the columns behind REMOVED."""
        return await self.pool.search(sql, parameters, work, self.payer, likely)

    def turn(self, work: int) -> contextlib.AbstractAsyncContextManager[None]:
        """A turn of the payer for other work."""
        return self.pool.turn(work, self.payer)

    def correct(self, work: int) -> None:
        """Charge the payer so much more; less if below 0."""
        self.pool.correct(work, self.payer)
