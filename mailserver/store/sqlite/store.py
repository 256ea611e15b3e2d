"""The store in one SQLite file: what `store.interface.Store` says, by one writer and some readers."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from pathlib import Path

from mailserver.store.interface import (
    OURSELVES,
    Deleted,
    GoesOn,
    NewEnvelope,
    Payer,
    Query,
    ReceptionDay,
    StoreStats,
    always,
)
from mailserver.store.retention import Surplus, Usage
from mailserver.store.sqlite.connections import open_writer, transaction
from mailserver.store.sqlite.deletion import delete_batch, give_back_pages
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.handoff import SqliteHandoff
from mailserver.store.sqlite.page import SqlitePage
from mailserver.store.sqlite.presence import Presence
from mailserver.store.sqlite.read_only import check_header
from mailserver.store.sqlite.reader import Finder
from mailserver.store.sqlite.reader_pool import PaidReader, ReaderPool, open_readers
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.store.sqlite.wal import wal_file
from mailserver.store.sqlite.writer import StoreWriter

READERS = 3
"""Read-only connections, each with a thread: more would only wait for one another's turn at Python's lock."""

_BYTES_IN_USE = """
    SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""
_HELD = "SELECT count(*) FROM (SELECT 1 FROM envelopes WHERE received < ? ORDER BY received LIMIT ?)"


class SqliteStore:
    """A store that is open for writing. Made by `open_store`."""

    def __init__(
        self, path: Path, writer: StoreWriter, readers: ReaderPool, failures: StoreFailures, *, removed_until: int
    ) -> None:
        self._path = path
        self._writer = writer
        self._failures = failures
        self._readers = readers
        self._finder = Finder(PaidReader(readers))
        self._removed_until = removed_until

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None) -> None:
        """Store envelopes; return once they are on disk. What is there already is left as it is.

        Args:
            source: whose they are: sources take turns, so that none waits for all that the others have queued.
        Raises:
            StoreError: they are not stored, or not all.
        """
        await self._writer.put(envelopes, source)

    def hold(self, why: str) -> None:
        """Store nothing that is put from now on, for this reason; "": store it again. Pruning goes on."""
        self._writer.hold(why)

    @property
    def problem(self) -> str:
        """Why envelopes are not stored at present; "" if they are, as far as it is known."""
        return self._writer.held or self._failures.writing

    @property
    def is_lost(self) -> bool:
        """Whether what is open is no longer the store at its path: nothing is stored or deleted until a restart."""
        return self._failures.is_lost

    @property
    def damage(self) -> str:
        """What else is wrong with the file, as far as it was used since it was opened; "" if nothing is."""
        return self._failures.damage

    def tell(self, on_change: Callable[[], None]) -> None:
        """Have this called whenever `problem` or `damage` has changed by what was written or read."""
        self._failures.tell(on_change)

    @property
    def queued(self) -> tuple[int, int]:
        """How many envelopes wait for the disk, and their bytes."""
        return self._writer.queued

    async def find(self, query: Query, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always) -> SqlitePage:
        """Find the first `limit` matches, newest first.

        Args:
            payer: who asks: where many read, whoever has had less work done for it is next.
            goes_on: whether to go on after so much work; else a page by bloom filter ends early.
        Raises:
            StoreError: the store cannot be read.
        """
        finder = Finder(PaidReader(self._readers, payer))
        return SqlitePage(finder, await finder.find(query, limit, goes_on))

    async def missing(self, envelopes: Sequence[NewEnvelope]) -> list[NewEnvelope]:
        """Which of these envelopes are not in the store; in their order, each as often as it is given.

        Raises:
            StoreError: the store cannot be read.
        """
        places = [(envelope.created, envelope.hash[:HASH_PREFIX_BYTES]) for envelope in envelopes]
        present = await self._finder.present(places)
        return [envelope for envelope, place in zip(envelopes, places, strict=True) if place not in present]

    async def usage(self) -> Usage:
        """Say how much there is and what it takes on disk, without counting it.

        Raises:
            StoreError: the store cannot be read.
        """
        ((envelopes,),) = await self._readers.run("SELECT coalesce(sum(envelopes), 0) FROM reception_days", ())
        ((size,),) = await self._readers.run(_BYTES_IN_USE, ())
        return Usage(envelopes, size)

    async def sizes_on_disk(self) -> tuple[int, int]:
        """How long the file is, and its log, in bytes; 0 of one that is not there."""
        return await asyncio.to_thread(lambda: (_size(self._path), _size(wal_file(self._path))))

    @property
    def handoff(self) -> SqliteHandoff:
        """What the nightly job and the daemon tell each other about this store."""
        return SqliteHandoff(self._path)

    async def reception_days(self, limit: int) -> list[ReceptionDay]:
        """What is there of the last days of reception that have anything, the latest first.

        Raises:
            StoreError: the store cannot be read.
        """
        rows = await self._readers.run(
            "SELECT day, envelopes, bytes FROM reception_days ORDER BY day DESC LIMIT ?", (limit,)
        )
        return [ReceptionDay(*row) for row in rows]

    async def prune(self, surplus: Surplus, archived: Mapping[int, int] | None = None) -> Deleted:
        """Delete a batch of what is too much, oldest by reception first; return what was deleted: 0 at the end.

        Args:
            archived: of each day of reception, the highest `seq` that may go; a day not named stays. None: all may.
        Raises:
            StoreError: nothing was deleted.
        """
        return await self._writer.between_commits(
            lambda connection: delete_batch(connection, surplus, archived, removing=self._remove_until)
        )

    @property
    def removed_until(self) -> int:
        """Of what was created later, in Unix seconds, all that was ever stored is here."""
        return self._removed_until

    def _remove_until(self, created: int) -> None:
        """Called in the writer's thread, before the commit."""
        self._removed_until = created

    async def give_back_pages(self) -> int:
        """Shorten the file by a few free pages, if there are more than are soon used again; return by how many.

        Raises:
            StoreError: SQLite could not.
        """
        return await self._writer.between_commits(give_back_pages)

    async def touch(self) -> None:
        """Commit something that changes nothing: it takes the disk to do so.

        Raises:
            StoreError: nothing can be stored at present.
        """
        await self._writer.between_commits(_touch)

    async def look_at_files(self) -> None:
        """Look whether what is open is still what has the store's name: else nothing is stored any more.

        Raises:
            StoreError: it is not.
        """
        await self._writer.look()

    async def held(self, surplus: Surplus) -> int:
        """How much of what is too much is there.

        Raises:
            StoreError: the store cannot be read.
        """
        ((count,),) = await self._readers.run(_HELD, (surplus.before, surplus.envelopes))
        return int(count)

    async def oldest_reception(self) -> int | None:
        """When the oldest was received, in Unix seconds; None in an empty store.

        Raises:
            StoreError: the store cannot be read.
        """
        ((oldest,),) = await self._readers.run("SELECT min(received) FROM envelopes", ())
        return None if oldest is None else int(oldest)

    async def last_reception(self, until: int) -> int | None:
        """When the last was received that was received by `until`, in Unix seconds; None if there is none.

        Rows from the future, of a clock that was ahead, tell nothing of when we were last there.

        Raises:
            StoreError: the store cannot be read.
        """
        ((last,),) = await self._readers.run("SELECT max(received) FROM envelopes WHERE received <= ?", (until,))
        return None if last is None else int(last)

    async def identity(self) -> str:
        """What tells this store from every other.

        Raises:
            StoreError: the store cannot be read.
        """
        ((identity,),) = await self._readers.run("SELECT id FROM identity", ())
        return str(identity)

    async def shrinks(self) -> bool:
        """Whether the file can give pages back: one that version 1 of the schema made cannot.

        Raises:
            StoreError: the store cannot be read.
        """
        ((mode,),) = await self._readers.run("PRAGMA auto_vacuum", ())
        return bool(mode)

    async def stats(self) -> StoreStats:
        """Say what is in the store, without counting it."""
        return await _stats(self._readers)


@contextlib.asynccontextmanager
async def open_store(path: Path) -> AsyncIterator[SqliteStore]:
    """Open the store at `path`, made or migrated first if need be; at the end, commit what was put and close.

    Raises:
        StoreError: the file is foreign, damaged, or of a later version, or cannot be written.
    """
    worker = await open_writer(path)
    try:
        failures, presence = StoreFailures(path), Presence(path)
        async with open_readers(path, READERS, failures) as readers:
            writer = StoreWriter(worker, path, presence, failures)
            writing = asyncio.create_task(writer.run(), name="store writer")
            try:
                yield SqliteStore(path, writer, readers, failures, removed_until=await worker.run(_removed_until))
            finally:
                writer.close()
                await writing
                if await worker.run(lambda _: presence.look()):
                    # Who closes a store last writes its log back, and removes the file of that name: it may be another
                    # store's now. Connections that only read cannot, and hold the writer's off.
                    await worker.close()
    finally:
        await worker.close()


async def read_stats(path: Path) -> StoreStats:
    """Say what is in the store at `path`, beside a daemon that has it open or not.

    Raises:
        StoreError: there is no such store, or it cannot be read.
    """
    await asyncio.to_thread(check_header, path)
    async with open_readers(path, 1, StoreFailures(path)) as readers:
        return await _stats(readers)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # no log at the moment; a store file that is gone is seen otherwise
        return 0


def _removed_until(connection: sqlite3.Connection) -> int:
    ((until,),) = connection.execute("SELECT until FROM removed")
    return int(until)


def _touch(connection: sqlite3.Connection) -> None:
    with transaction(connection):
        # Really another row: SQLite does not write a page that stays as it is. And the identity is thus in every log
        # (`mailserver.store.sqlite.damage`).
        connection.execute("UPDATE identity SET rowid = rowid % 2 + 1")


async def _stats(readers: ReaderPool) -> StoreStats:
    ((envelopes, size),) = await readers.run(
        "SELECT coalesce(sum(envelopes), 0), coalesce(sum(bytes), 0) FROM days", ()
    )
    ((topics,),) = await readers.run("SELECT count(DISTINCT topic) FROM day_topics", ())
    ((oldest,),) = await readers.run("SELECT min(created) FROM envelopes", ())
    ((newest,),) = await readers.run("SELECT max(created) FROM envelopes", ())
    return StoreStats(envelopes, size, topics, oldest, newest)
