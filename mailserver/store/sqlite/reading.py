"""Reading the store in one SQLite file, as `store.interface` describes it, whichever process writes it."""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

from mailserver.store.engine.page import KeptKeysPage
from mailserver.store.engine.search import KeySearch
from mailserver.store.interface import (
    OURSELVES,
    GoesOn,
    NewEnvelope,
    Payer,
    Query,
    ReceptionDay,
    StoreStats,
    always,
)
from mailserver.store.retention import Surplus, Usage
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.handoff import SqliteHandoff
from mailserver.store.sqlite.lookups import Lookups
from mailserver.store.sqlite.message_ids import SqliteMessageIds
from mailserver.store.sqlite.move_record import SqliteMoveRecord
from mailserver.store.sqlite.read_only import check_header
from mailserver.store.sqlite.reader import RowReader
from mailserver.store.sqlite.reader_pool import PaidReader, ReaderPool, open_readers
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.store.sqlite.time_record import SqliteTimeRecord
from mailserver.store.sqlite.unopened import BYTES_IN_USE
from mailserver.store.sqlite.wal import wal_file

READERS = 3
"""Read-only connections, each with a thread. More of them would only wait for each other at Python's lock."""

SNAPSHOTS = 2
"""Read-only connections for comparisons of ids: so one that takes seconds does not hold up all others."""

_HELD = "SELECT count(*) FROM (SELECT 1 FROM envelopes WHERE received < ? ORDER BY received LIMIT ?)"


class SqliteReading:
    """What of a `store.message_ids.StoreWithIds` only reads; its methods are described there."""

    def __init__(self, path: Path, readers: ReaderPool, message_ids: SqliteMessageIds, failures: StoreFailures) -> None:
        self._path = path
        self._failures = failures
        self._readers = readers
        self._rows = RowReader(PaidReader(readers))
        self._message_ids = message_ids

    @property
    def is_lost(self) -> bool:
        """Whether the file was removed or replaced under us."""
        return self._failures.is_lost

    @property
    def damage(self) -> str:
        """What else is wrong with the file, as far as was noticed since it was opened; "" if nothing is."""
        return self._failures.damage

    @property
    def generation(self) -> int:
        """Always the same: a file that was put in the place of this one is another store, which nothing is put into."""
        return 0

    def tell(self, on_change: Callable[[], None]) -> None:
        """Call this whenever a write or a read has changed `problem` or `damage`."""
        self._failures.tell(on_change)

    @property
    def message_ids(self) -> SqliteMessageIds:
        """The ids of its envelopes."""
        return self._message_ids

    async def find(
        self, query: Query, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always
    ) -> KeptKeysPage["array[int]"]:
        """Find the first `limit` matches, newest first."""
        readers = PaidReader(self._readers, payer)
        found = await KeySearch(Lookups(readers), query, limit, goes_on).page()
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


async def _stats(readers: ReaderPool) -> StoreStats:
    ((envelopes, size),) = await readers.run(
        "SELECT coalesce(sum(envelopes), 0), coalesce(sum(bytes), 0) FROM days", ()
    )
    ((topics,),) = await readers.run("SELECT count(DISTINCT topic) FROM day_topics", ())
    ((oldest,),) = await readers.run("SELECT min(created) FROM envelopes", ())
    ((newest,),) = await readers.run("SELECT max(created) FROM envelopes", ())
    return StoreStats(envelopes, size, topics, oldest, newest)
