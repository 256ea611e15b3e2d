"""A connection of SQLite with a thread of its own, for work of many statements: it makes one trip to the thread.

aiosqlite takes a trip for each statement. While the event loop is busy, each waits for what the loop is at: some
milliseconds, a dozen times in a transaction, in which neither SQLite nor the disk has anything to do.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Worker:
    """Work is done in the order in which it comes. Made by `start`."""

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._thread = thread
        self._closed = False

    @classmethod
    async def start(cls, connect: Callable[[], sqlite3.Connection]) -> "Worker":
        """Start the thread, and have it connect; what that raises ends it."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        with contextlib.ExitStack() as unless_connected:
            unless_connected.callback(thread.shutdown, wait=False)
            connection = await asyncio.get_running_loop().run_in_executor(thread, connect)
            unless_connected.pop_all()
        return cls(connection, thread)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do some work; return what it returns. Once begun it goes on to its end, whether or not it is waited for."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._connection)

    async def close(self) -> None:
        """Close the connection behind all work that was begun, and end the thread; nothing if that is done."""
        if not self._closed:
            self._closed = True
            await self.run(sqlite3.Connection.close)
            self._thread.shutdown()
