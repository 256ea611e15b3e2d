"""`spark-export last`: how the last run went, and the exit code that a health check goes by."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.archive.days import day_of, utc_text
from mailserver.handoff.last_run import EXIT_DAMAGED, ArchivedDay, ArchiveFigures, Compaction
from mailserver.handoff.last_upkeep import LastUpkeep, Task
from mailserver.store.sqlite.handoff import (
    compaction_file,
    compaction_lock,
    upkeep_file,
    write_compaction,
    write_upkeep,
)
from spark_export.cli import main
from spark_export.upkeep import recorded_upkeep
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

    assert "which is in the future: the clock was wrong then, or is wrong now" in capsys.readouterr().err


@pytest.mark.parametrize(("hours_ago", "exit_code"), [(25.9, 0), (26.1, 1)])
def test_success_may_be_26_hours_old(store: Path, hours_ago: float, exit_code: int) -> None:
    write_compaction(store, succeeded(hours_ago))

    assert main(["last", "--store", str(store)]) == exit_code


@pytest.mark.parametrize(("hours_ago", "exit_code"), [(9.9, 0), (10.1, 1)])
def test_age_is_an_option(store: Path, hours_ago: float, exit_code: int) -> None:
    write_compaction(store, succeeded(hours_ago))

    assert main(["last", "--store", str(store), "--max-age-hours", "10"]) == exit_code


@pytest.mark.parametrize("succeeded_hours_ago", [30, None], ids=["was off for a day", "was restored"])
def test_run_at_work_has_the_time_it_needs_however_long_rows_have_waited(
    tmp_path: Path, succeeded_hours_ago: float | None
) -> None:
    store = put(tmp_path / "mailserver.db", [envelope(1, received=(day_of(int(time.time())) - 9) * DAY_S)])
    before = None if succeeded_hours_ago is None else time.time() - succeeded_hours_ago * HOUR_S

    with compaction_lock(store):
        write_compaction(store, Compaction(time.time() - 11.9 * HOUR_S, succeeded_at=before))

        assert main(["last", "--store", str(store)]) == 0


@pytest.mark.parametrize(("arguments", "limit"), [((), 12), (("--max-run-hours", "2.5"), 2.5)])
def test_run_that_does_not_end_is_not_well(
    store: Path, arguments: tuple[str, ...], limit: float, capsys: pytest.CaptureFixture[str]
) -> None:
    with compaction_lock(store):
        write_compaction(store, began := Compaction(time.time() - (limit + 0.1) * HOUR_S, succeeded_at=time.time()))

        assert main(["last", "--store", str(store), *arguments]) == 1

    said = f"the run that began at {utc_text(began.started_at)} has not ended within {limit:g} h: does it hang?"
    assert capsys.readouterr().err == f"spark-export: {store}: {said}\n"


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
    assert said["next"].keys() == {"run", "merge", "verify"}
    assert said["next"]["run"][13:] == ":30:00Z"
    assert said["stores"] == [
        {
            "store": str(store),
            "state": "failed",
            "faults": ["the last run failed: Spark failed: no room"],
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
            "merge": {"state": "never"},
            "verify": {"state": "never"},
            "communities": {"state": "never"},
        }
    ]


def test_damage_and_rows_that_are_set_aside_are_told(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = ArchiveFigures(faults=2, lost_rows=30, quarantined_rows=4, miscounted_rows=1)
    now = time.time()
    damage = "2 files are missing"
    run = Compaction(now - 2, now - 1, EXIT_DAMAGED, damage, succeeded_at=now - 1, archive=figures, damage=damage)
    write_compaction(store, run)

    assert main(["last", "--store", str(store), "--schedule", "30 * * * *"]) == 1

    said = capsys.readouterr()
    assert "found the archive damaged, faults=2 lost=30 " in said.out
    assert "quarantined=4 miscounted=1" in said.out
    assert said.err.count("2 files are missing") == 1


@pytest.mark.parametrize("exit_code", [1, None])
def test_damage_is_told_whatever_became_of_the_next_run(
    store: Path, capsys: pytest.CaptureFixture[str], exit_code: int | None
) -> None:
    now = time.time()
    ended = None if exit_code is None else now - 1
    run = Compaction(now - 2, ended, exit_code, "no Java", succeeded_at=now - 1, damage="2 files are missing")
    write_compaction(store, run)

    assert main(["last", "--store", str(store)]) == 1

    assert "2 files are missing" in capsys.readouterr().err


# Merging and verifying


def verified(days_ago: float, exit_code: int | None = 0, error: str = "", *, waits_days: float = 0) -> LastUpkeep:
    """A verification of so long ago; without an exit code, it has not ended."""
    at = time.time() - days_ago * DAY_S
    ended = None if exit_code is None else at + 5
    waits_since = time.time() - (waits_days or days_ago) * DAY_S
    return LastUpkeep(waits_since, at, ended, exit_code, error, ended if exit_code == 0 else None)


def a_week_after(upkeep: LastUpkeep) -> list[str]:
    """Options by which a verification is due a week after this one, and each week after that."""
    due = time.gmtime(upkeep.waits_since + 7 * DAY_S)
    return ["--verify-schedule", f"{due.tm_min} {due.tm_hour} * * {(due.tm_wday + 1) % 7}"]


@pytest.fixture
def archived(store: Path) -> Path:
    """A store whose compaction is well, and has archived something."""
    write_compaction(store, replace(succeeded(1), archived={1: ArchivedDay(7, 4096)}))
    return store


def test_merge_and_verification_that_succeeded_are_well(archived: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_upkeep(archived, Task.MERGE, merge := verified(3))
    write_upkeep(archived, Task.VERIFY, verify := verified(2))

    assert main(["last", "--store", str(archived), "--merge-schedule", "off", *a_week_after(verify)]) == 0

    out, err = capsys.readouterr()
    assert f"{archived}: the merge of {utc_text(merge.started_at or 0)} succeeded in 5 s\n" in out
    assert f"{archived}: the verification of " in out
    assert "next verify 2" in out
    assert "next merge" not in out
    assert err == ""


def test_verification_that_failed_is_not_well(archived: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_upkeep(archived, Task.VERIFY, verified(0.1, 1, "check failed for 2024-10-04: a file is missing"))

    assert main(["last", "--store", str(archived)]) == 1

    out, err = capsys.readouterr()
    assert "failed after 5 s with exit code 1\n" in out
    cause = "the last verification failed: check failed for 2024-10-04: a file is missing"
    assert err == f"spark-export: {archived}: {cause}\n"


def test_every_fault_of_a_store_is_said(archived: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_compaction(archived, failed(1, 2))
    write_upkeep(archived, Task.MERGE, verified(0.1, None))
    write_upkeep(archived, Task.VERIFY, verified(0.1, 1, "no room"))

    assert main(["last", "--store", str(archived), "--json"]) == 1

    out, err = capsys.readouterr()
    faults = [
        "the last run failed: Spark failed: no room",
        "the last merge was killed, or the machine went down: is there enough memory?",
        "the last verification failed: no room",
    ]
    assert err.splitlines() == [f"spark-export: {archived}: {fault}" for fault in faults]
    (one,) = json.loads(out)["stores"]
    assert one["faults"] == faults
    assert (one["merge"]["state"], one["verify"]["state"]) == ("died", "failed")
    assert one["verify"]["error"] == "no room"


@pytest.mark.parametrize(("hours", "exit_code"), [(11.9, 0), (12.1, 1)])
def test_verification_at_work_is_well_until_it_hangs(archived: Path, hours: float, exit_code: int) -> None:
    with recorded_upkeep([archived], Task.VERIFY, lambda error: (1, str(error))):
        write_upkeep(archived, Task.VERIFY, verified(hours / 24, None, waits_days=90))

        assert main(["last", "--store", str(archived)]) == exit_code


@pytest.mark.parametrize(("waits_days", "exit_code"), [(7.9, 0), (8.2, 1)])
def test_verification_that_was_due_and_not_made_is_a_fault_after_26_hours(
    archived: Path, waits_days: float, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write_upkeep(archived, Task.VERIFY, upkeep := verified(waits_days))

    assert main(["last", "--store", str(archived), *a_week_after(upkeep)]) == exit_code

    assert ("no verification has succeeded since " in capsys.readouterr().err) == bool(exit_code)
    assert main(["last", "--store", str(archived), "--verify-schedule", "off"]) == 0


def test_nothing_is_late_while_a_run_is_at_work_or_before_anything_is_archived(archived: Path, store: Path) -> None:
    write_upkeep(archived, Task.VERIFY, verified(90))
    assert main(["last", "--store", str(store)]) == 1

    with compaction_lock(store):
        write_compaction(store, Compaction(time.time() - 60, archived={1: ArchivedDay(7, 4096)}))
        assert main(["last", "--store", str(store)]) == 0

    write_compaction(store, succeeded(1))
    assert main(["last", "--store", str(store)]) == 0


def test_damaged_record_of_a_verification_is_not_well(archived: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upkeep_file(archived, Task.VERIFY).write_text("{")

    assert main(["last", "--store", str(archived)]) == 1

    assert capsys.readouterr().err.startswith(f"spark-export: {upkeep_file(archived, Task.VERIFY)} is no record of ver")


@pytest.mark.parametrize("module", ["spark_export.last_command", "spark_export.schedule", "spark_export.cli"])
def test_what_is_no_run_imports_no_spark(module: str) -> None:
    """A health check every half minute, and a process that waits all day: neither pays for a run."""
    loaded = f"import sys, {module}; print(sorted({{'pyspark', 'py4j', 'pyarrow'}} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
