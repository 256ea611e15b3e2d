"""The holdings of a community: envelopes of its channels as they arrive, in `community.db` (61/STATUS "Storing live
messages").

They are beside the mailserver's store, whose retention does not concern them. What arrives in the store is put here in
one transaction with the place up to which the store was followed, so nothing is left out or put twice. An envelope goes
when it is older than 30 days, in a history archive, and distributed. The job reads this file while it is written.
"""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from mailserver.communities.formats import TimeRange
from mailserver.errors import StoreError
from mailserver.files import write_new
from mailserver.store.arrivals import ArrivedEnvelope
from mailserver.store.message_ids import BEFORE_ALL, Arrival
from mailserver.store.sqlite.connections import BUSY_TIMEOUT_S, pragma, transaction
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.store.sqlite.worker import ConnectionThread
from mailserver.waku.envelope import Topic

APPLICATION_ID = 0x57_41_4B_48
"""PRAGMA application_id of our files: "WAKH"."""

CACHE_KIB = 4 * 1024
LOG_BYTES = 16 * 1024 * 1024

REMOVED_ROWS = 4000
"""Most rows that are looked at in one transaction."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Names and indexes are those of the store: the job reads both by the same statements.
        """
        CREATE TABLE envelopes (
            created INTEGER NOT NULL,               -- the sender's claim, Unix seconds
            topic BLOB NOT NULL,                    -- 4 bytes
            hash BLOB NOT NULL,                     -- first 16 bytes of Keccak-256 of raw
            received INTEGER NOT NULL,              -- our clock, Unix seconds
            raw BLOB NOT NULL                       -- RLP as received
        )
        """,
        "CREATE UNIQUE INDEX envelopes_by_time ON envelopes (created, hash)",
        "CREATE INDEX envelopes_by_topic ON envelopes (created / 86400, topic, created, hash)",
        """
        CREATE TABLE progress (                     -- one row
            identity TEXT NOT NULL,                 -- of the store that is followed; '' before the first
            arrival INTEGER NOT NULL                -- all that arrived up to here is in
        )
        """,
        "INSERT INTO progress VALUES ('', 0)",
    ),
)
"""Statement by statement; MIGRATIONS[n] leads from `user_version` n to n + 1. Never change one that was released."""

SCHEMA_VERSION = len(MIGRATIONS)

_INSERT = "INSERT OR IGNORE INTO envelopes (created, topic, hash, received, raw) VALUES (?, ?, ?, ?, ?)"
_ADVANCE = "UPDATE progress SET arrival = ? WHERE identity = ? AND arrival = ?"
_OLD = """
    SELECT created, topic, hash, received FROM envelopes WHERE (created, hash) > (?, ?) AND created < ?
    ORDER BY 1, 3 LIMIT ?
"""
_DELETE = "DELETE FROM envelopes WHERE created = ? AND hash = ?"

T = TypeVar("T")

HeldPlace = tuple[int, bytes]
"""Time of creation, and key."""

FIRST_PLACE: HeldPlace = (-1, b"")


class HeldEnvelope(NamedTuple):
    """An envelope that is held: when it was created, its topic and key, and when it was received."""

    created: int
    topic: Topic
    key: bytes
    received: int


IsRemovable = Callable[[HeldEnvelope], bool]


class StoreProgress(NamedTuple):
    """How far which store was followed."""

    identity: str
    arrival: Arrival


class Holdings:
    """The holdings of one community. Made by `open_holdings`."""

    def __init__(self, path: Path, worker: ConnectionThread, progress: StoreProgress) -> None:
        self.progress = progress
        self._path = path
        self._worker = worker

    async def begin_anew(self, identity: str) -> None:
        """Follow another store, from its beginning. What is held stays.

        Raises:
            StoreError: the file cannot be written.
        """
        progress = StoreProgress(identity, BEFORE_ALL)
        await self._run(partial(_begin_anew, progress=progress))
        self.progress = progress

    async def take(self, arrived: Iterable[ArrivedEnvelope], end: Arrival, topics: frozenset[Topic], now: int) -> int:
        """Put what arrived on these topics; the store is followed up to `end` then. Return how many are new.

        Args:
            now: when they were received, Unix seconds.
        Raises:
            StoreError: the file cannot be written, or somebody else follows the store here.
        """
        rows = [
            (each.envelope.created, bytes(each.envelope.topic), each.hash[:HASH_PREFIX_BYTES], now, each.envelope.raw)
            for each in arrived
            if each.arrival > self.progress.arrival and each.envelope.topic in topics
        ]
        taken = await self._run(partial(_take, progress=self.progress, end=end, rows=rows))
        if taken is None:
            raise StoreError(f"{self._path} is written by another process")
        self.progress = self.progress._replace(arrival=end)
        return taken

    async def remove(self, before: int, is_removable: IsRemovable) -> int:
        """Remove what was created before a time and may go; return how many went.

        Args:
            is_removable: says so of each.
        Raises:
            StoreError: the file cannot be written.
        """
        removed, after = 0, FIRST_PLACE
        while True:
            count, last = await self._run(
                partial(_remove, after=after, before=before, is_removable=is_removable, limit=REMOVED_ROWS)
            )
            removed += count
            if last is None:
                return removed
            after = last

    async def count(self) -> int:
        """How many envelopes are held.

        Raises:
            StoreError: the file cannot be read.
        """
        return await self._run(_count)

    async def holds_any(self, time_range: TimeRange) -> bool:
        """Whether an envelope is held that was created in a range.

        Raises:
            StoreError: the file cannot be read.
        """
        return await self._run(partial(_holds_any, time_range=time_range))

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with _explained(self._path):
            return await self._worker.run(work)


@asynccontextmanager
async def open_holdings(path: Path) -> AsyncIterator[Holdings]:
    """Open the holdings at `path`, which are made or migrated first if need be.

    Raises:
        StoreError: the file is foreign, damaged, or of a later version, or cannot be written.
    """
    with _explained(path):
        worker = await ConnectionThread.start(partial(_connect, path), "holdings")
    try:
        with _explained(path):
            progress = await worker.run(_read_progress)
        yield Holdings(path, worker, progress)
    finally:
        await worker.close()


def _connect(path: Path) -> sqlite3.Connection:
    if not path.exists():
        write_new(path, b"")  # SQLite would follow the umask, and gives log and index the same permissions
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    with contextlib.ExitStack() as unless_prepared:
        unless_prepared.callback(connection.close)
        application_id, version = pragma(connection, "application_id"), pragma(connection, "user_version")
        ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_master")
        if application_id != APPLICATION_ID and (application_id or version or tables):
            raise StoreError(f"{path} holds no envelopes of a community (application_id {application_id:#x})")
        if version > SCHEMA_VERSION:
            raise StoreError(f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        for number in range(version, SCHEMA_VERSION):
            with transaction(connection):
                for statement in MIGRATIONS[number]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {number + 1}")
        unless_prepared.pop_all()
    return connection


def _read_progress(connection: sqlite3.Connection) -> StoreProgress:
    ((identity, arrival),) = connection.execute("SELECT identity, arrival FROM progress")
    return StoreProgress(identity, Arrival(arrival))


def _begin_anew(connection: sqlite3.Connection, progress: StoreProgress) -> None:
    with transaction(connection):
        connection.execute("UPDATE progress SET identity = ?, arrival = ?", progress)


def _take(
    connection: sqlite3.Connection, progress: StoreProgress, end: Arrival, rows: Sequence[tuple[object, ...]]
) -> int | None:
    with transaction(connection):
        if not connection.execute(_ADVANCE, (end, *progress)).rowcount:
            return None
        before = connection.total_changes
        connection.executemany(_INSERT, rows)
        return connection.total_changes - before


def _remove(
    connection: sqlite3.Connection,
    after: HeldPlace,
    before: int,
    is_removable: IsRemovable,
    limit: int,
) -> tuple[int, HeldPlace | None]:
    """Look at the next rows; return how many went, and where to go on, None at the end."""
    with transaction(connection):
        rows = connection.execute(_OLD, (*after, before, limit)).fetchall()
        gone = [
            (created, key)
            for created, topic, key, received in rows
            if is_removable(HeldEnvelope(created, Topic(topic), key, received))
        ]
        connection.executemany(_DELETE, gone)
    return len(gone), (rows[-1][0], rows[-1][2]) if len(rows) == limit else None


def _count(connection: sqlite3.Connection) -> int:
    ((count,),) = connection.execute("SELECT count(*) FROM envelopes")
    return int(count)


def _holds_any(connection: sqlite3.Connection, time_range: TimeRange) -> bool:
    ((found,),) = connection.execute(
        "SELECT EXISTS (SELECT * FROM envelopes WHERE created >= ? AND created < ?)", time_range
    )
    return bool(found)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot use the holdings {path}: {error}") from error
