"""spark_export.upkeep: what merging and verifying leave beside the stores, and since when they wait."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mailserver.archive.errors import ArchiveBusy, NoArchive
from mailserver.handoff.last_run import MAX_ERROR_CHARS, ArchivedDay, Compaction, CompactionState
from mailserver.handoff.last_upkeep import LastUpkeep, Task, UpkeepRecordError
from mailserver.store.sqlite.handoff import (
    compaction_file,
    last_upkeep,
    read_upkeep,
    upkeep_file,
    write_compaction,
    write_upkeep,
)
from spark_export.errors import ExportError
from spark_export.upkeep import put_off, recorded_upkeep, waits_since

NOW = 1_792_000_000.0
EARLIER = LastUpkeep(5.0, 1.0, 5.0, 0, "", 5.0)


def explain(error: BaseException) -> tuple[int, str]:
    return (130, "interrupted") if isinstance(error, KeyboardInterrupt) else (1, f"it says {error}")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = tmp_path / "mailserver.db"
    store.touch()
    return store


def test_task_that_was_never_looked_for_waits_from_then_on(store: Path) -> None:
    assert waits_since([store], Task.MERGE, NOW) == NOW
    assert waits_since([store], Task.MERGE, NOW + 99) == NOW
    assert waits_since([store], Task.VERIFY, NOW + 99) == NOW + 99
    assert last_upkeep(store, Task.MERGE) == (CompactionState.NEVER, LastUpkeep(NOW))


def test_task_waits_since_it_last_succeeded_for_any_of_the_stores(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    other.touch()
    write_upkeep(store, Task.VERIFY, EARLIER)

    assert waits_since([other, store], Task.VERIFY, NOW) == 5.0


def test_nothing_is_written_beside_a_store_that_is_not_there(tmp_path: Path) -> None:
    assert waits_since([tmp_path / "none.db"], Task.MERGE, NOW) == NOW

    assert list(tmp_path.iterdir()) == []


def test_task_with_nothing_to_do_is_put_off(store: Path) -> None:
    waits_since([store], Task.MERGE, NOW)

    put_off([store], Task.MERGE, NOW + 99)

    assert waits_since([store], Task.MERGE, NOW + 200) == NOW + 99


def test_run_that_succeeds_is_what_the_next_one_waits_for(store: Path) -> None:
    with recorded_upkeep([store], Task.VERIFY, explain):
        state, at_work = last_upkeep(store, Task.VERIFY)

    assert state is CompactionState.RUNNING
    assert at_work is not None
    assert at_work.finished_at is None
    state, done = last_upkeep(store, Task.VERIFY)
    assert state is CompactionState.SUCCEEDED
    assert done is not None
    assert (done.exit_code, done.error, done.started_at) == (0, "", at_work.started_at)
    assert done.waits_since == done.succeeded_at == done.finished_at
    assert last_upkeep(store, Task.MERGE) == (CompactionState.NEVER, None)


@pytest.mark.parametrize(
    ("error", "code", "cause"),
    [(ExportError("bad"), 1, "it says bad"), (KeyboardInterrupt(), 130, "interrupted")],
    ids=["failed", "interrupted"],
)
def test_run_that_fails_says_why_and_waits_on(store: Path, error: BaseException, code: int, cause: str) -> None:
    write_upkeep(store, Task.MERGE, EARLIER)

    with pytest.raises(type(error)), recorded_upkeep([store], Task.MERGE, explain):
        raise error

    state, record = last_upkeep(store, Task.MERGE)
    assert state is CompactionState.FAILED
    assert record is not None
    assert (record.exit_code, record.error) == (code, cause)
    assert (record.waits_since, record.succeeded_at) == (5.0, 5.0)


def test_run_that_was_killed_has_died(store: Path) -> None:
    write_upkeep(store, Task.VERIFY, LastUpkeep(1.0, NOW))

    assert last_upkeep(store, Task.VERIFY)[0] is CompactionState.DIED


def test_second_run_of_a_task_is_refused_and_changes_nothing(store: Path) -> None:
    with recorded_upkeep([store], Task.VERIFY, explain):
        before = read_upkeep(store, Task.VERIFY)

        with (
            pytest.raises(ExportError, match=r"another run of verify \(pid \d+\) is at work"),
            recorded_upkeep([store], Task.VERIFY, explain),
        ):
            pytest.fail("it began")

        assert read_upkeep(store, Task.VERIFY) == before


def test_run_that_is_refused_by_another_tasks_leaves_the_last_one_as_it_was(store: Path) -> None:
    with recorded_upkeep([store], Task.VERIFY, explain):
        pass
    before = read_upkeep(store, Task.VERIFY)

    with pytest.raises(ArchiveBusy), recorded_upkeep([store], Task.VERIFY, explain):
        raise ArchiveBusy("another run (pid 7) is at work on the archive")

    assert read_upkeep(store, Task.VERIFY) == before
    assert last_upkeep(store, Task.VERIFY)[0] is CompactionState.SUCCEEDED


@pytest.mark.parametrize(
    ("archived", "state"),
    [({}, CompactionState.NEVER), ({20_000: ArchivedDay(3, 900)}, CompactionState.FAILED)],
    ids=["nothing was archived", "something was"],
)
def test_run_that_finds_no_archive_has_failed_only_if_something_was_archived(
    store: Path, archived: dict[int, ArchivedDay], state: CompactionState
) -> None:
    write_compaction(store, Compaction(1.0, 2.0, 0, succeeded_at=2.0, archived=archived))

    with pytest.raises(NoArchive), recorded_upkeep([store], Task.VERIFY, explain):
        raise NoArchive("there is no archive at file:///archive")

    assert last_upkeep(store, Task.VERIFY)[0] is state


def test_run_that_finds_no_archive_has_failed_where_nobody_knows_whether_there_was_one(store: Path) -> None:
    compaction_file(store).write_text("no record")

    with pytest.raises(NoArchive), recorded_upkeep([store], Task.VERIFY, explain):
        raise NoArchive("there is no archive at file:///archive")

    assert last_upkeep(store, Task.VERIFY)[0] is CompactionState.FAILED


def test_run_goes_on_where_no_record_can_be_written(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    upkeep_file(store, Task.MERGE).with_name(f"{upkeep_file(store, Task.MERGE).name}.tmp").mkdir()

    with recorded_upkeep([store], Task.MERGE, explain):
        pass

    assert "record of runs not written" in caplog.text


def test_error_is_cut_to_what_a_record_may_hold(store: Path) -> None:
    write_upkeep(store, Task.MERGE, LastUpkeep(1.0, 2.0, 3.0, 1, "x" * 5000))

    record = read_upkeep(store, Task.MERGE)
    assert record is not None
    assert record.error == "x" * MAX_ERROR_CHARS


DAMAGE: list[Callable[[str], str]] = [
    lambda text: text[: len(text) // 2],
    lambda text: text.replace('"version": 1', '"version": 2'),
    lambda text: text.replace('"waits_since": 5.0', '"waits_since": NaN'),
    lambda text: text.replace('"waits_since": 5.0', '"waits_since": -1'),
    lambda text: text.replace('"exit_code": 0', '"exit_code": null'),
    lambda text: text.replace('"error": ""', '"error": 7'),
    lambda text: text.replace('"started_at": 1.0', '"started_at": true'),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_record_is_refused_and_begun_anew_by_the_next_run(store: Path, damage: Callable[[str], str]) -> None:
    write_upkeep(store, Task.VERIFY, EARLIER)
    file = upkeep_file(store, Task.VERIFY)
    file.write_text(damage(file.read_text()))

    with pytest.raises(UpkeepRecordError, match="is no record of verify"):
        read_upkeep(store, Task.VERIFY)
    assert waits_since([store], Task.VERIFY, NOW) == NOW
    with recorded_upkeep([store], Task.VERIFY, explain):
        pass

    assert last_upkeep(store, Task.VERIFY)[0] is CompactionState.SUCCEEDED
