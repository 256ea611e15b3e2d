"""mailserver.store.sqlite.damage: a damaged store is refused in one line, and left byte for byte."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.store.sqlite.backup import snapshot
from mailserver.store.sqlite.schema import PAGE_BYTES, STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.store.sqlite.wal import wal_file
from tests.mailservers import fill, make_envelopes
from tests.store.samples import change, contents_of, copy_as_on_disk, rows


@pytest.fixture
async def killed(tmp_path: Path) -> AsyncIterator[Path]:
    """What a kill leaves: file and log, each with something in it."""
    path = tmp_path / "running" / STORE_FILE
    path.parent.mkdir()
    async with open_store(path) as store:
        await fill(store, make_envelopes(300, data_bytes=500))
    async with open_store(path) as store:
        for number in range(1, 6):
            await fill(store, make_envelopes(60, first=300 * number, data_bytes=500))
            await store.touch()
        yield copy_as_on_disk(path, tmp_path / "killed")


def make_closed(path: Path, count: int = 50, first: int = 0) -> Path:
    async def use() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        async with open_store(path) as store:
            await fill(store, make_envelopes(count, first=first))

    asyncio.run(use())
    return path


def refusal(path: Path) -> str:
    """The line with which the store is refused; the folder is as before."""

    async def use() -> None:
        async with open_store(path):
            pass

    def seen() -> dict[str, bytes]:
        return {"": b"is a folder"} if path.is_dir() else contents_of(path.parent)

    before = seen()
    with pytest.raises(StoreError) as caught:
        asyncio.run(use())
    assert seen() == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def test_what_a_kill_left_is_opened(killed: Path) -> None:
    async def use() -> int:
        async with open_store(killed) as store:
            return (await store.stats()).envelopes

    assert asyncio.run(use()) == 600


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(b""), "is empty, but its log"),
        (lambda path: path.unlink(), "is not there, but its log"),
        (lambda path: overwrite(path, 0, bytes(16)), "is not an SQLite database"),
        (lambda path: overwrite(path, 0, bytes(PAGE_BYTES)), "is not an SQLite database"),
        (lambda path: os.truncate(path, PAGE_BYTES * 3), "the file is cut off"),
        (lambda path: os.truncate(path, 50), "the file is cut off"),
        (lambda path: overwrite(wal_file(path), 100, b"damage"), "is damaged at frame 1, and committed"),
        (lambda path: overwrite(wal_file(path), 5, b"x"), "its beginning is damaged"),
    ],
    ids=["empty", "gone", "magic", "first page", "cut off", "cut off in the header", "log", "log's header"],
)
def test_damaged_files_are_refused_and_left(killed: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(killed)

    text = refusal(killed)

    assert said in text
    assert "waku-mailserver " in text or "put it back" in text


def test_log_of_another_store_is_refused(killed: Path, tmp_path: Path) -> None:
    other = make_closed(tmp_path / "other" / STORE_FILE)
    shutil.copy(wal_file(killed), wal_file(other))

    assert "belongs to another store" in refusal(other)


def test_log_that_was_left_beside_a_backup_is_refused(killed: Path, tmp_path: Path) -> None:
    """The likeliest way to it: of the data directory only the store file was put back."""
    backup = tmp_path / "backup" / STORE_FILE
    backup.parent.mkdir()
    with snapshot(make_closed(tmp_path / "old" / STORE_FILE, 400, first=5000)) as moment:
        moment.copy(backup, lambda done, total: None)
    shutil.copy(wal_file(killed), wal_file(backup))

    assert "belongs to another store" in refusal(backup)


@pytest.mark.parametrize("between", [1, 100])
def test_log_of_a_later_state_is_refused(tmp_path: Path, between: int) -> None:
    """An older copy of the file was put back, and the log left: it has none of what came in between."""
    path, old = tmp_path / "running" / STORE_FILE, tmp_path / "old" / STORE_FILE

    async def use() -> Path:
        for first in (0, 50):
            async with open_store(path) as store:
                await fill(store, make_envelopes(50 if not first else between, first=first))
            if not first:
                shutil.copy(path, old)
        async with open_store(path) as store:
            await fill(store, make_envelopes(5, first=1000))
            return copy_as_on_disk(path, tmp_path / "killed")

    path.parent.mkdir()
    old.parent.mkdir()
    killed = asyncio.run(use())
    shutil.copy(wal_file(killed), wal_file(old))

    assert "belongs to a later state of" in refusal(old)


@pytest.mark.parametrize("is_torn", [False, True])
def test_backup_that_was_started_and_killed_is_opened(tmp_path: Path, *, is_torn: bool) -> None:
    """`is_torn`: by a power cut, which left half of the page with the identity that was on its way from the log."""
    backup = tmp_path / "backup" / STORE_FILE
    backup.parent.mkdir()
    with snapshot(make_closed(tmp_path / "old" / STORE_FILE)) as moment:
        moment.copy(backup, lambda done, total: None)
    ((root,),) = rows(backup, "SELECT rootpage FROM sqlite_master WHERE name = 'identity'")

    async def start_and_kill() -> Path:
        async with open_store(backup):
            return copy_as_on_disk(backup, tmp_path / "killed")

    killed = asyncio.run(start_and_kill())
    assert wal_file(killed).stat().st_size
    identity = rows(backup, "SELECT id FROM identity")
    if is_torn:
        at = (root - 1) * PAGE_BYTES
        overwrite(killed, at, backup.read_bytes()[at : at + PAGE_BYTES // 2])  # which cells there are; those are last
        alone = shutil.copy(killed, tmp_path / "alone.db")
        assert rows(Path(alone), "SELECT id FROM identity") == [(None,)]

    async def start_again() -> None:
        async with open_store(killed):
            pass

    asyncio.run(start_again())
    assert rows(killed, "SELECT id FROM identity") == identity


@pytest.mark.parametrize("table", ["identity", "id_index", "removed", "sqlite_sequence"])
async def test_store_that_cannot_be_read_to_begin_with_is_refused_in_a_line(tmp_path: Path, table: str) -> None:
    path = await asyncio.to_thread(make_closed, tmp_path / "store" / STORE_FILE)
    ((root,),) = rows(path, "SELECT rootpage FROM sqlite_master WHERE name = ?", table)
    overwrite(path, (root - 1) * PAGE_BYTES, b"\xff" * 200)

    with pytest.raises(StoreError, match="malformed; run waku-mailserver check"):
        async with open_store(path):
            pytest.fail("it was opened")


@pytest.mark.parametrize(
    ("change_it", "said"),
    [
        (lambda path: path.write_bytes(b"not SQLite at all"), "is not an SQLite database"),
        (lambda path: change(path, "PRAGMA application_id = 7"), r"is not a mailserver store (application_id 0x7)"),
        (lambda path: change(path, "PRAGMA user_version = 99"), "has schema version 99, this program knows"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
        (lambda path: overwrite(path, 16, b"\x00\x03"), "run waku-mailserver check"),
        (lambda path: overwrite(path, 100, b"\xff" * 2000), "run waku-mailserver check"),
    ],
    ids=["foreign", "of another program", "downgrade", "folder", "page size", "schema"],
)
def test_what_is_no_store_of_ours_is_refused_and_left(
    tmp_path: Path, change_it: Callable[[Path], object], said: str
) -> None:
    path = make_closed(tmp_path / "data" / STORE_FILE)
    change_it(path)

    assert said in refusal(path)
