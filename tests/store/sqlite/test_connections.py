"""mailserver.store.sqlite.connections: which files are opened, what they become, and what is left alone."""

import logging
import os
import sqlite3
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from mailserver.errors import StoreError
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.connections import (
    CHECKPOINT_BYTES,
    READER_CACHE_KIB,
    WAL_LIMIT_BYTES,
    WRITER_CACHE_KIB,
    open_reader,
    open_writer,
    pragma,
)
from mailserver.store.sqlite.schema import APPLICATION_ID, MIGRATIONS, PAGE_BYTES, SCHEMA_VERSION, STORE_FILE
from mailserver.store.sqlite.store import read_stats
from mailserver.store.sqlite.wal import wal_file
from mailserver.store.sqlite.worker import Worker
from tests.store.samples import (
    DAY,
    START,
    assert_counts_are_right,
    change,
    contents_of,
    copy_as_on_disk,
    make_store,
    make_version_1,
    names_in,
    new_envelopes,
    permitting,
    plain,
    read,
    rows,
    stored,
    write,
)
from tests.waiting import until

INCREMENTAL = 2
THREADS = ("connection_worker", "store-writer")
"""Of aiosqlite, and ours."""

TABLES = ("envelopes", "days", "day_topics", "identity", "removed", "reception_days")

Open = Callable[[Path], Awaitable[aiosqlite.Connection | Worker]]

each_open = pytest.mark.parametrize("open_it", [open_writer, open_reader], ids=["writer", "reader"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store is to be; nothing is there yet."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / STORE_FILE


async def make(path: Path) -> None:
    worker = await open_writer(path)
    await worker.close()


async def refusal(open_it: Open, path: Path) -> str:
    """Why the file is not opened. A connection left open would keep its thread, and the tests from ending."""
    try:
        connection = await open_it(path)
    except StoreError as error:
        return str(error)
    await connection.close()
    pytest.fail(f"{path} was opened")


def settings_of(connection: sqlite3.Connection) -> list[Any]:
    names = "journal_mode", "synchronous", "cache_size", "wal_autocheckpoint", "journal_size_limit"
    return [value for name in names for (value,) in connection.execute(f"PRAGMA {name}")]


def schema_of(path: Path) -> list[Any]:
    return rows(path, "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")


def watch(monkeypatch: pytest.MonkeyPatch, prepare: Callable[[sqlite3.Connection], None]) -> None:
    """Let `prepare` put a callback on every connection that is opened from now on."""
    connect = sqlite3.connect

    def connect_watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        prepare(connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_watched)


# New stores, and stores that are there


async def test_new_store_has_the_newest_schema_and_is_marked_as_ours(path: Path, tmp_path: Path) -> None:
    make_store(tmp_path / "by hand", [])

    await make(path)

    assert schema_of(path) == schema_of(tmp_path / "by hand")
    assert rows(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert rows(path, "PRAGMA page_size") == [(PAGE_BYTES,)]
    assert rows(path, "PRAGMA auto_vacuum") == [(INCREMENTAL,)]


async def test_every_store_has_a_name_of_its_own(tmp_path: Path) -> None:
    for name in ("one", "other"):
        await make(tmp_path / name)
    names = {name: rows(tmp_path / name, "SELECT id FROM identity") for name in ("one", "other")}
    await make(tmp_path / "one")

    ((one,),), ((other,),) = names.values()
    assert len(bytes.fromhex(one)) == len(bytes.fromhex(other)) == 16
    assert one != other
    assert rows(tmp_path / "one", "SELECT id FROM identity") == [(one,)]


async def test_writer_logs_ahead_and_syncs_at_each_commit(path: Path) -> None:
    await make(path)

    for _ in range(2):
        worker = await open_writer(path)
        settings = await worker.run(settings_of)
        await worker.close()

        full = 2
        assert settings == ["wal", full, -WRITER_CACHE_KIB, CHECKPOINT_BYTES // PAGE_BYTES, WAL_LIMIT_BYTES]


async def test_reader_has_a_cache_of_its_own_size(path: Path) -> None:
    await make(path)

    connection = await open_reader(path)
    ((cache_kib,),) = await connection.execute_fetchall("PRAGMA cache_size")
    await connection.close()

    assert cache_kib == -READER_CACHE_KIB


async def test_pragma_is_read_as_a_number(path: Path) -> None:
    await make(path)

    with plain(path) as connection:
        assert pragma(connection, "application_id") == APPLICATION_ID
        assert pragma(connection, "user_version") == SCHEMA_VERSION


async def test_empty_file_becomes_a_store(path: Path) -> None:
    write(path, b"")

    await make(path)

    assert rows(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert rows(path, "PRAGMA page_size") == [(PAGE_BYTES,)]


async def test_store_is_opened_again_with_all_that_is_in_it(path: Path) -> None:
    make_store(path, new_envelopes(3))
    before = stored(path)

    await make(path)
    await make(path)

    assert stored(path) == before
    assert len(before) == 3


@each_open
async def test_path_may_hold_any_character(tmp_path: Path, open_it: Open) -> None:
    name = "ä 50%25 what?a#b&mode=memory.db"
    await make(tmp_path / name)

    connection = await open_it(tmp_path / name)
    await connection.close()

    assert names_in(tmp_path) - {f"{name}-wal", f"{name}-shm"} == {name}


async def test_reader_does_not_write(path: Path) -> None:
    await make(path)

    connection = await open_reader(path)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await connection.execute_fetchall("INSERT INTO days VALUES (1, 1, 1)")
    await connection.close()

    assert rows(path, "SELECT * FROM days") == []


async def test_reader_makes_no_store(path: Path) -> None:
    assert "cannot open" in await refusal(open_reader, path)

    assert names_in(path.parent) == set()


async def test_reader_takes_an_empty_file_for_no_store(path: Path) -> None:
    write(path, b"")

    assert "not a mailserver store" in await refusal(open_reader, path)

    assert read(path) == b""


async def test_opening_a_store_does_not_take_longer_when_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path / "small", new_envelopes(1))
    make_store(tmp_path / "large", new_envelopes(5000))
    await make(tmp_path / "small")  # both become WAL files first
    await make(tmp_path / "large")
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    watch(monkeypatch, lambda connection: connection.set_progress_handler(count, 1))
    taken = {}
    for name in ("small", "large"):
        steps[0] = 0
        await make(tmp_path / name)
        reader = await open_reader(tmp_path / name)
        await reader.close()
        taken[name] = steps[0]

    assert 0 < taken["large"] == taken["small"] < 1000


# Files that are not ours, damaged, or of a later version


def foreign_database(path: Path, *, application_id: int, journal: str = "delete", version: int = 0) -> None:
    change(
        path,
        f"PRAGMA journal_mode = {journal}",
        "CREATE TABLE theirs (it TEXT)",
        "INSERT INTO theirs VALUES ('precious')",
        f"PRAGMA application_id = {application_id}",
        f"PRAGMA user_version = {version}",
    )


@each_open
@pytest.mark.parametrize(
    ("application_id", "version", "journal"),
    [
        (0, 0, "delete"),
        (0, SCHEMA_VERSION, "wal"),
        (-1, 0, "wal"),
        (APPLICATION_ID + 1, SCHEMA_VERSION + 1, "delete"),
    ],
)
async def test_database_of_another_program_is_left_alone(
    path: Path, open_it: Open, application_id: int, journal: str, version: int
) -> None:
    foreign_database(path, application_id=application_id, journal=journal, version=version)
    before = read(path)

    assert "is not a mailserver store" in await refusal(open_it, path)

    assert read(path) == before


@each_open
@pytest.mark.parametrize(("application_id", "version"), [(0, 1), (0, -1), (7, 0)])
async def test_empty_database_of_another_program_is_left_alone(
    path: Path, open_it: Open, application_id: int, version: int
) -> None:
    change(path, f"PRAGMA application_id = {application_id}", f"PRAGMA user_version = {version}")
    before = contents_of(path.parent)

    assert "is not a mailserver store" in await refusal(open_it, path)

    assert contents_of(path.parent) == before


@each_open
async def test_database_of_another_program_that_runs_is_left_alone(path: Path, open_it: Open) -> None:
    foreign_database(path, application_id=7, journal="wal")
    with plain(path, write=True) as theirs:
        theirs.execute("INSERT INTO theirs VALUES ('in their WAL')")
        before = contents_of(path.parent)

        assert "is not a mailserver store" in await refusal(open_it, path)

        assert contents_of(path.parent) == before
        assert len(before[f"{path.name}-wal"]) > 0


@each_open
@pytest.mark.parametrize(
    "text", [b"x", b"a diary\n", b"a diary\n" * 1000, bytes(100), bytes(20_000), b"SQLite format 3\x00"]
)
async def test_file_that_is_no_database_is_left_alone(path: Path, open_it: Open, text: bytes) -> None:
    write(path, text)

    assert path.name in await refusal(open_it, path)

    assert contents_of(path.parent) == {path.name: text}


@each_open
@pytest.mark.parametrize("keep", [100, 512, PAGE_BYTES - 1, PAGE_BYTES, 2 * PAGE_BYTES, -PAGE_BYTES])
async def test_truncated_store_is_left_alone(path: Path, open_it: Open, keep: int) -> None:
    await make(path)
    change(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    damaged = read(path)[:keep]
    write(path, damaged)

    assert path.name in await refusal(open_it, path)

    assert read(path) == damaged


@each_open
@pytest.mark.parametrize("at", [0, 20, 100], ids=["magic", "header", "schema"])
async def test_store_with_a_damaged_first_page_is_left_alone(path: Path, open_it: Open, at: int) -> None:
    await make(path)
    whole = read(path)
    damaged = whole[:at] + b"\xa5" * 16 + whole[at + 16 :]
    write(path, damaged)

    assert path.name in await refusal(open_it, path)

    assert read(path) == damaged


@each_open
@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 2**31 - 1])
async def test_store_of_a_later_version_is_left_alone(path: Path, open_it: Open, version: int) -> None:
    make_store(path, new_envelopes(2))
    change(path, f"PRAGMA user_version = {version}")
    before = contents_of(path.parent)

    assert f"has schema version {version}, this program knows {SCHEMA_VERSION}" in await refusal(open_it, path)

    assert contents_of(path.parent) == before


@each_open
async def test_folder_is_no_store(tmp_path: Path, open_it: Open) -> None:
    assert "cannot open the store" in await refusal(open_it, tmp_path)


@each_open
async def test_store_in_a_missing_folder_cannot_be_opened(tmp_path: Path, open_it: Open) -> None:
    assert "cannot open the store" in await refusal(open_it, tmp_path / "missing" / STORE_FILE)

    assert names_in(tmp_path) == set()


@each_open
async def test_store_that_cannot_be_opened_leaves_no_thread_behind(tmp_path: Path, open_it: Open) -> None:
    # A thread that outlives the event loop ends in a traceback on stderr, beside the one line that says what is wrong.
    for _ in range(5):
        await refusal(open_it, tmp_path / "missing" / STORE_FILE)
        await until(lambda: not any(name in thread.name for thread in threading.enumerate() for name in THREADS))


async def test_store_that_another_process_locks_cannot_be_prepared(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mailserver.store.sqlite.connections.BUSY_TIMEOUT_S", 0)
    await make(path)
    change(path, "PRAGMA user_version = 0", *(f"DROP TABLE {table}" for table in TABLES))

    with plain(path, write=True) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "locked" in await refusal(open_writer, path)
        other.execute("ROLLBACK")
    await make(path)

    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]


async def test_file_that_another_process_locks_cannot_become_a_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mailserver.store.sqlite.connections.BUSY_TIMEOUT_S", 0)

    with plain(path, write=True) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "locked" in await refusal(open_writer, path)
        other.execute("ROLLBACK")
    await make(path)

    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]


# Permissions

NOBODY = 65534


@pytest.fixture
def restricted(tmp_path: Path) -> Iterator[Path]:
    """A folder of ours while we are a user whom permissions bind: root may do everything."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory() as folder:  # not below tmp_path, which only root may enter
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            yield Path(folder)
        finally:
            os.seteuid(0)


@each_open
async def test_store_that_we_may_not_read_cannot_be_opened(restricted: Path, open_it: Open) -> None:
    path = restricted / STORE_FILE
    await make(path)

    with permitting(path, 0):
        assert "cannot open the store" in await refusal(open_it, path)


async def test_store_that_we_may_only_read_cannot_be_opened_for_writing(restricted: Path) -> None:
    path = restricted / STORE_FILE
    await make(path)
    before = read(path)

    with permitting(path, 0o444):
        assert "readonly" in await refusal(open_writer, path)

    assert read(path) == before


async def test_folder_that_we_may_not_write_gets_no_store(restricted: Path) -> None:
    with permitting(restricted, 0o555):
        assert "cannot open the store" in await refusal(open_writer, restricted / STORE_FILE)

    assert names_in(restricted) == set()


async def test_store_in_a_folder_that_we_may_not_write_cannot_be_opened_for_writing(restricted: Path) -> None:
    path = restricted / STORE_FILE
    await make(path)
    before = contents_of(restricted)

    with permitting(restricted, 0o555):
        assert path.name in await refusal(open_writer, path)

    assert contents_of(restricted) == before


@each_open
async def test_store_in_a_folder_that_we_may_not_enter_cannot_be_opened(restricted: Path, open_it: Open) -> None:
    path = restricted / STORE_FILE
    await make(path)

    with permitting(restricted, 0):
        assert path.name in await refusal(open_it, path)


# Migrations

LATER = ("ALTER TABLE days ADD COLUMN note TEXT", "UPDATE days SET note = 'migrated'")
BROKEN = ("ALTER TABLE days ADD COLUMN note TEXT", "UPDATE days SET nothing = 'of this name'")


def add_migration(monkeypatch: pytest.MonkeyPatch, migration: tuple[str, ...]) -> None:
    """Be a later version of this program."""
    monkeypatch.setattr("mailserver.store.sqlite.connections.MIGRATIONS", (*MIGRATIONS, migration))
    monkeypatch.setattr("mailserver.store.sqlite.connections.SCHEMA_VERSION", SCHEMA_VERSION + 1)


def mark_as_version_0(path: Path) -> None:
    change(path, f"PRAGMA application_id = {APPLICATION_ID}")


async def test_store_of_version_0_is_migrated(path: Path, tmp_path: Path) -> None:
    mark_as_version_0(path)
    make_store(tmp_path / "by hand", [])

    await make(path)

    assert schema_of(path) == schema_of(tmp_path / "by hand")
    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]


async def test_store_of_the_version_before_is_migrated_and_keeps_what_it_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(path, new_envelopes(3))
    before = stored(path)
    add_migration(monkeypatch, LATER)

    await make(path)
    await make(path)

    assert stored(path) == before
    assert rows(path, "SELECT note FROM days") == [("migrated",)]
    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION + 1,)]


async def test_new_store_goes_through_every_migration(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_migration(monkeypatch, LATER)

    await make(path)

    assert rows(path, "SELECT note FROM days") == []
    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION + 1,)]


async def test_migration_that_fails_leaves_the_store_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(path, new_envelopes(3))
    await make(path)  # makes it a WAL file
    before = read(path)

    with monkeypatch.context() as later:
        add_migration(later, BROKEN)
        assert "cannot prepare the store" in await refusal(open_writer, path)
    await make(path)

    assert read(path) == before
    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]


async def test_new_store_whose_migration_fails_can_be_made_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("mailserver.store.sqlite.connections.MIGRATIONS", (BROKEN,) * SCHEMA_VERSION)
        assert "cannot prepare the store" in await refusal(open_writer, path)

    await make(path)

    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]


async def kill_at_each_statement(path: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Open the store for writing; return copies of what a kill would leave, one for each statement that was run."""
    copies: list[Path] = []

    def copy(_: str) -> None:
        copies.append(copy_as_on_disk(path, to / f"killed at {len(copies)}"))

    with monkeypatch.context() as patch:
        watch(patch, lambda connection: connection.set_trace_callback(copy))
        await make(path)
    return copies


async def test_first_start_that_is_killed_is_made_good_by_the_next(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = await kill_at_each_statement(path, tmp_path, monkeypatch)

    for copy in copies:
        await make(copy)
        assert schema_of(copy) == schema_of(path)
        assert rows(copy, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
        assert rows(copy, "PRAGMA application_id") == [(APPLICATION_ID,)]
        assert rows(copy, "PRAGMA page_size") == [(PAGE_BYTES,)]
        assert rows(copy, "PRAGMA auto_vacuum") == [(INCREMENTAL,)]
        assert len(rows(copy, "SELECT id FROM identity")) == 1
    assert len(copies) > len(MIGRATIONS[0])


async def test_new_store_has_its_name_only_when_it_is_whole(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = await kill_at_each_statement(path, tmp_path, monkeypatch)

    there = [copy for copy in copies if copy.exists()]
    for copy in there:
        assert schema_of(copy) == schema_of(path)
        assert rows(copy, "PRAGMA journal_mode") == [("wal",)]
    assert 0 < len(there) < len(copies)


def log_of_another_store(folder: Path) -> bytes:
    """A log with a transaction in it."""
    (folder / "other").mkdir()
    other = folder / "other" / STORE_FILE
    make_store(other, new_envelopes(3))
    with plain(other, write=True) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("DELETE FROM envelopes")
        return read(wal_file(other))


@pytest.mark.parametrize("ending", ["journal", "shm"])
async def test_what_is_left_of_a_store_that_was_deleted_is_not_taken_for_a_part_of_the_new_one(
    path: Path, tmp_path: Path, ending: str
) -> None:
    left = log_of_another_store(tmp_path)
    for name in (path.name, f"{path.name}.new"):
        write(path.with_name(f"{name}-{ending}"), left)

    await make(path)

    assert stored(path) == []
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert len(rows(path, "SELECT id FROM identity")) == 1
    assert [name for name in names_in(path.parent) if ".new" in name] == []


async def test_log_of_a_new_store_that_was_never_finished_goes(path: Path, tmp_path: Path) -> None:
    write(path.with_name(f"{path.name}.new-wal"), log_of_another_store(tmp_path))

    await make(path)

    assert stored(path) == []
    assert [name for name in names_in(path.parent) if ".new" in name] == []


async def test_migration_that_is_killed_is_made_good_by_the_next_start(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(path, new_envelopes(3))
    await make(path)  # makes it a WAL file
    before = stored(path)
    add_migration(monkeypatch, LATER)

    copies = await kill_at_each_statement(path, tmp_path, monkeypatch)

    for copy in copies:
        migrated = rows(copy, "PRAGMA user_version") == [(SCHEMA_VERSION + 1,)]  # all of it, or nothing
        assert ("note" in str(schema_of(copy))) == migrated
        await make(copy)
        assert stored(copy) == before
        assert schema_of(copy) == schema_of(path)
        assert rows(copy, "SELECT note FROM days") == [("migrated",)]
    assert len(copies) > len(LATER)


# Version 1, which had no days of reception


def over_several_days(count: int) -> list[NewEnvelope]:
    """Envelopes received over three days by a clock that was stepped back a day halfway."""
    envelopes = new_envelopes(count)
    seconds = [START + 3 * DAY * number // count - (DAY if 2 * number > count else 0) for number in range(count)]
    return [envelope._replace(received=second) for envelope, second in zip(envelopes, seconds, strict=True)]


async def test_version_1_is_migrated_and_its_days_of_reception_are_counted(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_version_1(path, over_several_days(100))
    before = stored(path)
    caplog.set_level(logging.INFO)

    await make(path)
    await make(path)

    assert stored(path) == before
    assert_counts_are_right(path)
    assert len(rows(path, "SELECT day FROM reception_days")) == 2
    assert len(rows(path, "SELECT id FROM identity")) == 1
    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert [record.message for record in caplog.records if record.name.startswith("mailserver")] == [
        f"store migrated from=1 to={SCHEMA_VERSION}"
    ]


async def test_new_store_is_not_said_to_be_migrated(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    await make(path)

    assert "migrated" not in caplog.text


async def test_migration_of_version_1_that_is_killed_is_made_good_by_the_next_start(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_version_1(path, over_several_days(100))
    before = stored(path)

    copies = await kill_at_each_statement(path, tmp_path, monkeypatch)

    for copy in copies:
        ((version,),) = rows(copy, "PRAGMA user_version")  # all of each, or nothing
        assert ("reception_days" in str(schema_of(copy))) == (version >= 2)
        assert ("removed" in str(schema_of(copy))) == (version >= 3)
        await make(copy)
        assert stored(copy) == before
        assert schema_of(copy) == schema_of(path)
        assert_counts_are_right(copy)
        assert len(rows(copy, "SELECT id FROM identity")) == 1
    assert len(copies) > len(MIGRATIONS[1])


async def test_version_1_is_read_as_it_is(path: Path) -> None:
    make_version_1(path, over_several_days(100))
    before = read(path)

    stats = await read_stats(path)

    assert stats.envelopes == 100
    assert read(path) == before
    assert rows(path, "PRAGMA user_version") == [(1,)]


async def test_version_1_can_be_made_to_give_pages_back_as_the_readme_says(path: Path) -> None:
    make_version_1(path, over_several_days(100))
    await make(path)
    assert rows(path, "PRAGMA auto_vacuum") == [(0,)]

    change(path, "PRAGMA auto_vacuum = INCREMENTAL", "VACUUM")
    await make(path)

    assert rows(path, "PRAGMA auto_vacuum") == [(INCREMENTAL,)]
    assert_counts_are_right(path)
