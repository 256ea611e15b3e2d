"""What a killed daemon has left, as the files say it: what it was doing in that moment, and what is in the store.

SQLite's index of the log (`-shm`) says up to where the log counts: what was written beyond is of a commit that had not
come to its end, whether its pages were being written or synced. It also says that a checkpoint was begun, and how far
the last one came (SQLite, "WAL-mode File Format", 2.1 and 2.3).
"""

import contextlib
import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_WAL_HEADER = struct.Struct(">IIIIIIII")
_FRAME_HEADER = struct.Struct(">IIII")
_FRAME_HEADER_BYTES = 24
_SALTS = slice(4, 6)
_INDEX_HEADER_BYTES = 136


@dataclass(frozen=True, slots=True)
class Wreck:
    """A store whose daemon was killed.

    Args:
        version: its schema version; 0 if nothing was committed yet.
        rows: what is committed in it, and the lowest and highest of their numbers, 0 if there are none.
        in_commit: the daemon was writing or syncing a transaction.
        in_checkpoint: it was copying the log into the file.
    """

    version: int
    rows: int
    first_seq: int
    last_seq: int
    in_commit: bool
    in_checkpoint: bool


class Row(NamedTuple):
    """A row of a store."""

    seq: int
    received: int
    raw: bytes


def look_at(store: Path, since: float) -> Wreck:
    """Look at the files of a store whose daemon was killed; they stay as they are.

    Args:
        since: when that daemon was started, Unix seconds.
    """
    in_commit, in_checkpoint = _interrupted(store, since)
    with _copy_of(store) as connection:
        ((version,),) = connection.execute("PRAGMA user_version")
        rows, first, last = 0, 0, 0
        if version:
            sql = "SELECT count(*), coalesce(min(seq), 0), coalesce(max(seq), 0) FROM envelopes"
            ((rows, first, last),) = connection.execute(sql)
    return Wreck(version, rows, first, last, in_commit, in_checkpoint)


def rows_of(store: Path) -> list[Row]:
    """All that is committed in a store that no process has open, in order of `seq`."""
    with _copy_of(store) as connection:
        return [Row(*row) for row in connection.execute("SELECT seq, received, raw FROM envelopes ORDER BY seq")]


@contextlib.contextmanager
def _copy_of(store: Path) -> Iterator[sqlite3.Connection]:
    """A copy with what stands in its log; empty, if there is no store."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / store.name
        for suffix in ("", "-wal", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{store}{suffix}", f"{copy}{suffix}")
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            yield connection


def _interrupted(store: Path, since: float) -> tuple[bool, bool]:
    content = b""
    with contextlib.suppress(FileNotFoundError):
        content = Path(f"{store}-shm").read_bytes()[:_INDEX_HEADER_BYTES]
    if len(content) < _INDEX_HEADER_BYTES:
        return False, False
    (counted,) = struct.unpack_from("=I", content, 16)  # mxFrame
    (copied,) = struct.unpack_from("=I", content, 96)  # nBackfill
    (attempted,) = struct.unpack_from("=I", content, 128)  # nBackfillAttempted
    # A recovery, too, leaves more attempted than copied; but then nothing has been written into the file.
    is_written = store.stat().st_mtime > since
    return _frames(Path(f"{store}-wal")) > counted, attempted > copied and is_written


def _frames(log: Path) -> int:
    """How many frames of its present generation the log has: whole ones, from its start."""
    frames = 0
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        header = file.read(_WAL_HEADER.size)
        if len(header) < _WAL_HEADER.size:
            return 0
        fields = _WAL_HEADER.unpack(header)
        page_bytes, salts = fields[2], fields[_SALTS]
        while len(frame := file.read(_FRAME_HEADER_BYTES)) == _FRAME_HEADER_BYTES:
            if _FRAME_HEADER.unpack_from(frame)[2:] != salts:
                break
            frames += 1
            file.seek(page_bytes, os.SEEK_CUR)
    return frames


def identity_of(store: Path) -> str:
    """The id of a store that no process has open."""
    with _copy_of(store) as connection:
        ((identity,),) = connection.execute("SELECT id FROM identity")
    return str(identity)
