"""mailserver.store.sqlite.backup: one moment's copy of a store, whatever is written to it meanwhile."""

import asyncio
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.handoff.archived import Archived
from mailserver.store.sqlite import backup as backup_module
from mailserver.store.sqlite.backup import snapshot
from mailserver.store.sqlite.handoff import archived_file, read_archived, write_archived
from mailserver.store.sqlite.repair.check import check_store
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.mailservers import NOW, fill, make_envelope, make_envelopes, stored
from tests.store.samples import change, make_store, rows

IDENTITY = "SELECT id FROM identity"


def copy(path: Path, target: Path) -> int:
    with snapshot(path) as source:
        return source.copy(target, lambda done, total: None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / STORE_FILE
    make_store(path, [stored(envelope) for envelope in make_envelopes(100, data_bytes=2000)])
    change(path, "PRAGMA journal_mode = WAL")
    return path


def test_copy_has_every_row_and_no_identity(path: Path, tmp_path: Path) -> None:
    assert copy(path, tmp_path / "copy.db") == 100

    every = "SELECT * FROM envelopes ORDER BY seq"
    assert rows(tmp_path / "copy.db", every) == rows(path, every)
    assert rows(tmp_path / "copy.db", IDENTITY) == []
    assert check_store(tmp_path / "copy.db", lambda *_: None).is_sound


def test_progress_is_told_in_bytes_up_to_the_end(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_module, "STEP_BYTES", 32768)
    monkeypatch.setattr(backup_module, "SYNC_BYTES", 32768)
    told: list[tuple[int, int]] = []

    with snapshot(path) as source:
        source.copy(tmp_path / "copy.db", lambda done, total: told.append((done, total)))

    size = (tmp_path / "copy.db").stat().st_size
    assert len(told) > 5
    assert told == sorted(told)
    assert told[-1] == (size, size)
    assert {total for _, total in told} == {size}


async def test_writer_between_all_steps_changes_nothing_and_has_it_begin_never_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_module, "STEP_BYTES", 1)  # a page at a time
    async with open_store(tmp_path / STORE_FILE) as store:
        await fill(store, make_envelopes(100, data_bytes=2000))
        loop = asyncio.get_running_loop()
        told: list[int] = []

        def write(done: int, total: int) -> None:
            told.append(done)
            envelope = make_envelope(1000 + len(told), created=NOW - len(told))
            asyncio.run_coroutine_threadsafe(fill(store, [envelope]), loop).result()

        def run() -> int:
            with snapshot(tmp_path / STORE_FILE) as source:
                return source.copy(tmp_path / "copy.db", write)

        copied = await asyncio.to_thread(run)
        held = await store.stats()

    assert copied == 100
    assert told == sorted(set(told))
    assert held.envelopes == 100 + len(told)
    assert rows(tmp_path / "copy.db", "SELECT count(*), max(seq) FROM envelopes") == [(100, 100)]
    assert check_store(tmp_path / "copy.db", lambda *_: None).is_sound


def test_damaged_store_gives_no_copy(path: Path, tmp_path: Path) -> None:
    ((page,),) = rows(path, "PRAGMA page_size")
    ((root,),) = rows(path, "SELECT rootpage FROM sqlite_master WHERE name = 'envelopes_by_reception'")
    with path.open("r+b") as file:
        file.seek((root - 1) * page)
        file.write(b"\xa5" * 64)

    with pytest.raises(StoreError, match="run waku-mailserver check"):
        copy(path, tmp_path / "copy.db")


def test_no_store_gives_no_copy(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is none"):
        copy(tmp_path / STORE_FILE, tmp_path / "copy.db")


def test_store_of_the_first_schema_is_copied(tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    make_store(path, [])
    change(path, "DROP TABLE identity", "DROP TABLE removed", "DROP TABLE reception_days", "PRAGMA user_version = 1")

    assert copy(path, tmp_path / "copy.db") == 0


# Putting it back


async def identity_after_a_start(path: Path) -> str:
    async with open_store(path) as store:
        return await store.identity()


async def test_each_copy_gets_an_identity_of_its_own_and_keeps_it(path: Path, tmp_path: Path) -> None:
    ((before,),) = rows(path, IDENTITY)
    copy(path, tmp_path / "one.db")
    copy(path, tmp_path / "two.db")

    one, two = await identity_after_a_start(tmp_path / "one.db"), await identity_after_a_start(tmp_path / "two.db")

    assert len({before, one, two}) == 3
    assert await identity_after_a_start(tmp_path / "one.db") == one
    assert await identity_after_a_start(path) == before


async def test_record_of_the_compaction_follows_the_identity(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    copy(path, target)
    record = Archived("before", "archive", NOW, {NOW // 86_400: 70})
    write_archived(target, record)

    identity = await identity_after_a_start(target)

    assert read_archived(target) == Archived(identity, "archive", NOW, {NOW // 86_400: 70})


async def test_damaged_record_is_left_and_the_store_opens(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "copy.db"
    copy(path, target)
    archived_file(target).write_text("{")

    assert await identity_after_a_start(target)
    assert "record of the compaction not adopted" in caplog.text
    assert archived_file(target).read_text() == "{"
