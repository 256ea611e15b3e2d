"""mailserver.store.sqlite.store: what the file does of which a store is made, and what it costs."""

import asyncio
import sqlite3
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from mailserver.errors import StoreError
from mailserver.store.interface import StoreStats
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite.reading import READERS, read_stats
from mailserver.store.sqlite.schema import PAGE_BYTES
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.store.sqlite.wal import wal_file
from tests.store.engines import EVERYTHING, NEWS_ONLY, found
from tests.store.samples import (
    DAY,
    EVERY_BYTE,
    NEWS,
    RECEIVED,
    SPORT,
    START,
    assert_counts_are_right,
    change,
    copy_as_on_disk,
    make_store,
    names_in,
    new_envelope,
    new_envelopes,
    plain,
    raws,
    read,
    rows,
    write,
)
from tests.waiting import until


async def test_reading_does_not_keep_the_log_from_being_cut(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(100))
        await found(store, EVERYTHING, 10)
        await store.stats()

        with plain(path, write=True) as other:
            ((busy, *_),) = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert busy == 0


async def test_closed_store_leaves_no_log_behind(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(5))

    assert names_in(path.parent) == {path.name}


async def test_store_that_is_closed_while_others_read_it_is_whole_without_its_log(path: Path, tmp_path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(5))
        reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        reader.execute("SELECT count(*) FROM envelopes").fetchall()

    write(tmp_path / "copy.db", read(path))
    reader.close()

    assert rows(tmp_path / "copy.db", "SELECT count(*) FROM envelopes") == [(5,)]


async def test_file_that_is_no_store_is_not_opened(path: Path) -> None:
    write(path, b"a diary")

    with pytest.raises(StoreError, match=path.name):
        async with open_store(path):
            pytest.fail("opened")


async def test_store_that_was_killed_opens_with_all_that_was_put(path: Path, tmp_path: Path) -> None:
    envelopes = new_envelopes(20)

    async with open_store(path) as store:
        await store.put(envelopes)
        killed = copy_as_on_disk(path, tmp_path / "killed")
    async with open_store(killed) as store:
        await store.put(envelopes[:5])

        assert await found(store, EVERYTHING) == raws(envelopes[::-1])
    assert_counts_are_right(killed)


def damage(path: Path) -> None:
    change(path, "DROP TABLE days", "DROP TABLE envelopes", "DROP TABLE day_topics")


async def test_store_that_cannot_be_read_says_so(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(1))
        page = await store.find(EVERYTHING, 1)
        damage(path)

        for _ in range(2 * READERS):  # no reader is lost by its failure
            with pytest.raises(StoreError, match="cannot read the store: no such table"):
                await store.find(EVERYTHING, 1)
        with pytest.raises(StoreError):
            await store.find(NEWS_ONLY, 1)
        with pytest.raises(StoreError):
            await page.read(1, EVERY_BYTE)
        with pytest.raises(StoreError):
            await store.missing(new_envelopes(1))
        with pytest.raises(StoreError):
            await store.last_reception(RECEIVED)
        with pytest.raises(StoreError):
            await store.stats()


async def test_damage_is_reported_where_it_is_met(path: Path) -> None:
    make_store(path, new_envelopes(10))
    zero_a_page_of(path, "envelopes")

    async with open_store(path) as store:
        page = await store.find(NEWS_ONLY, 100)
        assert page.left == 10  # the indexes are whole
        with pytest.raises(StoreError, match="cannot read the store"):
            await page.read(10, EVERY_BYTE)
        with pytest.raises(StoreError, match="cannot store 1 envelopes"):
            await store.put(new_envelopes(1, first=10))


def zero_a_page_of(path: Path, table: str) -> None:
    ((number,),) = rows(path, "SELECT rootpage FROM sqlite_schema WHERE name = ?", table)
    ((size,),) = rows(path, "PRAGMA page_size")
    content = path.read_bytes()
    path.write_bytes(content[: (number - 1) * size] + bytes(size) + content[number * size :])


# Statistics

EMPTY_STATS = StoreStats(envelopes=0, bytes=0, topics=0, oldest=None, newest=None)


async def test_statistics_of_an_empty_store_can_be_read_without_opening_it(path: Path) -> None:
    async with open_store(path) as store:
        assert await store.stats() == EMPTY_STATS
    assert await read_stats(path) == EMPTY_STATS


async def test_statistics_are_read_beside_an_open_store_and_of_a_closed_one(path: Path) -> None:
    envelopes = [
        new_envelope(1, created=START, topic=NEWS, size=100),
        new_envelope(2, created=START + DAY, topic=NEWS, size=20),
        new_envelope(3, created=START - DAY, topic=SPORT, size=3_000),
    ]
    expected = StoreStats(envelopes=3, bytes=3_120, topics=2, oldest=START - DAY, newest=START + DAY)

    async with open_store(path) as store:
        await store.put([*envelopes, *envelopes])
        assert await store.stats() == expected
        assert await read_stats(path) == expected  # beside an open store
        await store.put(envelopes)
        assert await store.stats() == expected
    assert await read_stats(path) == expected  # of a closed one


async def test_statistics_do_not_change_the_store(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(3))
    before = read(path)

    await read_stats(path)

    assert read(path) == before
    async with open_store(path) as store:
        await store.put(new_envelopes(1, first=3))
        assert (await store.stats()).envelopes == 4


async def test_statistics_of_no_store_are_refused(path: Path) -> None:
    with pytest.raises(StoreError):
        await read_stats(path)
    assert names_in(path.parent) == set()

    write(path, b"a diary")
    with pytest.raises(StoreError):
        await read_stats(path)


async def test_statistics_of_a_store_that_cannot_be_read_are_refused(path: Path) -> None:
    make_store(path, [])
    damage(path)

    with pytest.raises(StoreError, match="no such table"):
        await read_stats(path)


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count what SQLite does on every connection that is opened from now on."""
    steps = [0]
    connect = sqlite3.connect

    def count() -> int:
        steps[0] += 1
        return 0

    def connect_counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_progress_handler(count, 1)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_counted)
    return steps


async def indexed(store: SqliteStore) -> None:
    """Wait until the ids of all rows are in the index."""
    await until(lambda: not store.unindexed)


async def test_opening_and_statistics_count_no_envelopes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path / "small", new_envelopes(1))
    make_store(tmp_path / "large", new_envelopes(5000))
    for name in ("small", "large"):  # both become WAL files first, and all ids are indexed
        async with open_store(tmp_path / name) as store:
            await indexed(store)
    steps = count_steps(monkeypatch)

    taken = {}
    for name in ("small", "large"):
        steps[0] = 0
        async with open_store(tmp_path / name) as store:
            await store.stats()
            await indexed(store)
        await read_stats(tmp_path / name)
        taken[name] = steps[0]

    assert 0 < taken["large"] == taken["small"] < 2000


# Pruning


async def test_usage_counts_rows_and_pages_in_use(path: Path) -> None:
    make_store(path, new_envelopes(1000, size=1000))

    async with open_store(path) as store:
        before = await store.usage()
        while (await store.prune(Surplus(END_OF_TIME, 1000))).envelopes:
            pass
        after = await store.usage()

    ((size,),) = rows(path, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    assert before == (1000, size)
    assert after.envelopes == 0
    assert after.bytes < size // 4


async def test_what_is_not_archived_is_not_pruned(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(3))

        assert (await store.prune(Surplus(END_OF_TIME, 3), {RECEIVED // DAY: 2})).envelopes == 2
        assert (await store.prune(Surplus(END_OF_TIME, 3), {RECEIVED // DAY: 2})).envelopes == 0
        assert await store.held(Surplus(END_OF_TIME, 3)) == 1
        assert await store.held(Surplus(RECEIVED, 3)) == 0


async def test_oldest_reception_is_not_the_first_row(path: Path) -> None:
    first, second = new_envelopes(2)
    make_store(path, [first, second._replace(received=RECEIVED - 100)])

    async with open_store(path) as store:
        assert await store.oldest_reception() == RECEIVED - 100


async def test_identity_is_that_of_the_file(path: Path) -> None:
    async with open_store(path) as store:
        assert [(await store.identity(),)] == rows(path, "SELECT id FROM identity")


async def test_file_says_whether_it_shrinks(path: Path, tmp_path: Path) -> None:
    async with open_store(path) as store:
        assert await store.shrinks()
    old = tmp_path / "old"
    make_store(old, [])
    change(old, "PRAGMA auto_vacuum = NONE", "VACUUM")

    async with open_store(old) as store:
        assert not await store.shrinks()


async def test_touch_writes_to_the_disk(tmp_path: Path) -> None:
    """SQLite writes nothing for a change that changes nothing: then a full disk would not be noticed."""
    path = tmp_path / "mailserver.db"
    async with open_store(path) as store:
        before = wal_file(path).stat().st_size
        for _ in range(3):
            await store.touch()

        assert wal_file(path).stat().st_size >= before + 3 * PAGE_BYTES
        assert await store.identity()


def test_log_stays_whoever_else_opens_the_store_by_sqlite_and_closes_it(path: Path) -> None:
    """As an operator does it: `sqlite3 mailserver.db`. Locks are a process's, so it takes another one."""
    look = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(*c.execute('SELECT count(*) FROM envelopes'))"
    look += "; c.close()"

    async def put_and_be_looked_at() -> list[str]:
        counts = []
        async with open_store(path) as store:
            for number in range(3):
                await store.put([new_envelope(number)])
                await store.find(EVERYTHING, 10)
                inode = wal_file(path).stat().st_ino
                process = await asyncio.create_subprocess_exec(sys.executable, "-c", look, path, stdout=PIPE)
                output, _ = await process.communicate()
                counts.append(output.decode().strip())
                assert wal_file(path).stat().st_ino == inode
        return counts

    assert asyncio.run(put_and_be_looked_at()) == ["(1,)", "(2,)", "(3,)"]
    assert raws(new_envelopes(3)) == [raw for (raw,) in rows(path, "SELECT raw FROM envelopes ORDER BY seq")]
