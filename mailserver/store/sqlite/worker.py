"""An SQLite connection with a thread of its own. Work of many statements takes one trip to the thread.

aiosqlite makes a trip for each statement. While the event loop is busy, each trip waits some milliseconds for it: a
dozen times in a transaction, while neither SQLite nor the disk has anything to do.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class ConnectionThread:
    """Does work in the order in which it arrives. Made by `start`."""

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._thread = thread
        self._closed = False

    @classmethod
    async def start(cls, connect: Callable[[], sqlite3.Connection], name: str = "store-writer") -> "ConnectionThread":
        """Start the thread and let it connect. If that fails, the thread ends, and the error is raised here."""
        thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        connecting = thread.submit(connect)
        with contextlib.ExitStack() as unless_connected:
            unless_connected.callback(thread.shutdown, wait=False)
            # Once begun it runs to its end, even if the caller is cancelled.
            unless_connected.callback(thread.submit, _close_connected, connecting)
            connection = await asyncio.wrap_future(connecting)
            unless_connected.pop_all()
        return cls(connection, thread)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do some work; return its result. Once begun it runs to its end, even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._connection)

    async def close(self, last: Callable[[sqlite3.Connection], None] | None = None) -> None:
        """Close the connection after all work that was begun, and end the thread. A second call does nothing.

        Args:
            last: what is done before it is closed.
        """
        if not self._closed:
            self._closed = True
            if last is not None:
                await self.run(last)
            await self.run(sqlite3.Connection.close)
            self._thread.shutdown()


def _close_connected(connecting: Future[sqlite3.Connection]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()
