"""What goes wrong with an open store in SQLite, in words that say what to do about it."""

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from mailserver.store.engine.failures import Failures
from mailserver.store.sqlite.damage import explain

log = logging.getLogger(__name__)


class StoreFailures(Failures):
    """The state of the store at a path."""

    read_errors = (sqlite3.Error,)

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._path = path
        self._checkpoint = ""

    @property
    def _fault(self) -> str:
        return super()._fault or self._checkpoint

    def not_stored(self, envelopes: int, error: sqlite3.Error) -> str:
        """A group was not committed; return why."""
        cause = explain(error, self._path)
        self.failed_to_store(envelopes, cause)
        return cause

    def checkpointed(self, error: sqlite3.Error | None) -> None:
        """The log was written back into the file, or could not be."""
        cause = "" if error is None else explain(error, self._path)
        if cause and cause != self._checkpoint:
            log.error("store checkpoint failed error=%r", cause)
        before, self._checkpoint = self._checkpoint, f"its log cannot be written back: {cause}" if cause else ""
        if before != self._checkpoint:
            self.changed()

    def indexed(self, error: sqlite3.Error | None) -> None:
        """Rows got into the index of message ids, or could not."""
        self.indexed_or("" if error is None else explain(error, self._path))

    def not_read(self, error: sqlite3.Error) -> str:
        """Something could not be read; return why."""
        cause = explain(error, self._path)
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_INTERRUPT:
            self.failed_to_read(cause)
        return cause
