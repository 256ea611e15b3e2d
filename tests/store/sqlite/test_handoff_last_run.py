"""mailserver.handoff.last_run: the record of the compaction's runs, and how the last one stands."""

import json
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.handoff.json_records import MAX_RECORD_BYTES
from mailserver.handoff.last_run import (
    EXIT_DAMAGED,
    MAX_ARCHIVED_DAYS,
    MAX_ARCHIVED_MONTHS,
    MAX_ERROR_CHARS,
    ArchivedDay,
    ArchiveFigures,
    Compaction,
    CompactionRecordError,
    CompactionState,
)
from mailserver.store.sqlite import handoff as handoff_module
from mailserver.store.sqlite.handoff import (
    compaction_file,
    compaction_lock,
    last_run,
    pruning_turn,
    read_compaction,
    write_compaction,
)
from mailserver.store.sqlite.schema import STORE_FILE
from tests.store.samples import names_in

DAY = (date(2026, 11, 20) - date(1970, 1, 1)).days
STARTED = Compaction(started_at=1_795_236_000.25, succeeded_at=1_795_149_612.5)
SUCCEEDED = Compaction(
    started_at=1_795_236_000.25,
    finished_at=1_795_236_012.5,
    exit_code=0,
    rows=7,
    bytes=4096,
    days=1,
    seconds=12.25,
    report={"rows": 7, "days": [{"period": "2026-11-20"}]},
    succeeded_at=1_795_236_012.5,
    archived={DAY - 1: ArchivedDay(3, 1500), DAY: ArchivedDay(7, 3600)},
    archived_months={"2026-10": 5, "2026-11": 10},
    archived_in="file:/archive",
)
FAILED = replace(STARTED, finished_at=1_795_236_012.5, exit_code=1, error="Spark failed")

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TIME = st.floats(0, 2**40)
COUNT = st.integers(0, 2**63 - 1)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / STORE_FILE


def test_record_lies_beside_the_store_and_is_its_owners_alone(store: Path) -> None:
    write_compaction(store, SUCCEEDED)

    assert names_in(store.parent) == {f"{STORE_FILE}-compaction.json"}
    assert stat.S_IMODE(compaction_file(store).stat().st_mode) == 0o600


def test_record_is_json_that_people_can_read(store: Path) -> None:
    write_compaction(store, SUCCEEDED)

    assert json.loads(compaction_file(store).read_text(encoding="ascii")) == {
        "version": 1,
        "started_at": 1_795_236_000.25,
        "finished_at": 1_795_236_012.5,
        "exit_code": 0,
        "error": "",
        "rows": 7,
        "bytes": 4096,
        "days": 1,
        "seconds": 12.25,
        "succeeded_at": 1_795_236_012.5,
        "archived": {"2026-11-19": [3, 1500], "2026-11-20": [7, 3600]},
        "archived_months": {"2026-10": 5, "2026-11": 10},
        "archived_in": "file:/archive",
        "archive": {"faults": 0, "lost_rows": 0, "quarantined_rows": 0, "miscounted_rows": 0},
        "damage": "",
        "report": {"rows": 7, "days": [{"period": "2026-11-20"}]},
    }


def test_record_of_an_earlier_version_says_nothing_of_the_archive(store: Path) -> None:
    write_compaction(store, SUCCEEDED)
    record = json.loads(compaction_file(store).read_text(encoding="ascii"))
    del record["archive"], record["archived_in"], record["archived_months"]
    compaction_file(store).write_text(json.dumps(record), encoding="ascii")

    assert read_compaction(store) == replace(SUCCEEDED, archived_in="", archived_months={})


def test_record_of_an_earlier_version_has_one_line_for_how_a_run_ended_and_what_it_found(store: Path) -> None:
    for exit_code, damage in ((EXIT_DAMAGED, "2 files are missing"), (1, "")):
        write_compaction(store, replace(SUCCEEDED, exit_code=exit_code, error="2 files are missing"))
        record = json.loads(compaction_file(store).read_text(encoding="ascii"))
        del record["damage"]
        compaction_file(store).write_text(json.dumps(record), encoding="ascii")

        read = read_compaction(store)

        assert read is not None
        assert read.damage == damage


def test_run_that_found_the_archive_damaged_is_neither_good_nor_failed(store: Path) -> None:
    write_compaction(store, replace(SUCCEEDED, exit_code=EXIT_DAMAGED, error="it is damaged"))

    state, _ = last_run(store)

    assert state is CompactionState.DAMAGED


@given(
    st.builds(
        Compaction,
        started_at=TIME,
        error=TEXT,
        rows=COUNT,
        bytes=COUNT,
        days=COUNT,
        seconds=TIME,
        report=st.dictionaries(TEXT, st.integers() | TEXT),
        succeeded_at=st.none() | TIME,
        archived=st.dictionaries(st.integers(0, 100_000), st.builds(ArchivedDay, COUNT, COUNT), max_size=5),
        archived_in=TEXT,
        archive=st.builds(ArchiveFigures, COUNT, COUNT, COUNT, COUNT),
        damage=TEXT,
    ),
    st.none() | st.tuples(TIME, st.integers(0, 255)),
)
def test_record_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, record: Compaction, end: tuple[float, int] | None
) -> None:
    store = tmp_path_factory.mktemp("record") / STORE_FILE
    record = replace(record, finished_at=end[0], exit_code=end[1]) if end else record

    write_compaction(store, record)

    assert read_compaction(store) == record


def test_no_record_is_none(store: Path) -> None:
    assert read_compaction(store) is None


def test_record_that_cannot_be_written_leaves_the_earlier(store: Path) -> None:
    write_compaction(store, STARTED)
    compaction_file(store).with_name(f"{compaction_file(store).name}.tmp").mkdir()

    with pytest.raises(OSError, match="Is a directory"):
        write_compaction(store, SUCCEEDED)

    assert read_compaction(store) == STARTED


def test_only_the_latest_days_are_kept(store: Path) -> None:
    archived = {DAY - age: ArchivedDay(age, age) for age in range(MAX_ARCHIVED_DAYS + 10)}

    write_compaction(store, replace(SUCCEEDED, archived=archived))

    read = read_compaction(store)
    assert read is not None
    assert sorted(read.archived) == list(range(DAY - MAX_ARCHIVED_DAYS + 1, DAY + 1))


def test_long_error_is_cut(store: Path) -> None:
    write_compaction(store, replace(FAILED, error="x" * 2 * MAX_ERROR_CHARS))

    read = read_compaction(store)
    assert read is not None
    assert read.error == "x" * MAX_ERROR_CHARS


def test_record_that_could_not_be_read_again_is_not_written(store: Path) -> None:
    with pytest.raises(ValueError, match=f"more than {MAX_RECORD_BYTES}"):
        write_compaction(store, replace(SUCCEEDED, report={"stores": "x" * MAX_RECORD_BYTES}))

    assert read_compaction(store) is None


def change(store: Path, **fields: object) -> None:
    """Change fields of the record; Ellipsis takes one away."""
    record = json.loads(compaction_file(store).read_text()) | fields
    left = {name: value for name, value in record.items() if value is not ...}
    compaction_file(store).write_text(json.dumps(left))


def test_what_a_later_program_adds_is_passed_over(store: Path) -> None:
    write_compaction(store, SUCCEEDED)
    change(store, more="of it")

    assert read_compaction(store) == SUCCEEDED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", ...),
        ("version", 2),
        ("started_at", ...),
        ("started_at", None),
        ("started_at", "now"),
        ("started_at", True),
        ("started_at", -1),
        ("started_at", float("nan")),
        ("started_at", float("inf")),
        ("finished_at", ...),
        ("finished_at", "later"),
        ("exit_code", ...),
        ("exit_code", "0"),
        ("exit_code", True),
        ("error", ...),
        ("error", None),
        ("rows", ...),
        ("rows", -1),
        ("rows", 1.5),
        ("bytes", "many"),
        ("days", 2**63),
        ("seconds", ...),
        ("succeeded_at", []),
        ("report", ...),
        ("report", []),
        ("archived", ...),
        ("archived", []),
        ("archived", {"2026-11-20": 7}),
        ("archived_in", 7),
        ("archived_months", []),
        ("archived_months", {"2026": 1}),
        ("archived_months", {"2026-13": 1}),
        ("archived_months", {"2026-11": -1}),
        ("archived_months", {f"{2000 + n // 12}-{n % 12 + 1:02}": 1 for n in range(MAX_ARCHIVED_MONTHS + 1)}),
        ("damage", 7),
        ("archived", {"2026-11-20": [7]}),
        ("archived", {"2026-11-20": [7, 3600, 1]}),
        ("archived", {"2026-11-20": [7, -1]}),
        ("archived", {"20261120": [7, 3600]}),
        ("archived", {"2026-11-31": [7, 3600]}),
        ("archived", {"2026-11-20" * 1000: [7, 3600]}),
        ("archived", {"2026-11-20": [7] * 10_000}),
        ("rows", "7" * 10_000),
        ("started_at", "7" * 10_000),
        ("error", [["no text"] * 1000]),
        ("archived", {date.fromordinal(700_000 + day).isoformat(): [1, 1] for day in range(MAX_ARCHIVED_DAYS + 1)}),
    ],
)
def test_record_that_is_not_understood_is_an_error(store: Path, field: str, value: Any) -> None:
    write_compaction(store, SUCCEEDED)
    change(store, **{field: value})

    with pytest.raises(CompactionRecordError, match="is no record of the compaction's runs") as refused:
        read_compaction(store)

    assert str(compaction_file(store)) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"[]", b"1", b"null", b"{", b"[" * 100_000, b"not JSON", b"\xff\xfe", b" " * (MAX_RECORD_BYTES + 1)],
)
def test_file_that_is_no_record_is_an_error(store: Path, content: bytes) -> None:
    compaction_file(store).write_bytes(content)

    with pytest.raises(CompactionRecordError, match="is no record of the compaction's runs"):
        read_compaction(store)


def test_each_truncation_of_a_record_is_an_error(store: Path) -> None:
    write_compaction(store, SUCCEEDED)
    whole = compaction_file(store).read_bytes()

    for end in range(len(whole.rstrip())):
        compaction_file(store).write_bytes(whole[:end])
        with pytest.raises(CompactionRecordError):
            read_compaction(store)


def test_record_that_cannot_be_read_is_an_error(store: Path) -> None:
    compaction_file(store).mkdir()

    with pytest.raises(CompactionRecordError, match="cannot read"):
        read_compaction(store)


# How the last run stands


@pytest.mark.parametrize(
    ("record", "state"),
    [
        (None, CompactionState.NEVER),
        (SUCCEEDED, CompactionState.SUCCEEDED),
        (FAILED, CompactionState.FAILED),
        (STARTED, CompactionState.DIED),
    ],
)
def test_run_is_told_by_its_record(store: Path, record: Compaction | None, state: CompactionState) -> None:
    if record is not None:
        write_compaction(store, record)

    assert last_run(store) == (state, record)


def test_run_that_holds_the_lock_is_running(store: Path) -> None:
    with compaction_lock(store):
        write_compaction(store, STARTED)
        assert last_run(store) == (CompactionState.RUNNING, STARTED)
        write_compaction(store, SUCCEEDED)
        assert last_run(store) == (CompactionState.SUCCEEDED, SUCCEEDED)


def test_pruning_is_no_run(store: Path) -> None:
    with compaction_lock(store):
        write_compaction(store, STARTED)

    with pruning_turn(store):
        assert last_run(store) == (CompactionState.DIED, STARTED)


def test_run_that_was_killed_has_died(store: Path) -> None:
    write = (
        "import sys, pathlib, os, signal; from mailserver.handoff.last_run import *;"
        "from mailserver.store.sqlite.handoff import *; store = pathlib.Path(sys.argv[1])\n"
        "with compaction_lock(store): write_compaction(store, Compaction(1.5)); os.kill(os.getpid(), signal.SIGKILL)"
    )

    done = subprocess.run([sys.executable, "-c", write, store], env={"PYTHONPATH": ":".join(sys.path)}, check=False)

    assert done.returncode == -signal.SIGKILL
    assert last_run(store) == (CompactionState.DIED, Compaction(1.5))


def test_run_that_ends_between_record_and_lock_has_not_died(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_compaction(store, STARTED)

    def ends_just_before(asked: Path) -> bool:
        write_compaction(asked, SUCCEEDED)
        return False

    monkeypatch.setattr(handoff_module, "compaction_running", ends_just_before)

    assert last_run(store) == (CompactionState.SUCCEEDED, SUCCEEDED)
