"""mailserver.data_dir.own_store: a store is made where there never was one, and missed where there was."""

import asyncio
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from mailserver.data_dir import own_store
from mailserver.data_dir.moving import move
from mailserver.data_dir.own_store import (
    RECORD_FILE,
    check_it_is_a_file,
    follow_own_store,
    open_own_store,
    read_own_stats,
)
from mailserver.errors import StartupError, StoreError
from mailserver.files import write_atomically
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.message_ids import BEFORE_ALL
from mailserver.store.postgres.presence import MARGIN
from mailserver.store.sqlite.schema import STORE_FILE
from tests.mailservers import fill, make_envelopes
from tests.store.postgres.server import new_schema, shared_server
from tests.store.samples import new_envelopes
from tests.waiting import until


async def start(data_dir: Path) -> str:
    """Open and close the store; return its identity."""
    async with open_own_store(data_dir, DEFAULT_NETWORK_TOPIC) as store:
        return await store.identity()


def noted(data_dir: Path) -> int:
    seq: int = json.loads((data_dir / RECORD_FILE).read_text()).get("seq", 0)
    return seq


async def refusal(data_dir: Path) -> str:
    with pytest.raises(StartupError) as refused:
        await start(data_dir)
    return str(refused.value)


async def test_first_start_makes_a_store_and_writes_down_which(tmp_path: Path) -> None:
    identity = await start(tmp_path)

    record = json.loads((tmp_path / RECORD_FILE).read_text())
    assert record == {"version": 1, "identity": identity}
    assert await start(tmp_path) == identity


async def test_store_that_has_gone_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    await start(tmp_path)
    store = tmp_path / STORE_FILE
    store.unlink()

    assert await refusal(tmp_path) == (
        f"{store} is not there, but there was a store before: mount its disk or restore a backup; to begin with "
        f"an empty one, delete {tmp_path / RECORD_FILE}"
    )
    assert not store.exists()


async def test_store_that_a_version_without_the_record_had_is_missed_too(tmp_path: Path) -> None:
    await start(tmp_path)
    (tmp_path / STORE_FILE).unlink()
    (tmp_path / "enode").touch()

    assert (await refusal(tmp_path)).endswith(f"delete {tmp_path / RECORD_FILE} and {tmp_path / 'enode'}")
    (tmp_path / RECORD_FILE).unlink()
    assert (await refusal(tmp_path)).endswith(f"delete {tmp_path / 'enode'}")


async def test_what_the_refusal_names_begins_with_an_empty_store(tmp_path: Path) -> None:
    before = await start(tmp_path)
    (tmp_path / STORE_FILE).unlink()
    (tmp_path / RECORD_FILE).unlink()

    assert await start(tmp_path) != before


async def test_store_that_was_emptied_is_refused(tmp_path: Path) -> None:
    (tmp_path / STORE_FILE).touch()  # as a first start leaves it that is killed at once
    await start(tmp_path)
    (tmp_path / STORE_FILE).write_bytes(b"")

    assert "is empty, but there was a store before" in await refusal(tmp_path)
    assert (tmp_path / STORE_FILE).read_bytes() == b""


async def test_link_to_a_disk_that_is_not_mounted_is_no_first_start(tmp_path: Path) -> None:
    await start(tmp_path)
    (tmp_path / STORE_FILE).unlink()
    (tmp_path / STORE_FILE).symlink_to(tmp_path / "disk" / STORE_FILE)

    assert "is not there, but there was a store before" in await refusal(tmp_path)


async def test_log_without_its_store_is_to_be_put_back(tmp_path: Path) -> None:
    async with open_own_store(tmp_path, DEFAULT_NETWORK_TOPIC) as store:
        await fill(store, make_envelopes(3))
        log = (tmp_path / f"{STORE_FILE}-wal").read_bytes()
    (tmp_path / STORE_FILE).unlink()
    (tmp_path / f"{STORE_FILE}-wal").write_bytes(log)

    with pytest.raises(StoreError, match="is not there, but its log"):
        await start(tmp_path)


async def test_another_store_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "other").mkdir()
    first, other = await start(tmp_path), await start(tmp_path / "other")
    (tmp_path / "other" / STORE_FILE).replace(tmp_path / STORE_FILE)

    for _ in range(2):
        assert await start(tmp_path) == other

    assert caplog.messages == [f"store is not the same as before was={first} is={other}"]


async def test_backup_that_was_put_in_its_place_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = await start(tmp_path)
    connection = sqlite3.connect(tmp_path / STORE_FILE)
    connection.execute("DELETE FROM identity")  # as in a backup
    connection.commit()
    connection.close()

    now = await start(tmp_path)

    assert now != first
    assert caplog.messages == [f"store is not the same as before was={first} is={now}"]


async def test_damaged_record_is_told_and_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    identity = await start(tmp_path)
    (tmp_path / RECORD_FILE).write_text("{")

    await start(tmp_path)

    (line,) = caplog.messages
    assert "record of the store started anew" in line
    assert json.loads((tmp_path / RECORD_FILE).read_text())["identity"] == identity


async def test_record_that_says_the_same_is_left_alone(tmp_path: Path) -> None:
    await start(tmp_path)
    before = (tmp_path / RECORD_FILE).stat().st_ino

    await start(tmp_path)

    assert (tmp_path / RECORD_FILE).stat().st_ino == before


async def test_record_that_cannot_be_written_keeps_nobody_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"{RECORD_FILE}.tmp").mkdir()

    identity = await start(tmp_path)

    assert identity
    assert caplog.messages == ["record of the store not written error='Is a directory'"]


async def test_last_row_is_written_down_meanwhile_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_store, "NOTE_INTERVAL_S", 0.01)

    async with open_own_store(tmp_path, DEFAULT_NETWORK_TOPIC) as store:
        assert noted(tmp_path) == 0
        await store.put(new_envelopes(3))
        await until(lambda: noted(tmp_path) == 3)
        monkeypatch.setattr(own_store, "NOTE_INTERVAL_S", 60.0)
        putting = asyncio.create_task(store.put(new_envelopes(2, first=3)))
        await asyncio.sleep(0)
    await putting

    assert noted(tmp_path) == 5


async def test_file_that_was_put_back_is_noticed_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_own_store(tmp_path, DEFAULT_NETWORK_TOPIC) as store:
        await store.put(new_envelopes(3))
    shutil.copy(tmp_path / STORE_FILE, tmp_path / "copy.db")
    async with open_own_store(tmp_path, DEFAULT_NETWORK_TOPIC) as store:
        await store.put(new_envelopes(2, first=3))
        before = await store.identity()
    (tmp_path / "copy.db").replace(tmp_path / STORE_FILE)

    async with open_own_store(tmp_path, DEFAULT_NETWORK_TOPIC) as store:
        identity = await store.identity()
        assert "went back to an earlier moment" in store.damage

    assert identity != before
    assert f"store went back in time seen=5 found=3 was={before}" in caplog.text
    assert json.loads((tmp_path / RECORD_FILE).read_text()) == {"version": 1, "identity": identity, "seq": 3}
    assert await start(tmp_path) == identity


# In a database


@pytest.fixture
def url() -> str:
    server = shared_server()
    return server.url(new_schema(server))


async def start_in_database(data_dir: Path, url: str) -> str:
    """Open and close the store; return its identity."""
    async with open_own_store(data_dir, DEFAULT_NETWORK_TOPIC, url) as store:
        return await store.identity()


async def test_first_start_makes_a_store_in_the_database_and_writes_down_which(tmp_path: Path, url: str) -> None:
    identity = await start_in_database(tmp_path, url)

    assert json.loads((tmp_path / RECORD_FILE).read_text()) == {"version": 1, "identity": identity}
    assert await start_in_database(tmp_path, url) == identity
    assert (await read_own_stats(tmp_path, url)).envelopes == 0
    assert not (tmp_path / STORE_FILE).exists()


async def test_store_that_has_gone_from_the_database_is_not_replaced_by_an_empty_one(tmp_path: Path, url: str) -> None:
    await start_in_database(tmp_path, url)
    server = shared_server()
    elsewhere = server.url(new_schema(server))

    with pytest.raises(StartupError) as refused:
        await start_in_database(tmp_path, elsewhere)
    with pytest.raises(StoreError, match="there is no store in the database"):
        await read_own_stats(tmp_path, elsewhere)

    assert str(refused.value) == (
        "there is no store in the database, but there was a store before: name the right database or restore a backup; "
        f"to begin with an empty one, delete {tmp_path / RECORD_FILE}"
    )
    (tmp_path / RECORD_FILE).unlink()
    await start_in_database(tmp_path, elsewhere)


async def test_last_row_of_a_database_is_written_down_meanwhile_and_at_the_end(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_store, "NOTE_INTERVAL_S", 0.01)

    async with open_own_store(tmp_path, DEFAULT_NETWORK_TOPIC, url) as store:
        assert noted(tmp_path) == 0
        await store.put(new_envelopes(3))
        await until(lambda: noted(tmp_path) == 3)
        monkeypatch.setattr(own_store, "NOTE_INTERVAL_S", 60.0)
        putting = asyncio.create_task(store.put(new_envelopes(5)))
        await asyncio.sleep(0)
    await putting

    assert noted(tmp_path) >= 5


async def test_database_that_went_back_is_noticed_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, schema = shared_server(), new_schema(shared_server())
    async with open_own_store(tmp_path, DEFAULT_NETWORK_TOPIC, server.url(schema)) as store:
        await store.put(new_envelopes(3))
        dump = await asyncio.to_thread(server.dump, schema)  # this loop may have a table's lock
        await store.put(new_envelopes(2, first=3))
    server.restore(schema, dump)

    async with open_own_store(tmp_path, DEFAULT_NETWORK_TOPIC, server.url(schema)) as store:
        assert "went back to an earlier moment" in store.damage

    assert f"database went back in time seen=5 found=3 moved_to={5 + MARGIN}" in caplog.text
    assert noted(tmp_path) == 5 + MARGIN


async def test_note_that_cannot_be_written_is_told_once(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    def counted(path: Path, text: str) -> None:
        tries.append(text)
        write_atomically(path, text)

    monkeypatch.setattr(own_store, "NOTE_INTERVAL_S", 0.001)
    monkeypatch.setattr(own_store, "write_atomically", counted)
    (tmp_path / f"{RECORD_FILE}.tmp").mkdir()
    async with open_own_store(tmp_path, DEFAULT_NETWORK_TOPIC, url) as store:
        await store.put(new_envelopes(1))
        await until(lambda: len(tries) > 3)
        (tmp_path / f"{RECORD_FILE}.tmp").rmdir()
        await until(lambda: (tmp_path / RECORD_FILE).exists() and noted(tmp_path) == 1)

    assert [line for line in caplog.messages if "record of the store" in line] == [
        "record of the store not written error='Is a directory'"
    ]


async def test_file_that_is_a_store_is_not_passed_over_for_a_database(tmp_path: Path, url: str) -> None:
    await start(tmp_path)

    with pytest.raises(StartupError, match=r"mailserver.db is a store, too, which nobody would look into: move it out"):
        await start_in_database(tmp_path, url)


async def test_database_needs_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_store, "find_spec", lambda name: None)

    with pytest.raises(StartupError, match=r"asyncpg is not installed: pip install -r requirements-postgres\.lock"):
        await start_in_database(tmp_path, "postgresql:///mail")


async def test_whoever_follows_a_store_needs_the_driver_for_a_database_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_store, "find_spec", lambda name: None)

    async with follow_own_store(tmp_path, DEFAULT_NETWORK_TOPIC) as log:
        with pytest.raises(StoreError, match="there is none"):
            await log.after(BEFORE_ALL, 1, of="")
    with pytest.raises(StartupError, match=r"asyncpg is not installed: pip install -r requirements-postgres\.lock"):
        async with follow_own_store(tmp_path, DEFAULT_NETWORK_TOPIC, "postgresql:///mail"):
            pass


async def test_what_is_for_files_names_what_is_for_databases() -> None:
    check_it_is_a_file("", "use something else")
    with pytest.raises(StartupError, match=r"the store is in a database: use something else, see docs/"):
        check_it_is_a_file("postgresql:///mail", "use something else")


async def test_file_that_was_put_back_is_noticed_by_a_move_into_it(tmp_path: Path, url: str) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    data.mkdir()
    elsewhere.mkdir()
    async with open_own_store(elsewhere, DEFAULT_NETWORK_TOPIC, url) as source:
        await fill(source, make_envelopes(9, first=100))
    async with open_own_store(data, DEFAULT_NETWORK_TOPIC) as store:
        await store.put(new_envelopes(3))
        before = await store.identity()
    shutil.copy(data / STORE_FILE, tmp_path / "copy.db")
    async with open_own_store(data, DEFAULT_NETWORK_TOPIC) as store:
        await store.put(new_envelopes(2, first=3))
    (tmp_path / "copy.db").replace(data / STORE_FILE)

    await move(url, data / STORE_FILE, DEFAULT_NETWORK_TOPIC, lambda *_: None)  # rows 4 to 12: more than was noted

    assert await start(data) != before
