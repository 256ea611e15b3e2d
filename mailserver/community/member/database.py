"""Opening `history.db`: one connection with a thread of its own writes it; commands that only look read it.

Each transaction is on disk when it ends: what is said to be downloaded or imported is never fetched again.
"""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

from mailserver.community.member.schema import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from mailserver.errors import StoreError
from mailserver.files import sync_folder, write_new
from mailserver.store.sqlite.connections import BUSY_TIMEOUT_S, pragma, transaction
from mailserver.store.sqlite.worker import ConnectionThread

CACHE_KIB = 16 * 1024

LOG_BYTES = 32 * 1024 * 1024
"""How long the log becomes before it is written back, and to what it is cut then."""


@contextlib.asynccontextmanager
async def open_worker(path: Path) -> AsyncIterator[ConnectionThread]:
    """The thread that writes the history at `path`; it is made or migrated first if need be.

    Raises:
        StoreError: the file is foreign, damaged, or of a later version, or cannot be written.
    """
    worker = await ConnectionThread.start(partial(_connect_writer, path), "history-writer")
    try:
        yield worker
    finally:
        await worker.close()


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads one moment of the history; somebody may be writing it.

    Raises:
        StoreError: there is no such file, or it is foreign, damaged, or of a later version.
    """
    with explained(path):
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S
        )
        with contextlib.closing(connection):
            _check_ours(connection, path)
            connection.execute("BEGIN")
            yield connection


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite cannot do with the history into a StoreError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot use the history {path}: {error}") from error


def _connect_writer(path: Path) -> sqlite3.Connection:
    with contextlib.ExitStack() as unless_prepared, explained(path):
        if not path.exists():
            _make(path)
        connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
        unless_prepared.callback(connection.close)
        _check_ours(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // pragma(connection, 'page_size')}")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        _migrate(connection)
        unless_prepared.pop_all()
    return connection


def _make(path: Path) -> None:
    """Make an empty history under another name, and rename it: nobody reads one that has no tables yet."""
    new = path.with_name(f"{path.name}.new")
    for leftover in (new, new.with_name(f"{new.name}-journal")):
        leftover.unlink(missing_ok=True)
    write_new(new, b"")  # SQLite would follow the umask, and gives log and index the same permissions
    with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as connection:
        _migrate(connection)
    new.replace(path)
    sync_folder(path.parent)


def _migrate(connection: sqlite3.Connection) -> None:
    for version in range(pragma(connection, "user_version"), SCHEMA_VERSION):
        with transaction(connection):
            for statement in MIGRATIONS[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version + 1}")


def _check_ours(connection: sqlite3.Connection, path: Path) -> None:
    """Check what kind of file it is.

    Raises:
        StoreError: it is foreign, or of a later version.
    """
    application_id, version = pragma(connection, "application_id"), pragma(connection, "user_version")
    if application_id != APPLICATION_ID:
        raise StoreError(f"{path} is no history of a community (application_id {application_id:#x})")
    if version > SCHEMA_VERSION:
        raise StoreError(f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}: use a newer one")
