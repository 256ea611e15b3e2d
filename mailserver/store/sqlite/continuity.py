"""Whether a log goes on from the file that it lies beside, or from a later state of it.

SQLite checks only that a log is whole. If somebody has put an older copy of the file beside it, SQLite writes the
pages that the log has into that copy, and leaves all others as they were. Rows, or what indexes say of them, are gone
then without a word, and even `PRAGMA integrity_check` may find nothing.

So each transaction that changes anything counts itself, in a row of `sqlite_sequence`: its page is written by every
transaction that stores anything. SQLite begins a log anew only when the file has all of it. So the first transaction in
a log has at most the number that follows the file's own.
"""

import contextlib
import sqlite3
from pathlib import Path
from urllib.parse import quote

from mailserver.store.sqlite.leaves import BadRow, is_leaf, short_rows
from mailserver.store.sqlite.wal import Log, wal_file

_NAME = "transactions"
_COUNT = f"UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = '{_NAME}'"
_BEGIN = f"INSERT INTO sqlite_sequence (name, seq) VALUES ('{_NAME}', 1)"
_IN_FILE = f"""
    SELECT rootpage, (SELECT CAST(seq AS INTEGER) FROM sqlite_sequence WHERE name = '{_NAME}')
    FROM sqlite_master WHERE name = 'sqlite_sequence'
"""


def count_transaction(connection: sqlite3.Connection) -> None:
    """Count the transaction that is open."""
    if not connection.execute(_COUNT).rowcount:
        connection.execute(_BEGIN)


def is_log_later(path: Path, log: Log) -> bool:
    """Whether the log of a store begins later than where its file ends. What cannot be read is damaged, or not ours;
    opening the store says so.

    Raises:
        OSError: the log cannot be read.
    """
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as alone:
            found = alone.execute(_IN_FILE).fetchone()
    except sqlite3.Error:  # a daemon may have been killed while it copied the log into the file
        return False
    if found is None or (at := log.firsts.get(found[0])) is None:
        return False
    with wal_file(path).open("rb") as file:
        file.seek(at)
        page = file.read(log.page_bytes)
    try:
        rows = [*short_rows(page)] if is_leaf(page) else []
    except BadRow:
        return False
    first = dict(row for row in rows if len(row) == 2).get(_NAME)
    return isinstance(first, int) and first > (found[1] or 0) + 1
