"""`spark-export schedule` and `now`, without Spark: when a run is made, one at a time, and how it is ended."""

import argparse
import asyncio
import logging
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mailserver.handoff.last_run import ArchivedDay, Compaction, CompactionState
from mailserver.handoff.last_upkeep import LastUpkeep, Task
from mailserver.store.sqlite.handoff import compaction_file, last_upkeep, write_compaction, write_upkeep
from spark_export import schedule as schedule_module
from spark_export.cli import main
from spark_export.options import NIGHTLY_OPTIONS, complete
from spark_export.schedule import ScheduledJob, ScheduledRun, nightly, run_by, run_once, waiting
from tests.community.owner.samples import made_in
from tests.spark_export.samples import DAY, DAY_S, envelopes, put
from tests.waiting import DEADLINE_S, until

EVERY_SECOND = "* * * * * *"
NIGHTLY = "17 3 * * *"
TONIGHT = DAY * DAY_S + 3 * 3600 + 17 * 60.0


def script(body: str, name: str = "test", limit_s: float = DEADLINE_S) -> ScheduledRun:
    """A run that does this."""
    program = f"import os, pathlib, signal, subprocess, sys, time\n{body}"
    return ScheduledRun(name, [sys.executable, "-c", program], limit_s)


def writes(file: Path, word: str = "x") -> ScheduledRun:
    """A run that adds a line to a file."""
    return script(f"with open({str(file)!r}, 'a') as file: file.write('{word}\\n')", word)


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


class Clock:
    """A clock that is set by hand, or that gains so much at each look."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now


@pytest.fixture
async def stop() -> asyncio.Event:
    return asyncio.Event()


async def test_run_is_made_when_it_is_due_again_and_again(tmp_path: Path, stop: asyncio.Event) -> None:
    task = asyncio.create_task(run_by([ScheduledJob(writes(tmp_path / "runs"), EVERY_SECOND, time.time())], stop))

    await until(lambda: lines(tmp_path / "runs") >= 2)

    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)


async def test_run_that_was_missed_is_made_at_once_and_once(
    tmp_path: Path, stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "MAX_SLEEP_S", 0.001)
    clock = Clock(TONIGHT + 3600)
    command = writes(tmp_path / "runs")

    task = asyncio.create_task(run_by([ScheduledJob(command, NIGHTLY, TONIGHT - 3 * DAY_S)], stop, clock))
    await until(lambda: lines(tmp_path / "runs") == 1)
    looks = clock.looks
    await until(lambda: clock.looks > looks + 20)
    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)

    assert lines(tmp_path / "runs") == 1


@pytest.mark.parametrize("since", [TONIGHT + 1, TONIGHT + 3600], ids=["done", "nothing waits"])
async def test_no_run_is_made_before_it_is_due(
    tmp_path: Path, stop: asyncio.Event, since: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "MAX_SLEEP_S", 0.001)
    clock = Clock(TONIGHT + 3600)

    task = asyncio.create_task(run_by([ScheduledJob(writes(tmp_path / "runs"), NIGHTLY, since)], stop, clock))
    await until(lambda: clock.looks > 20)
    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)

    assert lines(tmp_path / "runs") == 0


async def test_clock_that_is_stepped_forward_is_noticed(
    tmp_path: Path, stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "MAX_SLEEP_S", 0.001)
    clock = Clock(TONIGHT + 3600)
    task = asyncio.create_task(run_by([ScheduledJob(writes(tmp_path / "runs"), NIGHTLY, clock.now)], stop, clock))
    await until(lambda: clock.looks > 5)

    clock.now = TONIGHT + 400 * DAY_S

    await until(lambda: lines(tmp_path / "runs") == 1)
    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)
    assert lines(tmp_path / "runs") == 1


async def test_clock_that_is_stepped_back_is_followed(
    tmp_path: Path, stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "MAX_SLEEP_S", 0.001)
    clock = Clock(TONIGHT + 400 * DAY_S)
    task = asyncio.create_task(run_by([ScheduledJob(writes(tmp_path / "runs"), NIGHTLY, clock.now)], stop, clock))
    await until(lambda: clock.looks > 5)

    clock.now = TONIGHT - 60
    looks = clock.looks
    await until(lambda: clock.looks > looks + 5)
    assert lines(tmp_path / "runs") == 0
    clock.now = TONIGHT

    await until(lambda: lines(tmp_path / "runs") == 1)
    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)


def test_sleep_is_a_minute_at_most() -> None:
    assert schedule_module.MAX_SLEEP_S == 60


@pytest.mark.slow
async def test_runs_never_overlap(tmp_path: Path, stop: asyncio.Event, caplog: pytest.LogCaptureFixture) -> None:
    alone = (
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "(folder / 'at work').mkdir()\n"  # fails if it is there
        "time.sleep(1.2)\n"  # longer than from one due time to the next
        "(folder / 'at work').rmdir()\n"
        "with open(folder / 'runs', 'a') as file: file.write('x\\n')"
    )

    task = asyncio.create_task(run_by([ScheduledJob(script(alone), EVERY_SECOND, time.time())], stop))
    await until(lambda: lines(tmp_path / "runs") >= 3)
    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)

    assert "exit_code=1 " not in caplog.text


async def test_what_is_due_at_the_same_time_is_run_one_after_another_in_its_order(
    tmp_path: Path, stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "MAX_SLEEP_S", 0.001)
    clock = Clock(TONIGHT + 60)
    alone = (
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "(folder / 'at work').mkdir()\n"  # fails if it is there
        "time.sleep(0.1)\n"
        "(folder / 'at work').rmdir()\n"
        "with open(folder / 'runs', 'a') as file: file.write('{0}\\n')"
    )
    names = ["compact", "merge", "verify"]
    jobs = [ScheduledJob(script(alone.format(name), name), NIGHTLY, TONIGHT - DAY_S) for name in names]
    idle = ScheduledJob(script(alone.format("idle"), "idle"), "17 3 1 1 *", TONIGHT - DAY_S)

    task = asyncio.create_task(run_by([idle, *jobs], stop, clock))
    await until(lambda: lines(tmp_path / "runs") == 3)
    looks = clock.looks
    await until(lambda: clock.looks > looks + 20)
    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)

    assert (tmp_path / "runs").read_text().split() == names


async def test_what_comes_due_while_another_run_is_at_work_is_run_after_it(
    tmp_path: Path, stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "MAX_SLEEP_S", 0.001)
    clock = Clock(TONIGHT + 60)
    begun, may_end = tmp_path / "begun", tmp_path / "may end"
    waits = f"pathlib.Path({str(begun)!r}).touch()\nwhile not os.path.exists({str(may_end)!r}): time.sleep(0.01)"
    compact = ScheduledJob(writes(tmp_path / "runs", "compact"), "17 4 * * *", clock.now)
    verify = ScheduledJob(script(waits, "verify"), NIGHTLY, TONIGHT - DAY_S)

    task = asyncio.create_task(run_by([compact, verify], stop, clock))
    await until(begun.exists)
    clock.now = TONIGHT + 2 * 3600  # a compaction has come due
    may_end.touch()

    await until(lambda: lines(tmp_path / "runs") == 1)
    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)


async def test_job_without_work_waits_for_its_next_time(
    tmp_path: Path, stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "MAX_SLEEP_S", 0.001)
    clock = Clock(TONIGHT + 60)
    asked: list[float] = []

    def has_work() -> bool:
        asked.append(clock.now)
        return False

    job = ScheduledJob(writes(tmp_path / "runs"), NIGHTLY, TONIGHT - DAY_S, has_work)

    task = asyncio.create_task(run_by([job], stop, clock))
    await until(lambda: clock.looks > 20)
    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)

    assert asked == [TONIGHT + 60]
    assert lines(tmp_path / "runs") == 0


async def test_stop_while_a_store_is_asked_begins_no_run(tmp_path: Path, stop: asyncio.Event) -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def has_work() -> bool:
        asked.set()
        return may_answer.wait(DEADLINE_S)

    job = ScheduledJob(writes(tmp_path / "runs"), NIGHTLY, TONIGHT - DAY_S, has_work)
    task = asyncio.create_task(run_by([job], stop, Clock(TONIGHT + 60)))
    await until(asked.is_set)

    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)  # though there is no answer yet
    may_answer.set()

    assert lines(tmp_path / "runs") == 0


async def test_what_goes_wrong_while_a_store_is_asked_is_not_lost(tmp_path: Path, stop: asyncio.Event) -> None:
    def has_work() -> bool:
        raise LookupError("a bug")

    job = ScheduledJob(writes(tmp_path / "runs"), NIGHTLY, TONIGHT - DAY_S, has_work)
    with pytest.raises(LookupError, match="a bug"):
        await run_by([job], stop, Clock(TONIGHT + 60))


async def test_job_that_fails_is_run_again_after_the_next_run_of_one_before_it(
    tmp_path: Path, stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "MAX_SLEEP_S", 0.001)
    clock = Clock(TONIGHT - 60)
    daily, monthly = tmp_path / "daily", tmp_path / "monthly"
    fails_once = ["sh", "-c", f"echo >> {monthly}; test $(wc -l < {monthly}) -gt 1"]
    jobs = [
        ScheduledJob(writes(daily), NIGHTLY, TONIGHT - 60),
        ScheduledJob(ScheduledRun("merge", fails_once, 60), "0 0 1 1 *", TONIGHT - 366 * DAY_S),
    ]

    task = asyncio.create_task(run_by(jobs, stop, clock))
    counts: list[int] = []
    for night in range(3):
        seen = clock.looks
        await until(lambda seen=seen: clock.looks > seen + 20 and lines(daily) == len(counts))  # type: ignore[misc]
        counts.append(lines(monthly))
        clock.now = TONIGHT + night * DAY_S + 60
    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)

    assert counts == [1, 2, 2]


async def test_stop_ends_the_run_at_work_and_begins_no_other(
    tmp_path: Path, stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    endless = f"pathlib.Path({str(begun)!r}).touch()\nsignal.pause()"
    jobs = [ScheduledJob(run, NIGHTLY, TONIGHT - DAY_S) for run in (script(endless), writes(tmp_path / "runs"))]
    task = asyncio.create_task(run_by(jobs, stop, Clock(TONIGHT + 60)))
    await until(begun.exists)

    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)

    assert lines(tmp_path / "runs") == 0


async def test_run_that_takes_too_long_is_ended_and_that_is_said(
    stop: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    tidy = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\nwhile True: signal.pause()"

    code = await asyncio.wait_for(run_once(script(tidy, limit_s=1.0), stop), DEADLINE_S)

    assert code in (130, 128 + signal.SIGTERM)  # the latter where Python had not come that far
    assert "run interrupted, it took too long command=test limit_s=1" in caplog.text


async def test_run_that_dies_does_not_end_the_schedule(
    tmp_path: Path, stop: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    dies = script(f"open({str(tmp_path / 'runs')!r}, 'a').write('x\\n'); os.kill(os.getpid(), signal.SIGKILL)")

    task = asyncio.create_task(run_by([ScheduledJob(dies, EVERY_SECOND, time.time())], stop))
    await until(lambda: lines(tmp_path / "runs") >= 2)
    stop.set()
    await asyncio.wait_for(task, DEADLINE_S)

    assert "run ended command=test exit_code=137 seconds=" in caplog.text


@pytest.mark.parametrize("code", [0, 1, 130])
async def test_exit_code_is_the_runs_and_is_logged_in_one_line(
    code: int, stop: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "spark_export")

    assert await run_once(script(f"sys.exit({code})"), stop) == code

    (record,) = (record for record in caplog.records if record.name == schedule_module.__name__)  # not asyncio's
    assert record.getMessage().startswith(f"run ended command=test exit_code={code} seconds=")
    assert record.levelname == ("INFO" if code == 0 else "ERROR")


async def test_output_is_passed_through(stop: asyncio.Event, capfd: pytest.CaptureFixture[str]) -> None:
    await run_once(script("print('a report'); print('a line', file=sys.stderr)"), stop)

    assert capfd.readouterr() == ("a report\n", "a line\n")


async def test_run_is_interrupted_by_sigterm(tmp_path: Path, stop: asyncio.Event) -> None:
    tidy = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "signal.pause()"
    )
    task = asyncio.create_task(run_once(script(tidy), stop))
    await until((tmp_path / "ready").exists)

    stop.set()

    assert await asyncio.wait_for(task, DEADLINE_S) == 130


async def test_run_that_does_not_end_is_killed_with_its_jvm(
    tmp_path: Path, stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schedule_module, "STOP_LIMIT_S", 0.1)
    deaf = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "jvm = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"file = pathlib.Path({str(tmp_path / 'pid')!r})\n"
        "file.with_suffix('.new').write_text(str(jvm.pid)); file.with_suffix('.new').rename(file)\n"
        "signal.pause()"
    )
    task = asyncio.create_task(run_once(script(deaf), stop))
    await until((tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text())

    stop.set()

    assert await asyncio.wait_for(task, DEADLINE_S) == 128 + signal.SIGKILL
    assert "run killed, it did not end" in caplog.text
    await until(lambda: not alive(pid))


async def test_run_that_ends_as_it_is_interrupted_is_no_error(
    stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, runs = asyncio.create_subprocess_exec, []

    async def made(*command: str, **options: Any) -> asyncio.subprocess.Process:
        runs.append(await make(*command, **options))
        return runs[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", made)
    for turns in [*range(10)] * 20:  # asyncio takes a few turns of its loop to tell that a child has ended
        stop.clear()
        task = asyncio.create_task(run_once(ScheduledRun("true", ["true"], DEADLINE_S), stop))
        await until(lambda: bool(runs))
        child = runs.pop()
        while alive(child.pid):  # noqa: ASYNC110 - the very next turn matters
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)

        stop.set()

        assert await asyncio.wait_for(task, DEADLINE_S) == 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_limit_leaves_time_within_ten_seconds() -> None:
    assert schedule_module.STOP_LIMIT_S <= 8


# What a schedule that starts has missed


def test_last_success_says_since_when_rows_wait(tmp_path: Path) -> None:
    store = put(tmp_path / "mailserver.db", envelopes(1))
    write_compaction(store, Compaction(TONIGHT, TONIGHT + 9, 1, "failed", succeeded_at=TONIGHT - DAY_S))

    assert waiting([store], TONIGHT + DAY_S) == TONIGHT - DAY_S


def test_store_that_was_never_archived_waits_since_its_first_day_was_over(tmp_path: Path) -> None:
    store = put(tmp_path / "mailserver.db", envelopes(1))

    assert waiting([store], TONIGHT + 9 * DAY_S) == (DAY + 1) * DAY_S
    assert waiting([store], TONIGHT) == TONIGHT  # that day is not over


def test_fresh_store_waits_for_nothing(tmp_path: Path) -> None:
    store = put(tmp_path / "mailserver.db")

    assert waiting([store], TONIGHT) == TONIGHT


def test_oldest_of_several_stores_counts(tmp_path: Path) -> None:
    fresh, old = put(tmp_path / "1" / "mailserver.db"), put(tmp_path / "2" / "mailserver.db", envelopes(1))

    assert waiting([fresh, old], TONIGHT + 9 * DAY_S) == (DAY + 1) * DAY_S


def test_what_cannot_be_told_waits_for_the_next_due_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = tmp_path / "mailserver.db"
    put(store, envelopes(1))
    compaction_file(store).write_text("{")

    assert waiting([store], TONIGHT) == TONIGHT
    assert "last run unknown" in caplog.text
    assert store.name in caplog.text


def test_store_that_is_not_there_yet_is_no_cause_for_alarm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    assert waiting([tmp_path / "mailserver.db"], TONIGHT) == TONIGHT
    assert [(record.levelname, record.msg) for record in caplog.records] == [("INFO", "no store yet store=%s")]


# Nights


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that takes the place of Python, and writes down which commands it was to run."""
    program, ran = tmp_path / "program", tmp_path / "ran"
    program.write_text(f'#!/bin/sh\necho "$3" >> "{ran}"\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    return ran


def nightly_of(tmp_path: Path, *flags: str, store: str = "") -> int:
    """Run `nightly` for the store of a night, or another."""
    parser = argparse.ArgumentParser()
    for option in NIGHTLY_OPTIONS:
        option.add_to(parser)
    stores = ["--store", store or str(tmp_path / "s.db")]
    arguments = parser.parse_args([*stores, "--archive", str(tmp_path / "archive"), *flags])
    complete(parser, arguments, NIGHTLY_OPTIONS, {})
    return nightly(arguments)


@pytest.fixture
def store_of_night(tmp_path: Path) -> Path:
    """The store of `nightly_of`, which has something in the archive."""
    store = put(tmp_path / "s.db", envelopes(1))
    of_tonight = Compaction(
        TONIGHT, TONIGHT + 9, 0, succeeded_at=TONIGHT + 9, archived={DAY: ArchivedDay(rows=1, bytes=100)}
    )
    write_compaction(store, of_tonight)
    return store


def test_archive_is_merged_and_verified_after_the_compaction_where_that_is_due(
    tmp_path: Path, night: Path, store_of_night: Path
) -> None:
    for task in (Task.MERGE, Task.VERIFY):
        write_upkeep(store_of_night, task, LastUpkeep(waits_since=1.0))

    assert nightly_of(tmp_path) == 0

    assert night.read_text().split() == ["compact", "merge", "verify"]


def test_night_leaves_out_what_is_not_due(tmp_path: Path, night: Path, store_of_night: Path) -> None:
    write_upkeep(store_of_night, Task.VERIFY, LastUpkeep(waits_since=time.time()))

    assert nightly_of(tmp_path) == 0

    assert night.read_text().split() == ["compact"]
    assert last_upkeep(store_of_night, Task.MERGE)[0] is CompactionState.NEVER


def test_history_archives_are_made_after_the_compaction_if_there_are_communities(tmp_path: Path, night: Path) -> None:
    communities = tmp_path / "communities"
    assert nightly_of(tmp_path, "--communities", str(communities)) == 0
    made_in(communities)

    assert nightly_of(tmp_path, "--communities", str(communities)) == 0
    assert nightly_of(tmp_path) == 0

    assert night.read_text().split() == ["compact", "compact", "communities", "compact"]


def test_folder_of_communities_that_cannot_be_read_is_left_to_the_run(
    tmp_path: Path, night: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "communities").write_text("")

    assert nightly_of(tmp_path, "--communities", str(tmp_path / "communities")) == 0

    assert night.read_text().split() == ["compact", "communities"]
    assert any("communities unknown" in record.message for record in caplog.records)


def test_store_is_named_to_a_run_where_nobody_else_can_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its URL may have a password."""
    program, told, url = tmp_path / "program", tmp_path / "told", "postgresql://mail:secret@127.0.0.1:1/mail"
    program.write_text(f'#!/bin/sh\necho "$*" "$SPARK_EXPORT_STORE" >> "{told}"\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))

    assert nightly_of(tmp_path, "--store", str(tmp_path / "a b.db"), store=url) == 0

    line = told.read_text().splitlines()[0]
    assert line.startswith(f"-m spark_export compact --archive={tmp_path}")
    assert line.endswith(f" {url} '{tmp_path / 'a b.db'}'")
    assert line.count("secret") == 1


@pytest.mark.parametrize("command", ["schedule", "nightly"])
def test_database_whose_driver_is_missing_is_refused_in_one_line(
    command: str, tmp_path: Path, night: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mailserver.store.postgres.job", None)

    assert main([command, "--store", "postgresql://db/mail", "--archive", str(tmp_path / "archive")]) == 1

    assert not night.exists()
    assert capsys.readouterr().err == (
        "spark-export: a store in PostgreSQL needs a driver that is not installed: "
        "pip install -r requirements-postgres.lock\n"
    )
