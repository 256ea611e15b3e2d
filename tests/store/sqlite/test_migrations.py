"""mailserver.store.sqlite.connections: new stores and migrations, also those that are killed."""

import logging
from pathlib import Path

import pytest

from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.connections import (
    open_writer,
)
from mailserver.store.sqlite.reading import read_stats
from mailserver.store.sqlite.schema import APPLICATION_ID, MIGRATIONS, PAGE_BYTES, SCHEMA_VERSION, STORE_FILE
from mailserver.store.sqlite.wal import wal_file
from tests.store.samples import (
    DAY,
    START,
    assert_counts_are_right,
    change,
    copy_as_on_disk,
    make_store,
    make_version_1,
    names_in,
    new_envelopes,
    plain,
    read,
    rows,
    stored,
    write,
)
from tests.store.sqlite.opening import make, refusal, schema_of, watch

INCREMENTAL = 2


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
