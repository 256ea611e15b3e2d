"""docs.evidence and tests.recording: what a run found is kept with the commit that was run, or not at all."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from docs.evidence import KINDS, PAGE, Record, page, read_record, read_records
from tests.faults.__main__ import PARTS
from tests.planted import copy_code
from tests.recording import NotRecorded, Recorder, shown
from tests.repository import git, make_repository

RECORD = Record(
    kind="power",
    date="2026-11-22 10:00",
    commit="0123456789abcdef" * 2 + "01234567",
    seed=7,
    arguments=(),
    is_full=True,
    seconds=5400.0,
    machine={"cores": 2, "python": "3.11.7", "load_before": 0.1, "load_after": 2.5},
    rows={"ingest": {"cuts": 3000, "cpu_ms": 1.25}, "backup": {"cuts": 2, "cpu_ms": 2.0}, "other": {"starts": 4}},
    broken=(),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one commit."""
    (tmp_path / "code.py").write_text("one\n")
    return make_repository(tmp_path)


def recorder(root: Path) -> Recorder:
    return Recorder(root, root / "docs" / "evidence")


def keep(recorder: Recorder, *, kind: str = "power", is_full: bool = True, broken: Sequence[str] = ()) -> None:
    rows = {"ingest": {"cuts": 3000, "cpu_ms": 1.23456}}
    recorder.begin(kind).end(seed=7, arguments=["--quick"], is_full=is_full, rows=rows, broken=broken)


def test_page_is_what_the_records_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read_records()), "run make docs"


def test_every_part_of_the_faults_can_be_recorded() -> None:
    assert set(KINDS) == {*PARTS, "fuzz", "soak"}


def test_run_is_kept_with_the_commit_that_was_run(root: Path) -> None:
    keep(recorder(root), broken=["one is lost"])

    record = read_record(root / "docs" / "evidence" / "power.json")
    assert record.commit == git(root, "rev-parse", "HEAD")
    assert (record.kind, record.seed, record.is_full, record.broken) == ("power", 7, True, ("one is lost",))
    assert record.rows == {"ingest": {"cuts": 3000, "cpu_ms": 1.235}}


@pytest.mark.parametrize("file", ["code.py", "new.py"])
def test_run_of_what_no_commit_has_is_not_begun(root: Path, file: str) -> None:
    (root / file).write_text("two\n")

    with pytest.raises(NotRecorded, match="commit first: 1 files are changed or new"):
        recorder(root)


def test_runs_that_were_recorded_before_are_no_change(root: Path) -> None:
    keep(recorder(root), kind="kills")
    (root / "docs" / "evidence.md").write_text("made from it\n")

    keep(recorder(root), kind="disk")

    assert set(read_records(root / "docs" / "evidence")) == {"kills", "disk"}


@pytest.mark.parametrize("is_committed", [False, True])
def test_run_beside_which_the_code_was_changed_is_not_kept(root: Path, is_committed: bool) -> None:
    begun = recorder(root)
    (root / "code.py").write_text("two\n")
    if is_committed:
        git(root, "commit", "-qam", "two")

    with pytest.raises(NotRecorded):
        keep(begun)
    assert read_records(root / "docs" / "evidence") == {}


def test_short_run_does_not_replace_a_full_one(root: Path) -> None:
    keep(recorder(root), is_full=False)
    keep(recorder(root), is_full=True)

    with pytest.raises(NotRecorded, match=r"power\.json has a full run"):
        keep(recorder(root), is_full=False)
    assert read_records(root / "docs" / "evidence")["power"].is_full


def test_outside_of_a_repository_nothing_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="git"):
        recorder(tmp_path)


def test_page_has_figures_and_marks_what_is_not_full_or_broken() -> None:
    full = page({"power": RECORD})
    short = page({"power": replace(RECORD, is_full=False, arguments=("--quick", "power"), broken=("one is lost",))})

    assert "| yes | 2026-11-22 10:00 | `0123456789ab` | 7 | 0.1 to 2.5 on 2 | 1.5 | 3 | 0 |" in full
    assert (
        "| | cuts | cpu_ms |\n| --- | --- | --- |\n| ingest | 3,000 | 1.2 |\n| backup | 2 | 2.0 |\n\n| | starts |"
        in full
    )
    assert full.count("not recorded") == len(KINDS) - 1
    assert "| **no**: `--quick power` |" in short
    assert "- broken: one is lost" in short


def test_what_was_given_is_told_without_what_stands_elsewhere() -> None:
    assert shown(["--record", "--seed", "7", "--json", "a.json", "--quick", "power"]) == ["--quick", "power"]


@pytest.mark.integration
def test_faults_record_themselves_and_refuse_a_changed_tree_before_they_run(tmp_path: Path) -> None:
    """The whole way, in a copy of the code that is a repository of its own."""
    copy = copy_code(tmp_path)
    shutil.rmtree(copy / "docs" / "evidence", ignore_errors=True)  # a full record is not replaced by a short one
    root = make_repository(copy)
    (root / ".git" / "info" / "exclude").write_text("__pycache__\n")
    command = [sys.executable, "-m", "tests.faults", "--quick", "--record", "power", "--scenario", "first_start"]

    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    record = read_record(root / "docs" / "evidence" / "power.json")
    assert record.commit == git(root, "rev-parse", "HEAD")
    assert not record.is_full
    assert record.arguments == ("--quick", "power", "--scenario", "first_start")
    assert int(record.rows["first_start"]["confirmations"]) > 20
    assert record.rows["first_start"]["seed"] == str(record.seed)

    (root / "mailserver" / "daemon.py").write_text("")
    refused = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    assert refused.returncode == 2
    assert "commit first: 1 files are changed or new" in refused.stderr
    assert refused.stdout == ""
