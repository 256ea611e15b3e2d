"""The store in one SQLite file, as `store.interface` describes it: one connection writes it, some read it."""

import asyncio
import contextlib
import sqlite3
from array import array
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path

from mailserver.handoff.archived import Mark
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.engine.index_state import IndexState
from mailserver.store.engine.page import KeptKeysPage
from mailserver.store.engine.search import Search
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
from mailserver.store.message_ids import OtherNetworkTopic
from mailserver.store.retention import Surplus, Usage
from mailserver.store.sqlite.connections import open_writer, transaction
from mailserver.store.sqlite.deletion import delete_batch, give_back_pages
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.handoff import SqliteHandoff
from mailserver.store.sqlite.id_index import advance, give_up
from mailserver.store.sqlite.lookups import Lookups
from mailserver.store.sqlite.message_ids import SqliteMessageIds
from mailserver.store.sqlite.move_record import SqliteMoveRecord
from mailserver.store.sqlite.presence import Presence
from mailserver.store.sqlite.read_only import check_header
from mailserver.store.sqlite.reader import RowReader
from mailserver.store.sqlite.reader_pool import PaidReader, ReaderPool, open_readers
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.store.sqlite.snapshots import open_snapshots
from mailserver.store.sqlite.time_record import SqliteTimeRecord
from mailserver.store.sqlite.unopened import BYTES_IN_USE
from mailserver.store.sqlite.wal import wal_file
from mailserver.store.sqlite.writer import StoreWriter

READERS = 3
"""Read-only connections, each with a thread. More of them would only wait for each other at Python's lock."""

SNAPSHOTS = 2
"""Read-only connections for comparisons of ids: so one that takes seconds does not hold up all others."""

_HELD = "SELECT count(*) FROM (SELECT 1 FROM envelopes WHERE received < ? ORDER BY received LIMIT ?)"


class SqliteStore:
    """A `store.message_ids.StoreWithIds`, which says what each method does and raises. Made by `open_store`."""

    def __init__(
        self,
        path: Path,
        writer: StoreWriter,
        readers: ReaderPool,
        message_ids: SqliteMessageIds,
        failures: StoreFailures,
        *,
        removed: tuple[int, int],
    ) -> None:
        self._path = path
        self._writer = writer
        self._failures = failures
        self._readers = readers
        self._rows = RowReader(PaidReader(readers))
        self._removed_until, self._pruned_until = removed
        self._message_ids = message_ids

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
        """Store envelopes; return once they are on disk. Nobody else hears of live ones: the file is ours alone."""
        await self._writer.put(envelopes, source)

    def hold(self, why: str) -> None:
        """Refuse every `put` from now on, for this reason; "": take envelopes again."""
        self._writer.hold(why)

    @property
    def problem(self) -> str:
        """Why envelopes are not being stored; "" if they are, as far as is known."""
        return self._writer.held or self._failures.writing

    @property
    def is_lost(self) -> bool:
        """Whether the file was removed or replaced under us."""
        return self._failures.is_lost

    @property
    def others(self) -> None:
        """There are none."""
        return None

    @property
    def damage(self) -> str:
        """What else is wrong with the file, as far as was noticed since it was opened; "" if nothing is."""
        return self._failures.damage

    def tell(self, on_change: Callable[[], None]) -> None:
        """Call this whenever a write or a read has changed `problem` or `damage`."""
        self._failures.tell(on_change)

    @property
    def queued(self) -> tuple[int, int]:
        """How many envelopes wait for the disk, and their bytes."""
        return self._writer.queued

    @property
    def unindexed(self) -> int:
        """How many envelopes are not in the index of message ids yet, at most."""
        return self._writer.unindexed

    @property
    def message_ids(self) -> SqliteMessageIds:
        """The ids of its envelopes."""
        return self._message_ids

    async def find(
        self, query: Query, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always
    ) -> KeptKeysPage["array[int]"]:
        """Find the first `limit` matches, newest first."""
        readers = PaidReader(self._readers, payer)
        found = await Search(Lookups(readers), query, limit, goes_on).page()
        return KeptKeysPage(found, RowReader(readers))

    async def missing(self, envelopes: Sequence[NewEnvelope]) -> list[NewEnvelope]:
        """Which of these envelopes are not in the store."""
        places = [(envelope.created, envelope.hash[:HASH_PREFIX_BYTES]) for envelope in envelopes]
        present = await self._rows.present(places)
        return [envelope for envelope, place in zip(envelopes, places, strict=True) if place not in present]

    async def usage(self) -> Usage:
        """How much there is and what it takes on disk."""
        ((envelopes,),) = await self._readers.run("SELECT coalesce(sum(envelopes), 0) FROM reception_days", ())
        ((size,),) = await self._readers.run(BYTES_IN_USE, ())
        return Usage(envelopes, size)

    async def sizes_on_disk(self) -> tuple[int, int]:
        """How long the file is, and its log, in bytes; 0 for one that does not exist."""
        return await asyncio.to_thread(lambda: (_size(self._path), _size(wal_file(self._path))))

    @property
    def location(self) -> str:
        """The path of the store's file."""
        return str(self._path)

    @property
    def handoff(self) -> SqliteHandoff:
        """What the nightly job and the daemon tell each other about this store."""
        return SqliteHandoff(self._path)

    @property
    def time_record(self) -> SqliteTimeRecord:
        """The moment that time has certainly reached."""
        return SqliteTimeRecord(self._path)

    @property
    def move_record(self) -> SqliteMoveRecord:
        """How far another store was moved into this one."""
        return SqliteMoveRecord(self._path)

    async def reception_days(self, limit: int) -> list[ReceptionDay]:
        """The last days of reception that have any envelopes, the latest first."""
        rows = await self._readers.run(
            "SELECT day, envelopes, bytes FROM reception_days ORDER BY day DESC LIMIT ?", (limit,)
        )
        return [ReceptionDay(*row) for row in rows]

    async def prune(self, surplus: Surplus, archived: Mapping[int, Mark] | None = None) -> Deleted:
        """Delete a batch of the surplus, oldest by reception first. A mark is a row's `seq`."""
        return await self._writer.between_commits(
            lambda connection: delete_batch(connection, surplus, archived, removing=self._note_removed)
        )

    @property
    def removed_until(self) -> int:
        """The store still has everything it ever stored that was created later than this, in Unix seconds."""
        return self._removed_until

    @property
    def pruned_until(self) -> int:
        """Nothing that was created later than this was ever pruned, in Unix seconds; -1 if nothing was."""
        return self._pruned_until

    async def note_pruned(self, until: int) -> int:
        """Note that what was created up to `until` may have been pruned; return up to when anything was."""
        await self._writer.between_commits(partial(_note_pruned, until=until, removing=self._note_removed))
        return self._pruned_until

    def _note_removed(self, until: int, pruned: int) -> None:
        """Called in the writer's thread, before the commit."""
        self._removed_until, self._pruned_until = until, pruned

    async def maintain(self) -> bool:
        """Give a few free pages of the file back; return whether there were any."""
        return await self._writer.between_commits(give_back_pages) > 0

    async def touch(self) -> None:
        """Commit a change without content."""
        await self._writer.between_commits(_touch)

    async def check_presence(self) -> None:
        """Check that the file was not removed or replaced under us."""
        await self._writer.check_presence()

    async def held(self, surplus: Surplus) -> int:
        """How many envelopes of the surplus are in the store."""
        ((count,),) = await self._readers.run(_HELD, (surplus.before, surplus.envelopes))
        return int(count)

    async def oldest_reception(self) -> int | None:
        """When the oldest envelope was received."""
        ((oldest,),) = await self._readers.run("SELECT min(received) FROM envelopes", ())
        return None if oldest is None else int(oldest)

    async def last_reception(self, until: int) -> int | None:
        """When the last envelope was received that was received by `until`."""
        ((last,),) = await self._readers.run("SELECT max(received) FROM envelopes WHERE received <= ?", (until,))
        return None if last is None else int(last)

    async def identity(self) -> str:
        """An identity that no other store has."""
        ((identity,),) = await self._readers.run("SELECT id FROM identity", ())
        return str(identity)

    async def shrinks(self) -> bool:
        """Whether the file can give pages back: one that version 1 of the schema made cannot."""
        ((mode,),) = await self._readers.run("PRAGMA auto_vacuum", ())
        return bool(mode)

    async def stats(self) -> StoreStats:
        """What is in the store."""
        return await _stats(self._readers)


@contextlib.asynccontextmanager
async def open_store(
    path: Path, network_topic: str = DEFAULT_NETWORK_TOPIC, *, reindex: bool = False
) -> AsyncIterator[SqliteStore]:
    """Open the store at `path`; make or migrate it first if need be. At the end, commit what was put and close.

    Args:
        network_topic: to which the message ids of envelopes belong.
        reindex: whether it may be another than before. Then all ids are made anew, while the store is in use.
    Raises:
        OtherNetworkTopic: it is another than before, and may not be.
        StoreError: the file is foreign, damaged, or of a later version, or cannot be written.
    """
    worker = await open_writer(path)
    try:
        before = await worker.run(_network_topic)
        if before not in ("", network_topic) and not reindex:
            raise OtherNetworkTopic(before, network_topic)
        failures, presence = StoreFailures(path), Presence(path)
        async with (
            open_readers(path, READERS, failures) as readers,
            open_snapshots(path, SNAPSHOTS, failures) as snapshots,
        ):
            index = partial(advance, network_topic=network_topic)
            writer = StoreWriter(worker, path, presence, failures, snapshots, index)
            writing = asyncio.create_task(writer.run(), name="store writer")
            try:
                removed = await worker.run(_removed)
                state = IndexState(
                    network_topic,
                    writer.index_moves,
                    lambda goal: writer.between_commits(partial(give_up, until_seq=goal)),
                )
                message_ids = SqliteMessageIds(snapshots, state, readers)
                yield SqliteStore(path, writer, readers, message_ids, failures, removed=removed)
            finally:
                writer.close()
                await writing
                if await worker.run(lambda _: presence.look()):
                    # The last connection to close writes the log back and removes the file of that name, which may be
                    # another store's by now. While readers are open, the writer does not do so, and they cannot.
                    await worker.close()
    finally:
        await worker.close(_write_back)


async def read_stats(path: Path) -> StoreStats:
    """Read what is in the store at `path`, whether a daemon has it open or not.

    Raises:
        StoreError: there is no such store, or it cannot be read.
    """
    await asyncio.to_thread(check_header, path)
    async with open_readers(path, 1, StoreFailures(path)) as readers:
        return await _stats(readers)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # there is no log at the moment; a missing store file is noticed elsewhere
        return 0


def _removed(connection: sqlite3.Connection) -> tuple[int, int]:
    """Up to which second of creation anything was removed, and up to which it was pruned."""
    ((until, pruned),) = connection.execute("SELECT until, pruned FROM removed")
    return int(until), int(pruned)


def _note_pruned(connection: sqlite3.Connection, until: int, removing: Callable[[int, int], None]) -> None:
    sql = "UPDATE removed SET until = max(until, ?), pruned = max(pruned, ?) RETURNING until, pruned"
    with transaction(connection):
        ((removed, pruned),) = connection.execute(sql, (until, until)).fetchall()
        removing(removed, pruned)


def _network_topic(connection: sqlite3.Connection) -> str:
    """To which the ids in the index belong; "" if there is none yet, or it is being emptied."""
    row = connection.execute("SELECT network_topic FROM id_index").fetchone()
    return "" if row is None else str(row[0])


def _write_back(connection: sqlite3.Connection) -> None:
    """Write the log back into the file. SQLite does so when the last connection is closed, but other processes may have
    some. Then whoever copies the file alone, once nothing writes it, has all of it."""
    with contextlib.suppress(sqlite3.Error):  # nothing is lost: it stays in the log
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _touch(connection: sqlite3.Connection) -> None:
    with transaction(connection):
        # A real change: SQLite does not write a page that stays as it is. It also puts the identity into every log,
        # which `store.sqlite.damage` looks for.
        connection.execute("UPDATE identity SET rowid = rowid % 2 + 1")


async def _stats(readers: ReaderPool) -> StoreStats:
    ((envelopes, size),) = await readers.run(
        "SELECT coalesce(sum(envelopes), 0), coalesce(sum(bytes), 0) FROM days", ()
    )
    ((topics,),) = await readers.run("SELECT count(DISTINCT topic) FROM day_topics", ())
    ((oldest,),) = await readers.run("SELECT min(created) FROM envelopes", ())
    ((newest,),) = await readers.run("SELECT max(created) FROM envelopes", ())
    return StoreStats(envelopes, size, topics, oldest, newest)
