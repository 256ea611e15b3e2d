"""Reading a store beside its daemon, or without one, and leaving the folder as it is.

A daemon that stopped has left no log and no index (`-wal`, `-shm`). SQLite's ordinary read-only connection makes them,
and leaves them there. So:

- No log: the file alone is the store. It is read as immutable, without locks. If a daemon begins to write it meanwhile,
  what was read may be of two moments: `open_read_only` notices and says so.
- A log with its index: both are read, and the index is not written. So it is beside a daemon, and after a kill.
- A log without its index: SQLite would have to make one, so this is refused.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from mailserver.errors import StoreError
from mailserver.store.sqlite.damage import NO_DATABASE, SQLITE_MAGIC, explain
from mailserver.store.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION
from mailserver.store.sqlite.wal import has_commit, index_file, wal_file

BUSY_TIMEOUT_S = 5.0
CACHE_KIB = 32 * 1024


@contextlib.contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the store at `path`, in autocommit mode.

    Raises:
        StoreError: there is none, it is foreign or of another version, or cannot be opened; or a daemon has begun to
            write it meanwhile.
        sqlite3.Error: inside the context, for what SQLite cannot read.
    """
    check_header(path)
    log = wal_file(path)
    before = _state(path), _state(log)
    has_log = has_commit(path)
    index = index_file(path)
    if has_log and not index.exists():
        raise StoreError(
            f"{log} has no index ({index.name}): start the mailserver on a copy of the folder, and stop it"
        )
    options = "mode=ro&readonly_shm=1" if has_log else "mode=ro&immutable=1"
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{options}", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S
    )
    with contextlib.closing(connection):
        if check_ours(connection, path) < SCHEMA_VERSION:
            raise StoreError(
                f"{path} is of an earlier version of this program: start the mailserver on it once, which migrates it"
            )
        yield connection
    if not has_log and (_state(path), _state(log)) != before:
        raise StoreError(f"a mailserver has begun to write {path} meanwhile: try again")


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def check_header(path: Path) -> None:
    """Check that the file begins as an SQLite database does.

    Raises:
        StoreError: it does not, or there is no file.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(SQLITE_MAGIC))
    except FileNotFoundError as error:
        raise StoreError(f"cannot open the store {path}: there is none") from error
    except OSError as error:
        raise StoreError(f"cannot open the store {path}: {error.strerror}") from error
    if start != SQLITE_MAGIC:
        raise StoreError(f"{path} {NO_DATABASE}")


def check_ours(connection: sqlite3.Connection, path: Path) -> int:
    """Check that a store is ours; return its schema version, 1 to SCHEMA_VERSION.

    Raises:
        StoreError: it is foreign, of a later version, or cannot be read.
    """
    try:
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        ((application_id,),) = connection.execute("PRAGMA application_id")
        ((version,),) = connection.execute("PRAGMA user_version")
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the store {path}: {explain(error, path)}") from error
    if application_id != APPLICATION_ID:
        raise StoreError(f"{path} is not a mailserver store (application_id {application_id:#x})")
    if version > SCHEMA_VERSION:
        raise StoreError(f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}: use a newer one")
    return int(version)
