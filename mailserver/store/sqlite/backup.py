"""A copy of a store as it was at one moment, beside a daemon that goes on writing, or without one.

SQLite's backup starts anew whenever another process has written between two of its steps: beside a busy daemon, for
ever. Here the source is read in one transaction, so every step sees the same moment. The daemon is never kept from
writing, but its log (`-wal`) cannot be cut back meanwhile.

The copy has no identity; opening it gives it one (`store.sqlite.connections`). For the rows received after the backup
have numbers in the archive's records, and the copy will give those numbers to other rows.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from mailserver.errors import StoreError
from mailserver.files import write_new
from mailserver.store.sqlite.read_only import BUSY_TIMEOUT_S, check_header, check_ours
from mailserver.store.sqlite.schema import PAGE_BYTES

STEP_BYTES = 4 * 1024 * 1024
"""How much is copied between two reports of progress."""

SYNC_BYTES = 16 * 1024 * 1024
"""How much may wait to be written to the disk. More at once would delay the daemon's own writes."""

_IDENTITY_SINCE = 2
"""The schema version that brought the identity."""

OnStep = Callable[[int, int], None]
"""Takes how many bytes are copied, and how many there are."""


class Snapshot:
    """A store as it is at one moment. Made by `snapshot`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def bytes(self) -> int:
        """How long the store's file is at this moment, including what is still in its log."""
        ((size,),) = self._connection.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        return int(size)

    def copy(self, target: Path, on_step: OnStep) -> int:
        """Copy the store into a new file, check the copy, and have it on disk; return how many envelopes it has.

        Raises:
            StoreError: it cannot be written, or is damaged: then the store is, too.
            OSError: it cannot be synced.
        """
        ((page_bytes,),) = self._connection.execute("PRAGMA page_size")
        try:
            _copy_pages(self._connection, target, page_bytes or PAGE_BYTES, on_step)
            with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
                copy.execute("PRAGMA synchronous = OFF")  # synced as a whole, below
                if check_ours(copy, target) >= _IDENTITY_SINCE:
                    copy.execute("DELETE FROM identity")
                damage = [text for (text,) in copy.execute("PRAGMA quick_check(1)") if text != "ok"]
                ((envelopes,),) = copy.execute("SELECT coalesce(sum(envelopes), 0) FROM days")
        except sqlite3.Error as error:
            raise StoreError(f"cannot make the copy {target}: {error}") from error
        if damage:
            raise StoreError(f"the copy is damaged, and so is the store: run waku-mailserver check ({damage[0]})")
        _sync(target)
        return int(envelopes)


@contextlib.contextmanager
def snapshot(path: Path) -> Iterator[Snapshot]:
    """Hold the store at `path` as it is now: whatever is read in the context is of this moment.

    Raises:
        StoreError: there is none, it is foreign or of a later version, or cannot be read.
    """
    check_header(path)
    try:
        uri = f"file:{quote(str(path.absolute()))}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)
        with contextlib.closing(connection):
            check_ours(connection, path)
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the first read fixes the moment
            yield Snapshot(connection)
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the store {path}: {error}") from error


def _copy_pages(source: sqlite3.Connection, target: Path, page_bytes: int, on_step: OnStep) -> None:
    synced = 0

    def on_progress(status: int, remaining: int, pages: int) -> None:
        nonlocal synced
        done = (pages - remaining) * page_bytes
        if done - synced >= SYNC_BYTES:
            _sync(target)
            synced = done
        on_step(done, pages * page_bytes)

    write_new(target, b"")  # for its owner only; SQLite would follow the umask
    with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
        copy.execute("PRAGMA journal_mode = OFF")  # a kill leaves a copy that nobody mistakes for a whole one
        copy.execute("PRAGMA synchronous = OFF")
        source.backup(copy, pages=max(1, STEP_BYTES // page_bytes), progress=on_progress)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
