"""mailserver.store.sqlite.wal: pages of a log are found, and what is lost is told from what was never confirmed."""

import contextlib
import shutil
import sqlite3
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.store.sqlite.damage import look_at_files
from mailserver.store.sqlite.read_only import open_read_only
from mailserver.store.sqlite.schema import PAGE_BYTES, STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.store.sqlite.wal import Log, index_file, read_log, wal_file, write_again
from tests.mailservers import fill, make_envelopes
from tests.store.samples import change, plain, rows
from tests.waiting import until

HEADER, FRAME = 32, 24 + PAGE_BYTES


@pytest.fixture
async def killed(tmp_path: Path) -> AsyncIterator[Path]:
    """What a kill leaves after eight puts, each followed by a transaction that indexes it: file and log, without the
    log's index."""
    path = tmp_path / "running" / STORE_FILE
    path.parent.mkdir()
    async with open_store(path) as store:
        for number in range(8):
            await fill(store, make_envelopes(30, first=30 * number, data_bytes=500))
            await until(lambda: not store.unindexed)  # always the same log, and nothing writes while it is copied
        folder = tmp_path / "killed"
        folder.mkdir()
        for name in (STORE_FILE, f"{STORE_FILE}-wal", f"{STORE_FILE}-shm"):
            shutil.copy(path.with_name(name), folder / name)
        index = folder / f"{STORE_FILE}-shm"
        index.rename(folder / "index")
        yield folder / STORE_FILE


def read(path: Path) -> Log:
    log = read_log(path, PAGE_BYTES)
    assert log is not None
    return log


def frame_count(path: Path) -> int:
    return (wal_file(path).stat().st_size - HEADER) // FRAME


def commits(path: Path) -> list[int]:
    """The frames that end a transaction, from 1."""
    content = wal_file(path).read_bytes()
    starts = range(HEADER, len(content) - FRAME + 1, FRAME)
    return [n for n, at in enumerate(starts, 1) if struct.unpack_from(">I", content, at + 4)[0]]


def flip(path: Path, frame: int, at: int) -> None:
    """Turn a bit of a byte of a frame."""
    content = bytearray(wal_file(path).read_bytes())
    content[HEADER + (frame - 1) * FRAME + at] ^= 1
    wal_file(path).write_bytes(content)


def test_pages_are_those_that_sqlite_reads(killed: Path) -> None:
    log = read(killed)

    content = wal_file(killed).read_bytes()
    pages = rows(killed, "SELECT page_count FROM pragma_page_count")[0][0]
    assert (log.frames, log.page_count, log.damage, log.left) == (frame_count(killed), pages, "", {})
    change(killed, "PRAGMA wal_checkpoint(TRUNCATE)")
    whole = killed.read_bytes()
    for page, offset in log.offsets.items():
        assert whole[(page - 1) * PAGE_BYTES : page * PAGE_BYTES] == content[offset : offset + PAGE_BYTES]


@pytest.mark.slow
@pytest.mark.parametrize("at", [4000, 0, 18], ids=["page", "number", "checksum"])
def test_damage_before_the_last_transaction_is_found(killed: Path, at: int) -> None:
    last = commits(killed)[-2]
    for frame in [*range(1, 8), *range(8, last - 8, 20), *range(last - 8, last + 1)]:
        before = wal_file(killed).read_bytes()
        flip(killed, frame, at)

        log = read(killed)

        # Only of a commit whose own checksum is wrong, before the last transaction, is nothing known.
        assert log.damage or (frame == last and at == 18), frame
        assert log.frames == max([0, *(commit for commit in commits(killed) if commit < frame)])
        wal_file(killed).write_bytes(before)


def test_damage_of_the_last_transaction_is_known_by_the_index_only(killed: Path) -> None:
    frames = frame_count(killed)
    flip(killed, frames, 4000)

    assert read(killed).damage == ""

    (killed.parent / "index").rename(killed.with_name(f"{STORE_FILE}-shm"))
    assert read(killed).damage == (
        f"it is cut off or damaged: {frames} frames were committed, {commits(killed)[-2]} are left"
    )


def test_end_that_a_power_cut_tore_is_no_damage(killed: Path) -> None:
    """Its pages are written in any order: all but one may be there, the commit, too."""
    last, end = commits(killed)[-2:]
    whole = wal_file(killed).read_bytes()
    for lost in range(last + 1, end + 1):
        at = HEADER + (lost - 1) * FRAME
        wal_file(killed).write_bytes(whole[:at] + bytes(FRAME) + whole[at + FRAME :])

        log = read(killed)

        assert (log.frames, log.damage) == (last, "")


def test_log_of_a_transaction_that_failed_is_no_damage(killed: Path) -> None:
    """What it wrote beyond the next, shorter one stays behind that, and goes on from nothing there."""
    one, other = commits(killed)[-3:-1]
    content = wal_file(killed).read_bytes()
    end = HEADER + other * FRAME
    cut = HEADER + one * FRAME
    wal_file(killed).write_bytes(content[:cut] + content[end - FRAME : end] + content[cut + FRAME : end])

    assert (read(killed).frames, read(killed).damage) == (one, "")


@pytest.mark.parametrize(("frame", "kept"), [(42, 8), (63, 16)], ids=["salts and checksum", "checksum"])
def test_header_that_a_power_cut_tore_between_two_sectors_is_no_damage(killed: Path, frame: int, kept: int) -> None:
    """Its commit is new, and its checksum that of a frame of a transaction that failed, which others of that follow."""
    with plain(killed, write=True) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        for number in range(1, frame):  # each takes a frame
            connection.execute(f"PRAGMA user_version = {number}")
        with contextlib.closing(sqlite3.connect(killed, isolation_level=None)) as failing:
            failing.execute("PRAGMA cache_size = 1")
            failing.execute("BEGIN")
            failing.execute("UPDATE envelopes SET received = received + 1")  # more than the cache: it goes to the log
            failing.execute("ROLLBACK")
        before = wal_file(killed).read_bytes()
        connection.execute("UPDATE identity SET rowid = rowid + 1")
        after = wal_file(killed).read_bytes()
        in_file = killed.read_bytes()
    cut = HEADER + (frame - 1) * FRAME + kept
    killed.write_bytes(in_file)
    index_file(killed).unlink(missing_ok=True)
    wal_file(killed).write_bytes(after[:cut] + before[cut:])
    assert cut % 512 == 0

    log = read(killed)

    assert commits(killed)[-1] == frame
    assert (log.frames, log.damage) == (frame - 1, "")
    with plain(killed) as connection:  # as for SQLite
        assert connection.execute("PRAGMA user_version").fetchone() == (frame - 1,)


def test_log_whose_beginning_is_damaged_says_so(killed: Path) -> None:
    before = read(killed)
    content = bytearray(wal_file(killed).read_bytes())
    content[9] ^= 1
    wal_file(killed).write_bytes(content)

    log = read(killed)

    assert log.frames == 0
    assert log.damage == "its beginning is damaged: SQLite takes nothing of it"
    assert log.left.keys() == before.offsets.keys()


def test_first_frame_is_missed_where_the_beginning_is_damaged(killed: Path) -> None:
    with plain(killed, write=True) as connection:
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        in_file = bytearray(killed.read_bytes())
        connection.execute("UPDATE identity SET rowid = rowid + 1")
        connection.execute("DELETE FROM days")
        content = bytearray(wal_file(killed).read_bytes()[: HEADER + 2 * FRAME])
    content[9] ^= 1
    (second,) = struct.unpack_from(">I", content, HEADER + FRAME)
    in_file[(second - 1) * PAGE_BYTES : second * PAGE_BYTES] = content[-PAGE_BYTES:]
    killed.write_bytes(in_file)
    wal_file(killed).write_bytes(content)

    assert commits(killed) == [1, 2]
    assert read(killed).damage == "its beginning is damaged: SQLite takes nothing of it"


@pytest.mark.parametrize("torn_at", range(0, HEADER, 4))
def test_beginning_that_a_power_cut_tore_is_no_damage(killed: Path, tmp_path: Path, torn_at: int) -> None:
    """SQLite writes it anew when all of the log is in the file, and on disk."""
    with plain(killed, write=True) as connection:
        connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
        before = wal_file(killed).read_bytes()
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        in_file = killed.read_bytes()
        connection.execute("UPDATE identity SET rowid = rowid + 1")
        after = wal_file(killed).read_bytes()
    torn = tmp_path / STORE_FILE
    torn.write_bytes(in_file)
    wal_file(torn).write_bytes(after[:torn_at] + before[torn_at:])

    assert read(torn).damage == ""
    torn.write_bytes(in_file[: -2 * PAGE_BYTES] + bytes(2 * PAGE_BYTES))
    is_torn = torn_at > 12  # magic, format and page size are the same
    assert read(torn).damage == ("its beginning is damaged: SQLite takes nothing of it" if is_torn else "")


def test_log_that_was_cut_off_is_known_by_its_index(killed: Path) -> None:
    content = wal_file(killed).read_bytes()
    wal_file(killed).write_bytes(content[: len(content) // 2])
    assert read(killed).damage == ""

    (killed.parent / "index").rename(killed.with_name(f"{STORE_FILE}-shm"))

    assert "frames were committed" in read(killed).damage


def test_frames_of_an_earlier_time_are_no_damage(killed: Path) -> None:
    with plain(killed, write=True) as connection:
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        connection.execute("UPDATE identity SET rowid = rowid + 1")
        content = wal_file(killed).read_bytes()
    wal_file(killed).write_bytes(content)

    log = read(killed)

    assert (log.damage, log.left) == ("", {})
    assert 0 < log.frames < frame_count(killed)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, HEADER + FRAME - 1])
def test_beginning_of_a_log_holds_nothing(killed: Path, length: int) -> None:
    wal_file(killed).write_bytes(wal_file(killed).read_bytes()[:length])

    log = read_log(killed, PAGE_BYTES)

    assert log is None or (log.frames, log.damage) == (0, "")


def test_store_without_a_log_has_none(tmp_path: Path) -> None:
    assert read_log(tmp_path / STORE_FILE, PAGE_BYTES) is None


def test_log_that_is_written_again_is_the_same(killed: Path) -> None:
    content = wal_file(killed).read_bytes()

    write_again(killed)

    assert wal_file(killed).read_bytes() == content


def test_no_log_is_written_again_where_there_is_none(tmp_path: Path) -> None:
    write_again(tmp_path / STORE_FILE)

    assert not list(tmp_path.iterdir())


def linked(path: Path) -> Path:
    """A link to a store in another folder."""
    link = path.parent.parent / "links" / "store.db"
    link.parent.mkdir()
    link.symlink_to(path)
    return link


def test_log_and_index_of_a_linked_store_are_where_sqlite_has_them(killed: Path) -> None:
    link, index = linked(killed), killed.parent / "index"
    flip(killed, frame_count(killed), 4000)
    assert read(link) == read(killed)
    index.rename(index_file(link))

    log = read(link)

    assert (wal_file(link), index_file(link).parent) == (wal_file(killed), killed.parent)
    assert "it is cut off or damaged" in log.damage
    with pytest.raises(StoreError, match="is damaged: it is cut off or damaged"):
        look_at_files(link)


def test_linked_store_whose_file_is_gone_is_not_begun_anew_beside_its_log(killed: Path) -> None:
    link = linked(killed)
    killed.unlink()

    with pytest.raises(StoreError, match=r"is not there, but its log .*-wal is"):
        look_at_files(link)


async def test_linked_store_that_a_kill_left_is_read_with_its_log(killed: Path) -> None:
    link = linked(killed)
    (killed.parent / "index").rename(index_file(killed))

    with open_read_only(link) as connection:
        (found,) = connection.execute("SELECT count(*) FROM envelopes").fetchone()

    assert found == 240
    async with open_store(link) as store:
        assert (await store.stats()).envelopes == 240
    assert sorted(path.name for path in link.parent.iterdir() if path.name.startswith("store.db")) == ["store.db"]
    assert link.is_symlink()


async def test_new_store_is_made_where_its_link_leads(tmp_path: Path) -> None:
    link = tmp_path / "store.db"
    (tmp_path / "disk").mkdir()
    link.symlink_to("disk/mailserver.db")

    async with open_store(link) as store:
        await fill(store, make_envelopes(3))

    assert link.is_symlink()
    assert rows(tmp_path / "disk" / "mailserver.db", "SELECT count(*) FROM envelopes") == [(3,)]
