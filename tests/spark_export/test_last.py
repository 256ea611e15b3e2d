"""`spark-export last`: how the last run went, and the exit code that a health check goes by."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mailserver.store.compaction import EXIT_DAMAGED, ArchiveFigures, Compaction, compaction_file, write_compaction
from mailserver.store.handover import compaction_lock
from spark_export.cli import main
from spark_export.days import day_of, utc_text
from tests.spark_export.samples import DAY_S, envelope, put

HOUR_S = 3600


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that has received something today."""
    return put(tmp_path / "mailserver.db", [envelope(1, received=int(time.time()))])


def succeeded(hours_ago: float) -> Compaction:
    at = time.time() - hours_ago * HOUR_S
    return Compaction(at - 12, at, 0, rows=7, bytes=4096, days=1, seconds=12.0, succeeded_at=at)


def failed(hours_ago: float, succeeded_hours_ago: float) -> Compaction:
    at = time.time() - hours_ago * HOUR_S
    return Compaction(at - 12, at, 1, "Spark failed: no room", succeeded_at=time.time() - succeeded_hours_ago * HOUR_S)


def test_run_that_succeeded_is_well(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_compaction(store, record := succeeded(1))

    assert main(["last", "--store", str(store)]) == 0

    out, err = capsys.readouterr()
    began = utc_text(record.started_at)
    assert out.startswith(f"{store}: the run of {began} succeeded in 12 s, rows=7 days=1 bytes=4096\nnext run 2")
    assert err == ""


def test_run_that_failed_is_not(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_compaction(store, failed(1, succeeded_hours_ago=2))

    assert main(["last", "--store", str(store)]) == 1

    out, err = capsys.readouterr()
    assert "failed after 0 s with exit code 1\n" in out
    assert err == f"spark-export: {store}: the last run failed: Spark failed: no room\n"


def test_run_that_was_killed_is_not(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_compaction(store, Compaction(time.time() - 60, succeeded_at=time.time() - HOUR_S))

    assert main(["last", "--store", str(store)]) == 1

    out, err = capsys.readouterr()
    assert "did not end: it was killed" in out
    assert "the last run was killed" in err


def test_run_at_work_is_well(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with compaction_lock(store):
        write_compaction(store, Compaction(time.time() - 60, succeeded_at=time.time() - HOUR_S))

        assert main(["last", "--store", str(store)]) == 0

    assert "a run has been at work since" in capsys.readouterr().out


def test_success_in_the_future_is_not(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_compaction(store, succeeded(hours_ago=-25))

    assert main(["last", "--store", str(store)]) == 1

    assert "which is yet to come: the clock was off, or is" in capsys.readouterr().err


@pytest.mark.parametrize(("hours_ago", "exit_code"), [(25.9, 0), (26.1, 1)])
def test_success_may_be_26_hours_old(store: Path, hours_ago: float, exit_code: int) -> None:
    write_compaction(store, succeeded(hours_ago))

    assert main(["last", "--store", str(store)]) == exit_code


@pytest.mark.parametrize(("hours_ago", "exit_code"), [(9.9, 0), (10.1, 1)])
def test_age_is_an_option(store: Path, hours_ago: float, exit_code: int) -> None:
    write_compaction(store, succeeded(hours_ago))

    assert main(["last", "--store", str(store), "--max-age-hours", "10"]) == exit_code


def test_run_at_work_does_not_hide_that_none_has_succeeded(store: Path) -> None:
    with compaction_lock(store):
        write_compaction(store, Compaction(time.time() - 60, succeeded_at=time.time() - 30 * HOUR_S))

        assert main(["last", "--store", str(store)]) == 1


def test_fresh_store_is_well(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = put(tmp_path / "empty.db")

    assert main(["last", "--store", str(store), "--store", str(empty)]) == 0

    assert capsys.readouterr().out.startswith(f"{store}: no run yet\n{empty}: no run yet\n")


@pytest.mark.parametrize(("days_ago", "exit_code"), [(1, 0), (4, 1)])
def test_rows_wait_for_the_first_run_from_the_end_of_their_day(tmp_path: Path, days_ago: int, exit_code: int) -> None:
    store = put(tmp_path / "mailserver.db", [envelope(1, received=(day_of(int(time.time())) - days_ago) * DAY_S)])

    assert main(["last", "--store", str(store)]) == exit_code


def test_store_that_is_not_there_is_not_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["last", "--store", str(tmp_path / "none.db")]) == 1

    assert capsys.readouterr().err == f"spark-export: cannot open the store {tmp_path}/none.db: there is none\n"


def test_damaged_record_is_not_well(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compaction_file(store).write_text("{")

    assert main(["last", "--store", str(store)]) == 1

    assert capsys.readouterr().err.startswith(f"spark-export: {compaction_file(store)} is no record")


def test_one_store_in_disorder_is_enough(store: Path, tmp_path: Path) -> None:
    other = put(tmp_path / "other.db")
    write_compaction(store, succeeded(1))
    write_compaction(other, failed(1, 2))

    assert main(["last", "--store", str(store), "--store", str(other)]) == 1


def test_json_has_all_of_it(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_compaction(store, record := failed(1, 2))

    assert main(["last", "--store", str(store), "--json", "--schedule", "30 * * * *"]) == 1

    said = json.loads(capsys.readouterr().out)
    assert said["next"][13:] == ":30:00Z"
    assert said["stores"] == [
        {
            "store": str(store),
            "state": "failed",
            "fault": "the last run failed: Spark failed: no room",
            "started_at": utc_text(record.started_at),
            "finished_at": utc_text(record.finished_at or 0),
            "succeeded_at": utc_text(record.succeeded_at or 0),
            "exit_code": 1,
            "error": "Spark failed: no room",
            "rows": 0,
            "bytes": 0,
            "days": 0,
            "seconds": 0.0,
            "archive": {"faults": 0, "lost_rows": 0, "quarantined_rows": 0, "miscounted_rows": 0},
        }
    ]


def test_damage_and_rows_that_are_set_aside_are_told(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = ArchiveFigures(faults=2, lost_rows=30, quarantined_rows=4, miscounted_rows=1)
    now = time.time()
    run = Compaction(now - 2, now - 1, EXIT_DAMAGED, "2 files are missing", succeeded_at=now - 1, archive=figures)
    write_compaction(store, run)

    assert main(["last", "--store", str(store), "--schedule", "30 * * * *"]) == 1

    said = capsys.readouterr()
    assert "found the archive damaged, faults=2 lost=30 " in said.out
    assert "quarantined=4 miscounted=1" in said.out
    assert "2 files are missing" in said.err


@pytest.mark.parametrize("module", ["spark_export.last", "spark_export.schedule", "spark_export.cli"])
def test_what_is_no_run_imports_no_spark(module: str) -> None:
    """A health check every half minute, and a process that waits all day: neither pays for a run."""
    loaded = f"import sys, {module}; print(sorted({{'pyspark', 'py4j', 'pyarrow', 'matplotlib'}} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
