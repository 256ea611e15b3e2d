"""Snapshots of a store in PostgreSQL: transactions that only read, used from threads as `store.engine.snapshots` says.

What compares sets of ids is computation that reads here and there. It runs in a thread, so that the event loop does
not wait for it; each statement of it is run by the event loop, for which the thread waits.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from mailserver.store.engine.snapshots import Snapshots
from mailserver.store.postgres.connections import DatabaseLink, DriverConnection, Setup, open_links
from mailserver.store.postgres.failures import StoreFailures

# What is dropped or truncated is gone for whoever looks later, whatever he saw at his moment. So whoever wants to do
# that waits, or has done it before that moment, which is the first statement after these.
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; LOCK TABLE ids, id_sums IN ACCESS SHARE MODE"

R = TypeVar("R")


class _Row:
    """What a statement has found."""

    def __init__(self, row: Any) -> None:
        self._row = row

    def fetchone(self) -> Any:
        """The one row."""
        return self._row


class _ThreadConnection:
    """A `store.engine.snapshots.SnapshotConnection`."""

    def __init__(self, connection: DriverConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> _Row:
        """In the thread: run a statement."""
        return asyncio.run_coroutine_threadsafe(self._execute(sql, parameters), self._loop).result()

    async def _execute(self, sql: str, parameters: Sequence[Any]) -> _Row:
        if sql in ("BEGIN", "ROLLBACK"):
            return _Row(await self._connection.execute(_BEGIN if sql == "BEGIN" else sql))
        return _Row(await self._connection.fetchrow(sql, *parameters))


class _SnapshotWorker:
    """A `store.engine.snapshots.SnapshotWorker`."""

    def __init__(self, link: DatabaseLink, thread: ThreadPoolExecutor) -> None:
        self._link = link
        self._thread = thread

    async def run(self, work: Callable[[Any], R]) -> R:
        """Do some work with the connection, in the thread."""
        loop = asyncio.get_running_loop()

        async def in_thread(connection: DriverConnection) -> R:
            return await loop.run_in_executor(self._thread, work, _ThreadConnection(connection, loop))

        return await self._link.run(in_thread)


@contextlib.asynccontextmanager
async def open_snapshots(url: str, count: int, failures: StoreFailures, setup: Setup) -> AsyncIterator[Snapshots]:
    """Have so many connections for snapshots; close them at the end."""
    async with open_links(url, count, failures, setup) as links:
        threads = ThreadPoolExecutor(count, thread_name_prefix="store-snapshot")
        snapshots = Snapshots([_SnapshotWorker(link, threads) for link in links], failures)
        try:
            yield snapshots
        finally:
            snapshots.close()
            await asyncio.gather(*(link.close() for link in links))  # after the work that is under way
            # If that took too long, it still waits for the event loop, which so must not wait for it.
            await asyncio.to_thread(threads.shutdown)
