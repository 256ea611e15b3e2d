"""Files in the place of the store that are not our store, and what the mailserver says of each."""

import contextlib
import sqlite3
from pathlib import Path

from mailserver.store.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION


def random_bytes(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 64)


def foreign_store(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
        connection.execute("INSERT INTO photos VALUES ('precious')")


def store_of_a_later_version(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        connection.execute("CREATE TABLE envelopes (better)")


FOREIGN_STORES = [
    (random_bytes, "{} is not a mailserver store: it is not an SQLite database (if it was one, "),
    (foreign_store, "{} is not a mailserver store"),
    (store_of_a_later_version, f"{{}} has schema version {SCHEMA_VERSION + 1}"),
]
"""What makes the file, and how the message begins, with the path in place of {}."""


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a data directory but the lock."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "lock"}
