"""mailserver.store.sqlite.writer on disks that fail, and how long its log becomes."""

import asyncio
import contextlib
import resource
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.store.engine import put_queue
from mailserver.store.engine.put_queue import MAX_GROUP_ROWS
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite import log_bound
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.writer import StoreWriter
from tests.memory import no_search_for_cycles
from tests.store.samples import (
    assert_counts_are_right,
    change,
    new_envelope,
    new_envelopes,
    plain,
    raws,
    stored,
)
from tests.store.sqlite.writing import (
    fill,
    make_room,
    put_each,
    running,
    set_max_pages,
)
from tests.waiting import DEADLINE_S, until


async def test_full_disk_fails_every_put_that_waits_and_stores_nothing_of_them(path: Path) -> None:
    first, later = new_envelopes(3), new_envelopes(4, first=10, size=50_000)

    async with running(path) as opened:
        await opened.writer.put(first)
        await fill(opened.worker)
        small = opened.writer.put([new_envelope(20)])
        outcomes = await asyncio.gather(small, *put_each(opened.writer, later), return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [StoreError] * 5
        assert "database or disk is full" in str(outcomes[0])
        assert raws(stored(path)) == raws(first)  # and reads go on
        assert_counts_are_right(path)
        await make_room(opened.worker)
        await opened.writer.put(later)

    assert raws(stored(path)) == raws([*first, *later])
    assert_counts_are_right(path)


class Parcel(list[NewEnvelope]):
    """Envelopes; unlike of a list, it can be said when they are freed."""


async def put_and_fail(writer: StoreWriter, parcel: Parcel) -> None:
    with contextlib.suppress(StoreError):
        await writer.put(parcel)


@pytest.mark.parametrize("count", [1, 5])
async def test_envelopes_that_could_not_be_stored_are_freed_at_once(path: Path, count: int) -> None:
    parcels = [Parcel(new_envelopes(10, first=10 * number, size=50_000)) for number in range(count)]
    freed = [weakref.ref(parcel) for parcel in parcels]

    with no_search_for_cycles():
        async with running(path) as (writer, worker, *_):
            await fill(worker)
            await asyncio.gather(*(put_and_fail(writer, parcel) for parcel in parcels))
            parcels.clear()

            await until(lambda: not any(reference() for reference in freed))


async def test_transaction_that_fails_midway_is_rolled_back(path: Path) -> None:
    first, later = new_envelopes(3), new_envelopes(12, first=10)

    async with running(path) as opened:
        await opened.writer.put(first)
        change(path, "ALTER TABLE day_topics RENAME TO mislaid")
        with pytest.raises(StoreError, match="no such table: "):
            await opened.writer.put(later)
        assert raws(stored(path)) == raws(first)
        change(path, "ALTER TABLE mislaid RENAME TO day_topics")
        await opened.writer.put(later)

    assert raws(stored(path)) == raws([*first, *later])
    assert_counts_are_right(path)


async def test_put_fails_if_only_a_part_of_it_could_be_stored(path: Path) -> None:
    envelopes = [*new_envelopes(MAX_GROUP_ROWS), new_envelope(5000, size=1_000_000)]

    async with running(path) as opened:
        await set_max_pages(opened.worker, 50)
        with pytest.raises(StoreError):
            await opened.writer.put(envelopes)
        assert raws(stored(path)) == raws(envelopes[:-1])
        await make_room(opened.worker)
        await opened.writer.put(envelopes)

    assert raws(stored(path)) == raws(envelopes)
    assert_counts_are_right(path)


async def test_failure_is_logged_once_with_its_cause(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(path) as opened:
        await fill(opened.worker)
        outcomes = await asyncio.gather(*put_each(opened.writer, new_envelopes(3, size=50_000)), return_exceptions=True)

    (record,) = [record for record in caplog.records if record.name.startswith("mailserver")]
    assert (record.levelname, record.getMessage()) == (
        "ERROR",
        "store write failed envelopes=3 error='database or disk is full'",
    )
    assert all(isinstance(outcome, StoreError) for outcome in outcomes)
    assert all(isinstance(outcome.__cause__, sqlite3.Error) for outcome in outcomes if outcome)


async def test_failed_put_makes_room_for_those_that_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_queue, "MAX_QUEUED_BYTES", 50_000)

    async with running(path) as opened:
        await fill(opened.worker)
        outcomes = await asyncio.gather(*put_each(opened.writer, new_envelopes(4, size=50_000)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreError] * 4
        await make_room(opened.worker)
        await asyncio.gather(*put_each(opened.writer, new_envelopes(4, size=50_000)))

    assert len(stored(path)) == 4


@pytest.fixture
def limit_file_size() -> Iterator[Callable[[int], None]]:
    """Lets no file of this process grow beyond so many bytes: the kernel fails the write, as a dying disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size or soft, hard))

    yield limit
    limit(0)


async def test_write_error_at_commit_fails_the_put_and_stores_nothing_of_it(
    path: Path, limit_file_size: Callable[[int], None]
) -> None:
    first, later = new_envelopes(3), new_envelopes(50, first=10, size=10_000)

    async with running(path) as opened:
        await opened.writer.put(first)
        limit_file_size(200_000)
        with pytest.raises(StoreError, match="cannot store 50 envelopes: disk I/O error"):
            await opened.writer.put(later)
        assert opened.commits() == 2
        assert raws(stored(path)) == raws(first)
        with pytest.raises(StoreError):
            await opened.writer.put(later)
        limit_file_size(0)
        await opened.writer.put(later)

        assert raws(stored(path)) == raws([*first, *later])
        assert_counts_are_right(path)


async def test_lock_of_another_process_fails_the_put(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mailserver.store.sqlite.connections.BUSY_TIMEOUT_S", 0)

    async with running(path) as opened:
        with plain(path, write=True) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="locked"):
                await opened.writer.put([new_envelope(1)])
            other.execute("ROLLBACK")
        await opened.writer.put([new_envelope(2)])

    assert raws(stored(path)) == raws([new_envelope(2)])


@pytest.mark.slow
async def test_wal_stays_short_beside_readers_that_never_leave_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_bound, "MAX_WAL_BYTES", 2_000_000)
    monkeypatch.setattr(log_bound, "WAL_STEP_BYTES", 1_000_000)
    path = tmp_path / STORE_FILE
    done = threading.Event()

    def read_over_and_over() -> None:
        with plain(path) as connection:
            while not done.is_set():
                for first in range(0, 5000, 1000):
                    connection.execute("SELECT raw FROM envelopes WHERE seq > ? LIMIT 1000", (first,)).fetchall()

    async with running(path) as store:
        await store.writer.put(new_envelopes(5000, size=560))
        reading = [asyncio.create_task(asyncio.to_thread(read_over_and_over)) for _ in range(2)]
        try:
            for first in range(5000, 60_000, 1000):
                await store.writer.put(new_envelopes(1000, first=first, size=560))
        finally:
            done.set()
            await asyncio.gather(*reading)

        assert path.with_name(f"{path.name}-wal").stat().st_size < 15_000_000  # of more than 50 MB written


async def test_reader_that_stays_does_not_hold_up_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_bound, "MAX_WAL_BYTES", 0)
    monkeypatch.setattr(log_bound, "WAL_STEP_BYTES", 0)
    monkeypatch.setattr(log_bound, "BUSY_TIMEOUT_S", 2 * DEADLINE_S)  # what a commit would wait for who reads
    path = tmp_path / STORE_FILE

    async with running(path) as store:
        await store.writer.put(new_envelopes(10))
        with plain(path) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM envelopes").fetchall()
            for first in range(10, 50, 10):
                async with asyncio.timeout(DEADLINE_S):
                    await store.writer.put(new_envelopes(10, first=first))
        await store.writer.put(new_envelopes(10, first=50))

    assert len(stored(path)) == 60
