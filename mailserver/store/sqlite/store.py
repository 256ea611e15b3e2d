"""The store in one SQLite file, as `store.interface` describes it: one connection writes it, some read it."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from mailserver.errors import StoreError
from mailserver.handoff.archived import Mark
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.engine.index_state import IndexState
from mailserver.store.interface import (
    Deleted,
    NewEnvelope,
)
from mailserver.store.message_ids import OtherNetworkTopic
from mailserver.store.others import Others
from mailserver.store.retention import Surplus
from mailserver.store.sqlite.connections import counted_transaction, open_writer, transaction
from mailserver.store.sqlite.damage import explain
from mailserver.store.sqlite.deletion import delete_batch, give_back_pages
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.id_index import advance, give_up
from mailserver.store.sqlite.identity import NOTHING_KNOWN, KnownStore, identify
from mailserver.store.sqlite.message_ids import SqliteMessageIds
from mailserver.store.sqlite.presence import Presence
from mailserver.store.sqlite.reader_pool import ReaderPool, open_readers
from mailserver.store.sqlite.reading import READERS, SNAPSHOTS, SqliteReading
from mailserver.store.sqlite.snapshots import open_snapshots
from mailserver.store.sqlite.worker import ConnectionThread
from mailserver.store.sqlite.writer import StoreWriter

T = TypeVar("T")


class SqliteStore(SqliteReading):
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
        super().__init__(path, readers, message_ids, failures)
        self._writer = writer
        self._removed_until, self._pruned_until = removed
        self._others: Others | None = None

    def share(self, others: Others, tell: Callable[[Sequence[NewEnvelope], Hashable], None]) -> None:
        """Have other processes, for which this one stores, hear of what is live.

        Args:
            others: hears of what these have put.
            tell: called with live envelopes and their source once they are on disk, whether or not anybody still waits.
        """
        self._others, self._writer.tell = others, tell

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
        """Store envelopes; return once they are on disk."""
        await self._writer.put(envelopes, source, is_live=is_live)

    def hold(self, why: str) -> None:
        """Refuse every `put` from now on, for this reason; "": take envelopes again."""
        self._writer.hold(why)

    @property
    def problem(self) -> str:
        """Why envelopes are not being stored; "" if they are, as far as is known."""
        return self._writer.held or self._failures.writing

    @property
    def others(self) -> Others | None:
        """The other processes for which this one stores; None if it is alone."""
        return self._others

    async def index_moves(self) -> None:
        """Wait until more message ids may be indexed. Meanwhile no batch is put off.

        Raises:
            StoreError: the store is closing.
        """
        await self._writer.index_moves()

    async def index_anew(self, until_seq: int) -> None:
        """Have all message ids indexed anew, if the rows up to this one are said to be.

        Raises:
            StoreError: it could not be written.
        """
        await self._writer.between_commits(partial(give_up, until_seq=until_seq))

    @property
    def queued(self) -> tuple[int, int]:
        """How many envelopes wait for the disk, and their bytes."""
        return self._writer.queued

    @property
    def newest_seen(self) -> int:
        """The newest number of a row that was ever seen in it."""
        return self._writer.newest

    @property
    def unindexed(self) -> int:
        """How many envelopes are not in the index of message ids yet, at most."""
        return self._writer.unindexed

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


@contextlib.asynccontextmanager
async def open_store(
    path: Path, network_topic: str = DEFAULT_NETWORK_TOPIC, *, reindex: bool = False, known: KnownStore = NOTHING_KNOWN
) -> AsyncIterator[SqliteStore]:
    """Open the store at `path`; make or migrate it first if need be. At the end, commit what was put and close.

    If it is a backup, or went back to an earlier moment, it gets another identity.

    Args:
        network_topic: to which the message ids of envelopes belong.
        reindex: whether it may be another than before. Then all ids are made anew, while the store is in use.
        known: what is known of the store that there was.
    Raises:
        OtherNetworkTopic: it is another than before, and may not be.
        StoreError: the file is foreign, damaged, or of a later version, or cannot be written.
    """
    worker = await open_writer(path)
    try:
        found = await worker.run(partial(identify, path=path, known=known))
        before = await _asked(worker, path, _network_topic)
        if before not in ("", network_topic) and not reindex:
            raise OtherNetworkTopic(before, network_topic)
        failures, presence = StoreFailures(path), Presence(path)
        if found.went_back:
            failures.went_back("store")
        async with (
            open_readers(path, READERS, failures) as readers,
            open_snapshots(path, SNAPSHOTS, failures) as snapshots,
        ):
            index = partial(advance, network_topic=network_topic)
            writer = StoreWriter(worker, path, presence, failures, snapshots, index, found.newest)
            writing = asyncio.create_task(writer.run(), name="store writer")
            try:
                removed = await _asked(worker, path, _removed)
                state = IndexState(
                    network_topic,
                    writer.index_moves,
                    lambda goal: writer.between_commits(partial(give_up, until_seq=goal)),
                )
                message_ids = SqliteMessageIds(found.identity, snapshots, state, readers)
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


async def _asked(worker: ConnectionThread, path: Path, read: Callable[[sqlite3.Connection], T]) -> T:
    """What the store says of itself.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        return await worker.run(read)
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the store {path}: {explain(error, path)}") from error


def _removed(connection: sqlite3.Connection) -> tuple[int, int]:
    """Up to which second of creation anything was removed, and up to which it was pruned."""
    ((until, pruned),) = connection.execute("SELECT until, pruned FROM removed")
    return int(until), int(pruned)


def _note_pruned(connection: sqlite3.Connection, until: int, removing: Callable[[int, int], None]) -> None:
    sql = "UPDATE removed SET until = max(until, ?), pruned = max(pruned, ?) RETURNING until, pruned"
    with counted_transaction(connection):
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
    # Not counted (`store.sqlite.continuity`): it stores nothing that could be lost.
    with transaction(connection):
        # A real change: SQLite does not write a page that stays as it is. It also puts the identity into every log,
        # which `store.sqlite.damage` looks for.
        connection.execute("UPDATE identity SET rowid = rowid % 2 + 1")
