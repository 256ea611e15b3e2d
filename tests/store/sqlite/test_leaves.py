"""mailserver.store.sqlite.leaves: what a page of a table says, and what is no such page."""

import sqlite3
from pathlib import Path

import pytest

from mailserver.store.sqlite.leaves import BadRow, is_leaf, short_rows

PAGE_BYTES = 4096
VALUES = [("text", 0), ("", 1), ("a", -1), ("b", 300), ("c", 2**40), ("d", 2**62), ("e", None), (b"bytes", 7)]


@pytest.fixture
def page(tmp_path: Path) -> bytes:
    """The one page of a table that has VALUES, as SQLite writes it."""
    path = tmp_path / "database"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("CREATE TABLE pairs (one, other)")
    connection.executemany("INSERT INTO pairs VALUES (?, ?)", VALUES)
    connection.commit()
    connection.close()
    return path.read_bytes()[PAGE_BYTES:]


def test_rows_are_read_as_sqlite_has_written_them(page: bytes) -> None:
    assert is_leaf(page)
    assert [*short_rows(page)] == VALUES


def test_page_that_is_cut_off_ends_with_a_bad_row(page: bytes) -> None:
    for length in range(PAGE_BYTES - len(VALUES), PAGE_BYTES):
        with pytest.raises(BadRow):
            [*short_rows(page[:length])]


def test_any_page_ends(page: bytes) -> None:
    """Whatever has happened to it."""
    for at in range(PAGE_BYTES):
        for byte in (0x00, 0x7F, 0xFF):
            try:
                rows = [*short_rows(page[:at] + bytes([byte]) + page[at + 1 :])]
            except BadRow:
                continue
            assert len(rows) <= PAGE_BYTES
