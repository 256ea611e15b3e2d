"""The envelope store as the services use it: put, find, read."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiosqlite

from mailserver.errors import StoreError
from mailserver.store.connections import open_reader, open_writer
from mailserver.store.reader import Finder, Key, Page, Query
from mailserver.store.writer import NewEnvelope, StoreWriter

READERS = 3
"""Read-only connections, each with a thread: more would only wait for one another's turn at Python's lock."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What is in a store. `oldest` and `newest` are creation times in Unix seconds, None in an empty store."""

    envelopes: int
    bytes: int
    topics: int
    oldest: int | None
    newest: int | None


class EnvelopeStore:
    """A store that is open for writing. Made by `open_store`."""

    def __init__(self, writer: StoreWriter, readers: "_ReaderPool") -> None:
        self._writer = writer
        self._readers = readers
        self._finder = Finder(readers.run)

    async def put(self, envelopes: Sequence[NewEnvelope]) -> None:
        """Store envelopes; return once they are on disk. What is there already is left as it is.

        Raises:
            StoreError: they are not stored, or not all.
        """
        await self._writer.put(envelopes)

    async def find(self, query: Query, limit: int) -> Page:
        """Find the first `limit` matches, newest first.

        Raises:
            StoreError: the store cannot be read.
        """
        return await self._finder.find(query, limit)

    async def sizes(self, keys: Sequence[Key]) -> list[int]:
        """The lengths in bytes of the envelopes found; 0 for one that was deleted since.

        Raises:
            StoreError: the store cannot be read.
        """
        return await self._finder.sizes([key.seq for key in keys])

    async def read(self, keys: Sequence[Key]) -> list[bytes]:
        """The envelopes found, byte for byte as received; one that was deleted since is left out.

        Raises:
            StoreError: the store cannot be read.
        """
        return await self._finder.read([key.seq for key in keys])

    async def stats(self) -> StoreStats:
        """Say what is in the store, without counting it."""
        return await _stats(self._readers)


@contextlib.asynccontextmanager
async def open_store(path: Path) -> AsyncIterator[EnvelopeStore]:
    """Open the store at `path`, made or migrated first if need be; at the end, commit what was put and close.

    Raises:
        StoreError: the file is foreign, damaged, or of a later version, or cannot be written.
    """
    connection = await open_writer(path)
    try:
        async with _open_readers(path, READERS) as readers:
            writer = StoreWriter(connection)
            writing = asyncio.create_task(writer.run(), name="store writer")
            try:
                yield EnvelopeStore(writer, readers)
            finally:
                writer.close()
                await writing
    finally:
        await connection.close()


async def read_stats(path: Path) -> StoreStats:
    """Say what is in the store at `path`, beside a daemon that has it open or not.

    Raises:
        StoreError: there is no such store, or it cannot be read.
    """
    async with _open_readers(path, 1) as readers:
        return await _stats(readers)


class _ReaderPool:
    """Read-only connections that take turns, statement by statement: a long request cannot hold one to itself."""

    def __init__(self, connections: Sequence[aiosqlite.Connection]) -> None:
        # Last in, first out: what a request has just looked at is in that connection's page cache.
        self._idle: asyncio.LifoQueue[aiosqlite.Connection] = asyncio.LifoQueue()
        for connection in connections:
            self._idle.put_nowait(connection)

    async def run(self, sql: str, parameters: Sequence[object]) -> Iterable[sqlite3.Row]:
        """Run one statement and return all its rows.

        Raises:
            StoreError: SQLite could not.
        """
        connection = await self._idle.get()
        try:
            return await connection.execute_fetchall(sql, parameters)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the store: {error}") from error
        except asyncio.CancelledError:
            # Nobody waits for the rows: stop the statement, so that the connection is free at once.
            await connection.interrupt()
            raise
        finally:
            self._idle.put_nowait(connection)


@contextlib.asynccontextmanager
async def _open_readers(path: Path, count: int) -> AsyncIterator[_ReaderPool]:
    async with contextlib.AsyncExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = await open_reader(path)
            stack.push_async_callback(connection.close)
            connections.append(connection)
        yield _ReaderPool(connections)


async def _stats(readers: _ReaderPool) -> StoreStats:
    ((envelopes, size),) = await readers.run(
        "SELECT coalesce(sum(envelopes), 0), coalesce(sum(bytes), 0) FROM days", ()
    )
    ((topics,),) = await readers.run("SELECT count(DISTINCT topic) FROM day_topics", ())
    ((oldest,),) = await readers.run("SELECT min(created) FROM envelopes", ())
    ((newest,),) = await readers.run("SELECT max(created) FROM envelopes", ())
    return StoreStats(envelopes, size, topics, oldest, newest)
