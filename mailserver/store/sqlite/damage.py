"""What is wrong with the files of a store, found before SQLite opens them for writing, which would change them.

SQLite takes an empty file for a new database and deletes its log, drops what follows a damaged frame of the log, writes
another store's log into this one, or that of a later state of it, and accepts a file that is too short. Here, each of
these ends in one line for the operator.
"""

import contextlib
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mailserver.errors import StoreError
from mailserver.store.sqlite.continuity import is_log_later
from mailserver.store.sqlite.schema import IDENTITY_BYTES, PAGE_BYTES
from mailserver.store.sqlite.wal import Log, has_content, read_log, wal_file

SQLITE_MAGIC = b"SQLite format 3\x00"
HEADER_BYTES = 100

LOOK = "nothing was changed; run waku-mailserver check"
NO_DATABASE = (
    "is not a mailserver store: it is not an SQLite database (if it was one, its beginning is damaged: waku-mailserver "
    "salvage saves what is left)"
)

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_FULL_BYTES = 1024 * 1024
"""SQLite says "disk I/O error" if it has no room for the index of its log, some 32 KiB."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite has found its file damaged."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def explain(error: sqlite3.Error | OSError, path: Path) -> str:
    """An error of the file at `path` in words, with what to do about it."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if is_damage(error):
        return f"{error}; run waku-mailserver check"
    with contextlib.suppress(OSError):
        if shutil.disk_usage(path.parent).free < _FULL_BYTES:
            return f"{error}: the disk is full"
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
        return f"{error}: check the disk"
    return str(error)


def how_it_is_gone(path: Path) -> str:
    """Whether the store at `path` is "not there" or "empty"; "" if anything of it is there, even if only a log."""
    is_there = path.is_file()
    if (is_there and path.stat().st_size) or has_content(wal_file(path)):
        return ""  # opening it refuses a log without its file
    return "empty" if is_there else "not there"


def look_at_files(path: Path) -> bytes | None:
    """Check that the file and its log are whole; return how the file begins, None if there is none.

    Raises:
        StoreError: it is not a database, it is cut off, or its log is damaged, another store's, or a later state's.
        OSError: it cannot be read.
    """
    log_path = wal_file(path)
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except FileNotFoundError:
        if has_content(log_path):
            raise StoreError(
                f"{path} is not there, but its log {log_path} is: put it back, or move the log away"
            ) from None
        return None
    if header and header[: len(SQLITE_MAGIC)] != SQLITE_MAGIC:
        raise StoreError(f"{path} {NO_DATABASE}")
    if not header and has_content(log_path):
        raise StoreError(f"{path} is empty, but its log {log_path} is not: restore a backup; {LOOK}")
    log = read_log(path, PAGE_BYTES)
    if log is not None and log.damage:
        raise StoreError(f"the log {log_path} is damaged: {log.damage}; {LOOK}")
    if log is not None and not _is_log_ours(path):
        raise StoreError(
            f"the log {log_path} belongs to another store than {path}: nothing was changed; move the log away, or put "
            "back the store that it belongs to"
        )
    if log is not None and is_log_later(path, log):
        raise StoreError(
            f"{log_is_later(path)}: nothing was changed; put back the file that it belongs to, or move it away"
        )
    missing = missing_pages(path, header, log)
    if missing:
        raise StoreError(f"{path} is damaged: {missing}; {LOOK}")
    return header


def log_is_later(path: Path) -> str:
    """What `is_log_later` means, in words."""
    return f"the log {wal_file(path)} belongs to a later state of {path}, of which an older copy was put back"


def missing_pages(path: Path, header: bytes, log: Log | None) -> str:
    """Why the file is too short; "" if it is not. SQLite itself takes a part of a page for a whole one.

    The header says how many pages there should be (SQLite, "Database File Format", 1.3). Some may be only in the log.
    """
    size = path.stat().st_size
    if len(header) < HEADER_BYTES:
        return "" if not header else f"the file is cut off, it has {size} bytes"
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    pages = int.from_bytes(header[28:32], "big")
    offsets: dict[int, int] = {}
    if log is not None and log.frames:
        pages, offsets = log.page_count, log.offsets
    if not page_bytes or all(page in offsets for page in range(size // page_bytes + 1, pages + 1)):
        return ""
    return f"the file is cut off, {size} bytes of {pages * page_bytes}"


def _is_log_ours(path: Path) -> bool:
    """Whether the log is of this store. SQLite checks only that it is whole, and would write another's into this one.

    The identity is in the log, too: the daemon writes it every few seconds. If the file alone has no identity, it is
    new; or a backup that was started and then killed; or a backup that took the place of a store whose log was left. If
    both together have none, a start was killed that had taken it from a store that went back to an earlier moment.
    """
    alone, together = _identity(path, "mode=ro&immutable=1"), _identity(path, "mode=ro")
    if alone is None or together is None or alone == together:
        return True
    return not (alone and together) and _read(path, "mode=ro", "PRAGMA quick_check(1)") == ["ok"]


def _identity(path: Path, options: str) -> list[str] | None:
    """The identities in a store; None if it has no place for one (before version 2 of the schema), or cannot be read.

    A daemon that was killed while it copied the log into the file leaves a file that cannot be read, but the log has
    all of it. If the file is damaged, opening it says so. A power cut may leave half of the page on which a backup got
    its identity: then there is a row without a text.
    """
    try:
        return [found for found in _read(path, options, "SELECT id FROM identity LIMIT 2") if _is_identity(found)]
    except sqlite3.Error:
        return None


def _is_identity(found: object) -> bool:
    return isinstance(found, str) and re.fullmatch(f"[0-9a-f]{{{2 * IDENTITY_BYTES}}}", found) is not None


def _read(path: Path, options: str, sql: str) -> list[Any]:
    uri = f"file:{quote(str(path.absolute()))}?{options}"
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        return [value for (value,) in connection.execute(sql)]
