"""spark_export.recording: what a run leaves beside its stores, whatever its end."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mailserver.archive.days import month_of
from mailserver.archive.errors import ArchiveBusy
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.manifest import DayRecord, PeriodRecord
from mailserver.handoff.last_run import MAX_ARCHIVED_DAYS, ArchivedDay, ArchiveFigures, Compaction, CompactionState
from mailserver.store.sqlite.handoff import (
    compaction_file,
    compaction_lock,
    last_run,
    read_compaction,
    write_compaction,
)
from spark_export.errors import ExportError
from spark_export.recording import recorded
from spark_export.run_report import archived_days
from tests.spark_export.samples import DAY

EARLIER = Compaction(
    1.0, 2.0, 0, rows=5, succeeded_at=2.0, archived={DAY: ArchivedDay(5, 50)}, archived_in="file:/other", damage="lost"
)
REPORT = {"archive": "file:/archive", "rows": 7, "bytes": 4096, "days": [{"period": "2024-10-04"}], "miscounted": []}
FIGURES = ArchiveFigures(quarantined_rows=3, miscounted_rows=1)
ARCHIVED = {DAY: ArchivedDay(12, 120)}


def explain(error: BaseException) -> tuple[int, str]:
    return (130, "interrupted") if isinstance(error, KeyboardInterrupt) else (1, f"it says {error}")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = tmp_path / "mailserver.db"
    store.touch()
    return store


def record_of(store: Path) -> Compaction:
    record = read_compaction(store)
    assert record is not None
    return record


def block(store: Path) -> None:
    """Have no record be written: the temporary file cannot be made."""
    compaction_file(store).with_name(f"{compaction_file(store).name}.tmp").mkdir()


def test_run_at_work_has_begun_and_keeps_what_is_known(store: Path) -> None:
    write_compaction(store, EARLIER)

    with recorded([store], explain) as recording:
        state, record = last_run(store)
        assert state is CompactionState.RUNNING
        assert record == Compaction(
            record.started_at if record else 0,
            succeeded_at=2.0,
            archived=EARLIER.archived,
            archived_in=EARLIER.archived_in,
            damage="lost",
        )
        recording.succeeded(REPORT, ARCHIVED, FIGURES)


def test_run_that_succeeds_says_what_it_has_done(store: Path) -> None:
    with recorded([store], explain) as recording:
        recording.succeeded(REPORT, ARCHIVED, FIGURES)

    state, record = last_run(store)
    assert state is CompactionState.SUCCEEDED
    assert record is not None
    assert record == Compaction(
        record.started_at,
        record.finished_at,
        0,
        rows=7,
        bytes=4096,
        days=1,
        seconds=record.seconds,
        report=REPORT,
        succeeded_at=record.finished_at,
        archived=ARCHIVED,
        archived_months={month_of(DAY): 12},
        archived_in="file:/archive",
        archive=FIGURES,
    )


def test_run_that_finds_the_archive_damaged_says_so_and_is_not_late(store: Path) -> None:
    with recorded([store], explain) as recording:
        recording.succeeded(REPORT, ARCHIVED, FIGURES, damage="a file is missing")

    state, record = last_run(store)
    assert state is CompactionState.DAMAGED
    assert record is not None
    assert (record.exit_code, record.error, record.succeeded_at) == (3, "a file is missing", record.finished_at)
    assert (record.rows, record.archived, record.damage) == (7, ARCHIVED, "a file is missing")


@pytest.mark.parametrize(
    ("error", "exit_code", "cause"),
    [(ExportError("no"), 1, "it says no"), (KeyboardInterrupt(), 130, "interrupted")],
)
def test_run_that_fails_says_why_and_keeps_the_last_success(
    store: Path, error: BaseException, exit_code: int, cause: str
) -> None:
    write_compaction(store, EARLIER)

    with pytest.raises(type(error)), recorded([store], explain):
        raise error

    state, record = last_run(store)
    assert state is CompactionState.FAILED
    assert record is not None
    assert (record.exit_code, record.error, record.rows) == (exit_code, cause, 0)
    assert (record.succeeded_at, record.archived) == (2.0, EARLIER.archived)
    assert (record.archived_in, record.damage) == (EARLIER.archived_in, EARLIER.damage)


@pytest.mark.parametrize("has_run", [False, True])
def test_run_that_the_archive_refuses_leaves_what_the_last_one_said(store: Path, *, has_run: bool) -> None:
    if has_run:
        write_compaction(store, EARLIER)

    with pytest.raises(ArchiveBusy), recorded([store], explain):
        raise ArchiveBusy("another run (pid 7) is at work on the archive")

    record = record_of(store)
    if has_run:
        assert record == EARLIER
    else:
        assert (record.exit_code, record.error) == (1, "it says another run (pid 7) is at work on the archive")


def test_run_that_is_refused_changes_no_record(tmp_path: Path, store: Path) -> None:
    other = tmp_path / "other.db"
    other.touch()
    for one in (store, other):
        write_compaction(one, EARLIER)

    with (
        compaction_lock(store),
        pytest.raises(ExportError, match="another compaction"),
        recorded([other, store], explain),
    ):
        pass

    assert record_of(store) == record_of(other) == EARLIER


def test_each_store_has_a_record(tmp_path: Path, store: Path) -> None:
    other = tmp_path / "other.db"
    other.touch()
    write_compaction(other, EARLIER)

    with pytest.raises(ExportError), recorded([store, other], explain):
        raise ExportError("no")

    assert record_of(store).error == record_of(other).error == "it says no"
    assert (record_of(store).succeeded_at, record_of(other).succeeded_at) == (None, 2.0)


def test_store_that_is_not_there_has_none(tmp_path: Path) -> None:
    with pytest.raises(ExportError), recorded([tmp_path / "none.db"], explain):
        raise ExportError("there is none")

    assert list(tmp_path.iterdir()) == []


def test_store_named_twice_is_refused(store: Path) -> None:
    with pytest.raises(ExportError, match="is named twice"), recorded([store, store], explain):
        pass

    assert read_compaction(store) is None


def test_good_run_whose_record_cannot_be_written_does_not_end_in_silence(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    block(store)

    with (
        pytest.raises(
            ExportError, match=r"^the archive is up to date, but no record can be written beside .*\.db: Is a"
        ),
        recorded([store], explain) as recording,
    ):
        recording.succeeded(REPORT, ARCHIVED, FIGURES)

    assert caplog.text.count("record of runs not written") == 2  # at its start, and of its failure


def test_run_that_fails_where_nothing_can_be_written_fails_of_its_own_cause(store: Path) -> None:
    block(store)

    with pytest.raises(ExportError, match=r"^no$"), recorded([store], explain):
        raise ExportError("no")


def test_damaged_record_is_begun_anew(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    compaction_file(store).write_text("{")

    with recorded([store], explain) as recording:
        recording.succeeded(REPORT, ARCHIVED, FIGURES)

    assert record_of(store).rows == 7
    assert "unreadable record of runs replaced" in caplog.text


def test_lists_of_the_report_are_cut(store: Path) -> None:
    many: Mapping[str, Any] = {**REPORT, "days": [{"n": n} for n in range(500)], "miscounted": list(range(500))}

    with recorded([store], explain) as recording:
        recording.succeeded(many, ARCHIVED, FIGURES)

    record = record_of(store)
    assert record.report["days"] == [{"n": n} for n in range(500 - MAX_ARCHIVED_DAYS, 500)]
    assert len(record.report["miscounted"]) == MAX_ARCHIVED_DAYS


def test_number_of_days_is_that_of_the_whole_report(store: Path) -> None:
    with recorded([store], explain) as recording:
        recording.succeeded({**REPORT, "days": [{}] * 500}, ARCHIVED, FIGURES)

    assert record_of(store).days == 500


def test_clock_stepped_back_makes_no_negative_time(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded([store], explain) as recording:
        monkeypatch.setattr("spark_export.recording._now", lambda: 5.0)
        recording.succeeded(REPORT, ARCHIVED, FIGURES)

    assert record_of(store).seconds == 0
    assert record_of(store).finished_at == 5.0


def test_day_in_two_periods_is_counted_in_both() -> None:
    def record(period: str, rows: int) -> PeriodRecord:
        return PeriodRecord(period, "run", {DAY: DayRecord(Fingerprint(rows, 10 * rows, 0), 0, 0, {}, 0)}, ())

    merged, late = record("2024-10", 5), record("2024-10-04", 2)

    assert archived_days({"2024-10": merged, "2024-10-04": late}) == {DAY: ArchivedDay(7, 70)}
