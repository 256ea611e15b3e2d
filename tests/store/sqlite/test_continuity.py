"""mailserver.store.sqlite.continuity: a log that begins later than where its file ends is told from all others."""

import sqlite3
from pathlib import Path

import pytest

from mailserver.store.sqlite.connections import counted_transaction
from mailserver.store.sqlite.continuity import is_log_later
from mailserver.store.sqlite.schema import PAGE_BYTES, STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.store.sqlite.wal import Log, read_log, wal_file
from tests.mailservers import fill, make_envelopes
from tests.store.samples import change, copy_as_on_disk, plain, rows

COUNTED = "SELECT seq FROM sqlite_sequence WHERE name = 'transactions'"


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    """What a kill leaves: the first 50 envelopes are in the file, and 5 in the log."""
    path = tmp_path / "running" / STORE_FILE
    path.parent.mkdir()
    async with open_store(path) as store:
        await fill(store, make_envelopes(50))
    async with open_store(path) as store:
        await fill(store, make_envelopes(5, first=50))
        return copy_as_on_disk(path, tmp_path / "killed")


def log_of(path: Path) -> Log:
    log = read_log(path, PAGE_BYTES)
    assert log is not None
    return log


def alone(path: Path, *statements: str) -> None:
    """Change the file as if its log was not there."""
    log = wal_file(path)
    log.rename(log.with_name("log"))
    change(path, "PRAGMA journal_mode = DELETE", *statements, "PRAGMA journal_mode = WAL")
    log.with_name("log").rename(log)


@pytest.mark.parametrize(("lacks", "is_later"), [(-1, False), (0, False), (1, True), (10, True)])
def test_log_begins_with_the_transaction_that_follows_those_of_the_file(
    killed: Path, lacks: int, *, is_later: bool
) -> None:
    """A kill while the log is copied into the file may leave more of them there."""
    alone(killed, f"UPDATE sqlite_sequence SET seq = seq - {lacks} WHERE name = 'transactions'")

    assert is_log_later(killed, log_of(killed)) is is_later


def test_file_of_a_version_that_did_not_count_has_counted_nothing(killed: Path) -> None:
    alone(killed, "DELETE FROM sqlite_sequence WHERE name = 'transactions'")

    assert is_log_later(killed, log_of(killed))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sqlite_sequence SET name = 'other' WHERE name = 'transactions'",
        "UPDATE sqlite_sequence SET seq = 'text' WHERE name = 'transactions'",
        "INSERT INTO sqlite_sequence SELECT hex(randomblob(400)), 1 FROM envelopes",
    ],
    ids=["not counted", "no number", "no leaf"],
)
def test_log_that_does_not_say_how_much_was_counted_may_be_any(killed: Path, statement: str) -> None:
    """As that of an earlier version."""
    file = killed.read_bytes()
    change(killed, "PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA wal_autocheckpoint = 0")
    with plain(killed, write=True) as connection:
        connection.execute("DELETE FROM sqlite_sequence WHERE name = 'other'")
        connection.execute(statement)
        log = wal_file(killed).read_bytes()
    killed.write_bytes(file)
    wal_file(killed).write_bytes(log)

    assert not is_log_later(killed, log_of(killed))


def test_page_that_is_another_tables_by_now_says_nothing(killed: Path) -> None:
    log = log_of(killed)
    ((root,),) = rows(killed, "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_sequence'")
    content = wal_file(killed).read_bytes()
    at = log.firsts[root]
    wal_file(killed).write_bytes(content[: at + 8] + b"\xff" * 8 + content[at + 16 :])

    assert not is_log_later(killed, log)


def test_what_cannot_be_read_or_is_not_there_says_nothing(killed: Path) -> None:
    log = log_of(killed)
    log_without_it = Log(PAGE_BYTES, log.frames, log.page_count)
    assert not is_log_later(killed, log_without_it)

    killed.write_bytes(bytes(len(killed.read_bytes())))
    assert not is_log_later(killed, log)

    killed.write_bytes(b"")
    assert not is_log_later(killed, log)


def test_transaction_that_changes_nothing_or_is_undone_does_not_count(tmp_path: Path) -> None:
    with plain(tmp_path / STORE_FILE, write=True) as connection:
        connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY AUTOINCREMENT)")
        for _ in range(2):
            with counted_transaction(connection):
                connection.execute("INSERT INTO t DEFAULT VALUES")

        with counted_transaction(connection):
            connection.execute("DELETE FROM t WHERE n > 2")
        with pytest.raises(sqlite3.IntegrityError), counted_transaction(connection):
            connection.execute("INSERT INTO t SELECT 3 UNION ALL SELECT 1")

        assert connection.execute(COUNTED).fetchall() == [(2,)]
