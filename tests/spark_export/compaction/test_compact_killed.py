"""The nightly run, killed: readers see a day as it was or as it will be, and the next run completes it.

Most kills are copies of what a run has on disk before each step: that is what SIGKILL would leave. Others are an
exception that nothing catches, or SIGKILL.
"""

import contextlib
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.days import day_name
from mailserver.archive.manifest import PeriodRecord
from mailserver.archive.paths import snapshot_of
from mailserver.store.sqlite.handoff import read_archived
from spark_export import compact as compact_module
from spark_export.errors import ExportCheckFailed
from spark_export.publishing import WritableArchive
from spark_export.storage import LocalStorage, open_storage
from spark_export.verify import verify
from tests.spark_export.moments import Moments, Step, copy_folder
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    FIRST,
    SECOND,
    archived,
    compact_into,
    envelope,
    envelopes,
    put,
    records_in,
    rows_of,
    rows_of_file,
    tree,
    visible_files,
)

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]

DAY_ONE = envelopes(4)
LATE = envelopes(2, first=50)
DAY_TWO = envelopes(3, day=DAY + 1, first=70)

Rows = list[dict[str, Any]]
Publishing = tuple["Case", str, Sequence[PeriodRecord], Sequence[PeriodRecord]]
"""A run that has come to its publishing: its name, and what it publishes in place of what."""

STEPS: list[Step] = [
    (WritableArchive, "repair"),
    (WritableArchive, "begin"),
    (compact_module, "hand_over"),
    (compact_module, "write_pieces"),
    (WritableArchive, "publish"),
    (WritableArchive, "write_report"),
]
CHANGES: list[Step] = [
    *((LocalStorage, name) for name in ("write", "remove", "put", "link", "sync", "touch")),
    (Path, "hardlink_to"),
    (Path, "replace"),
]


class Killed(BaseException):
    """The end of a run."""


class Published(BaseException):
    """A run has come to its publishing; arguments: those of `WritableArchive.publish`."""


@contextlib.contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, steps: Sequence[Step], at: int) -> Iterator[None]:
    """Die before the step with this number, counted from 0."""
    calls = itertools.count()

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            if next(calls) == at:
                raise Killed
            return real(*args, **options)

        return step

    with monkeypatch.context() as patch:
        for owner, name in steps:
            patch.setattr(owner, name, wrapped(getattr(owner, name)))
        yield


class Case:
    """A store and an archive at some moment, and what a run will make of them."""

    def __init__(self, folder: Path, old: dict[str, Rows], new: dict[str, Rows]) -> None:
        self.store = folder / "mailserver.db"
        self.archive = folder / "archive"
        self.old = old
        self.new = new

    def copy(self, to: Path) -> "Case":
        return self.at(copy_folder(self.store.parent, to))

    def at(self, folder: Path) -> "Case":
        """A copy that is there already."""
        return Case(folder, self.old, self.new)

    def run(self, spark: SparkSession, name: str) -> None:
        compact_into(spark, self.archive, self.store, run=name)

    def assert_whole(self) -> None:
        """Each day is as it was or as it will be, for readers of directories and of records, and for the daemon."""
        for period, new in self.new.items():
            assert archived(self.archive, period) in (self.old.get(period, []), new)
        assert {file.suffix for file in visible_files(self.archive)} <= {".parquet"}
        for period, record in self.records().items():
            files = [self.archive / snapshot_of(record) / Path(file.path).with_suffix("") for file in record.files]
            rows = sorted((row for file in files for row in rows_of_file(file)), key=lambda row: row["hash"])
            wanted = (self.old.get(period, []), self.new[period])
            assert rows in [sorted(one, key=lambda row: row["hash"]) for one in wanted]
        handover = read_archived(self.store)
        for day, seq in ({} if handover is None else handover.days).items():
            period = day_name(day)
            safe = {row["hash"][:34] for row in archived(self.archive, period)}
            assert self.hashes(day, seq) <= safe

    def assert_complete(self) -> None:
        """Every day is as it will be, with nothing left over."""
        assert {period: archived(self.archive, period) for period in self.new} == self.new
        assert sorted(self.records()) == sorted(self.new)
        assert list((self.archive / "_staging").glob("*")) == []
        assert not list(self.archive.rglob("*.tmp"))
        handover = read_archived(self.store)
        assert handover is not None
        assert {day_name(day) for day in handover.days} == set(self.new)
        self.assert_whole()

    def hashes(self, day: int, seq: int) -> set[str]:
        """What the daemon may delete of a day, if it was told that this `seq` is archived."""
        with contextlib.closing(sqlite3.connect(self.store)) as connection:
            rows = connection.execute(
                "SELECT hash FROM envelopes WHERE received / 86400 = ? AND seq <= ?", (day, seq)
            ).fetchall()
        return {"0x" + prefix.hex() for (prefix,) in rows}

    def records(self) -> dict[str, PeriodRecord]:
        return records_in(self.archive)


@pytest.fixture(scope="module")
def cases(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """A first run, and one that adds late rows to a day and another day."""
    first = {FIRST: rows_of(DAY_ONE), SECOND: rows_of(DAY_TWO)}
    fresh = Case(tmp_path_factory.mktemp("killed") / "fresh", {}, first)
    put(fresh.store, DAY_ONE, DAY_TWO)
    later = {FIRST: rows_of(DAY_ONE + LATE), SECOND: rows_of(DAY_TWO)}
    late = Case(fresh.store.parent.with_name("late"), {FIRST: rows_of(DAY_ONE)}, later)
    put(late.store, DAY_ONE)
    late.run(spark, "run-1")
    put(late.store, LATE, DAY_TWO)
    return {"first": fresh, "late": late}


@pytest.fixture(scope="module")
def publishing(spark: SparkSession, cases: dict[str, Case]) -> Publishing:
    """The late rows, staged and verified, and what is to be published."""
    case = cases["late"].copy(cases["late"].store.parent.with_name("publishing"))
    patch = pytest.MonkeyPatch()
    patch.setattr(WritableArchive, "publish", _published)
    with pytest.raises(Published) as caught:
        case.run(spark, "run-2")
    patch.undo()
    return case, *caught.value.args


def _published(_archive: WritableArchive, run: str, *records: Sequence[PeriodRecord]) -> None:
    raise Published(run, *records)


@pytest.mark.parametrize("name", ["first", "late"])
def test_run_killed_before_any_step_is_done_by_the_next(
    spark: SparkSession, cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    begun = cases[name].copy(tmp_path / "begun")
    moments = Moments(begun.store.parent, tmp_path)
    with monkeypatch.context() as patch:
        moments.watch(patch, STEPS)
        begun.run(spark, "run-2")
    begun.assert_complete()

    for case in map(begun.at, moments.folders):
        case.assert_whole()
        case.run(spark, "run-3")
        case.assert_complete()
    assert moments.steps == (6 if name == "first" else 7)


def test_run_killed_at_any_change_of_publishing_is_done_by_the_next(
    spark: SparkSession,
    publishing: Publishing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, run, records, before = publishing
    case = begun.copy(tmp_path / "begun")
    moments = Moments(case.store.parent, tmp_path)
    with monkeypatch.context() as patch:
        moments.watch(patch, CHANGES)
        WritableArchive(open_storage(spark, str(case.archive))).publish(run, records, before)

    outcomes = []
    for case in map(begun.at, moments.folders):
        case.assert_whole()
        outcomes.append(archived(case.archive, FIRST) == case.new[FIRST])
        case.run(spark, "run-3")
        case.assert_complete()
    assert outcomes == sorted(outcomes)  # what is published stays so
    assert {False, True} == set(outcomes)
    assert moments.steps > 15


def test_repair_killed_at_any_change_is_done_by_the_next(
    spark: SparkSession,
    publishing: Publishing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, run, records, before = publishing
    killed = begun.copy(tmp_path / "killed")
    with dying(monkeypatch, [(LocalStorage, "put")], 1), pytest.raises(Killed):  # one day is in its place
        WritableArchive(open_storage(spark, str(killed.archive))).publish(run, records, before)
    moments = Moments(killed.store.parent, tmp_path)
    with monkeypatch.context() as patch:
        moments.watch(patch, CHANGES)
        WritableArchive(open_storage(spark, str(killed.archive))).repair()

    for case in map(begun.at, moments.folders):
        case.assert_whole()
        case.run(spark, "run-3")
        case.assert_complete()
    assert moments.steps > 8


def test_files_replaced_by_a_run_that_was_killed_are_kept_for_their_readers(
    spark: SparkSession,
    publishing: Publishing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, run, records, before = publishing
    for at in range(4):  # the journal, the old files, the record, the next
        case = begun.copy(tmp_path / str(at))
        (old,) = (case.archive / "_snapshots").glob(f"date={FIRST}/run=run-1-*")
        os.utime(old, (0, 0))  # published long ago
        with contextlib.suppress(Killed), dying(monkeypatch, [(LocalStorage, "write"), (LocalStorage, "touch")], at):
            WritableArchive(open_storage(spark, str(case.archive))).publish(run, records, before)

        WritableArchive(open_storage(spark, str(case.archive))).repair()

        replaced = case.records()[FIRST].run == run
        assert old.exists()
        assert replaced == (at > 0)


@pytest.mark.parametrize("step", ["unlink", "rmtree"])
def test_record_of_what_was_published_stays_as_verify_has_written_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store, archive = put(tmp_path / "mailserver.db", [*DAY_ONE, *LATE]), tmp_path / "archive"
    journal = archive / "_staging" / "run-0-0" / "publish.json"

    owner: Any = Path if step == "unlink" else shutil
    real = getattr(owner, step)

    def dying(path: Path, **options: Any) -> None:
        if path == journal:
            raise Killed
        if path == journal.parent:  # the order in which a folder is removed is the file system's
            for file in [file for file in path.rglob("*") if file.is_file() and file != journal]:
                file.unlink()
            raise Killed
        real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, dying)
        with pytest.raises(Killed):
            compact_into(spark, archive, store, run="run-0")
    assert journal.exists() == (step == "unlink")
    assert records_in(archive)[FIRST].days[DAY].stores
    first, *others = visible_files(archive)
    assert others  # the period is in place, as far as its names tell
    first.unlink()
    verify(spark, str(archive), now=DAY_S * DAY)
    assert not records_in(archive)[FIRST].days[DAY].stores

    with LocalStorage(archive).locked():
        WritableArchive(LocalStorage(archive)).repair()

    assert not records_in(archive)[FIRST].days[DAY].stores
    assert not journal.exists()


def test_day_that_another_run_has_written_meanwhile_is_not_published(
    spark: SparkSession, publishing: Publishing, tmp_path: Path
) -> None:
    begun, run, records, before = publishing
    case = begun.copy(tmp_path / "case")
    archive = WritableArchive(open_storage(spark, str(case.archive)))
    archive.publish(run, records, before)

    with pytest.raises(
        ExportCheckFailed, match=f"{FIRST}: run {run} has written it meanwhile, in place of run run-1-0"
    ):
        archive.publish(run, records, before)

    case.assert_whole()


def test_rows_set_aside_by_a_run_that_was_killed_are_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, archive = (
        put(tmp_path / "mailserver.db", [*DAY_ONE, envelope(99, received=DAY * DAY_S)]),
        tmp_path / "archive",
    )
    damage(store)
    with dying(monkeypatch, [(WritableArchive, "publish")], 0), pytest.raises(Killed):
        compact_into(spark, archive, store)

    report = compact_into(spark, archive, store, run="run-2")

    assert (report.rows, report.quarantined) == (4, 1)
    assert records_in(archive)[FIRST].days[DAY].quarantined == 1


def damage(store: Path) -> None:
    connection = sqlite3.connect(store)
    connection.execute("UPDATE envelopes SET raw = x'00' WHERE seq = 5")
    connection.commit()
    connection.close()


@pytest.mark.integration
def test_run_that_gets_sigkill_while_it_writes_is_done_by_the_next(
    spark: SparkSession, cases: dict[str, Case], tmp_path: Path
) -> None:
    case = cases["first"].copy(tmp_path / "case")

    command = [
        sys.executable,
        "-m",
        "tests.spark_export.killed_run",
        str(case.store),
        str(case.archive),
        "run-2",
        "writing",
    ]
    killed = subprocess.run(command, cwd=ROOT, start_new_session=True, capture_output=True, check=False, timeout=120)

    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert list((case.archive / "_staging").iterdir())  # in its middle
    case.assert_whole()
    case.run(spark, "run-3")
    case.assert_complete()
    before = tree(case.archive)
    case.run(spark, "run-4")
    assert tree(case.archive) == before
