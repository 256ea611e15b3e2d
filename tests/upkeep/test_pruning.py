"""mailserver.upkeep.pruning: rounds on real stores, beside ingest and history; what the log says of them."""

import asyncio
import contextlib
import gc
import logging
import os
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mailserver.archive.errors import ArchiveFault
from mailserver.files import open_descriptor, try_lock
from mailserver.handoff.archived import Archived
from mailserver.metrics.registry import Metrics, count_of
from mailserver.store.interface import NewEnvelope, Query
from mailserver.store.retention import BATCH_ROWS, CapacityRetention, Retention, SizeRetention, TimeRetention
from mailserver.store.sqlite import deletion
from mailserver.store.sqlite.handoff import SqliteHandoff, archived_file, compaction_lock, write_archived
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.upkeep import pruning as pruning_module
from mailserver.upkeep.pruning import WARNING_INTERVAL_S, Pruning, PruningSettings
from tests.archive.archives import make_archive
from tests.mailservers import Clock
from tests.s3 import fake_s3
from tests.store.samples import (
    DAY,
    EVER,
    EVERY_BYTE,
    FULL,
    START,
    assert_counts_are_right,
    change,
    make_store,
    new_envelope,
    raws,
    rows,
    stored,
)
from tests.waiting import DEADLINE_S, until

NOW = START + 40 * DAY
MONTH = TimeRetention(30)
ELSEWHERE = "hdfs://host/archive"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / STORE_FILE


@pytest.fixture(autouse=True)
def log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mailserver")


def received_at(*seconds: float, first: int = 0, size: int = 40) -> list[NewEnvelope]:
    """Envelopes received at these seconds after START."""
    return [
        new_envelope(number, created=START + number, size=size)._replace(received=START + int(second))
        for number, second in enumerate(seconds, first)
    ]


def left(path: Path) -> list[int]:
    """When the rest was received, in seconds after START."""
    return [envelope.received - START for envelope in stored(path)]


@contextlib.asynccontextmanager
async def pruning(
    path: Path,
    *limits: Retention,
    archive: str = "",
    archive_before_prune: bool = True,
    clock: Clock | None = None,
    wall: Clock | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[Pruning]:
    """The service on the store at `path`; it does not run by itself."""
    settings = PruningSettings(limits, archive_before_prune=archive_before_prune, archive=archive)
    async with open_store(path) as store:
        yield Pruning(store, settings, clock or Clock(NOW), metrics=metrics or Metrics(), wall=wall or Clock(NOW))


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == level and "prun" in record.message]


def record(path: Path, days: dict[int, int], store_id: str | None = None) -> None:
    """Write what a run of the compaction would."""
    ((identity,),) = rows(path, "SELECT id FROM identity")
    write_archived(path, Archived(store_id or identity, "archive", NOW, days))


def size_of(path: Path) -> int:
    return path.stat().st_size


# Limits


async def test_changed_limits_hold_from_the_next_batch_on(path: Path) -> None:
    """Whoever has set a limit too low can stop what it deletes."""
    make_store(path, received_at(*range(4 * BATCH_ROWS)))
    metrics = Metrics()

    async with pruning(path, CapacityRetention(BATCH_ROWS), metrics=metrics) as service:
        running = asyncio.create_task(service.prune_once())
        await until(lambda: count_of(metrics.pruned) > 0)
        service.change(PruningSettings((CapacityRetention(3 * BATCH_ROWS),)))
        await running
        assert len(left(path)) == 3 * BATCH_ROWS
        service.change(PruningSettings((CapacityRetention(10),)))
        await service.prune_once()
        assert len(left(path)) == 10


async def test_limit_that_was_lifted_deletes_nothing(path: Path) -> None:
    make_store(path, received_at(0, 10))

    async with pruning(path, CapacityRetention(1)) as service:
        service.change(PruningSettings(()))
        await service.prune_once()

    assert left(path) == [0, 10]


async def test_round_deletes_what_is_too_old(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(path, received_at(0, 10 * DAY - 1, 10 * DAY, 39 * DAY))

    async with pruning(path, MONTH) as service:
        await service.prune_once()

    assert left(path) == [10 * DAY, 39 * DAY]
    assert_counts_are_right(path)
    (line,) = lines(caplog, logging.INFO)
    oldest = datetime.fromtimestamp(START + 10 * DAY, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert line.startswith(f"pruned envelopes=2 bytes=80 oldest={oldest} seconds=")


async def test_round_with_nothing_to_delete_says_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(path, received_at(39 * DAY))

    async with pruning(path, MONTH, CapacityRetention(1)) as service:
        await service.prune_once()

    assert left(path) == [39 * DAY]
    assert lines(caplog, logging.INFO) == []


async def test_clock_decides_what_is_too_old(path: Path) -> None:
    make_store(path, received_at(0, 1, 2))
    clock = Clock(START + 30 * DAY)

    async with pruning(path, MONTH, clock=clock) as service:
        for second, expected in ((0, [0, 1, 2]), (1, [1, 2]), (2.9, [2]), (-5000, [2]), (3, [])):
            clock.now = START + 30 * DAY + second
            await service.prune_once()
            assert left(path) == expected


async def test_store_that_is_emptied_has_no_oldest(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(path, received_at(0))

    async with pruning(path, MONTH) as service:
        await service.prune_once()

    assert "oldest=- " in lines(caplog, logging.INFO)[0]


async def test_round_keeps_so_many_envelopes(path: Path) -> None:
    make_store(path, received_at(*range(2 * BATCH_ROWS + 10)))

    async with pruning(path, CapacityRetention(7)) as service:
        await service.prune_once()

    assert left(path) == list(range(2 * BATCH_ROWS + 3, 2 * BATCH_ROWS + 10))
    assert_counts_are_right(path)


async def test_round_keeps_the_pages_in_use_below_so_many_bytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "RESERVE_PAGES", 0)
    make_store(path, received_at(*range(5000), size=1000))
    before = size_of(path)
    limit = before // 2

    async with pruning(path, SizeRetention(limit)) as service:
        await service.prune_once()

    assert limit * 0.8 < size_of(path) <= limit
    assert len(stored(path)) > 5000 // 3
    assert left(path)[-1] == 4999


async def test_size_that_nothing_can_reach_empties_the_store_and_ends(path: Path) -> None:
    make_store(path, received_at(*range(1000)))

    async with pruning(path, SizeRetention(1)) as service:
        await asyncio.wait_for(service.prune_once(), DEADLINE_S)

    assert left(path) == []


@pytest.mark.parametrize("order", [1, -1])
async def test_whichever_limit_comes_first_counts(path: Path, order: int) -> None:
    make_store(path, received_at(0, 1, 20 * DAY, 21 * DAY, 22 * DAY))

    async with pruning(path, *(MONTH, CapacityRetention(2))[::order]) as service:
        await service.prune_once()

    assert left(path) == [21 * DAY, 22 * DAY]


# What is archived


async def test_with_an_archive_everything_stays_until_there_is_a_record(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_store(path, received_at(0, 1, DAY, 39 * DAY))

    async with pruning(path, MONTH, archive=ELSEWHERE) as service:
        await service.prune_once()
        assert left(path) == [0, 1, DAY, 39 * DAY]

        record(path, {START // DAY: 2})
        await service.prune_once()

    assert left(path) == [DAY, 39 * DAY]
    oldest = datetime.fromtimestamp(START, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert lines(caplog, logging.WARNING) == [f"pruning waits for the archive envelopes=3 oldest={oldest}"]


async def test_record_beside_the_store_counts_without_the_setting(path: Path) -> None:
    make_store(path, received_at(0, 1, 2))

    async with pruning(path, CapacityRetention(1)) as service:
        record(path, {START // DAY: 1})
        await service.prune_once()

    assert left(path) == [1, 2]


async def test_archive_may_be_left_out_of_account(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(path, received_at(0, 1, 2))
    archived_file(path).write_text("broken")

    async with pruning(path, CapacityRetention(1), archive=ELSEWHERE, archive_before_prune=False) as service:
        await service.prune_once()

    assert left(path) == [2]
    assert lines(caplog, logging.ERROR) == []


async def test_day_goes_only_while_its_files_are_seen_in_the_archive(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_store(path, received_at(0, 1, DAY, 39 * DAY))
    ((identity,),) = rows(path, "SELECT id FROM identity")
    archive = tmp_path / "archive"
    record(path, {START // DAY: 2, START // DAY + 1: 3})

    async with pruning(path, MONTH, archive=str(archive)) as service:
        await service.prune_once()
        assert left(path) == [0, 1, DAY, 39 * DAY]
        assert service.archive_problem == f"{archive} is not there: is its disk mounted?"

        archive.mkdir()  # an empty one, and the run's record beside the store says what it did
        await service.prune_once()
        assert left(path) == [0, 1, DAY, 39 * DAY]
        assert "no record in" in service.archive_problem

        first = make_archive(archive, identity, START // DAY, seq=2)
        second = make_archive(archive, identity, START // DAY + 1, seq=3)
        first.unlink()
        await service.prune_once()
        assert left(path) == [0, 1, 39 * DAY]  # each day by itself
        assert service.archive_problem == f"{first} is missing"

        first.write_bytes(b"PAR1")
        await service.prune_once()
        assert left(path) == [0, 1, 39 * DAY]
        assert service.archive_problem == f"{first} has 4 bytes instead of 5"

        first.write_bytes(b"PAR1.")
        second.unlink()  # gone from the store, too: nobody asks for it
        await service.prune_once()
        assert left(path) == [39 * DAY]
        assert service.archive_problem == ""

    assert len(lines(caplog, logging.ERROR)) == 4  # once each


@pytest.mark.parametrize(
    ("seq", "store", "goes"), [(2, "", True), (3, "", True), (1, "", False), (2, "another", False)]
)
async def test_record_in_the_archive_must_speak_of_the_row_and_of_this_store(
    path: Path, tmp_path: Path, seq: int, store: str, *, goes: bool
) -> None:
    make_store(path, received_at(0, 1, 39 * DAY))
    ((identity,),) = rows(path, "SELECT id FROM identity")
    record(path, {START // DAY: 2})
    make_archive(tmp_path / "archive", store or identity, START // DAY, seq=seq)

    async with pruning(path, MONTH, archive=str(tmp_path / "archive")) as service:
        await service.prune_once()

    assert left(path) == ([39 * DAY] if goes else [0, 1, 39 * DAY])


async def test_day_that_was_merged_into_a_month_is_looked_for_there(path: Path, tmp_path: Path) -> None:
    make_store(path, received_at(0, 1, 39 * DAY))
    ((identity,),) = rows(path, "SELECT id FROM identity")
    day, archive = START // DAY, tmp_path / "archive"
    record(path, {day: 2})
    name = datetime.fromtimestamp(START, UTC).strftime("%Y-%m-%d")
    make_archive(archive, identity, day, seq=2).unlink()  # a merge is about to remove the day's record
    month = make_archive(archive, identity, day, seq=2, period=name[:7], run="merge-1", replaces=((name, "run-1"),))
    aside = month.rename(tmp_path / "aside")

    async with pruning(path, MONTH, archive=str(archive)) as service:
        await service.prune_once()
        assert left(path) == [0, 1, 39 * DAY]
        assert service.archive_problem == f"{month} is missing"

        aside.rename(month)
        await service.prune_once()

    assert left(path) == [39 * DAY]


async def test_days_that_have_gone_are_not_looked_at_any_more(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(path, received_at(0, DAY, 2 * DAY, 39 * DAY))
    first = START // DAY
    record(path, {first + number: number + 1 for number in range(3)})
    looks = []
    monkeypatch.setattr(pruning_module, "LOOK_LIFE_S", 0.0)
    monkeypatch.setattr(pruning_module, "check_day", lambda files, store, day, seq: looks.append(day))

    async with pruning(path, MONTH, archive=str(tmp_path)) as service:
        await service.prune_once()

    assert left(path) == [39 * DAY]
    assert looks == sorted(looks)
    assert {*looks} == {first, first + 1, first + 2}


async def test_nothing_is_said_of_an_archive_that_a_run_is_changing(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_store(path, received_at(0, 39 * DAY))
    ((identity,),) = rows(path, "SELECT id FROM identity")
    archive = tmp_path / "archive"
    record(path, {START // DAY: 1})
    make_archive(archive, identity, START // DAY, seq=1)

    async with pruning(path, MONTH, archive=str(archive)) as service:
        with open_descriptor(archive / "_lock", os.O_RDWR | os.O_CREAT) as descriptor:
            assert try_lock(descriptor)
            await service.prune_once()
            assert left(path) == [0, 39 * DAY]
        await service.prune_once()

    assert left(path) == [39 * DAY]
    assert lines(caplog, logging.ERROR) == []


async def test_archive_on_s3_is_looked_at_before_anything_is_deleted(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(path, received_at(0, 39 * DAY))
    record(path, {START // DAY: 1})
    async with open_store(path) as store:
        identity = await store.identity()
    make_archive(tmp_path / "archive", identity, START // DAY, seq=1)
    with fake_s3(monkeypatch) as s3:
        async with pruning(path, MONTH, archive=s3.url) as service:
            await service.prune_once()
            assert left(path) == [0, 39 * DAY]
            assert f"no record in {s3.url} says" in service.archive_problem
            s3.upload(tmp_path / "archive")
            await service.prune_once()
            assert left(path) == [39 * DAY]


@pytest.mark.parametrize("archive", ["", ELSEWHERE])
async def test_archive_that_cannot_be_seen_must_have_been_looked_at_lately(
    path: Path, archive: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_store(path, received_at(0, 39 * DAY))
    record(path, {START // DAY: 1})
    wall = Clock(NOW + 48 * 3600 + 1)

    async with pruning(path, MONTH, archive=archive, wall=wall) as service:
        for now in (NOW + 48 * 3600 + 1, NOW - 2 * 3600):  # the other clock may be ahead, but not by that
            wall.now = now
            await service.prune_once()
            assert left(path) == [0, 39 * DAY]
            assert "the archive cannot be seen from here, and the compaction last checked" in service.archive_problem
        wall.now = NOW + 48 * 3600
        await service.prune_once()

    assert left(path) == [39 * DAY]
    assert service.archive_problem == ""
    assert len(lines(caplog, logging.ERROR)) == 1


async def test_disk_of_the_archive_that_does_not_answer_holds_one_thread(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(path, received_at(0, 39 * DAY))
    record(path, {START // DAY: 1})
    answers = threading.Event()
    looks = []

    def hang(*_: object) -> None:
        looks.append(threading.get_ident())
        answers.wait(DEADLINE_S)

    monkeypatch.setattr(pruning_module, "LOOK_TIMEOUT_S", 0.01)
    monkeypatch.setattr(pruning_module, "check_day", hang)
    async with pruning(path, MONTH, archive=str(tmp_path)) as service:
        for _ in range(3):
            await service.prune_once()
            assert "does not answer" in service.archive_problem
        assert len(looks) == 1
        assert left(path) == [0, 39 * DAY]
        answers.set()


async def test_look_at_the_archive_that_fails_after_it_was_given_up_is_nobodys_error(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(path, received_at(0, 39 * DAY))
    record(path, {START // DAY: 1})
    answers, over = threading.Event(), threading.Event()
    unheard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context["message"]))

    def fail_late(*_: object) -> None:
        answers.wait(DEADLINE_S)
        over.set()
        raise ArchiveFault("the disk is gone")

    monkeypatch.setattr(pruning_module, "LOOK_TIMEOUT_S", 0.01)
    monkeypatch.setattr(pruning_module, "check_day", fail_late)
    async with pruning(path, MONTH, archive=str(tmp_path)) as service:
        await service.prune_once()
        assert "does not answer" in service.archive_problem
        answers.set()
        await asyncio.to_thread(over.wait, DEADLINE_S)
        monkeypatch.setattr(pruning_module, "LOOK_TIMEOUT_S", DEADLINE_S)
        async with asyncio.timeout(DEADLINE_S):
            while "does not answer" in service.archive_problem:
                await service.prune_once()
    gc.collect()

    assert unheard == []


async def test_warning_comes_once_an_hour(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(path, received_at(0))
    clock = Clock(NOW)

    async with pruning(path, MONTH, archive=ELSEWHERE, clock=clock) as service:
        said = []
        for now in (0, 60, WARNING_INTERVAL_S - 1, WARNING_INTERVAL_S, WARNING_INTERVAL_S + 60, -DAY):
            clock.now = NOW + now
            await service.prune_once()
            said.append(len(lines(caplog, logging.WARNING)))

    assert said == [1, 1, 1, 2, 2, 3]  # the last: the clock was stepped back


async def test_what_waits_for_the_archive_is_a_metric(path: Path) -> None:
    make_store(path, received_at(0, 1, DAY, 39 * DAY))
    metrics = Metrics()

    async with pruning(path, MONTH, archive=ELSEWHERE, metrics=metrics) as service:
        await service.prune_once()
        assert count_of(metrics.pruning_waiting) == 3

        record(path, {START // DAY: 2, START // DAY + 1: 3})
        await service.prune_once()
        assert count_of(metrics.pruning_waiting) == 0


async def test_nothing_too_much_waits_for_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(path, received_at(39 * DAY))

    async with pruning(path, MONTH, CapacityRetention(1), SizeRetention(10**9), archive=ELSEWHERE) as service:
        await service.prune_once()

    assert lines(caplog, logging.WARNING) == []


async def test_unreadable_record_stops_pruning_and_is_told_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(path, received_at(0, 1))

    async with pruning(path, MONTH) as service:
        for content in ("broken", "broken", "{}", "{}", "broken"):
            archived_file(path).write_text(content)
            await service.prune_once()
        assert left(path) == [0, 1]
        errors = len(lines(caplog, logging.ERROR))

        record(path, {START // DAY: 2})
        await service.prune_once()
        assert left(path) == []
        archived_file(path).write_text("broken")
        await service.prune_once()

    assert errors == 3
    assert len(lines(caplog, logging.ERROR)) == 4


async def test_record_of_another_store_stops_pruning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(path, received_at(0, 1))

    async with pruning(path, MONTH) as service:
        record(path, {START // DAY: 2}, store_id="another")
        await service.prune_once()

    assert left(path) == [0, 1]
    assert "belongs to another store, another" in lines(caplog, logging.ERROR)[0]


async def test_nothing_is_deleted_while_the_compaction_reads(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(path, received_at(0, 1))

    async with pruning(path, MONTH) as service:
        with compaction_lock(path):
            await service.prune_once()
            assert left(path) == [0, 1]
        await service.prune_once()

    assert left(path) == []
    assert lines(caplog, logging.ERROR) == []


async def test_compaction_that_starts_within_a_round_reads_what_is_there_then(path: Path) -> None:
    make_store(path, received_at(*range(20 * BATCH_ROWS)))
    with compaction_lock(path):
        pass

    async with pruning(path, MONTH) as service:
        pruned = asyncio.create_task(service.prune_once())
        await until(lambda: len(left(path)) < 20 * BATCH_ROWS)
        lock = compaction_lock(path)
        await asyncio.to_thread(lock.__enter__)
        at_start = left(path)
        await pruned
        assert left(path) == at_start
        lock.__exit__(None, None, None)
        assert 0 < len(at_start) < 20 * BATCH_ROWS

        await service.prune_once()

    assert left(path) == []


# Failures


async def test_store_that_fails_is_one_line_and_the_next_round_goes_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_store(path, received_at(0, 1))
    change(path, "CREATE TRIGGER fail BEFORE UPDATE ON days BEGIN SELECT RAISE(ABORT, 'no room'); END")

    async with pruning(path, MONTH) as service:
        await service.prune_once()
        assert left(path) == [0, 1]

        change(path, "DROP TRIGGER fail")
        await service.prune_once()

    assert left(path) == []
    assert lines(caplog, logging.ERROR) == ["pruning failed error='cannot change the store: no room'"]


async def test_fault_of_ours_does_not_end_the_service(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(path, received_at(0, 1))

    async with pruning(path, MONTH) as service:
        with monkeypatch.context() as faulty:
            faulty.setattr(SqliteHandoff, "archived", None)
            await service.prune_once()
        await service.prune_once()

    assert left(path) == []
    assert lines(caplog, logging.ERROR) == ["internal error in pruning"]


# Running


async def test_rounds_go_on_until_stopped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning_module, "FIRST_ROUND_S", 0)
    monkeypatch.setattr(pruning_module, "ROUND_INTERVAL_S", 0.001)
    make_store(path, received_at(0, 1, 2))
    clock = Clock(START + 30 * DAY + 1)

    async with pruning(path, MONTH, clock=clock) as service:
        running = asyncio.create_task(service.run())
        for rest in (2, 1, 0):
            await until(lambda: len(left(path)) == rest)  # noqa: B023
            clock.now += 1
        service.stop()
        await asyncio.wait_for(running, DEADLINE_S)


async def test_stop_ends_a_round_after_the_batch_that_is_under_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning_module, "FIRST_ROUND_S", 0)
    make_store(path, received_at(*range(40 * BATCH_ROWS)))

    async with pruning(path, MONTH) as service:
        running = asyncio.create_task(service.run())
        await until(lambda: len(left(path)) < 40 * BATCH_ROWS)
        service.stop()
        await asyncio.wait_for(running, DEADLINE_S)

    assert len(left(path)) > 0
    assert_counts_are_right(path)


@pytest.mark.parametrize("first", [0, 3600])
async def test_stop_does_not_wait_for_the_next_round(path: Path, monkeypatch: pytest.MonkeyPatch, first: float) -> None:
    monkeypatch.setattr(pruning_module, "FIRST_ROUND_S", first)
    async with pruning(path, MONTH) as service:
        running = asyncio.create_task(service.run())
        await asyncio.wait([running], timeout=0.05)
        assert not running.done()

        service.stop()

        await asyncio.wait_for(running, DEADLINE_S)


@pytest.mark.parametrize(("mode", "said"), [("NONE", 1), ("INCREMENTAL", 0)])
async def test_file_that_cannot_shrink_is_told_at_the_start(
    path: Path, caplog: pytest.LogCaptureFixture, mode: str, said: int
) -> None:
    make_store(path, [])
    change(path, f"PRAGMA auto_vacuum = {mode}", "VACUUM")

    async with pruning(path, MONTH) as service:
        service.stop()
        await service.run()

    assert caplog.text.count("store does not shrink") == said


async def test_round_does_not_run_after_what_comes_meanwhile(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(path, received_at(*range(BATCH_ROWS)))

    async with open_store(path) as store:
        service = Pruning(store, PruningSettings((CapacityRetention(1),)), Clock(NOW), metrics=Metrics())
        pruned = asyncio.create_task(service.prune_once())
        number = BATCH_ROWS
        while not pruned.done():
            await asyncio.wait_for(store.put(received_at(number, first=number)), DEADLINE_S)
            number += 1

    (line,) = lines(caplog, logging.INFO)
    assert BATCH_ROWS - 1 <= int(line.partition("envelopes=")[2].split()[0]) <= number
    assert number < BATCH_ROWS + 200
    assert_counts_are_right(path)


@pytest.mark.slow
async def test_envelopes_come_and_are_found_while_fifty_thousand_go(path: Path) -> None:
    make_store(path, received_at(*(number // 100 for number in range(50_000))))
    fresh = received_at(*[39 * DAY] * 3000, first=50_000)
    confirmed: list[NewEnvelope] = []

    async def post(store: SqliteStore, pruned: asyncio.Task[None]) -> None:
        for at in range(0, len(fresh), 10):
            if pruned.done():
                break
            await store.put(fresh[at : at + 10])
            confirmed.extend(fresh[at : at + 10])

    async def look(store: SqliteStore, pruned: asyncio.Task[None]) -> None:
        while not pruned.done():
            before = raws(confirmed)
            page = await store.find(Query(*EVER, FULL), 5000)
            asked = page.left
            read = await page.read(asked, EVERY_BYTE)
            found = read.split()
            assert len(read.sizes) == asked
            assert set(before) <= set(found)  # the newest by creation are those that were put

    async with open_store(path) as store:
        service = Pruning(store, PruningSettings((MONTH,)), Clock(NOW), metrics=Metrics())
        pruned = asyncio.create_task(service.prune_once())
        await asyncio.wait_for(asyncio.gather(pruned, post(store, pruned), look(store, pruned)), 4 * DEADLINE_S)

    assert len(confirmed) > 100
    assert raws(stored(path)) == raws(confirmed)
    assert_counts_are_right(path)
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


async def test_deleted_envelopes_are_counted(path: Path) -> None:
    make_store(path, received_at(0, 1, 2, 39 * DAY))
    metrics = Metrics()
    async with open_store(path) as store:
        await Pruning(store, PruningSettings((MONTH,)), Clock(NOW), metrics=metrics).prune_once()

    assert count_of(metrics.pruned) == 3
