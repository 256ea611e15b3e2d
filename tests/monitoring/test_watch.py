"""mailserver.monitoring.watch: what it sees of a real store, disk and compaction."""

import asyncio
import contextlib
import os
import resource
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.handoff.archived import Archived
from mailserver.handoff.last_run import EXIT_DAMAGED, Compaction
from mailserver.handoff.last_upkeep import LastUpkeep, Task
from mailserver.metrics.registry import Metrics
from mailserver.monitoring import watch as watch_module
from mailserver.monitoring.watch import Sight, Watch
from mailserver.store.sqlite.handoff import (
    archived_file,
    compaction_file,
    compaction_lock,
    write_archived,
    write_compaction,
    write_upkeep,
)
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from tests.mailservers import NOW, fill, make_envelopes, stored
from tests.waiting import until


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with open_store(tmp_path / STORE_FILE) as store:
        yield store


async def look(store: SqliteStore, folder: Path) -> Sight:
    watch = Watch(store, folder, Metrics().loop_lag)
    await watch.look()
    return watch.sight


async def test_store_is_seen_with_its_files(store: SqliteStore, tmp_path: Path) -> None:
    await fill(store, make_envelopes(30))

    sight = await look(store, tmp_path)

    assert sight.store is not None
    assert sight.store.envelopes == 30
    assert sight.store.oldest == NOW
    assert sight.store.file_bytes == (tmp_path / STORE_FILE).stat().st_size
    assert 0 < sight.store.wal_bytes < (tmp_path / f"{STORE_FILE}-wal").stat().st_size  # then something was committed
    assert sight.store.bytes > 30 * 100
    assert sight.store_problem == ""


async def test_empty_store_has_no_oldest_envelope(store: SqliteStore, tmp_path: Path) -> None:
    sight = await look(store, tmp_path)

    assert sight.store is not None
    assert (sight.store.envelopes, sight.store.oldest) == (0, None)


async def test_days_of_reception_are_seen_the_latest_first(store: SqliteStore, tmp_path: Path) -> None:
    first, *rest = make_envelopes(3)
    await store.put([stored(first)._replace(received=NOW - 86_400)])
    await fill(store, rest)

    sight = await look(store, tmp_path)

    today = NOW // 86_400
    assert [(day.day, day.envelopes) for day in sight.days] == [(today, 2), (today - 1, 1)]
    assert sum(day.bytes for day in sight.days) == sum(len(envelope.raw) for envelope in (first, *rest))


async def test_look_changes_nothing_in_the_store(store: SqliteStore, tmp_path: Path) -> None:
    await fill(store, make_envelopes(3))
    with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE)) as connection:
        before = list(connection.iterdump())

    await look(store, tmp_path)

    with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE)) as connection:
        assert list(connection.iterdump()) == before


async def test_store_that_somebody_else_keeps_locked_is_not_writable(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "STORE_TIMEOUT_S", 0.1)
    connection = sqlite3.connect(tmp_path / STORE_FILE)
    connection.execute("BEGIN IMMEDIATE")

    sight = await look(store, tmp_path)
    connection.close()

    assert sight.store is not None  # it can be read
    assert sight.store_problem == "a commit took longer than 0.1 s"
    assert (await look(store, tmp_path)).store_problem == ""


async def test_store_that_cannot_be_read_says_why(store: SqliteStore, tmp_path: Path) -> None:
    (tmp_path / STORE_FILE).write_bytes(b"")
    (tmp_path / f"{STORE_FILE}-wal").write_bytes(b"")

    sight = await look(store, tmp_path)

    assert sight.store is None
    assert "cannot read the store" in sight.store_problem


async def test_disk_is_seen(store: SqliteStore, tmp_path: Path) -> None:
    disk = (await look(store, tmp_path)).disk

    assert disk is not None
    assert disk.size == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert 0 < disk.free <= disk.size


async def test_compaction_that_has_never_run_is_not_seen(store: SqliteStore, tmp_path: Path) -> None:
    sight = await look(store, tmp_path)

    assert (sight.compaction, sight.compaction_figures, sight.compaction_problem) == (None, None, "")


async def test_compaction_is_seen_with_what_it_left(store: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    run = Compaction(NOW - 90, NOW - 50, exit_code=0, rows=12, bytes=1, days=1, seconds=40.0, succeeded_at=NOW - 50)
    write_compaction(path, run)
    write_archived(path, Archived(await store.identity(), "archive", NOW - 55, {}))

    sight = await look(store, tmp_path)

    assert sight.compaction == run
    figures = sight.compaction_figures
    assert figures is not None
    assert (figures.finished_at, figures.exit_code, figures.rows, figures.seconds) == (NOW - 50, 0, 12, 40.0)
    assert (figures.succeeded_at, figures.verified_at) == (NOW - 50, NOW - 55)
    assert not figures.is_running
    assert not figures.has_died


async def test_store_that_the_compaction_found_to_have_gone_back_is_told(store: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    write_compaction(path, Compaction(NOW - 90, NOW - 50, exit_code=0, seconds=40.0, succeeded_at=NOW - 50))
    write_archived(path, Archived(await store.identity(), "archive", NOW - 55, {}, went_back_from=7))

    sight = await look(store, tmp_path)

    assert "went back to an earlier moment: restart the mailserver" in sight.compaction_problem
    assert sight.compaction_figures is not None


async def test_what_a_merge_or_verification_failed_at_is_seen(store: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    write_upkeep(path, Task.MERGE, LastUpkeep(1.0, 1.0, 2.0, 0, "", 2.0))
    assert (await look(store, tmp_path)).upkeep_problem == ""

    write_upkeep(path, Task.VERIFY, LastUpkeep(1.0, 1.0, 2.0, EXIT_DAMAGED, "1 file is missing"))
    assert (await look(store, tmp_path)).upkeep_problem == "the last verification failed: 1 file is missing"

    write_upkeep(path, Task.VERIFY, LastUpkeep(1.0, 1.0, 2.0, 1, "no Java"))
    write_upkeep(path, Task.MERGE, LastUpkeep(1.0, 3.0))
    problem = "the last merge was killed; the last verification failed: no Java"
    assert (await look(store, tmp_path)).upkeep_problem == problem


async def test_compaction_at_work_is_told_from_one_that_was_killed(store: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    with compaction_lock(path):
        write_compaction(path, Compaction(NOW - 90))
        running = (await look(store, tmp_path)).compaction_figures
    died = (await look(store, tmp_path)).compaction_figures

    assert running is not None
    assert (running.is_running, running.has_died) == (True, False)
    assert died is not None
    assert (died.is_running, died.has_died) == (False, True)


@pytest.mark.parametrize("file", [compaction_file, archived_file])
async def test_damaged_record_of_the_compaction_says_so(store: SqliteStore, tmp_path: Path, file: object) -> None:
    assert callable(file)
    file(tmp_path / STORE_FILE).write_text("{")

    sight = await look(store, tmp_path)

    assert sight.compaction_figures is None
    assert "is no record of the compaction" in sight.compaction_problem


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """The kernel fails what this process writes beyond, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.asynccontextmanager
async def watching(store: SqliteStore, folder: Path) -> AsyncIterator[list[str]]:
    """Watch a store; what is given is what has been told of it."""
    told: list[str] = []
    watch = Watch(store, folder, Metrics().loop_lag)
    looked = asyncio.Event()
    running = asyncio.create_task(watch.run(looked.set, lambda: told.append(watch.sight.store_problem)))
    await looked.wait()
    try:
        yield told
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_write_that_failed_is_told_at_once_and_so_is_that_it_is_over(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "LOOK_INTERVAL_S", 3600.0)
    async with watching(store, tmp_path) as told:
        with no_file_longer_than(200_000):
            with pytest.raises(StoreError):
                await fill(store, make_envelopes(50, data_bytes=10_000))
            await until(lambda: told != [])
            assert told == [store.problem]
            assert told != [""]
        await fill(store, make_envelopes(50, data_bytes=10_000))
        await until(lambda: told[-1] == "")


async def test_failure_that_only_the_look_has_found_is_over_as_soon_as_something_can_be_stored(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "LOOK_INTERVAL_S", 3600.0)
    monkeypatch.setattr(watch_module, "STORE_INTERVAL_S", 0.01)
    monkeypatch.setattr(watch_module, "STORE_TIMEOUT_S", 0.1)
    connection = sqlite3.connect(tmp_path / STORE_FILE)
    connection.execute("BEGIN IMMEDIATE")
    async with watching(store, tmp_path) as told:
        await until(lambda: told != [])
        assert told[-1] == "a commit took longer than 0.1 s"

        connection.close()

        await until(lambda: told[-1] == "")


async def test_store_that_was_removed_is_told_though_nobody_sends_anything(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "STORE_INTERVAL_S", 0.01)
    async with watching(store, tmp_path) as told:
        (tmp_path / STORE_FILE).unlink()

        await until(lambda: told != [])

    assert f"{STORE_FILE} was removed" in told[0]


async def test_it_looks_again_and_again_and_measures_how_late_the_loop_is(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(watch_module, "LAG_INTERVAL_S", 0.01)
    metrics, looks = Metrics(), 0

    def on_look() -> None:
        nonlocal looks
        looks += 1

    def lags(of: str) -> float:
        return metrics.registry.get_sample_value(f"mailserver_event_loop_lag_seconds_{of}") or 0.0

    watch = Watch(store, tmp_path, metrics.loop_lag)
    running = asyncio.create_task(watch.run(on_look, lambda: None))
    await until(lambda: looks > 2 and lags("count") > 2)
    before = lags("sum")
    busy_until = time.monotonic() + 0.2
    while time.monotonic() < busy_until:
        pass  # what a fault of ours does to everybody
    count = lags("count")
    await until(lambda: lags("count") > count)
    running.cancel()
    await asyncio.wait([running])

    assert lags("sum") - before > 0.15
    assert watch.take_worst_lag() > 0.15
    assert watch.take_worst_lag() == 0.0
