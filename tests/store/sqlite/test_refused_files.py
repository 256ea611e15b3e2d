"""mailserver.store.sqlite.connections: files that are not ours, damaged, or closed to us are left alone."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.store.sqlite.connections import (
    open_writer,
)
from mailserver.store.sqlite.schema import APPLICATION_ID, PAGE_BYTES, SCHEMA_VERSION, STORE_FILE
from tests.nobody import NOBODY, as_nobody, folder_for_all
from tests.store.samples import (
    change,
    contents_of,
    make_store,
    names_in,
    new_envelopes,
    permitting,
    plain,
    read,
    rows,
    write,
)
from tests.store.sqlite.opening import TABLES, THREADS, Open, each_open, make, refusal
from tests.waiting import until

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


@pytest.fixture
def restricted(tmp_path: Path) -> Iterator[Path]:
    """A folder of ours while we are a user whom permissions bind: root may do everything."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    with folder_for_all() as folder:
        os.chown(folder, NOBODY, NOBODY)
        with as_nobody():
            yield folder


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
