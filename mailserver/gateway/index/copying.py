"""Copying what cannot be made again: the originals, of which envelopes do not say enough."""

import contextlib
import sqlite3
from pathlib import Path
from urllib.parse import quote

from mailserver.gateway.index.database import check_ours, connect_writer, explained, synced
from mailserver.store.sqlite.connections import BUSY_TIMEOUT_S, pragma

_COLUMNS = "envelope, message, created, timestamp, meta, version, is_ephemeral"


def copy_originals(source: Path, target: Path) -> int:
    """Make an index that has the originals of another one, and nothing else yet; return how many.

    Without any, no file is made. The source is only read; a gateway may be writing it. An original is kept before its
    envelope is posted: so those of all envelopes of a store are copied, if the store is copied first.

    Raises:
        StoreError: the source is foreign or damaged, or one of the two cannot be used.
    """
    if not source.exists():
        return 0
    with explained(source):
        uri = f"file:{quote(str(source.absolute()))}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
            check_ours(connection, source)
            if not pragma(connection, "user_version"):  # it is just being made
                return 0
            originals = connection.execute(f"SELECT {_COLUMNS} FROM originals").fetchall()
    if not originals:
        return 0
    with explained(target), contextlib.closing(connect_writer(target)) as connection, synced(connection):
        connection.executemany(f"INSERT INTO originals ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", originals)
    return len(originals)
