"""What a run tells a store's daemon that it may delete."""

from pathlib import Path

import pytest

from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.manifest import DayRecord, PeriodRecord
from spark_export.archived_record import hand_over
from spark_export.errors import ExportError
from spark_export.places import read_archived
from spark_export.store import Store, StoreDay

DAY = 20_000  # 2024-10-04


def record(last_seq: int) -> dict[str, PeriodRecord]:
    """An archive that has read this store's day up to a row."""
    day = DayRecord(Fingerprint(), 0, 0, {"ours": last_seq}, 0)
    return {"2024-10-04": PeriodRecord("2024-10-04", "run", {DAY: day}, ())}


@pytest.mark.parametrize(("known", "archived"), [(9, {DAY: 9}), (10, {DAY: 10}), (11, {})])
def test_day_of_which_the_archive_knows_later_rows_than_the_store_is_not_handed_over(
    tmp_path: Path, known: int, archived: dict[int, int]
) -> None:
    store = Store(
        tmp_path / "mailserver.db", "ours", (StoreDay(DAY, 5, 500, 6, 10), StoreDay(DAY + 1, 1, 1, 11, 11)), 1, 11
    )

    hand_over([store], record(known), "file:///archive", 1.0)

    handover = read_archived(store.place)
    assert handover is not None
    assert handover.days == archived


def test_store_beside_which_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "gone" / "mailserver.db", "ours", (), 0, 0)

    with pytest.raises(ExportError, match="cannot write beside"):
        hand_over([store], {}, "file:///archive", 1.0)
