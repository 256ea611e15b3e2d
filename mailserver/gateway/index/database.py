"""Opening `gateway.db`: one connection writes it, some read it, each in a thread of its own.

The log is synced where it must be: what is kept of an original is on disk before its envelope is posted. All else can
be made from the store again, so a power cut may take the last of it.
"""

import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from mailserver.errors import StoreError
from mailserver.files import write_new
from mailserver.gateway.index.schema import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from mailserver.store.engine.fair_pool import FairPool
from mailserver.store.interface import OURSELVES, Payer
from mailserver.store.sqlite.connections import BUSY_TIMEOUT_S, pragma, transaction
from mailserver.store.sqlite.worker import ConnectionThread

T = TypeVar("T")

log = logging.getLogger(__name__)

READERS = 2

WRITER_CACHE_KIB = 24 * 1024
READER_CACHE_KIB = 4 * 1024

LOG_BYTES = 32 * 1024 * 1024
"""How long the log becomes before it is written back, and to what it is cut then."""


class IndexDatabase:
    """The connections. Made by `open_database`."""

    def __init__(self, path: Path, writer: ConnectionThread, readers: Sequence[ConnectionThread]) -> None:
        self._path = path
        self._writer = writer
        self._readers = FairPool(readers)

    async def read(self, reads: Callable[[sqlite3.Connection], T], work: int, payer: Payer = OURSELVES) -> T:
        """Read in a thread, when it is the payer's turn.

        Args:
            work: how much work it is (`store.engine.work`).
        Raises:
            StoreError: the index cannot be read.
        """
        reader = await self._readers.take(payer, work)
        try:
            payer.charge(work)
            with explained(self._path):
                return await reader.run(reads)
        finally:
            self._readers.give_back(reader)

    async def write(self, writes: Callable[[sqlite3.Connection], T]) -> T:
        """Write in the one thread that does. Once begun it goes on to its end, even if the caller is cancelled.

        Raises:
            StoreError: the index cannot be written.
        """
        with explained(self._path):
            return await self._writer.run(writes)


@contextlib.asynccontextmanager
async def open_database(path: Path) -> AsyncIterator[IndexDatabase]:
    """Open the index at `path`; make or migrate it first if need be.

    Raises:
        StoreError: the file is foreign, damaged, or of a later version, or cannot be written.
    """
    async with contextlib.AsyncExitStack() as stack:
        writer = await ConnectionThread.start(partial(connect_writer, path), "index-writer")
        stack.push_async_callback(writer.close)
        readers = []
        for _ in range(READERS):
            reader = await ConnectionThread.start(partial(_connect_reader, path), "index-reader")
            stack.push_async_callback(reader.close)
            readers.append(reader)
        yield IndexDatabase(path, writer, readers)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite cannot do with the index into a StoreError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot use the index of messages {path}: {error}") from error


@contextlib.contextmanager
def synced(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction that is on disk at its end."""
    connection.execute("PRAGMA synchronous = FULL")
    try:
        with transaction(connection):
            yield
    finally:
        connection.execute("PRAGMA synchronous = NORMAL")


def connect_writer(path: Path) -> sqlite3.Connection:
    """Connect to the index at `path` to write it; make or migrate it first if need be.

    Raises:
        StoreError: see `open_database`.
    """
    with explained(path):
        if not path.exists():
            write_new(path, b"")  # SQLite would follow the umask, and gives log and index the same permissions
        connection = _connect(path)
    with _preparing(connection, path):
        check_ours(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // pragma(connection, 'page_size')}")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        first = pragma(connection, "user_version")
        if 0 < first < SCHEMA_VERSION:
            log.info("migrating the index of messages schema_version=%d", SCHEMA_VERSION)
        for version in range(first, SCHEMA_VERSION):
            with synced(connection):
                for statement in MIGRATIONS[version]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {version + 1}")
    return connection


def _connect_reader(path: Path) -> sqlite3.Connection:
    with explained(path):
        connection = _connect(path)
    with _preparing(connection, path):
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)


@contextlib.contextmanager
def _preparing(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    with contextlib.ExitStack() as unless_prepared:
        unless_prepared.callback(connection.close)
        with explained(path):
            yield
        unless_prepared.pop_all()


def check_ours(connection: sqlite3.Connection, path: Path) -> None:
    """Check what kind of file it is. An empty one is ours.

    Raises:
        StoreError: it is foreign, or of a later version.
    """
    application_id, version = pragma(connection, "application_id"), pragma(connection, "user_version")
    ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_master")
    if application_id != APPLICATION_ID and (application_id or version or tables):
        raise StoreError(f"{path} is not an index of messages (application_id {application_id:#x})")
    if version > SCHEMA_VERSION:
        raise StoreError(f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}: use a newer one")
