"""mailserver.store.sqlite.presence, by the store as it is used: files that are gone hold nothing that is confirmed."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.store.sqlite.presence import Presence
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from tests.mailservers import fill, make_envelopes
from tests.store.samples import rows

FILES = ["", "-wal", "-shm"]


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    """By a copy of the same content, as a restored backup would be."""
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def link(path: Path) -> None:
    """To itself, moved elsewhere."""
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


async def assert_lost(store: SqliteStore, why: str) -> None:
    with pytest.raises(StoreError, match=why):
        await fill(store, make_envelopes(2, first=100))
    assert store.is_lost
    assert why in store.problem


async def test_lost_file_of_a_store_with_a_relative_path_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(STORE_FILE)
    async with open_store(path) as store:
        remove(path)

        await assert_lost(store, "was removed")
        assert store.problem.count("was removed") == 1
        assert store.problem.startswith(f"{tmp_path / STORE_FILE} was removed: ")


@pytest.mark.parametrize("ending", FILES)
@pytest.mark.parametrize(
    ("change", "what"), [(remove, "was removed"), (replace, "was replaced"), (link, "was replaced")]
)
async def test_nothing_is_confirmed_once_a_file_is_not_the_one_that_is_open(
    tmp_path: Path, ending: str, change: Callable[[Path], None], what: str
) -> None:
    path = tmp_path / STORE_FILE
    async with open_store(path) as store:
        await fill(store, make_envelopes(3))

        change(path.with_name(f"{path.name}{ending}"))

        await assert_lost(store, f"{path.name}{ending} {what}")
        assert (await store.stats()).envelopes == 3  # history is answered


async def test_nothing_is_confirmed_that_was_written_while_the_file_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / STORE_FILE
    is_there = Presence.check

    def lose_what_is_there(presence: Presence) -> None:
        is_there(presence)
        path.unlink(missing_ok=True)

    async with open_store(path) as store:
        await fill(store, make_envelopes(3))
        monkeypatch.setattr(Presence, "check", lose_what_is_there)

        await assert_lost(store, f"{path.name} was removed")
        assert (await store.stats()).envelopes == 5  # they are in a file that ends with this process


async def test_folder_that_was_moved_away_is_missed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    async with open_store(folder / STORE_FILE) as store:
        await fill(store, make_envelopes(3))
        folder.rename(tmp_path / "moved")

        await assert_lost(store, f"{STORE_FILE} was removed")


async def test_link_to_the_folder_that_now_leads_elsewhere_is_noticed(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    data = tmp_path / "data"
    data.symlink_to("one")
    async with open_store(data / STORE_FILE) as store:
        await fill(store, make_envelopes(3))
        shutil.copy(tmp_path / "one" / STORE_FILE, tmp_path / "other" / STORE_FILE)
        data.unlink()
        data.symlink_to("other")

        await assert_lost(store, f"data/{STORE_FILE} was replaced")


async def test_store_that_is_a_link_is_watched_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    async with open_store(tmp_path / "disk" / STORE_FILE):
        pass
    (tmp_path / STORE_FILE).symlink_to(tmp_path / "disk" / STORE_FILE)
    async with open_store(tmp_path / STORE_FILE) as store:
        await fill(store, make_envelopes(3))
        assert store.problem == ""
        (tmp_path / "disk" / f"{STORE_FILE}-wal").unlink()

        await assert_lost(store, f"disk/{STORE_FILE}-wal was removed")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
async def test_disk_that_cannot_tell_for_a_moment_has_lost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(name: Path | str) -> os.stat_result:
        raise OSError(number, os.strerror(number), str(name))

    async with open_store(tmp_path / STORE_FILE) as store:
        with monkeypatch.context() as patched:
            patched.setattr("mailserver.store.sqlite.presence.os.lstat", fail)
            await fill(store, make_envelopes(3))
        await fill(store, make_envelopes(2, first=10))

        assert not store.is_lost
        assert (await store.stats()).envelopes == 5


async def test_it_stays_lost_when_the_file_is_back(tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    async with open_store(path) as store:
        path.rename(tmp_path / "away")
        await assert_lost(store, "was removed")
        (tmp_path / "away").rename(path)

        await assert_lost(store, "was removed")


async def test_looking_alone_notices_it_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / STORE_FILE
    told = []
    async with open_store(path) as store:
        store.tell(lambda: told.append(store.problem))
        await store.check_presence()
        assert (store.problem, told) == ("", [])

        path.unlink()

        for _ in range(3):
            with pytest.raises(StoreError, match="was removed"):
                await store.check_presence()
        assert told == [store.problem]
    (line,) = caplog.messages
    assert line.startswith("store lost, nothing is stored until a restart error=")


async def test_nothing_is_written_or_deleted_once_it_is_lost(tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    log = path.with_name(f"{path.name}-wal")
    async with open_store(path) as store:
        await fill(store, make_envelopes(3))
        path.unlink()
        await assert_lost(store, "was removed")
        before = log.read_bytes()

        for change in (store.touch(), store.maintain()):
            with pytest.raises(StoreError):
                await change
        await assert_lost(store, "was removed")

        assert log.read_bytes() == before


async def test_closing_leaves_the_log_where_only_the_store_was_removed(tmp_path: Path) -> None:
    """Written back, it would be gone with the file that it was written to."""
    path = tmp_path / STORE_FILE
    async with open_store(path) as store:
        await fill(store, make_envelopes(3))
        (tmp_path / "copy").hardlink_to(path)
        path.unlink()

    (tmp_path / "copy").rename(path)

    async with open_store(path) as store:
        assert (await store.stats()).envelopes == 3


async def test_closing_leaves_the_files_of_the_store_that_is_in_its_place(tmp_path: Path) -> None:
    """SQLite removes log and index by their names when it closes."""
    path, other = tmp_path / STORE_FILE, tmp_path / "other" / STORE_FILE
    other.parent.mkdir()
    async with open_store(path) as store:
        await fill(store, make_envelopes(3))
        async with open_store(other) as theirs:
            await fill(theirs, make_envelopes(5))
            contents = {ending: other.with_name(f"{STORE_FILE}{ending}").read_bytes() for ending in FILES}
        for ending, content in contents.items():  # as of one that was killed
            copied = tmp_path / f"copy{ending}"
            copied.write_bytes(content)
            copied.replace(tmp_path / f"{STORE_FILE}{ending}")

    assert {ending: (tmp_path / f"{STORE_FILE}{ending}").read_bytes() for ending in FILES} == contents
    assert rows(path, "SELECT count(*) FROM envelopes") == [(5,)]
