"""The store in one SQLite file that another process writes: it stores for this one, too, which reads by itself."""

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mailserver.errors import LocalProtocolError, StoreError
from mailserver.handoff.archived import Mark
from mailserver.ids.muid import Muid
from mailserver.reconcile.sides import Needed
from mailserver.store.engine.index_state import IndexState
from mailserver.store.engine.message_ids import FoundRows
from mailserver.store.engine.page import KeptKeysPage
from mailserver.store.engine.snapshots import Snapshots
from mailserver.store.interface import OURSELVES, Deleted, GoesOn, NewEnvelope, Payer, Query, always
from mailserver.store.others import Others
from mailserver.store.retention import Surplus
from mailserver.store.sqlite.connections import connect_follower
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.log_bound import LogBound
from mailserver.store.sqlite.message_ids import SqliteMessageIds
from mailserver.store.sqlite.presence import Presence, StoreLost
from mailserver.store.sqlite.reader_pool import ReaderPool, open_readers
from mailserver.store.sqlite.reading import READERS, SNAPSHOTS, SqliteReading
from mailserver.store.sqlite.snapshots import open_snapshots
from mailserver.store.sqlite.wal import wal_file
from mailserver.store.sqlite.worker import ConnectionThread

_REMOVED = "SELECT until, pruned FROM removed"


class WriterElsewhere(Protocol):
    """The process that writes the file. Each method waits for its answer, and raises StoreError if there is none."""

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable, *, is_live: bool) -> None:
        """Store envelopes; return once they are on disk."""

    async def touch(self) -> None:
        """Commit a change without content."""

    async def index_moves(self) -> None:
        """Wait until more message ids may be indexed; have that hurried."""

    async def index_anew(self, until_seq: int) -> None:
        """Have all message ids indexed anew."""

    def watch(self, *, lost: Callable[[str], None], found: Callable[[], None]) -> None:
        """Call these when it cannot be reached any more, and why, and when it can be."""

    @property
    def queued(self) -> tuple[int, int]:
        """How many envelopes wait for it, and their bytes."""

    @property
    def others(self) -> Others:
        """What all other processes put."""


class _Removed:
    """Up to when anything was removed, as far as was seen."""

    def __init__(self, readers: ReaderPool) -> None:
        self._readers = readers
        self.until = self.pruned = -1

    async def look(self) -> None:
        """See how it is now.

        Raises:
            StoreError: it cannot be read.
        """
        ((until, pruned),) = await self._readers.run(_REMOVED, ())
        self.until, self.pruned = max(self.until, int(until)), max(self.pruned, int(pruned))


@dataclass(frozen=True)
class _MessageIds(SqliteMessageIds):
    """Those of a store from which another process removes: what had been removed is known once something was found."""

    removed: _Removed

    async def find(self, muids: Sequence[Muid], *, payer: Payer = OURSELVES, goes_on: GoesOn = always) -> FoundRows:
        """Find the envelopes that have these MUIDs."""
        found = await super().find(muids, payer=payer, goes_on=goes_on)
        await self.removed.look()
        return found

    async def find_items(
        self, groups: Sequence[Needed], *, payer: Payer = OURSELVES, goes_on: GoesOn = always
    ) -> FoundRows:
        """Find the envelopes that have these ids of reconciliation."""
        found = await super().find_items(groups, payer=payer, goes_on=goes_on)
        await self.removed.look()
        return found


class FollowedStore(SqliteReading):
    """A `store.message_ids.StoreWithIds`, which says what each method does and raises. Made by `open_followed`."""

    def __init__(
        self,
        path: Path,
        presence: Presence,
        writer: WriterElsewhere,
        readers: ReaderPool,
        snapshots: Snapshots,
        message_ids: SqliteMessageIds,
        removed: _Removed,
        failures: StoreFailures,
    ) -> None:
        super().__init__(path, readers, message_ids, failures)
        self._presence = presence
        self._writer = writer
        self._snapshots = snapshots
        self._removed = removed
        self._log_bound = LogBound(wal_file(path))
        self._held = ""

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
        """Have envelopes stored; return once they are on disk."""
        if self._held:
            raise StoreError(self._held)
        if not envelopes:
            return
        if self.is_lost:
            raise StoreLost(self._failures.writing)
        try:
            await self._writer.put(envelopes, source, is_live=is_live)
        except StoreError as error:
            self._failures.failed_to_store(len(envelopes), str(error))
            raise
        self._failures.stored()

    def hold(self, why: str) -> None:
        """Refuse every `put` from now on, for this reason; "": take envelopes again."""
        self._held = why

    @property
    def problem(self) -> str:
        """Why envelopes are not being stored; "" if they are, as far as is known."""
        return self._held or self._failures.writing

    @property
    def others(self) -> Others:
        """The other processes on the store."""
        return self._writer.others

    @property
    def queued(self) -> tuple[int, int]:
        """How many envelopes wait for the writer, and their bytes."""
        return self._writer.queued

    @property
    def unindexed(self) -> int:
        """The writer knows; nobody asks here."""
        return 0

    async def find(
        self, query: Query, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always
    ) -> KeptKeysPage["array[int]"]:
        """Find the first `limit` matches, newest first."""
        page = await super().find(query, limit, payer=payer, goes_on=goes_on)
        await self._removed.look()
        return page

    @property
    def removed_until(self) -> int:
        """The store still has everything it ever stored that was created later than this, in Unix seconds."""
        return self._removed.until

    @property
    def pruned_until(self) -> int:
        """Nothing that was created later than this was ever pruned, in Unix seconds; -1 if nothing was."""
        return self._removed.pruned

    async def touch(self) -> None:
        """Have a change without content committed."""
        await self._writer.touch()

    async def check_presence(self) -> None:
        """Check that the file was not removed or replaced under us; see what was removed from it meanwhile. If its log
        has grown too long, let nothing of ours keep it from being started anew."""
        why = await asyncio.to_thread(self._presence.look)
        if why:
            self._failures.lost(why)
            raise StoreLost(why)
        if await asyncio.to_thread(self._log_bound.is_passed):
            self._snapshots.make_way()
        await self._removed.look()

    async def prune(self, surplus: Surplus, archived: Mapping[int, Mark] | None = None) -> Deleted:
        """The writer prunes."""
        raise LocalProtocolError(_OF_WRITER)

    async def note_pruned(self, until: int) -> int:
        """The writer knows."""
        raise LocalProtocolError(_OF_WRITER)

    async def maintain(self) -> bool:
        """The writer does."""
        raise LocalProtocolError(_OF_WRITER)


_OF_WRITER = "only the process that writes the store may do that"


@contextlib.asynccontextmanager
async def open_followed(path: Path, network_topic: str, writer: WriterElsewhere) -> AsyncIterator[FollowedStore]:
    """Open the store at `path`, which another process writes and has brought to this version; close it at the end.

    Args:
        network_topic: to which the message ids of envelopes belong.
    Raises:
        StoreError: there is none, or it is another's, of another version, or cannot be read.
    """
    failures = StoreFailures(path)
    presence = await asyncio.to_thread(Presence, path)  # before it is opened: what takes its place is noticed later
    checked = await ConnectionThread.start(lambda: connect_follower(path), "store-follower")
    await checked.close()
    async with (
        open_readers(path, READERS, failures) as readers,
        open_snapshots(path, SNAPSHOTS, failures) as snapshots,
    ):
        ((identity,),) = await readers.run("SELECT id FROM identity", ())
        removed = _Removed(readers)
        await removed.look()
        state = IndexState(network_topic, writer.index_moves, writer.index_anew)
        message_ids = _MessageIds(str(identity), snapshots, state, readers, removed)
        writer.watch(lost=lambda cause: failures.failed_to_store(0, cause), found=failures.stored)
        yield FollowedStore(path, presence, writer, readers, snapshots, message_ids, removed, failures)
