"""Opening SQLite files: whether they are ours, of which version, and with which settings.

A process that has a database open through SQLite must not open the database's file, or that of the log's index
(`-shm`), in any other way. Closing it again would drop all POSIX locks that the process has on it, and SQLite would not
know. Another process that opens the database would then believe that it is alone, and delete the log when it is done,
together with everything that is confirmed from then on. (SQLite, "How To Corrupt An SQLite Database File", 2.2.)
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import aiosqlite

from mailserver.errors import StoreError
from mailserver.files import sync_folder, write_new
from mailserver.store.sqlite.continuity import count_transaction
from mailserver.store.sqlite.damage import explain, look_at_files
from mailserver.store.sqlite.schema import (
    APPLICATION_ID,
    MIGRATIONS,
    PAGE_BYTES,
    SCHEMA_VERSION,
)
from mailserver.store.sqlite.wal import has_content, wal_file, write_again
from mailserver.store.sqlite.worker import ConnectionThread

log = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 5.0
"""How long to wait for a lock of another process, such as a backup."""

WRITER_CACHE_KIB = 16 * 1024
"""Room for the pages of the current day's indexes: a transaction of many topics changes each of them again."""

READER_CACHE_KIB = 8 * 1024
CHECKPOINT_BYTES = 64 * 1024 * 1024
"""How much of the WAL is copied into the database at a time. A page that was written ten times by then is copied once.
With SQLite's default, a quarter of this, a busy day's envelopes take half as much again."""

WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""The WAL file is cut back to this when it is started anew."""


async def open_writer(path: Path) -> ConnectionThread:
    """Open the one connection that writes and checkpoints; make or migrate the store first, and have that on disk.

    Raises:
        StoreError: the file is foreign, damaged, or of a later version, or cannot be written; or its log is damaged, or
            of another store. Both files are unchanged then.
    """
    return await ConnectionThread.start(partial(connect_writer, path))


def connect_writer(path: Path) -> sqlite3.Connection:
    """The connection of `open_writer`, for the thread that calls this.

    Raises:
        StoreError: as `open_writer`.
    """
    try:
        header = look_at_files(path)
        if header is None:
            _make(path.resolve())  # the target of the link, if its path is a link to nothing yet
        elif header:
            # First read-only: opening for writing would already change a foreign file's journal to a WAL.
            _look(path, may_be_blank=True)
        connection = _connect(path)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot open the store {path}: {explain(error, path)}") from error
    with _preparing(connection, path):
        _prepare(connection, path)
    return connection


async def open_reader(path: Path) -> aiosqlite.Connection:
    """Open a connection that only reads.

    Raises:
        StoreError: there is no such file, or it is foreign, damaged, or of a later version.
    """
    # A file that cannot be opened fails here. In aiosqlite, the thread of a failed connection goes on to report its end
    # to the event loop, which a command may have closed by then: a traceback would follow our one line.
    await asyncio.to_thread(_look, path, may_be_blank=False)
    connection = await aiosqlite.connect(_read_only(path), uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    try:
        await connection.execute_fetchall(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
    except sqlite3.Error as error:
        await connection.close()
        raise StoreError(f"cannot read the store {path}: {explain(error, path)}") from error
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that only reads, for the thread that calls this.

    Raises:
        StoreError: as `open_reader`.
    """
    _look(path, may_be_blank=False)
    try:
        connection = _connect(_read_only(path), uri=True)
        connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the store {path}: {explain(error, path)}") from error
    return connection


def connect_follower(path: Path) -> sqlite3.Connection:
    """A connection that only reads a store of this version, which another process may be writing.

    Raises:
        StoreError: there is none, or it is another's, of another version, or cannot be read.
    """
    connection = connect_reader(path)
    try:
        version = pragma(connection, "user_version")
    except sqlite3.Error as error:
        connection.close()
        raise StoreError(f"cannot read the store {path}: {explain(error, path)}") from error
    if version < SCHEMA_VERSION:
        connection.close()
        raise StoreError(
            f"{path} is of an earlier version of this program: start the mailserver on it once, which migrates it"
        )
    return connection


def _look(path: Path, *, may_be_blank: bool) -> None:
    """Check that this is a store of ours; change nothing.

    Raises:
        StoreError: it is not.
    """
    try:
        if not path.exists():
            raise StoreError(f"cannot open the store {path}: there is none")
        connection = _connect(_read_only(path, is_alone=may_be_blank), uri=True)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot open the store {path}: {explain(error, path)}") from error
    with contextlib.closing(connection):
        try:
            _check_ours(connection, path, may_be_blank=may_be_blank)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the store {path}: {explain(error, path)}") from error


def _connect(database: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(database, uri=uri, isolation_level=None, timeout=BUSY_TIMEOUT_S)


def _read_only(path: Path, *, is_alone: bool = False) -> str:
    """The URI under which to read a file. `is_alone`: nobody writes it, so if there is no log, do not make one."""
    immutable = "&immutable=1" if is_alone and not has_content(wal_file(path)) else ""
    return f"file:{quote(str(path.absolute()))}?mode=ro{immutable}"


def _check_ours(connection: sqlite3.Connection, path: Path, *, may_be_blank: bool) -> None:
    application_id = pragma(connection, "application_id")
    version = pragma(connection, "user_version")
    if may_be_blank and application_id == version == 0:
        # There is nothing in it: somebody has made the file for us.
        ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_master")
        if tables == 0:
            return
    if application_id != APPLICATION_ID:
        raise StoreError(f"{path} is not a mailserver store (application_id {application_id:#x})")
    if version > SCHEMA_VERSION:
        raise StoreError(f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}: use a newer one")


def _make(path: Path) -> None:
    """Make an empty store under another name, and rename it once it is on disk: a power cut leaves all or nothing.

    SQLite uses a journal to turn a file into a WAL database. If it is stopped while it does so, it leaves a file that
    may begin with anything, and that cannot be checked before it is written.
    """
    new = path.with_name(f"{path.name}.new")
    # Leftovers of an earlier attempt, or of a store that was deleted: SQLite would take them for a part of this one.
    _remove(new, *_beside(new), *_beside(path))
    write_new(new, b"")  # SQLite would follow the umask, and gives log and index the same permissions
    connection = _connect(new)
    with _preparing(connection, path):
        _prepare(connection, new)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all into the one file, and synced
    connection.close()
    new.replace(path)
    sync_folder(path.parent)


def _beside(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}-{ending}") for ending in ("journal", "wal", "shm")]


def _remove(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)
    sync_folder(files[0].parent)


@contextlib.contextmanager
def _preparing(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        connection.close()
        raise StoreError(f"cannot prepare the store {path}: {explain(error, path)}") from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    execute = connection.execute
    execute(f"PRAGMA page_size = {PAGE_BYTES}")  # an existing file keeps its own
    if pragma(connection, "page_count") == 0:
        execute("PRAGMA auto_vacuum = INCREMENTAL")  # so that pruning can give free pages back while we serve
    execute("PRAGMA journal_mode = WAL")
    # FULL syncs the WAL at each commit: what COMMIT has confirmed survives a power cut.
    execute("PRAGMA synchronous = FULL")
    execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
    execute("PRAGMA temp_store = MEMORY")  # for the table of rows that are about to be deleted
    execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_BYTES // pragma(connection, 'page_size')}")
    execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
    present = pragma(connection, "user_version")
    execute("BEGIN IMMEDIATE")
    execute(f"PRAGMA user_version = {present}")  # if we may only read, this fails now and not at the first envelope
    write_again(path)  # nobody else writes now
    execute("ROLLBACK")
    for version in range(present, SCHEMA_VERSION):
        execute("BEGIN IMMEDIATE")
        for statement in MIGRATIONS[version]:
            execute(statement)
        execute(f"PRAGMA application_id = {APPLICATION_ID}")
        execute(f"PRAGMA user_version = {version + 1}")
        execute("COMMIT")
    if 0 < present < SCHEMA_VERSION:
        log.info("store migrated from=%d to=%d", present, SCHEMA_VERSION)


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """Read a pragma whose value is one integer."""
    ((value,),) = connection.execute(f"PRAGMA {name}")
    return int(value)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Begin a transaction that writes; commit it at the end, or roll it back if SQLite fails."""
    execute = connection.execute
    if connection.in_transaction:  # rolling it back has failed, too
        execute("ROLLBACK")
    try:
        execute("BEGIN IMMEDIATE")
        yield
        execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            execute("ROLLBACK")
        raise


@contextlib.contextmanager
def counted_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A `transaction` of a store, which counts if it changes anything (`store.sqlite.continuity`)."""
    with transaction(connection):
        before = connection.total_changes
        yield
        if connection.total_changes > before:
            count_transaction(connection)
