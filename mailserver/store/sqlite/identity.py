"""Which store a file is. A store that goes on from an earlier moment gets an identity of its own.

Such a store was restored from a backup; or the file was put back as it once was, or all of the data directory. It gives
its new rows numbers that other rows had: those that were received after that moment, and may be archived, or known to
whoever follows the order of arrival. Under another identity, no new row is mistaken for one of those. What is recorded
about the rows that it has remains true.
"""

import logging
import secrets
import sqlite3
from pathlib import Path
from typing import NamedTuple

from mailserver.errors import StoreError
from mailserver.handoff.archived import ArchivedError
from mailserver.store.sqlite.connections import counted_transaction
from mailserver.store.sqlite.damage import explain
from mailserver.store.sqlite.handoff import adopt_archived, read_archived
from mailserver.store.sqlite.schema import IDENTITY_BYTES, MISSED_UNTIL, NEWEST

log = logging.getLogger(__name__)


class KnownStore(NamedTuple):
    """What is known of a store: its identity, and the newest number of a row that was ever seen in it."""

    identity: str
    seq: int


NOTHING_KNOWN = KnownStore("", 0)


class Identified(NamedTuple):
    """A store that has an identity, the newest number of a row, and whether it went back to an earlier moment."""

    identity: str
    newest: int
    went_back: bool


def newest_seq(connection: sqlite3.Connection) -> int:
    """The newest number that was ever given to a row, whether or not it is still there; 0 if none was."""
    ((newest,),) = connection.execute(NEWEST).fetchall()
    return int(newest)


def identify(connection: sqlite3.Connection, path: Path, known: KnownStore = NOTHING_KNOWN) -> Identified:
    """Give a store an identity of its own if it has none, as a backup, or went back to before what is known of it.

    Raises:
        StoreError: it cannot be read or written.
    """
    try:
        newest = newest_seq(connection)
        went_back = _forget(connection, path, newest, known)
        identity = _identify(connection, path, newest)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot prepare the store {path}: {explain(error, path)}") from error
    return Identified(identity, newest, went_back)


def _forget(connection: sqlite3.Connection, path: Path, newest: int, known: KnownStore) -> bool:
    """Take its identity from a store that went back: from then on, it is as a backup. Return whether it did."""
    row = connection.execute("SELECT id FROM identity").fetchone()
    if row is None:
        return False
    (identity,) = row
    archived, was_noticed = _archived_until(path, identity)
    seen = max(known.seq if known.identity == identity else 0, archived)
    if seen <= newest and not was_noticed:
        return False
    log.error("store went back in time seen=%d found=%d was=%s", seen, newest, identity)
    with counted_transaction(connection):
        connection.execute("DELETE FROM identity")
    return True


def _archived_until(path: Path, identity: str) -> tuple[int, bool]:
    """The newest number that the compaction knows, and whether it has found the store to have gone back."""
    try:
        archived = read_archived(path)
    except ArchivedError:  # the daemon says so when it needs the record
        return 0, False
    if archived is None or archived.store_id != identity:
        return 0, False
    return max(archived.went_back_from, 0, *archived.days.values()), archived.went_back_from > 0


def _identify(connection: sqlite3.Connection, path: Path, newest: int) -> str:
    """Give a store that has no identity a new one, each time that it is restored; return its identity."""
    if row := connection.execute("SELECT id FROM identity").fetchone():
        return str(row[0])
    identity = secrets.token_hex(IDENTITY_BYTES)
    try:
        adopt_archived(path, identity, newest)
    except ArchivedError as error:  # pruning then waits for the next run of the compaction
        log.warning("record of the compaction not adopted error=%r", str(error))
    _write_back(connection)
    with counted_transaction(connection):
        connection.execute("INSERT INTO identity VALUES (?)", (identity,))
        # What was received after that moment may be in the archive, and is not here.
        connection.execute(f"UPDATE removed SET until = max(until, {MISSED_UNTIL})")
    log.info("store restored from a backup identity=%s", identity)
    return identity


def _write_back(connection: sqlite3.Connection) -> None:
    """Have the file itself without an identity before the log has a new one. If the file still had an old one after a
    kill, the log would be taken for another store's (`store.sqlite.damage`).

    Raises:
        StoreError: another process reads the store as it was before.
    """
    ((is_busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    if is_busy:
        raise StoreError("another process reads the store: it gets a new identity when that is done, so try again")
