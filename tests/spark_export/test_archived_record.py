"""What a run tells a store's daemon that it may delete."""

from pathlib import Path

import pytest

from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.manifest import DayRecord, Lost, PeriodRecord
from mailserver.handoff.archived import Archived
from mailserver.handoff.last_run import ArchivedDay, Compaction
from spark_export.archived_record import check_archive_is_there, hand_over
from spark_export.errors import ArchiveGone, ExportError
from spark_export.incidents import Incidents
from spark_export.places import read_archived, write_archived, write_compaction
from spark_export.publishing import WritableArchive
from spark_export.storage import LocalStorage
from spark_export.store import StoreDay, StoreSnapshot

DAY = 20_000  # 2024-10-04


def record(last_seq: int) -> dict[str, PeriodRecord]:
    """An archive that has read this store's day up to a row."""
    day = DayRecord(Fingerprint(), 0, 0, {"ours": last_seq}, 0)
    return {"2024-10-04": PeriodRecord("2024-10-04", "run", {DAY: day}, ())}


@pytest.mark.parametrize(("known", "archived"), [(9, {DAY: 9}), (10, {DAY: 10}), (11, {})])
def test_day_of_which_the_archive_knows_later_rows_than_the_store_is_not_handed_over(
    tmp_path: Path, known: int, archived: dict[int, int]
) -> None:
    store = StoreSnapshot(
        tmp_path / "mailserver.db", "ours", (StoreDay(DAY, 5, 500, 6, 10), StoreDay(DAY + 1, 1, 1, 11, 11)), 1, 11
    )

    hand_over([store], record(known), "file:///archive", 1.0)

    handover = read_archived(store.place)
    assert handover is not None
    assert handover.days == archived


def test_store_beside_which_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    store = StoreSnapshot(tmp_path / "gone" / "mailserver.db", "ours", (), 0, 0)

    with pytest.raises(ExportError, match="cannot write beside"):
        hand_over([store], {}, "file:///archive", 1.0)


NOW, AHEAD = 1_000_000, 9_000_000


def store_of(tmp_path: Path, verified_at: int) -> StoreSnapshot:
    """A store beside which it says that a run found its day in the archive at some moment."""
    store = StoreSnapshot(tmp_path / "mailserver.db", "ours", (StoreDay(DAY, 5, 500, 6, 10),), 1, 10)
    write_archived(store.place, Archived("ours", f"file://{tmp_path}/archive", verified_at, {DAY: 10}))
    last = Compaction(1.0, 2.0, 0, succeeded_at=2.0, archived={DAY: ArchivedDay(5, 500)})
    write_compaction(store.place, last)
    return store


def check(store: StoreSnapshot, archive: Path, now: int) -> None:
    check_archive_is_there(WritableArchive(LocalStorage(archive)), [store], now)


def acknowledge(archive: Path, now: int) -> None:
    Incidents(LocalStorage(archive), now).all_is_lost(now)


def test_loss_is_acknowledged_though_the_clock_was_ahead_when_the_archive_was_seen_last(tmp_path: Path) -> None:
    store, archive = store_of(tmp_path, AHEAD), tmp_path / "archive"
    acknowledge(archive, NOW - 1)  # of an archive before this one

    with pytest.raises(ArchiveGone):
        check(store, archive, NOW)
    acknowledge(archive, NOW + 1)

    check(store, archive, NOW + 2)
    with pytest.raises(ArchiveGone):  # of one that was seen since, it says nothing
        check(store_of(tmp_path, NOW + 3), archive, NOW + 4)


def test_loss_that_was_acknowledged_by_a_clock_that_was_ahead_is_not_so_for_ever(tmp_path: Path) -> None:
    store, archive = store_of(tmp_path, NOW - 5), tmp_path / "archive"
    acknowledge(archive, AHEAD)

    with pytest.raises(ArchiveGone):
        check(store, archive, NOW)
    acknowledge(archive, NOW + 1)

    check(store, archive, NOW + 2)


def test_rows_that_were_acknowledged_by_a_clock_that_was_ahead_are_missed_again(tmp_path: Path) -> None:
    incidents = Incidents(LocalStorage(tmp_path), NOW)
    incidents.add("2024-10-04", "run-1", [DAY], [], NOW)
    incidents.take_in(incidents.all[0])
    incidents.acknowledge({DAY: Lost(5, 500, 7)}, 0, AHEAD)

    assert incidents.acknowledged_rows(DAY, NOW - 1) == 0
    assert not incidents.is_acknowledged("2024-10-04", NOW - 1)

    later = Incidents(LocalStorage(tmp_path), AHEAD)
    assert later.acknowledged_rows(DAY, NOW - 1) == 5
    assert later.is_acknowledged("2024-10-04", NOW - 1)
    assert later.acknowledged_rows(DAY, AHEAD + 1) == 0
