"""Opening SQLite files: ours or not, of which version, with which settings."""

import asyncio
import sqlite3
from pathlib import Path
from urllib.parse import quote

import aiosqlite

from mailserver.errors import StoreError
from mailserver.store.schema import APPLICATION_ID, MIGRATIONS, PAGE_BYTES, SCHEMA_VERSION

BUSY_TIMEOUT_S = 5.0
"""How long to wait for a lock that another process holds, such as a backup's."""

WRITER_CACHE_KIB = 32 * 1024
READER_CACHE_KIB = 8 * 1024
WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""The WAL file is cut back to this when it is started anew."""


async def open_writer(path: Path) -> aiosqlite.Connection:
    """Open the one connection that writes and checkpoints; make or migrate the store first.

    Raises:
        StoreError: the file is foreign, damaged, or of a later version, or cannot be written. It is unchanged then.
    """
    exists = await asyncio.to_thread(_has_content, path)
    try:
        if exists:
            # Looked at read-only first: opening for writing would already turn a foreign file's journal to WAL.
            reader = await open_reader(path)
            await reader.close()
        connection = await aiosqlite.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    except sqlite3.Error as error:
        raise StoreError(f"cannot open the store {path}: {error}") from error
    try:
        await _prepare(connection, fresh=not exists)
    except sqlite3.Error as error:
        await connection.close()
        raise StoreError(f"cannot prepare the store {path}: {error}") from error
    return connection


async def open_reader(path: Path) -> aiosqlite.Connection:
    """Open a connection that only reads.

    Raises:
        StoreError: there is no such file, or it is foreign, damaged, or of a later version.
    """
    try:
        connection = await aiosqlite.connect(_read_only(path), uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    except sqlite3.Error as error:
        raise StoreError(f"cannot open the store {path}: {error}") from error
    try:
        await _check_ours(connection, path)
        await connection.execute_fetchall(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
    except (sqlite3.Error, StoreError) as error:
        await connection.close()
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"cannot read the store {path}: {error}") from error
    return connection


def _read_only(path: Path) -> str:
    return f"file:{quote(str(path.absolute()))}?mode=ro"


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


async def _check_ours(connection: aiosqlite.Connection, path: Path) -> None:
    application_id = await pragma(connection, "application_id")
    if application_id != APPLICATION_ID:
        raise StoreError(f"{path} is not a mailserver store (application_id {application_id:#x})")
    version = await pragma(connection, "user_version")
    if version > SCHEMA_VERSION:
        raise StoreError(f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}: it is too old")


async def _prepare(connection: aiosqlite.Connection, *, fresh: bool) -> None:
    execute = connection.execute_fetchall
    if fresh:
        await execute(f"PRAGMA page_size = {PAGE_BYTES}")
    await execute("PRAGMA journal_mode = WAL")
    # FULL syncs the WAL at each commit: what COMMIT has answered survives a power cut.
    await execute("PRAGMA synchronous = FULL")
    await execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
    await execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
    for version in range(await pragma(connection, "user_version"), SCHEMA_VERSION):
        await execute("BEGIN IMMEDIATE")
        for statement in MIGRATIONS[version]:
            await execute(statement)
        await execute(f"PRAGMA application_id = {APPLICATION_ID}")
        await execute(f"PRAGMA user_version = {version + 1}")
        await execute("COMMIT")


async def pragma(connection: aiosqlite.Connection, name: str) -> int:
    """Read a pragma that is one integer."""
    ((value,),) = await connection.execute_fetchall(f"PRAGMA {name}")
    return int(value)
