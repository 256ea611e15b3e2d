"""Archives as the compaction leaves them, without Spark: records, and files of the right size."""

from datetime import date, timedelta
from pathlib import Path

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.days import day_name
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.manifest import DayRecord, FileRecord, PeriodRecord, encode_record
from mailserver.archive.paths import RECORDS, directory_of, record_of


def make_archive(
    archive: Path,
    store_id: str,
    day: int,
    *,
    seq: int,
    period: str | None = None,
    run: str = "run-1",
    replaces: tuple[tuple[str, str], ...] = (),
    quarantined: int = 0,
    elsewhere: tuple[int, ...] = (),
) -> Path:
    """Have an archive hold a store's rows of a day up to `seq`, in one file of 5 bytes, which is returned.

    Args:
        period: the day by default, or a month.
        quarantined: how many rows of the day its record says were set aside; they are not there.
        elsewhere: the other days that it says have rows of the store's.
    """
    period = day_name(day) if period is None else period
    file = archive / directory_of(period) / "topic_prefix=9" / f"part-{run}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"PAR1.")
    said = DayRecord(Fingerprint(3, 5, 0), 0, 0, {store_id: seq}, quarantined, elsewhere={store_id: elsewhere})
    record = PeriodRecord(period, run, {day: said}, (FileRecord(f"topic_prefix=9/{file.name}", 5, 3),), replaces)
    (archive / RECORDS).mkdir(exist_ok=True)
    (archive / record_of(period)).write_text(encode_record(record))
    return file


class NeverAtRest(FolderFiles):
    """An archive in which a record appears, and another goes, at each look at it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.looks = 0

    def names(self, directory: str) -> list[str]:
        """See ArchiveFiles."""
        self.looks += 1
        for record in (self.root / directory).iterdir():
            record.unlink()
        name = f"{date(2000, 1, 1) + timedelta(self.looks)}"
        (self.root / directory / f"{name}.json").write_text(encode_record(PeriodRecord(name, "run", {}, ())))
        return super().names(directory)
