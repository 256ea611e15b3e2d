"""Opening SQLite files: ours or not, of which version, with which settings.

A process that has a database open by SQLite must not open its file, or that of the log's index (`-shm`), by itself: to
close it again drops all POSIX locks of the process on it, and SQLite does not know. Whoever else opens the database
then takes itself for the only one, and deletes the log when it is done, with what is confirmed from then on. (SQLite,
"How To Corrupt An SQLite Database File", 2.2.)
"""

import asyncio
import contextlib
import logging
import secrets
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import aiosqlite

from mailserver.errors import StoreError
from mailserver.files import sync_folder, write_new
from mailserver.handoff.archived import ArchivedError
from mailserver.store.sqlite.damage import explain, look_at_files
from mailserver.store.sqlite.handoff import adopt_archived
from mailserver.store.sqlite.schema import (
    APPLICATION_ID,
    IDENTITY_BYTES,
    MIGRATIONS,
    MISSED_UNTIL,
    PAGE_BYTES,
    SCHEMA_VERSION,
)
from mailserver.store.sqlite.wal import has_content, wal_file, write_again
from mailserver.store.sqlite.worker import Worker

log = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 5.0
"""How long to wait for a lock that another process holds, such as a backup's."""

WRITER_CACHE_KIB = 16 * 1024
"""The pages of the present day's indexes, each of which a transaction of many topics changes anew."""

READER_CACHE_KIB = 8 * 1024
CHECKPOINT_BYTES = 64 * 1024 * 1024
"""So much of the WAL goes into the database at a time. A page that was written ten times by then is written there
once: with SQLite's own quarter of it, a busy day's envelopes take half as much again."""

WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""The WAL file is cut back to this when it is started anew."""


async def open_writer(path: Path) -> Worker:
    """Open the one connection that writes and checkpoints; make or migrate the store first. It is on disk then.

    Raises:
        StoreError: the file is foreign, damaged, or of a later version, or cannot be written; or its log is damaged, or
            of another store. Both are unchanged then.
    """
    return await Worker.start(partial(_open_writer, path))


def _open_writer(path: Path) -> sqlite3.Connection:
    try:
        header = look_at_files(path)
        if header is None:
            _make(path.resolve())  # where a link leads that has nothing at its end yet
        elif header:
            # Looked at read-only first: opening for writing would already turn a foreign file's journal to WAL.
            _look(path, may_be_blank=True)
        connection = _connect(path)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot open the store {path}: {explain(error, path)}") from error
    with _preparing(connection, path):
        _prepare(connection, path)
        _identify(connection, path)
    return connection


async def open_reader(path: Path) -> aiosqlite.Connection:
    """Open a connection that only reads.

    Raises:
        StoreError: there is no such file, or it is foreign, damaged, or of a later version.
    """
    # What cannot be opened fails here. In aiosqlite the thread of a connection that failed goes on to report its end
    # to the event loop, which a command may have closed by then: a traceback after our one line.
    await asyncio.to_thread(_look, path, may_be_blank=False)
    connection = await aiosqlite.connect(_read_only(path), uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    try:
        await connection.execute_fetchall(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
    except sqlite3.Error as error:
        await connection.close()
        raise StoreError(f"cannot read the store {path}: {explain(error, path)}") from error
    return connection


def _look(path: Path, *, may_be_blank: bool) -> None:
    """Raise StoreError if this is no store of ours; nothing is changed."""
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
    """The name of a file to be read; `is_alone`: nobody writes it, and without a log, none is to be made."""
    immutable = "&immutable=1" if is_alone and not has_content(wal_file(path)) else ""
    return f"file:{quote(str(path.absolute()))}?mode=ro{immutable}"


def _check_ours(connection: sqlite3.Connection, path: Path, *, may_be_blank: bool) -> None:
    application_id = pragma(connection, "application_id")
    version = pragma(connection, "user_version")
    if may_be_blank and application_id == version == 0:
        # Nothing in it at all: somebody has made the file for us.
        ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_master")
        if tables == 0:
            return
    if application_id != APPLICATION_ID:
        raise StoreError(f"{path} is not a mailserver store (application_id {application_id:#x})")
    if version > SCHEMA_VERSION:
        raise StoreError(f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}: it is too old")


def _make(path: Path) -> None:
    """Make an empty store beside, and give it its name when all of it is on disk: a cut leaves all, or nothing.

    SQLite makes a file a WAL database by way of a journal. Who is stopped in that leaves a file that may begin with
    anything, and cannot be looked at before it is written.
    """
    new = path.with_name(f"{path.name}.new")
    # What was left of such a store, or belongs to one that was deleted: it would be taken for a part of this one.
    _remove(new, *_beside(new), *_beside(path))
    write_new(new, b"")  # SQLite would make it as the umask has it, and gives its log and index the same permissions
    connection = _connect(new)
    with _preparing(connection, path):
        _prepare(connection, new)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # into the one file, and synced
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
    execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a new file; an existing one keeps its own
    if pragma(connection, "page_count") == 0:
        execute("PRAGMA auto_vacuum = INCREMENTAL")  # pruning can give free pages back while it serves
    execute("PRAGMA journal_mode = WAL")
    # FULL syncs the WAL at each commit: what COMMIT has answered survives a power cut.
    execute("PRAGMA synchronous = FULL")
    execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
    execute("PRAGMA temp_store = MEMORY")  # for the keys of a batch that is deleted
    execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_BYTES // pragma(connection, 'page_size')}")
    execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
    present = pragma(connection, "user_version")
    execute("BEGIN IMMEDIATE")
    execute(f"PRAGMA user_version = {present}")  # fails now, not at the first envelope, where we may only read
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


def _identify(connection: sqlite3.Connection, path: Path) -> None:
    """Give a store that was put back from a backup an identity of its own, each time that it is put back.

    It goes on where the backup ended, and so gives numbers to rows that other rows had, which were received after the
    backup and may be archived. Under another identity none of them is taken for an archived one. What is recorded of
    the rows in the backup holds.
    """
    if connection.execute("SELECT 1 FROM identity").fetchone():
        return
    identity = secrets.token_hex(IDENTITY_BYTES)
    try:
        adopt_archived(path, identity)
    except ArchivedError as error:  # pruning waits for the next run of the compaction
        log.warning("record of the compaction not taken over error=%r", str(error))
    with transaction(connection):
        connection.execute("INSERT INTO identity VALUES (?)", (identity,))
        # What was received after the backup may be archived, and is not here.
        connection.execute(f"UPDATE removed SET until = max(until, {MISSED_UNTIL})")
    log.info("store restored from a backup identity=%s", identity)


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """Read a pragma that is one integer."""
    ((value,),) = connection.execute(f"PRAGMA {name}")
    return int(value)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Begin a transaction that writes; commit it at the end, or roll it back if SQLite fails."""
    execute = connection.execute
    if connection.in_transaction:  # to roll it back has failed, too
        execute("ROLLBACK")
    try:
        execute("BEGIN IMMEDIATE")
        yield
        execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            execute("ROLLBACK")
        raise
