"""mailserver.store.sqlite.identity: a store that goes on from an earlier moment is another one from then on."""

import logging
import shutil
import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mailserver.errors import StoreError
from mailserver.handoff.archived import Archived
from mailserver.store.retention import BATCH_ROWS, END_OF_TIME, Surplus
from mailserver.store.sqlite import connections
from mailserver.store.sqlite.handoff import archived_file, read_archived, write_archived
from mailserver.store.sqlite.identity import NOTHING_KNOWN, KnownStore
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.store.samples import DAY, RECEIVED, copy_as_on_disk, new_envelopes, plain, rows

BEFORE, LOST, AFTER = new_envelopes(4), new_envelopes(3, first=100), new_envelopes(2, first=200)
DAY_OF_ALL = RECEIVED // DAY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / STORE_FILE


def identity_of(path: Path) -> str:
    ((identity,),) = rows(path, "SELECT id FROM identity")
    return str(identity)


async def put_back(path: Path) -> KnownStore:
    """Store BEFORE and LOST, and put the file back as it was in between; return what was known of the store."""
    async with open_store(path) as store:
        await store.put(BEFORE)
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    async with open_store(path) as store:
        await store.put(LOST)
        known = KnownStore(await store.identity(), store.newest_seen)
    copy.replace(path)
    return known


async def reopened(path: Path, known: KnownStore = NOTHING_KNOWN) -> str:
    """Open and close it; return its identity."""
    async with open_store(path, known=known) as store:
        return await store.identity()


async def test_file_that_was_put_back_is_another_store(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = await put_back(path)
    began = int(time.time())

    async with open_store(path, known=known) as store:
        await store.put(AFTER)

        assert await store.identity() != known.identity
        assert store.damage == (
            "the store went back to an earlier moment, and may lack what was confirmed since: fetch it from others, "
            "waku-mailserver sync --since TIME"
        )
        assert store.removed_until > began  # by its archive it is to be compared up to now
        assert store.newest_seen == 6
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        f"store went back in time seen=7 found=4 was={known.identity}"
    ]


async def test_it_is_told_until_a_restart(path: Path) -> None:
    known = await put_back(path)
    identity = await reopened(path, known)

    async with open_store(path, known=KnownStore(identity, 4)) as store:
        assert await store.identity() == identity
        assert store.damage == ""


@pytest.mark.parametrize("seq", [6, 7])
async def test_store_that_has_all_that_was_seen_stays_the_same(path: Path, seq: int) -> None:
    async with open_store(path) as store:
        await store.put([*BEFORE, *LOST])
    before = identity_of(path)

    assert await reopened(path, KnownStore(before, seq)) == before


async def test_store_of_which_all_was_deleted_stays_the_same(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(BEFORE)
        await store.prune(Surplus(END_OF_TIME, BATCH_ROWS))
        known = KnownStore(await store.identity(), store.newest_seen)
    assert rows(path, "SELECT count(*) FROM envelopes") == [(0,)]

    async with open_store(path, known=known) as store:
        assert (await store.identity(), store.newest_seen) == (known.identity, 4)


async def test_what_is_known_of_another_store_says_nothing(path: Path) -> None:
    await put_back(path)
    before = identity_of(path)

    assert await reopened(path, KnownStore("of another", 1000)) == before


async def test_store_that_lacks_what_is_archived_went_back(path: Path) -> None:
    known = await put_back(path)
    write_archived(path, Archived(known.identity, "archive", 1, {DAY_OF_ALL - 1: 3, DAY_OF_ALL: 7}))

    identity = await reopened(path)

    assert identity != known.identity
    # What comes next are rows 5 to 7, too, and nobody has archived those.
    assert read_archived(path) == Archived(identity, "archive", 1, {DAY_OF_ALL - 1: 3, DAY_OF_ALL: 4})


@pytest.mark.parametrize("days", [{DAY_OF_ALL: 4}, {}])
async def test_store_that_has_what_is_archived_stays_the_same(path: Path, days: dict[int, int]) -> None:
    known = await put_back(path)
    record = Archived(known.identity, "archive", 1, days)
    write_archived(path, record)

    assert await reopened(path) == known.identity
    assert read_archived(path) == record


async def test_record_about_another_store_says_nothing(path: Path) -> None:
    known = await put_back(path)
    write_archived(path, Archived("of another", "archive", 1, {DAY_OF_ALL: 7}))

    assert await reopened(path) == known.identity


async def test_store_that_the_compaction_found_to_have_gone_back_did(path: Path) -> None:
    """It has gone on from there, and by now its newest number is higher than all that are archived."""
    known = await put_back(path)
    async with open_store(path) as store:
        await store.put(new_envelopes(9, first=200))
    write_archived(path, Archived(known.identity, "archive", 1, {DAY_OF_ALL: 6}, went_back_from=7))

    identity = await reopened(path)

    assert identity != known.identity
    assert read_archived(path) == Archived(identity, "archive", 1, {DAY_OF_ALL: 6})
    assert await reopened(path) == identity


async def test_damaged_record_says_nothing(path: Path) -> None:
    known = await put_back(path)
    archived_file(path).write_text("{")

    assert await reopened(path) == known.identity


async def test_start_that_is_killed_at_any_moment_goes_on(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit of it is only in the log at first, and the file has the old identity."""
    known = await put_back(path)
    left: list[Path] = []

    class Traced(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            found = super().execute(sql, *parameters)
            if sql in ("COMMIT", "PRAGMA wal_checkpoint(TRUNCATE)"):
                left.append(copy_as_on_disk(path, tmp_path / str(len(left))))
            return found

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        return sqlite3.connect(*args, factory=Traced, **options)

    with monkeypatch.context() as patched:
        patched.setattr(connections, "_connect", partial(connect, isolation_level=None))
        identity = await reopened(path, known)

    assert len(left) > 3  # it was taken, written back, and given
    for each in left:
        again = await reopened(each, known)
        assert again != known.identity
        assert await reopened(each, KnownStore(again, 4)) == again
    assert identity != known.identity


async def test_identity_is_given_when_nobody_reads_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BUSY_TIMEOUT_S", 0.01)
    known = await put_back(path)
    with plain(path) as reading:
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM envelopes").fetchone()

        with pytest.raises(StoreError, match="another process reads the store"):
            await reopened(path, known)

    assert await reopened(path, known) not in ("", known.identity)


async def test_start_that_failed_in_between_is_made_good_by_the_next(path: Path) -> None:
    known = await put_back(path)
    write_archived(path, Archived(known.identity, "archive", 1, {DAY_OF_ALL: 7}))
    in_the_way = archived_file(path).with_name(f"{archived_file(path).name}.tmp")
    in_the_way.mkdir()

    with pytest.raises(StoreError, match=r"cannot prepare the store .*: Is a directory"):
        await reopened(path)
    in_the_way.rmdir()
    identity = await reopened(path)

    assert identity != known.identity
    assert read_archived(path) == Archived(identity, "archive", 1, {DAY_OF_ALL: 4})
