from pathlib import Path

import pytest

from mailserver.archive.archive import Archive
from mailserver.archive.files import LocalFiles
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.layout import Layout, PartitionBy
from mailserver.archive.manifest import DayRecord, FileRecord, PeriodRecord, encode_record
from mailserver.archive.paths import record_of, snapshot_of
from mailserver.archive.selection import SelectedPart, may_hold, partitions_of, select_parts

PREFIXES = Layout(PartitionBy.TOPIC_PREFIX, 1)
NEWS, SPORT = "0x9acb0442", "0xf0c5341e"
FILES = tuple(FileRecord(f"topic_prefix={digit}/part-{number}.parquet", 5, 3) for digit in "9f" for number in (1, 2))


def period(name: str, *created: tuple[int, int], rows: int = 3, snapshot: bool = False) -> PeriodRecord:
    days = {number: DayRecord(Fingerprint(rows, 9, 7), *span, {}, 0) for number, span in enumerate(created)}
    return PeriodRecord(name, "run-1", days, FILES, snapshot=snapshot)


def archive_of(folder: Path, *records: PeriodRecord) -> Archive:
    for record in records:
        (folder / record_of(record.period)).parent.mkdir(exist_ok=True)
        (folder / record_of(record.period)).write_text(encode_record(record))
    return Archive(LocalFiles(folder))


@pytest.mark.parametrize(
    ("start", "end", "held"),
    [
        (None, None, True),
        (None, 10, False),
        (None, 11, True),
        (20, None, True),
        (21, None, True),  # the other day, which came late, may hold it
        (41, None, False),
        (21, 30, False),
        (21, 31, True),
        (15, 15, True),
    ],
)
def test_period_is_chosen_by_what_each_of_its_days_was_created_in(
    start: int | None, end: int | None, *, held: bool
) -> None:
    assert may_hold(period("2026-11", (10, 20), (30, 40)), start, end) is held


def test_day_without_rows_holds_nothing() -> None:
    assert not may_hold(period("2026-11-20", (0, 0), rows=0), None, None)


@pytest.mark.parametrize(
    ("topics", "names"),
    [
        (None, ["topic_prefix=9", "topic_prefix=f"]),
        ([NEWS], ["topic_prefix=9"]),
        ([SPORT, NEWS], ["topic_prefix=9", "topic_prefix=f"]),
        (["0x00000000"], []),
        ([], []),
    ],
)
def test_partitions_are_those_of_the_topics(topics: list[str] | None, names: list[str]) -> None:
    assert partitions_of(period("2026-11-20", (10, 20)), PREFIXES, topics) == names


def test_second_names_are_taken_where_they_are(tmp_path: Path) -> None:
    there, copied, plain = (
        period("2026-11-20", (10, 20), snapshot=True),
        period("2026-11-21", (10, 20), snapshot=True),
        period("2026-11-22", (10, 20)),
    )
    archive = archive_of(tmp_path, there, copied, plain, period("2026-11-23", (50, 60)))
    (tmp_path / snapshot_of(there) / "topic_prefix=9").mkdir(parents=True)

    assert select_parts(archive, PREFIXES, start=None, end=50, topics=[NEWS]) == [
        SelectedPart("_snapshots", ("_snapshots/date=2026-11-20/run=run-1/topic_prefix=9",)),
        SelectedPart("", ("date=2026-11-21/topic_prefix=9", "date=2026-11-22/topic_prefix=9")),
    ]
    assert select_parts(archive, PREFIXES, start=70, end=None, topics=None) == []
