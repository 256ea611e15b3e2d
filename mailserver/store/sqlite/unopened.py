"""What commands read of a store that they do not open for writing: beside its daemon, or without one."""

import sqlite3
from pathlib import Path
from typing import NamedTuple

from mailserver.errors import StoreError
from mailserver.store.sqlite.identity import NOTHING_KNOWN, KnownStore, newest_seq
from mailserver.store.sqlite.read_only import open_read_only

BYTES_IN_USE = """
    SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""


class Sizes(NamedTuple):
    """How much is in a store, in bytes. `on_disk` is what its pages in use take, `envelopes` what the envelopes have.

    `received`: bytes of envelopes by day of reception, of the days that have any, the latest first.
    """

    on_disk: int
    envelopes: int
    received: list[int]


def read_sizes(path: Path) -> Sizes:
    """Read how much is in the store at `path`.

    Raises:
        StoreError: there is no store of this version, or it cannot be read.
    """
    try:
        with open_read_only(path) as connection:
            received = [size for (size,) in connection.execute("SELECT bytes FROM reception_days ORDER BY day DESC")]
            ((envelopes,),) = connection.execute("SELECT coalesce(sum(bytes), 0) FROM days")
            ((on_disk,),) = connection.execute(BYTES_IN_USE)
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the store {path}: {error}") from error
    return Sizes(on_disk, envelopes, received)


def read_known(path: Path) -> KnownStore:
    """Read which store it is, and the newest number that it ever gave to a row; NOTHING_KNOWN of a backup.

    Raises:
        StoreError: there is no store of this version, or it cannot be read.
    """
    try:
        with open_read_only(path) as connection:
            row = connection.execute("SELECT id FROM identity").fetchone()
            return NOTHING_KNOWN if row is None else KnownStore(str(row[0]), newest_seq(connection))
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the store {path}: {error}") from error


def read_last_reception(path: Path) -> int | None:
    """Read when the last envelope was received, in Unix seconds; None in an empty store.

    Raises:
        StoreError: there is no store of this version, or it cannot be read.
    """
    try:
        with open_read_only(path) as connection:
            ((last,),) = connection.execute("SELECT max(received) FROM envelopes")
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the store {path}: {error}") from error
    return last if isinstance(last, int) else None
