"""What pruning is told of an archive in a folder."""

import os
from pathlib import Path

import pytest

from mailserver.archive import files as files_module
from mailserver.archive import holdings as holdings_module
from mailserver.archive.access import folder as folder_module
from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.errors import ArchiveBusy, ArchiveFault
from mailserver.archive.files import LOCK_FILE
from mailserver.archive.holdings import check_day
from mailserver.archive.paths import record_of
from mailserver.archive.set_aside import set_aside_of
from mailserver.files import open_descriptor, try_lock
from tests.archive.archives import make_archive

STORE, OTHER = "ab" * 16, "cd" * 16
DAY = 20_777
NAME, MONTH = "2026-11-20", "2026-11"


@pytest.mark.parametrize("period", [NAME, MONTH])
def test_day_is_held_up_to_its_row(tmp_path: Path, period: str) -> None:
    make_archive(tmp_path, STORE, DAY, seq=70, period=period)

    check_day(FolderFiles(tmp_path), STORE, DAY, 70)

    with pytest.raises(ArchiveFault, match=rf"no record in .* says that it holds {NAME} of this store up to row 71"):
        check_day(FolderFiles(tmp_path), STORE, DAY, 71)
    with pytest.raises(ArchiveFault, match="no record"):
        check_day(FolderFiles(tmp_path), OTHER, DAY, 70)
    with pytest.raises(ArchiveFault, match="no record"):
        check_day(FolderFiles(tmp_path), STORE, DAY + 1, 70)


@pytest.mark.parametrize("period", [NAME, MONTH])
def test_every_file_of_both_periods_is_looked_at(tmp_path: Path, period: str) -> None:
    files = {name: make_archive(tmp_path, STORE, DAY, seq=70, period=name, run=name) for name in (NAME, MONTH)}
    files[period].write_bytes(b"PAR")

    with pytest.raises(ArchiveFault, match=rf"{files[period]} has 3 bytes instead of 5"):
        check_day(FolderFiles(tmp_path), STORE, DAY, 70)

    files[period].unlink()

    with pytest.raises(ArchiveFault, match=rf"{files[period]} is missing"):
        check_day(FolderFiles(tmp_path), STORE, DAY, 70)


def test_day_that_its_month_has_replaced_need_not_be_there(tmp_path: Path) -> None:
    make_archive(tmp_path, STORE, DAY, seq=70, run="run-1").unlink()
    make_archive(tmp_path, STORE, DAY, seq=60, period=MONTH, run="run-2", replaces=((NAME, "run-1"),))

    check_day(FolderFiles(tmp_path), STORE, DAY, 60)

    with pytest.raises(ArchiveFault, match="no record"):
        check_day(FolderFiles(tmp_path), STORE, DAY, 70)


def test_month_without_the_day_says_nothing_of_it(tmp_path: Path) -> None:
    make_archive(tmp_path, STORE, DAY, seq=70)
    make_archive(tmp_path, STORE, DAY + 1, seq=80, period=MONTH).unlink()

    check_day(FolderFiles(tmp_path), STORE, DAY, 70)


def test_every_row_that_was_set_aside_is_looked_for(tmp_path: Path) -> None:
    make_archive(tmp_path, STORE, DAY, seq=70, quarantined=2)
    make_archive(tmp_path, OTHER, DAY, seq=60, period=MONTH, run="run-2", quarantined=1)
    make_archive(tmp_path, STORE, DAY + 1, seq=90)
    folder = tmp_path / set_aside_of(DAY)

    for found, lines in enumerate(("", "a row\n", "a row\n\nanother, damaged")):
        if lines:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{STORE}.jsonl").write_text(lines)
        with pytest.raises(ArchiveFault, match=f"{folder} has {found} of the 3 rows that were set aside"):
            check_day(FolderFiles(tmp_path), STORE, DAY, 70)
    check_day(FolderFiles(tmp_path), STORE, DAY + 1, 90)

    (folder / f"{STORE}.jsonl.tmp").write_text("no row\n")
    (folder / f"{OTHER}.jsonl").write_text("")
    with pytest.raises(ArchiveFault, match="has 2 of the 3 rows"):
        check_day(FolderFiles(tmp_path), STORE, DAY, 70)
    (folder / f"{OTHER}.jsonl").write_text("the third\nand one of a run that was killed\n")
    check_day(FolderFiles(tmp_path), STORE, DAY, 70)


def test_rows_that_were_set_aside_and_cannot_be_read_are_not_there(tmp_path: Path) -> None:
    make_archive(tmp_path, STORE, DAY, seq=70, quarantined=1)
    (tmp_path / set_aside_of(DAY) / f"{STORE}.jsonl").mkdir(parents=True)

    with pytest.raises(ArchiveFault, match=r"cannot read .*\.jsonl: Is a directory"):
        check_day(FolderFiles(tmp_path), STORE, DAY, 70)


@pytest.mark.parametrize("period", [NAME, MONTH])
@pytest.mark.parametrize("few_periods", [0, 8])
def test_other_days_that_have_rows_of_a_day_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, period: str, few_periods: int
) -> None:
    monkeypatch.setattr(holdings_module, "FEW_PERIODS", few_periods)
    late = make_archive(tmp_path, STORE, DAY + 31, seq=90, elsewhere=(DAY, DAY + 32))
    make_archive(tmp_path, OTHER, DAY + 32, seq=5)
    with pytest.raises(ArchiveFault, match=f"no record in .* says that it holds {NAME}, which has rows of 2026-12-21"):
        check_day(FolderFiles(tmp_path), STORE, DAY + 31, 90)

    file = make_archive(tmp_path, OTHER, DAY, seq=70, period=period)
    check_day(FolderFiles(tmp_path), STORE, DAY + 31, 90)
    file.write_bytes(b"PAR")
    with pytest.raises(ArchiveFault, match=f"{file} has 3 bytes instead of 5; it has rows of 2026-12-21"):
        check_day(FolderFiles(tmp_path), STORE, DAY + 31, 90)
    check_day(FolderFiles(tmp_path), OTHER, DAY + 32, 5)
    file.unlink()
    with pytest.raises(ArchiveFault, match=f"{file} is missing"):
        check_day(FolderFiles(tmp_path), STORE, DAY + 31, 90)
    late.unlink()
    with pytest.raises(ArchiveFault, match=f"{late} is missing"):
        check_day(FolderFiles(tmp_path), STORE, DAY + 31, 90)


def test_day_elsewhere_that_its_month_has_replaced_is_looked_at_in_the_month(tmp_path: Path) -> None:
    make_archive(tmp_path, STORE, DAY + 31, seq=90, elsewhere=(DAY,))
    make_archive(tmp_path, OTHER, DAY, seq=60, run="run-1").unlink()
    file = make_archive(tmp_path, OTHER, DAY, seq=60, period=MONTH, run="run-2", replaces=((NAME, "run-1"),))

    check_day(FolderFiles(tmp_path), STORE, DAY + 31, 90)

    file.unlink()
    with pytest.raises(ArchiveFault, match=f"{file} is missing"):
        check_day(FolderFiles(tmp_path), STORE, DAY + 31, 90)


def test_days_elsewhere_are_those_of_when_the_store_was_last_read(tmp_path: Path) -> None:
    make_archive(tmp_path, STORE, DAY, seq=70, period=MONTH, elsewhere=(DAY + 40,))
    make_archive(tmp_path, STORE, DAY, seq=80, run="run-2")

    check_day(FolderFiles(tmp_path), STORE, DAY, 80)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1}', "\xff"])
@pytest.mark.parametrize("period", [NAME, MONTH])
def test_record_that_cannot_be_read_holds_nothing(tmp_path: Path, period: str, text: str) -> None:
    make_archive(tmp_path, STORE, DAY, seq=70)
    (tmp_path / record_of(period)).write_bytes(text.encode("latin-1"))

    with pytest.raises(ArchiveFault, match=rf"{period}\.json"):
        check_day(FolderFiles(tmp_path), STORE, DAY, 70)


def test_record_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_archive(tmp_path, STORE, DAY, seq=70)
    monkeypatch.setattr(folder_module, "MAX_RECORD_BYTES", 100)
    monkeypatch.setattr(files_module, "MAX_RECORD_BYTES", 100)

    with pytest.raises(ArchiveFault, match=rf"{NAME}\.json is not a record: it has more than 100 bytes"):
        check_day(FolderFiles(tmp_path), STORE, DAY, 70)


def test_archive_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(ArchiveFault, match="is not there: is its disk mounted"):
        check_day(FolderFiles(tmp_path / "none"), STORE, DAY, 70)


def test_archive_that_a_run_changes_is_busy(tmp_path: Path) -> None:
    make_archive(tmp_path, STORE, DAY, seq=70)

    with open_descriptor(tmp_path / LOCK_FILE, os.O_RDWR | os.O_CREAT) as descriptor:
        assert try_lock(descriptor)
        with pytest.raises(ArchiveBusy, match="a run is at work on the archive"):
            check_day(FolderFiles(tmp_path), STORE, DAY, 70)

    check_day(FolderFiles(tmp_path), STORE, DAY, 70)
