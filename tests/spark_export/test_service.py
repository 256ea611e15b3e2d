"""The compaction as a service, whole: processes, signals, Spark, and what the record says of it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from mailserver.handoff.last_run import ArchivedDay, Compaction, CompactionState
from mailserver.store.sqlite.handoff import (
    compaction_lock,
    last_run,
    read_compaction,
    write_compaction,
)
from tests.confined import program
from tests.spark_export.compaction.test_commands import FAST, run, said, start
from tests.spark_export.samples import DAY, archived, envelopes, put, rows_of

pytestmark = pytest.mark.spark

DEADLINE_S = 300.0
"""Spark takes ten seconds to start, and minutes on a machine that does ten other things."""
STOP_LIMIT_S = 10.0
ENVELOPES = envelopes(9)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return put(tmp_path / "mailserver.db", ENVELOPES)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@contextlib.contextmanager
def service(*arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`spark-export` in the background, as the leader of a session."""
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_export", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def iter_until(stream: IO[str], words: str) -> Iterator[str]:
    """The lines of a stream up to one with these words; all, if it ends before."""
    for line in stream:
        yield line
        if words in line:
            return


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def state(store: Path) -> CompactionState:
    return last_run(store)[0]


def children(pid: int) -> set[int]:
    """All processes that come from one."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    grown = {pid}
    while grown:
        found |= grown
        grown = {child for child, parent in parents.items() if parent in found} - found
    return found - {pid}


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_schedule_makes_up_for_a_missed_run_and_ends_by_sigterm(store: Path, archive: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    environment = {
        "SPARK_EXPORT_STORE": str(store),
        "SPARK_EXPORT_ARCHIVE": str(archive),
        "SPARK_EXPORT_SCRATCH": str(tmp_path / "scratch"),
        "SPARK_EXPORT_SCHEDULE": "17 3 1 1 *",
    }

    with service("schedule", *FAST, **environment) as process:
        assert process.stderr is not None
        lines = list(iter_until(process.stderr, "run ended"))
        process.terminate()
        out, rest = process.communicate(timeout=STOP_LIMIT_S)

    assert process.returncode == 0, rest
    assert "run ended command=compact exit_code=0 seconds=" in lines[-1], lines
    assert rest.splitlines()[-1].endswith("schedule stopped")
    assert out.startswith("compact done periods=1 rows=9 ")
    assert archived(archive) == rows_of(ENVELOPES)
    assert state(store) is CompactionState.SUCCEEDED
    beside = (
        "",
        "-wal",
        "-shm",
        "-archived.json",
        "-compaction.json",
        "-compaction.lock",
        "-merge.json",
        "-verify.json",
    )
    assert names_in(tmp_path) <= {"archive", "scratch", *(f"mailserver.db{suffix}" for suffix in beside)}
    assert names_in(tmp_path / "scratch") == set()


def test_schedule_ends_a_run_at_work_within_ten_seconds(store: Path, archive: Path) -> None:
    with service("schedule", "--store", store, "--archive", archive, "--schedule", "17 3 1 1 *", *FAST) as process:
        wait_until((archive / "_lock").exists)  # Spark has started, and the run is at work
        assert state(store) is CompactionState.RUNNING
        family = children(process.pid)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
        took = time.monotonic() - began

    assert took < STOP_LIMIT_S, err
    assert process.returncode == 0
    assert "Traceback" not in err, err
    assert len(family) >= 2  # Python and its JVM
    wait_until(lambda: all(map(gone, family)))
    _, record = last_run(store)
    assert record is not None
    assert (record.exit_code, record.error) == (130, "interrupted"), err
    assert archived(archive) in ([], rows_of(ENVELOPES))
    assert run("last", "--store", store).returncode == 1


def test_run_whose_jvm_is_killed_says_so(store: Path, archive: Path) -> None:
    with service("compact", "--store", store, "--archive", archive, *FAST) as process:
        wait_until((archive / "_lock").exists)
        for pid in children(process.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == "java\n":
                    os.kill(pid, signal.SIGKILL)
        _, err = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 1
    cause = "Spark's JVM has died or was killed: is there enough memory?"
    assert err.splitlines()[-1] == f"spark-export: {cause}"
    _, record = last_run(store)
    assert record is not None
    assert (record.exit_code, record.error) == (1, cause)


def test_run_that_is_killed_has_died_and_now_makes_up_for_it(store: Path, archive: Path) -> None:
    with service("compact", "--store", store, "--archive", archive, *FAST) as process:
        wait_until(lambda: state(store) is CompactionState.RUNNING)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
    assert state(store) is CompactionState.DIED
    assert run("last", "--store", store).returncode == 1

    done = run("now", "--store", store, "--archive", archive, *FAST)

    assert done.returncode == 0, done.stderr
    assert run("last", "--store", store).returncode == 0
    state_now, record = last_run(store)
    assert state_now is CompactionState.SUCCEEDED
    assert record is not None
    size = sum(len(one.raw) for one in ENVELOPES)
    assert (record.rows, record.days, record.archived) == (9, 1, {DAY: ArchivedDay(9, size)})
    assert record.bytes == sum(file.stat().st_size for file in archive.glob("date=*/*/*.parquet"))
    assert record.report["rows"] == 9
    assert record.report["archive"] == f"file://{archive}"


def test_run_refused_by_the_lock_changes_nothing(store: Path, archive: Path) -> None:
    with compaction_lock(store):
        write_compaction(store, record := Compaction(1.0))

        compacted = run("compact", "--store", store, "--archive", archive, *FAST)
        made_now = run("now", "--store", store, "--archive", archive, *FAST)

        assert read_compaction(store) == record

    assert said(compacted) == f"{store}: another compaction (pid {os.getpid()}) reads this store"
    assert made_now.returncode == 1
    assert "run ended command=compact exit_code=1" in made_now.stderr
    assert not archive.exists()


def test_run_that_fails_before_spark_has_started_leaves_its_cause(store: Path, archive: Path, tmp_path: Path) -> None:
    write_compaction(store, Compaction(1.0, 2.0, 0, succeeded_at=2.0))

    done = run("compact", "--store", store, "--archive", archive, *FAST, JAVA_HOME=str(tmp_path))

    _, record = last_run(store)
    assert record is not None
    assert (record.exit_code, record.error) == (1, said(done))
    assert record.succeeded_at == 2.0


def test_nightly_run_archives_under_the_filters_of_its_unit(store: Path, archive: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    environment = {
        "SPARK_EXPORT_STORE": str(store),
        "SPARK_EXPORT_ARCHIVE": str(archive),
        "SPARK_EXPORT_SCRATCH": str(tmp_path / "scratch"),
    }
    command = program("waku-mailserver-compaction.service", sys.executable, "-m", "spark_export", "nightly")

    done = start([*command], environment)

    assert done.returncode == 0, done.stderr
    assert state(store) is CompactionState.SUCCEEDED
    assert archived(archive) == rows_of(ENVELOPES)
