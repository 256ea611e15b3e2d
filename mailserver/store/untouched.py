"""Reading a store beside its daemon, or without one, and leaving the folder as it is.

SQLite's ordinary read-only connection makes the log and its index (`-wal`, `-shm`) where a daemon that stopped has left
none, and leaves them there. So:

- No log, or one without a commit: the file alone is the store. It is read as immutable, without locks. Should a daemon
  begin to write it meanwhile, what was read may be of two moments: `read_untouched` notices and says so.
- A log with its index: both are read, the index is not written. That is so beside a daemon, and after one was killed.
- A log without its index: SQLite would have to make one.
"""

import contextlib
import sqlite3
import struct
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from mailserver.errors import StoreError
from mailserver.store.schema import APPLICATION_ID, SCHEMA_VERSION

BUSY_TIMEOUT_S = 5.0
CACHE_KIB = 32 * 1024

_SQLITE_HEADER = b"SQLite format 3\x00"
_LOG_MAGIC = 0x377F0682
_LOG_HEADER = struct.Struct(">IIII8sII")  # magic, version, page size, number of checkpoints, salts, checksum
_FRAME_HEADER = struct.Struct(">4xI8sII")  # page, pages of the file if this ends a commit, salts, checksum


@contextlib.contextmanager
def read_untouched(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the store at `path`, in autocommit mode.

    Raises:
        StoreError: there is none, it is foreign or of another version, or cannot be opened; or a daemon has begun to
            write it. What SQLite cannot read inside of the context is raised as `sqlite3.Error`.
    """
    check_header(path)
    log = path.with_name(f"{path.name}-wal")
    before = _state(path), _state(log)
    has_log = has_commit(log)
    if has_log and not path.with_name(f"{path.name}-shm").exists():
        raise StoreError(
            f"{log} has no index ({path.name}-shm): start the mailserver on a copy of the folder, and stop it"
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


def has_commit(log: Path) -> bool:
    """Whether there is a log with a whole transaction in it: then the file alone is not the store.

    SQLite looks for ten seconds, and fails, where an index is not to be written and the log has nothing to read.

    Spec: SQLite, "Database File Format", 4.1 to 4.3.
    """
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        header = file.read(_LOG_HEADER.size)
        if len(header) < _LOG_HEADER.size:
            return False
        magic, _, page_bytes, _, salts, *sums = _LOG_HEADER.unpack(header)
        if magic & ~1 != _LOG_MAGIC or not 512 <= page_bytes <= 65536:
            return False
        order: Literal["little", "big"] = "big" if magic & 1 else "little"
        running = _checksum(header[:24], (0, 0), order)
        while list(running) == sums:
            frame = file.read(_FRAME_HEADER.size + page_bytes)
            if len(frame) < _FRAME_HEADER.size + page_bytes:
                return False
            pages_at_commit, frame_salts, *sums = _FRAME_HEADER.unpack_from(frame)
            running = _checksum(frame[:8] + frame[_FRAME_HEADER.size :], running, order)
            if frame_salts != salts:
                return False
            if pages_at_commit and list(running) == sums:
                return True
    return False


def _checksum(data: bytes, sums: tuple[int, int], order: Literal["little", "big"]) -> tuple[int, int]:
    words = array("I", data)
    if order != sys.byteorder:
        words.byteswap()
    first, second = sums
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def check_header(path: Path) -> None:
    """Look at how the file begins.

    Raises:
        StoreError: it is not there, or no SQLite database.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE_HEADER))
    except FileNotFoundError as error:
        raise StoreError(f"cannot open the store {path}: there is none") from error
    except OSError as error:
        raise StoreError(f"cannot open the store {path}: {error.strerror}") from error
    if start != _SQLITE_HEADER:
        raise StoreError(f"{path} is not a mailserver store: it is no SQLite database")


def check_ours(connection: sqlite3.Connection, path: Path) -> int:
    """Look whose store this is; return its schema version, 1 to SCHEMA_VERSION.

    Raises:
        StoreError: it is foreign, of a later version, or cannot be read.
    """
    try:
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        ((application_id,),) = connection.execute("PRAGMA application_id")
        ((version,),) = connection.execute("PRAGMA user_version")
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the store {path}: {error}") from error
    if application_id != APPLICATION_ID:
        raise StoreError(f"{path} is not a mailserver store (application_id {application_id:#x})")
    if version > SCHEMA_VERSION:
        raise StoreError(f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}: it is too old")
    return int(version)
