"""How long the log (WAL) may become, and how it is started anew then."""

import sqlite3
from pathlib import Path

from mailserver.store.sqlite.connections import BUSY_TIMEOUT_S

MAX_WAL_BYTES = 128 * 1024 * 1024
"""Beyond this, the WAL must be started anew. SQLite does so itself at a moment without readers. With many readers, or
one that reads the whole store, there may be no such moment for as long as a flood lasts."""

WAL_RESTART_WAIT_S = 0.05
"""How long to wait for readers then. Their statements take milliseconds; if one takes longer, we try again later."""

WAL_STEP_BYTES = 32 * 1024 * 1024
"""How much the WAL grows between two attempts."""


class LogBound:
    """Says when a log is too long."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._most = MAX_WAL_BYTES

    def is_passed(self) -> bool:
        """Whether to start the log anew now; not again before it has grown further."""
        try:
            size = self._log.stat().st_size
        except OSError:  # there is none: SQLite works without a WAL on a file system without shared memory
            return False
        if size <= MAX_WAL_BYTES:
            self._most = MAX_WAL_BYTES
        elif size > self._most:
            self._most = size + WAL_STEP_BYTES
            return True
        return False


def restart_log(connection: sqlite3.Connection) -> bool:
    """Let the next transaction begin at the start of the log; return whether it will. Readers can be in the way."""
    connection.execute(f"PRAGMA busy_timeout = {WAL_RESTART_WAIT_S * 1000:.0f}")
    try:
        ((is_busy, *_),) = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        return not is_busy
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")
