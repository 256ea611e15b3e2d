"""Opening the index: a new file, one of ours, and what is none."""

import logging
import stat
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.gateway.index.schema import APPLICATION_ID, INDEX_FILE, SCHEMA_VERSION
from mailserver.ids.envelopes import content_topic_of
from tests.gateway.index.worlds import envelope, envelopes, new, opened_messages, original, put_back, query_for
from tests.store.samples import NEWS, START, change, make_store, rows, write


def modes_in(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


async def test_index_of_before_finds_messages_of_a_topic_side_by_side(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailserver.gateway.index.database")
    make_store(tmp_path / "mailserver.db", [new(each) for each in envelopes(9)])
    query = query_for(content_topics=(content_topic_of(NEWS),))
    async with opened_messages(tmp_path) as messages:
        before = await messages.query(query)
    tables = ("messages", "archived")
    olds = [
        statement
        for table in tables
        for statement in (
            f"DROP INDEX {table}_by_topic",
            f"CREATE INDEX {table}_by_topic ON {table} (topic, timestamp, hash)",
        )
    ]
    change(tmp_path / INDEX_FILE, *olds)
    put_back(tmp_path / INDEX_FILE, 3)

    async with opened_messages(tmp_path) as messages:
        after = await messages.query(query)

    assert caplog.messages == [f"migrating the index of messages schema_version={SCHEMA_VERSION}"]
    assert after == before
    assert len(after.entries) > 1
    for table in tables:
        statement = f"SELECT timestamp, hash, rest, is_original FROM {table} WHERE topic = x'00'"
        plan = rows(tmp_path / INDEX_FILE, f"EXPLAIN QUERY PLAN {statement}")
        assert f"COVERING INDEX {table}_by_topic" in plan[0][-1]


async def test_new_index_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    async with opened_messages(tmp_path) as messages:
        await messages.keep_original(envelope(1), original(1, timestamp=1))
        modes = modes_in(tmp_path)

    assert modes == {f"{INDEX_FILE}{ending}": 0o600 for ending in ("", "-wal", "-shm")}


async def test_index_is_of_its_own_kind_and_version(tmp_path: Path) -> None:
    async with opened_messages(tmp_path):
        pass

    assert rows(tmp_path / INDEX_FILE, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert rows(tmp_path / INDEX_FILE, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert rows(tmp_path / INDEX_FILE, "PRAGMA journal_mode") == [("wal",)]


async def test_file_of_another_program_is_refused(tmp_path: Path) -> None:
    make_store(tmp_path / INDEX_FILE, [new(envelope(1, created=START))])

    with pytest.raises(StoreError, match="is not an index of messages"):
        async with opened_messages(tmp_path):
            pass


async def test_index_of_a_later_version_is_refused(tmp_path: Path) -> None:
    async with opened_messages(tmp_path):
        pass
    change(tmp_path / INDEX_FILE, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")

    with pytest.raises(StoreError, match="use a newer one"):
        async with opened_messages(tmp_path):
            pass


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
async def test_index_of_an_earlier_version_is_migrated_and_goes_on(tmp_path: Path, version: int) -> None:
    make_store(tmp_path / "mailserver.db", [new(envelope(1))])
    async with opened_messages(tmp_path) as messages:
        await messages.keep_original(envelope(2), original(2, timestamp=1, meta=b"meta"))
        await messages.follower.catch_up()
        before = messages.follower.progress
    put_back(tmp_path / INDEX_FILE, version)

    async with opened_messages(tmp_path) as messages:
        assert messages.follower.progress == before
        assert len((await messages.query(query_for())).entries) == 1

    assert rows(tmp_path / INDEX_FILE, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert rows(tmp_path / INDEX_FILE, "SELECT count(*) FROM archived, archived_periods") == [(0,)]
    plan = rows(tmp_path / INDEX_FILE, "EXPLAIN QUERY PLAN SELECT 1 FROM originals WHERE meta = 'a' AND meta <> x''")
    assert "originals_by_meta" in plan[0][-1]


async def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    write(tmp_path / INDEX_FILE, b"no database" * 1000)

    with pytest.raises(StoreError, match="cannot use the index of messages"):
        async with opened_messages(tmp_path):
            pass


async def test_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot use the index of messages"):
        async with opened_messages(tmp_path / "none"):
            pass


async def test_index_that_cannot_be_written_or_read_is_a_store_error(tmp_path: Path) -> None:
    make_store(tmp_path / "mailserver.db", [new(envelope(1))])
    async with opened_messages(tmp_path) as messages:
        await messages.follower.catch_up()
        change(tmp_path / INDEX_FILE, "DROP TABLE originals", "DROP TABLE messages")

        with pytest.raises(StoreError, match="no such table"):
            await messages.keep_original(envelope(1), original(1, timestamp=1))
        with pytest.raises(StoreError, match="no such table"):
            await messages.is_stored(original(1, timestamp=1).hash("/waku/2/rs/1/4"))


async def test_index_that_is_being_made_when_the_power_fails_is_made_again(tmp_path: Path) -> None:
    write(tmp_path / INDEX_FILE, b"")
    make_store(tmp_path / "mailserver.db", [new(envelope(1))])

    async with opened_messages(tmp_path) as messages:
        assert len((await messages.query(query_for())).entries) == 1
