"""mailserver.store.sqlite.connections: what a file becomes that is opened, and with which settings."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mailserver.store.sqlite.connections import (
    CHECKPOINT_BYTES,
    READER_CACHE_KIB,
    WAL_LIMIT_BYTES,
    WRITER_CACHE_KIB,
    open_reader,
    open_writer,
    pragma,
)
from mailserver.store.sqlite.schema import APPLICATION_ID, PAGE_BYTES, SCHEMA_VERSION
from tests.store.samples import (
    make_store,
    names_in,
    new_envelopes,
    plain,
    read,
    rows,
    stored,
    write,
)
from tests.store.sqlite.opening import Open, each_open, make, refusal, schema_of, watch

INCREMENTAL = 2


def settings_of(connection: sqlite3.Connection) -> list[Any]:
    names = "journal_mode", "synchronous", "cache_size", "wal_autocheckpoint", "journal_size_limit"
    return [value for name in names for (value,) in connection.execute(f"PRAGMA {name}")]


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
